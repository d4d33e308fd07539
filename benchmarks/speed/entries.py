"""The entries of the answer (docs/contract.md): which rows count in each, and what is said of them."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.speed import baselines, ratios
from benchmarks.speed.estimating import Judged
from benchmarks.speed.row import Row
from benchmarks.speed.scoring import Choice, Speed, choice, errors, geometric_mean, median, ninetieth, problems

LEAST_ROWS = 10
"""Rows from which on a family counts in ``all``."""

NANOTRON = "nanotron_playbook"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the answer; errors and shares are fractions, None where nothing is scored."""

    file: str
    family: str
    rows: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    median: float | None = None
    p90: float | None = None
    median_uncalibrated: float | None = None
    p90_uncalibrated: float | None = None
    problems: int = 0
    pick: float | None = None
    pick_worst: float | None = None
    spearman: float | None = None
    baselines: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The form of ``--json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The rows of one source."""

    file: str
    name: str
    items: tuple[Judged, ...]
    left_out: tuple[Row, ...]


def raw(item: Judged) -> float:
    """No constant."""
    return item.raw


def calibrated(item: Judged) -> float:
    """With the package's constant."""
    return item.predicted


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


def entries(found: Sequence[Family]) -> Iterator[Entry]:
    """Every entry: those of the sources, and those over them."""
    counted = dict[str, list[Judged]]()
    for family in found:
        rows = [item for item in family.items if not_counted(item.row) is None]
        reasons = [reason for item in family.items if (reason := not_counted(item.row)) is not None]
        reasons += [row.left_out or "" for row in family.left_out]
        yield _entry(family.file, family.name, rows, reasons)
        if len(rows) >= LEAST_ROWS and family.file == "throughput.csv":
            counted[family.name] = rows
        yield from _apart(family)
    yield _all(counted)
    everything = [item for family in found for item in family.items]
    yield from _nanotron(everything)
    yield _entry("", "moe", [item for item in everything if item.row.moe and not item.row.soft])
    dense = [item for item in everything if not_counted(item.row) is None and "unsound" not in item.row.flags]
    yield _of_ratios("fp8 ratio", ratios.of_fp8(dense))
    yield _of_ratios("scaling", ratios.of_scaling(dense))


def not_counted(row: Row) -> str | None:
    """The reason why a row is scored apart from its family's."""
    if row.moe:
        return "experts: scored in moe"
    if row.soft and row.family != NANOTRON:
        return "soft: scored apart"
    if row.task != "pretrain":
        return "fine-tuning: scored apart"
    return None


def _apart(family: Family) -> Iterator[Entry]:
    """The rows of a source that are uncertain, and those that fine-tune."""
    soft = [item for item in family.items if item.row.soft and family.name != NANOTRON and not item.row.moe]
    if soft:
        yield _entry(family.file, f"{family.name} (soft)", soft)
    tuned = [item for item in family.items if item.row.task != "pretrain" and not item.row.soft and not item.row.moe]
    if tuned:
        yield _entry(family.file, f"{family.name} (fine-tuning)", tuned)


def _nanotron(everything: Iterable[Judged]) -> Iterator[Entry]:
    """The runs that the playbook's traps leave, those on 512 GPUs apart."""
    sound = [item for item in everything if item.row.family == NANOTRON and "unsound" not in item.row.flags]
    if sound:
        yield _entry("nanotron_playbook.csv", "nanotron sound", [i for i in sound if "512 GPUs" not in i.row.flags])
        yield _entry("nanotron_playbook.csv", "nanotron 512 GPUs", [i for i in sound if "512 GPUs" in i.row.flags])


def _entry(file: str, name: str, items: Sequence[Judged], reasons: Iterable[str] = ()) -> Entry:
    found, plain = errors(items, calibrated), errors(items, raw)
    answers = [choice(rows, calibrated) for rows in problems(items).values()]
    picks, ranks = [one.pick for one in answers], [one.spearman for one in answers if one.spearman is not None]
    return Entry(
        file=file,
        family=name,
        rows=len(items),
        left_out=dict(Tally(reasons)),
        median=median(found),
        p90=ninetieth(found),
        median_uncalibrated=median(plain),
        p90_uncalibrated=ninetieth(plain),
        problems=len(answers),
        pick=geometric_mean(picks),
        pick_worst=min(picks, default=None),
        spearman=median(ranks),
        baselines={name: _baseline(items, name) for name in baselines.names()},
    )
