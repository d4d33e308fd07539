"""What would help where nothing fits: the smallest cluster on which something does, and changes of the run.

The changes are those that ``check`` finds, from the layout that lacks least. All that a layout may do was tried there
already, so what they change is more than that: the optimizer's states, the precision, the sequence, the training.
"""

from __future__ import annotations

from launcher.estimate.memory.estimate import needs
from launcher.planner import feasibility
from launcher.planner.judge import Judge
from launcher.planner.planning import layout_of
from launcher.planner.question import Question
from launcher.planner.result import Layout, Nearest
from launcher.planner.sizes import sized, sizes
from launcher.planner.smallest import first_enough
from launcher.preflight import assess, fixes, pricing, verdict
from launcher.preflight.fixes import Fix
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec


def nearest(question: Question, judge: Judge) -> Nearest:
    """Look for what would help.

    Args:
        question: A question that no layout answers.
        judge: Rules and estimates.
    """
    closest = feasibility.closest(question, judge)
    own = closest and layout_of(question, closest, judge)
    ladder = tuple(sizes(question, beyond=True))
    place = first_enough(question, judge, ladder, None)
    size = None if place is None else ladder[place]
    return Nearest(
        closest=own or None,
        rule="" if own else feasibility.lacks(question, judge),
        size=size,
        layout=None if size is None else feasibility.fastest(sized(question, size), judge),
        fixes=_fixes(own, judge) if own else (),
    )


def _fixes(closest: Layout, judge: Judge) -> tuple[Fix, ...]:
    """Changes with which a layout fits on no more GPUs."""

    def judged(spec: RunSpec, /, *, roughly: bool = False) -> Verdict | None:
        if next(iter(judge.errors(spec)), None) is not None:
            return None
        return judge.verdict(spec) if roughly else verdict.judge(spec, needs(spec, **assess.parts(spec)))

    spec, parts = closest.spec, assess.parts
    # Speeds over one another, each by the shipped constants: a measured one would be in the first of them alone.
    before = pricing.predicted(spec, parts, closest.verdict).speed
    found = pricing.priced(fixes.search(spec, judged), spec, before, parts)
    return tuple(fix for fix in found.found if fix.spec.gpus <= closest.spec.gpus)
