"""The largest and smallest meaningful value of every numeric key, each with its reason.

The types of the specification define the kind of a number, and that a share is at most 1; this table limits all others,
so that a typing mistake is refused instead of run. A bound is far beyond what anybody has trained: it must never refuse
a real run. A key without a row here would be bounded only by 64 bits; ``tests/spec/test_bounds.py`` requires the row.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass

LONGEST_NAME = 200
"""Bytes: Linux allows 255 for a folder (limits.h, NAME_MAX), and a record is first written under a longer name."""

LARGEST_SCALE_POWER = 40  # The largest loss scale, as a power of two, as DeepSpeed's configuration gives it.


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest and smallest value of a key, and the reason, which follows a colon in messages."""

    most: float | None  # The largest value; None if only 64 bits limit it.
    why: str  # The reason for the bound, or for having none.
    least: float | None = None  # The smallest value other than 0, if it differs from the type's.


_ROWS: list[JsonObject] = json.loads(Path(__file__).with_suffix(".json").read_text())
"""Rows of keys separated by spaces, with their bound, its reason, and an optional note."""

BOUNDS: Mapping[str, Bound] = {
    key: Bound(row.get("most"), row["why"], row.get("least")) for row in _ROWS for key in row["keys"].split()
}
_NAMES = frozenset({"run.name", "model.name", "parallel.name", "hardware.name"})
"""Keys whose text becomes the name of a folder, or of several if it contains slashes."""


def wrong(path: str, value: object) -> tuple[str, list[str]] | None:
    """Return the size limit that a value of the right type breaks, with overrides that respect it; None if it fits."""
    if isinstance(value, str):
        too_long = path in _NAMES and any(
            len(part) > LONGEST_NAME for part in value.encode(errors="surrogateescape").split(b"/")
        )
        rule = f"must be at most {LONGEST_NAME} bytes, since it names a folder"
        return (f"{rule}, and file systems allow 255 bytes for a name", []) if too_long else None
    if isinstance(value, bool) or not isinstance(value, int | float) or (bound := BOUNDS.get(path)) is None:
        return None
    if bound.most is not None and value > bound.most:
        counts = isinstance(bound.most, int) and bound.most < 10**10
        return f"must be at most {bound.most:{',' if counts else 'g'}}: {bound.why}", [f"{path}={bound.most}"]
    if bound.least is not None and 0 < value < bound.least:
        rule = f"must be 0 or at least {bound.least:g}: fp32 does not resolve what a smaller value leaves"
        return rule, [f"{path}={bound.least}"]
    return None
