"""The rows of one source, and which of them count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.speed.estimating import Judged
from benchmarks.speed.row import Row

NANOTRON = "nanotron_playbook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The rows of one source, scored and left out."""

    file: str
    name: str
    items: tuple[Judged, ...]
    left_out: tuple[Row, ...]


def families(files: Mapping[str, Iterable[Judged | Row]]) -> list[Family]:
    """The rows of all files by source."""
    items = defaultdict[tuple[str, str], list[Judged]](list)
    left = defaultdict[tuple[str, str], list[Row]](list)
    for file, rows in files.items():
        for one in rows:
            if isinstance(one, Judged):
                items[file, one.row.family].append(one)
            else:
                left[file, one.family].append(one)
    return [
        Family(file=file, name=name, items=tuple(items[file, name]), left_out=tuple(left[file, name]))
        for file, name in sorted({*items, *left})
    ]


def not_counted(row: Row) -> str | None:
    """The reason why a row is scored apart from its family's."""
    if row.moe:
        return "experts: scored in moe"
    if row.soft and row.family != NANOTRON:
        return "soft: scored apart"
    if row.task != "pretrain":
        return "fine-tuning: scored apart"
    if "unsound" in row.flags:
        return "unsound by the file's own notes"
    return None
