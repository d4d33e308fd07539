"""``--sort COLUMN``: rows of ``status`` in the order of a column, the best first; rows without a value come last."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.spec.parse import closest

_HEADINGS = {
    "run": "id",
    "job": "job_id",
    "tokens/s": "tokens_per_second",
    "left": "seconds_left",
    "saved": "checkpoint_step",
    "predicted": "predicted_bytes",
    "measured": "measured_bytes",
}
"""Columns as the tables on the terminal head them, by their keys in ``--json``; the others are headed by the key."""

_BEST_IS_MOST = ("tokens_per_second", "step")


class Row(Protocol):
    """A row of ``status --json``."""

    def as_dict(self) -> dict[str, Any]:
        """The row as data."""
        ...


def add_sort(parser: argparse.ArgumentParser) -> None:
    """``--sort``."""
    words = "order by a column or, in a sweep, a swept key: the lowest loss, the highest tokens/s first; -COLUMN: last"
    parser.add_argument("--sort", metavar="COLUMN", help=words)


def in_order[R: Row](rows: Sequence[R], column: str | None) -> list[R]:
    """The rows by a column, or as they are where none is named.

    Raises:
        ConfigErrors: There is no such column.
    """
    if column is None or not rows:
        return list(rows)
    name, backwards = column.removeprefix("-"), column.startswith("-")
    tables = {id(row): _columns(row.as_dict()) for row in rows}
    known = list(dict.fromkeys(key for table in tables.values() for key in table))
    key = _HEADINGS.get(name, name)
    if key not in known:
        near = closest(name, [*known, *_HEADINGS]) or known
        raise ConfigErrors([ConfigError("--sort", column, "no such column", [f"--sort {word}" for word in near])])
    ranked = [row for row in rows if tables[id(row)].get(key) is not None]
    most_first = (key in _BEST_IS_MOST) != backwards
    ranked.sort(key=lambda row: _rank(tables[id(row)][key]), reverse=most_first)
    return [*ranked, *(row for row in rows if tables[id(row)].get(key) is None)]


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row that have an order, and a point's own overrides by their keys."""
    plain = {key: value for key, value in row.items() if not isinstance(value, list | dict | tuple)}
    typed = (word.partition("=") for word in row.get("overrides", ()))
    return {**plain, **{key: value for key, _, value in typed}}


def _rank(value: object) -> tuple[int, float, str]:
    """Numbers by size, also those that an override spells, before texts by the alphabet."""
    try:
        return 0, float(str(value)), ""
    except ValueError:
        return 1, 0.0, str(value)
