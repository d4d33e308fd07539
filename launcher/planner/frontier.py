"""The trade-off of speed against memory: the fastest layouts within each fifth of the card's memory."""

from collections.abc import Iterable
from dataclasses import replace

from launcher.base.frozen import dataclass
from launcher.planner.judge import Preflight
from launcher.planner.layouts import Layout, Plan
from launcher.planner.parallel_search import Progress
from launcher.planner.planning import plan
from launcher.planner.question import Question
from launcher.preflight.pricing import Measured
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec

_STEPS = 5


class _Within(Preflight):
    """The pre-flight check with a limit on the bytes that a run may use."""

    def __init__(self, most: float, measured: Measured | None) -> None:
        super().__init__(measured)
        self._most = most

    def verdict(self, spec: RunSpec) -> Verdict:
        """The card's own verdict for a run within the limit; otherwise that it does not fit."""
        found = super().verdict(spec)
        fits = found.used_bytes is not None and found.used_bytes <= self._most
        return found if fits else replace(found, name="does_not_fit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The layouts on the frontier of speed against memory, and the others."""

    fastest: tuple[Layout, ...]  # The fastest layout, then each that is the fastest for its memory or less.
    others: tuple[Layout, ...]  # All other layouts that the searches found.


def frontier(
    question: Question, found: Plan, *, measured: Measured | None = None, progress: Progress | None = None
) -> Frontier:
    """The frontier of speed against memory: exact at each fifth of the card, and from layouts found so far between."""
    layouts = [*found.layouts, *found.others]
    best = found.layouts[0]
    for fifths in range(_STEPS - 1, 0, -1):
        most = (best.verdict.capacity_bytes or 0) * fifths / _STEPS
        if _memory(best) <= most:
            continue
        within = plan(question, judge=_Within(most, measured), progress=progress).layouts
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
