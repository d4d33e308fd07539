"""The entries of the answer (benchmarks/README.md): a line a source, and ``all``."""

from __future__ import annotations

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.plan.problems import Problem
from benchmarks.plan.restricted import Pick
from benchmarks.plan.unrestricted import Standing, Winner
from benchmarks.speed.scoring import geometric_mean, mean, median

_IN_TEN: tuple[Standing, ...] = ("shown", "idea")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A problem with the planner's answers.

    Attributes:
        problem: The problem.
        pick: Its choice among the measured layouts.
        winner: The measured winner in the whole space; None where nobody searched it.
        as_run: The same in the space of what the problem's runs vary.
    """

    problem: Problem
    pick: Pick
    winner: Winner | None = None
    as_run: Winner | None = None

    def as_dict(self) -> dict[str, object]:
        """For analysis."""
        rows = {"picked": self.pick.row, "fastest": self.problem.winner}
        return {
            "family": self.problem.family,
            "problem": self.problem.name,
            **{name: {"id": row.name, "layout": row.layout, "measured": row.measured} for name, row in rows.items()},
            "share": self.pick.share,
            "verdict": self.pick.verdict,
            "winner": None if self.winner is None else asdict(self.winner),
            "as_run": None if self.as_run is None else asdict(self.as_run),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the answer; shares are fractions, None where there is nothing to say.

    Attributes:
        family: The source.
        problems: Its problems.
        pick: Geometric mean of the measured speed of the planner's pick over the best measured, of picks that ran.
        pick_worst: The least of these shares; 0 where a pick ran out of memory.
        oom_picked: Picks that are stated to have run out of memory.
        nothing_fits: Problems where by our estimate no measured layout fits for certain.
        winner_in_ten: Share of problems whose measured winner is among the best ten ideas of the whole space.
        distance: Median of the winner's predicted time over that of the planner's best layout.
        winner_as_run: The share where what all runs of a problem have in common is held.
        distance_as_run: The median there.
        standings: The winners' places in the whole space.
    """

    family: str
    problems: int
    pick: float | None
    pick_worst: float | None
    oom_picked: int
    nothing_fits: int
    winner_in_ten: float | None = None
    distance: float | None = None
    winner_as_run: float | None = None
    distance_as_run: float | None = None
    standings: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The form of ``--json``."""
        return asdict(self)


def entries(found: Iterable[Judged]) -> Iterator[Entry]:
    """Every entry: those of the sources, and the one over those that count."""
    families = defaultdict[str, list[Judged]](list)
    for one in found:
        families[one.problem.family].append(one)
    each = {family: _entry(family, items) for family, items in families.items()}
    yield from each.values()
    counted = {family: items for family, items in families.items() if items[0].problem.counted}
    if counted:
        yield _all([each[family] for family in counted])


def _entry(family: str, items: Sequence[Judged]) -> Entry:
    shares = [item.pick.share for item in items]
    winners = [item.winner for item in items if item.winner is not None]
    as_run = [item.as_run for item in items if item.as_run is not None]
    return Entry(
        family=family,
        problems=len(items),
        pick=geometric_mean([share for share in shares if share]),
        pick_worst=min(shares),
        oom_picked=sum(item.pick.row.oom for item in items),
        nothing_fits=sum(item.pick.verdict != "fits" for item in items),
        winner_in_ten=_in_ten(winners),
        distance=_distance(winners),
        winner_as_run=_in_ten(as_run),
        distance_as_run=_distance(as_run),
        standings=dict(Tally(winner.standing for winner in winners)),
    )


def _in_ten(winners: Sequence[Winner]) -> float | None:
    return mean(float(winner.standing in _IN_TEN) for winner in winners)


def _distance(winners: Iterable[Winner]) -> float | None:
    return median([winner.distance for winner in winners if winner.distance is not None])


def _all(each: Sequence[Entry]) -> Entry:
    """The geometric mean of the families' picks, the worst problem, and means of the families' shares."""
    standings = Tally[str]()
    for entry in each:
        standings.update(entry.standings)
    return Entry(
        family="all",
        problems=sum(entry.problems for entry in each),
        pick=geometric_mean([entry.pick for entry in each if entry.pick]),
        pick_worst=min(entry.pick_worst or 0.0 for entry in each),
        oom_picked=sum(entry.oom_picked for entry in each),
        nothing_fits=sum(entry.nothing_fits for entry in each),
        winner_in_ten=mean(entry.winner_in_ten for entry in each),
        distance=median([entry.distance for entry in each if entry.distance]),
        winner_as_run=mean(entry.winner_as_run for entry in each),
        distance_as_run=median([entry.distance_as_run for entry in each if entry.distance_as_run]),
        standings=dict(standings),
    )
