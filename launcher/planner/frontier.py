"""The fastest layouts for less memory than there is: a search for each tenth of the card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from launcher.errors import ConfigError
from launcher.planner.halves import Progress
from launcher.planner.judge import Judge, Preflight
from launcher.planner.planning import plan
from launcher.planner.question import Question
from launcher.planner.result import Layout, Plan
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.speed.result import SpeedEstimate

_STEPS = 10


@dataclass(frozen=True, slots=True)
class _Within(Judge):
    """A judge for whom a run fits that needs no more than so many bytes."""

    judge: Judge
    most: float

    def errors(self, spec: RunSpec) -> Iterator[ConfigError]:
        """As the other judge has them."""
        return self.judge.errors(spec)

    def verdict(self, spec: RunSpec) -> Verdict:
        """As the other judge has it of a run that needs no more."""
        found = self.judge.verdict(spec)
        fits = found.used_bytes is not None and found.used_bytes <= self.most
        return found if fits else replace(found, name="does_not_fit")

    def seconds(self, spec: RunSpec) -> float | None:
        """As the other judge has it."""
        return self.judge.seconds(spec)

    def least_seconds(self, spec: RunSpec) -> float | None:
        """As the other judge has it."""
        return self.judge.least_seconds(spec)

    def speed(self, spec: RunSpec, verdict: Verdict) -> SpeedEstimate | None:
        """As the other judge has it."""
        return self.judge.speed(spec, verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Layouts by memory.

    Attributes:
        fastest: The fastest layout, then each that is the fastest of those that need no more memory than it.
        others: All other layouts that the searches gave.
    """

    fastest: tuple[Layout, ...]
    others: tuple[Layout, ...]


def frontier(
    question: Question, found: Plan, *, judge: Judge | None = None, progress: Progress | None = None
) -> Frontier:
    """The frontier of speed against memory: exact at each tenth of the card, by what was found on the way between.

    Args:
        question: The question.
        found: Its answer, with the speeds of layouts.
        judge: Rules and estimates; the pre-flight's where None.
        progress: Told on the way of each search.
    """
    judge, layouts = judge or Preflight(), [*found.layouts, *found.others]
    best = found.layouts[0]
    for tenths in range(_STEPS - 1, 0, -1):
        most = (best.verdict.capacity_bytes or 0) * tenths / _STEPS
        if _memory(best) <= most:
            continue
        within = plan(question, judge=_Within(judge, most), progress=progress).layouts
        if not within:
            break
        best = within[0]
        layouts += within
    return _sorted({each.overrides: each for each in layouts}.values())


def _sorted(layouts: Iterable[Layout]) -> Frontier:
    fastest: list[Layout] = []
    others: list[Layout] = []
    for each in sorted(layouts, key=lambda each: (_memory(each), -_speed(each))):
        (fastest if not fastest or _speed(each) > _speed(fastest[-1]) else others).append(each)
    return Frontier(fastest=tuple(reversed(fastest)), others=tuple(others))


def _memory(layout: Layout) -> int:
    return layout.verdict.used_bytes or 0


def _speed(layout: Layout) -> float:
    return 0.0 if layout.speed is None else layout.speed.tokens_per_second_per_gpu
