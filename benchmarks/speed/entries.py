"""The entries of the answer (benchmarks/README.md): which rows count in each, and what is said of them."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from benchmarks.speed import ratios
from benchmarks.speed.anchoring import by_one_node
from benchmarks.speed.checking import checked, unseen
from benchmarks.speed.estimating import HeldOut, Judged
from benchmarks.speed.families import NANOTRON, Family, not_counted
from benchmarks.speed.holding_out import held_out
from benchmarks.speed.others import Other, others
from benchmarks.speed.scoring import choices, errors, errors_of, geometric_mean, mean, median, ninetieth, within
from launcher.estimate.speed.calibration import Constant, constant

LEAST_ROWS = 10
"""Rows from which on a family counts in ``all``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Predictions with constants other than the package's for the run's framework and GPU."""

    median: float | None = None
    p90: float | None = None
    within: float | None = None  # The share of runs in the band that is stated around the prediction.


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
    within: float | None = None  # The share of runs in the band around their prediction.
    checked: Stated = Stated()  # As ``launch check`` says it, whose engine is the nearest of ours.
    unseen: Stated = Stated()  # As if nobody had measured the framework of a run.
    held_out: HeldOut = field(default_factory=HeldOut)  # The shares of runs in bands that were made without them.
    baselines: Mapping[str, Other] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The form of ``--json``."""
        return asdict(self)


def raw(item: Judged) -> float:
    """No constant."""
    return item.raw


def calibrated(item: Judged) -> float:
    """With the package's constant."""
    return item.predicted


def entries(found: Sequence[Family]) -> Iterator[Entry]:
    """Every entry: those of the sources, and those over them."""
    found = held_out(found)
    counted = dict[str, list[Judged]]()
    for family in found:
        rows = [item for item in family.items if not_counted(item.row) is None]
        reasons = [reason for item in family.items if (reason := not_counted(item.row)) is not None]
        reasons += [row.left_out or "" for row in family.left_out]
        yield _entry(family.file, family.name, rows, reasons)
        firm = [item for item in rows if not item.row.soft]
        if len(firm) >= LEAST_ROWS:
            counted[family.name] = firm
        yield from _apart(family)
    yield _all(counted)
    everything = [item for family in found for item in family.items]
    yield from _nanotron(everything)
    experts = [item for item in everything if item.row.moe and not item.row.soft]
    yield _entry("", "moe", experts)
    yield _entry("", "moe, dense constants", [_as_dense(item) for item in experts])
    dense = [item for item in everything if not_counted(item.row) is None]
    yield _of_ratios("fp8 ratio", ratios.of_fp8(dense))
    yield _scaling(dense)
    for alike, name in ((True, "anchored"), (False, "anchored, other layouts")):
        yield _over_sources(name, by_one_node(dense, alike=alike))


def _as_dense(item: Judged) -> Judged:
    """Predictions with the constant of dense models instead of that of models with experts."""
    factor = constant(item.row.framework, item.row.card)
    return replace(item, predicted=item.raw * factor.value, constant=factor)


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
    chosen = choices(items, calibrated)
    return Entry(
        file=file,
        family=name,
        rows=len(items),
        left_out=dict(Tally(reasons)),
        median=median(found),
        p90=ninetieth(found),
        median_uncalibrated=median(plain),
        p90_uncalibrated=ninetieth(plain),
        problems=chosen.problems,
        pick=chosen.pick,
        pick_worst=chosen.pick_worst,
        spearman=chosen.spearman,
        within=within(items, [item.constant for item in items]),
        checked=_stated(items, list(map(checked, items))),
        unseen=_stated(items, list(map(unseen, items))),
        held_out=_held_out([item.held_out for item in items]),
        baselines=others(items),
    )


def _stated(items: Sequence[Judged], constants: Sequence[Constant]) -> Stated:
    found = errors_of(items, constants)
    return Stated(median=median(found), p90=ninetieth(found), within=within(items, constants))


def _held_out(each: Sequence[HeldOut]) -> HeldOut:
    return HeldOut(
        within=mean(one.within for one in each),
        checked=mean(one.checked for one in each),
        unseen=mean(one.unseen for one in each),
    )


def _mean(each: Sequence[Stated]) -> Stated:
    return Stated(
        median=mean(one.median for one in each),
        p90=mean(one.p90 for one in each),
        within=mean(one.within for one in each),
    )


def _all(counted: Mapping[str, Sequence[Judged]]) -> Entry:
    """Means of the families' errors, the geometric mean of their picks, and problems of all of them."""
    each = [_entry("", name, items) for name, items in counted.items()]
    together = _entry("", "all", [item for items in counted.values() for item in items])
    return replace(
        together,
        median=mean(one.median for one in each),
        p90=mean(one.p90 for one in each),
        median_uncalibrated=mean(one.median_uncalibrated for one in each),
        p90_uncalibrated=mean(one.p90_uncalibrated for one in each),
        within=mean(one.within for one in each),
        checked=_mean([one.checked for one in each]),
        unseen=_mean([one.unseen for one in each]),
        held_out=_held_out([one.held_out for one in each]),
        pick=geometric_mean([one.pick for one in each if one.pick is not None]),
        baselines={
            name: Other(
                median=mean(one.baselines[name].median for one in each),
                pick=geometric_mean([pick for one in each if (pick := one.baselines[name].pick) is not None]),
                spearman=other.spearman,
                rows=other.rows,
            )
            for name, other in together.baselines.items()
        },
    )


def _scaling(items: Sequence[Judged]) -> Entry:
    """Means of the families' errors, as in ``all``: one source has three quarters of the ratios."""
    found = defaultdict[str, list[ratios.Ratio]](list)
    for one in ratios.of_scaling(items):
        found[one.family].append(one)
    each = [_of_ratios(family, rows) for family, rows in found.items()]
    return replace(
        _of_ratios("scaling", [one for rows in found.values() for one in rows]),
        median=mean(one.median for one in each),
        p90=mean(one.p90 for one in each),
        median_uncalibrated=mean(one.median_uncalibrated for one in each),
        p90_uncalibrated=mean(one.p90_uncalibrated for one in each),
    )


def _over_sources(name: str, items: Sequence[Judged]) -> Entry:
    """Means of the sources' errors, as in ``all``."""
    groups = defaultdict[str, list[Judged]](list)
    for item in items:
        groups[item.row.family].append(item)
    each = [errors(rows, calibrated) for rows in groups.values()]
    return Entry(file="", family=name, rows=len(items), median=mean(map(median, each)), p90=mean(map(ninetieth, each)))


def _of_ratios(name: str, found: Sequence[ratios.Ratio]) -> Entry:
    sizes = sorted(abs(one.predicted / one.measured - 1) for one in found)
    plain = sorted(abs(one.raw / one.measured - 1) for one in found)
    return Entry(
        file="",
        family=name,
        rows=len(found),
        median=median(sizes),
        p90=ninetieth(sizes),
        median_uncalibrated=median(plain),
        p90_uncalibrated=ninetieth(plain),
    )
