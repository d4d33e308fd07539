"""Slices of a split as ``datasets`` writes them: ``train[:5%]``, ``train[1000:2000]``, ``train[-10%:]``."""

import re

_SLICE = re.compile(r"(?P<name>[\w.-]+)\[(?:(-?\d{1,15})(%?))?:(?:(-?\d{1,15})(%?))?\]\Z")


def name_of(split: str) -> str:
    """The split without its slice."""
    found = _SLICE.match(split)
    return found["name"] if found else split


def bounds(split: str, rows: int) -> tuple[int, int] | None:
    """The first row and the one behind the last of so many; None without a slice.

    Shares are rounded to the nearest row, as ``datasets`` does (``arrow_reader.py``, ``_pct_to_abs_closest``).
    """
    found = _SLICE.match(split)
    if found is None:
        return None
    places = []
    for value, percent, missing in ((found[2], found[3], 0), (found[4], found[5], rows)):
        place = missing if value is None else round(int(value) * rows / 100) if percent else int(value)
        places.append(min(rows, max(0, place + rows if place < 0 else place)))
    return places[0], max(places)
