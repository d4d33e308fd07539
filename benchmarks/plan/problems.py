"""The problems of the measured files: everything that a user fixes, and the layouts that were run of it.

Beside the runs that have a speed there are those that are stated to have run out of memory, as far as their columns say
the whole run. Sources whose rows are uncertain, of models with experts or of fine-tuning are apart, as in
``benchmarks.speed``; so are nanotron's runs on 512 GPUs, which its notes do not explain. Runs of its broken pipeline
have no speed and are left out; those that crowd their card are a planner's business and are not.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed.families import NANOTRON
from benchmarks.speed.row import Row
from benchmarks.speed.scoring import LAYOUTS
from launcher.estimate.speed.estimate import unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The rows of one problem.

    Attributes:
        family: The source, with the reason why its rows are apart, if they are.
        counted: True if it counts in ``all``.
        name: The problem's name.
        rows: Its runs: measured ones, and those that ran out of memory.
    """

    family: str
    counted: bool
    name: str
    rows: tuple[Row, ...]

    @property
    def winner(self) -> Row:
        """The fastest run."""
        return max(self.rows, key=lambda row: row.measured)


def problems(folder: Path, only: str | None = None) -> list[Problem]:
    """Every problem with a speed for at least three layouts.

    Args:
        folder: The files.
        only: One file's name.
    """
    together = defaultdict[tuple[str, bool, str], list[Row]](list)
    for row in _rows(folder, only):
        family, counted = _family(row)
        together[family, counted, row.problem].append(row)
    found = [
        Problem(family=family, counted=counted, name=name, rows=tuple(rows))
        for (family, counted, name), rows in sorted(together.items(), key=lambda item: item[0])
    ]
    return [problem for problem in found if len({row.layout for row in problem.rows if not row.oom}) >= LAYOUTS]


def _rows(folder: Path, only: str | None) -> Iterator[Row]:
    for path in sorted(folder.iterdir()):
        name = f"benchmarks.speed.adapters.{path.stem}"
        if path.suffix != ".csv" or only not in (None, path.name) or importlib.util.find_spec(name) is None:
            continue
        yield from _usable(importlib.import_module(name).rows(path))


def _usable(rows: Iterable[Row]) -> Iterator[Row]:
    """Runs with a specification and a known step time or failure."""
    for row in rows:
        if row.spec is None or row.backend is None or (row.left_out is not None and not row.oom):
            continue
        if not row.oom and "broken pipeline" in row.flags:
            continue
        if unknown(row.spec, row.backend) is None:
            yield row


def _family(row: Row) -> tuple[str, bool]:
    """The entry of a row, and whether that counts in ``all``."""
    if row.family == NANOTRON:
        large = "512 GPUs" in row.flags
        return "nanotron 512 GPUs" if large else "nanotron", not large
    if row.moe:
        return f"{row.family} (experts)", False
    if row.soft:
        return f"{row.family} (soft)", False
    if row.task != "pretrain":
        return f"{row.family} (fine-tuning)", False
    return row.family, True
