"""The question "does anything fit", answered with as little of the space as that takes.

Memory grows with the micro-batch, with the chunks of a pipeline and with everything that relief leaves out. So of all
layouts that differ in these alone the one with a micro-batch of one sequence, one chunk, 1F1B and the strongest relief
needs the least: where none of those fits, none at all does. What is typed stays as it is typed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcher.planner.judge import Judge
from launcher.planner.question import Question
from launcher.planner.space import Settings, Space
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at

_LEAST: Mapping[str, object] = {
    "train.micro_batch_size": 1,
    "parallel.virtual_pipeline": 1,
    "parallel.schedule": "1f1b",
}
"""The values with which a layout needs the least memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A valid layout with the verdict on it; ``opening`` is the number of its engine in the question."""

    spec: RunSpec
    verdict: Verdict
    opening: int

    @property
    def is_known(self) -> bool:
        """True if all of its needs are known, and not only that they are far too much."""
        return self.verdict.fits or bool(self.verdict.shortfall_by_moment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The answer.

    Attributes:
        fits: A layout that fits for certain; None where there is none.
        tight: One that fits within the estimate's error alone; looked for only as long as none fits for certain.
        closest: Where nothing fits, the layout that lacks least; None where no layout is valid.
    """

    fits: Judged | None = None
    tight: Judged | None = None
    closest: Judged | None = None


def attempt(question: Question, judge: Judge) -> Attempt:
    """Look for a layout that fits, and stop at the first.

    Args:
        question: The question.
        judge: Rules and estimates.
    """
    tight = closest = None
    for found in _judged(question, judge):
        if found.verdict.name == "fits":
            return Attempt(fits=found)
        if found.verdict.name == "tight":
            tight = tight or found
        elif closest is None or _lacks(found) < _lacks(closest):
            closest = found
    return Attempt(tight=tight, closest=closest)


def _lacks(found: Judged) -> tuple[bool, int]:
    """The order of those that do not fit; of one that is far too large it is not known how much it lacks."""
    return not found.is_known, found.verdict.excess_bytes


def _judged(question: Question, judge: Judge) -> Iterator[Judged]:
    """Every layout that needs less than all like it."""
    for number, opening in enumerate(question.openings):
        least = {path: (value,) for path, value in _LEAST.items() if path not in question.fixed}
        space = Space(base=opening.spec, fixed=question.fixed, choices={**question.choices, **least})
        for core in space.cores(judge.errors):
            spec = _strongest(core, space.relief, judge)
            if spec is not None:
                yield Judged(spec=spec, verdict=judge.verdict(spec), opening=number)


def _strongest(core: RunSpec, relief: tuple[Settings, ...], judge: Judge) -> RunSpec | None:
    """The core with the strongest relief that is valid with it."""
    for settings in reversed(relief):
        spec = changed_at(core, settings)
        if next(iter(judge.errors(spec)), None) is None:
            return spec
    return None
