"""Two questions about a space of layouts: does any fit, and which is fastest.

Memory grows with the micro-batch and with pipeline chunks, and shrinks with memory savings; the gradients of several
micro-batches take more than those of one. So among layouts that differ only in these, the one that needs least has one
chunk, 1F1B, the strongest savings, and a micro-batch of either one sequence or all of a rank's sequences: if neither of
these two fits, none does. Settings that the user typed are kept.
"""

from collections.abc import Iterator

from launcher.base.frozen import dataclass
from launcher.base.units import gib
from launcher.estimate.memory.estimate import needs
from launcher.planner.candidates import Candidate
from launcher.planner.judge import Preflight
from launcher.planner.keys import SEARCHED, Settings
from launcher.planner.layouts import Layout
from launcher.planner.parallel_search import degrees_of
from launcher.planner.planning import layout_of, spaces_of
from launcher.planner.question import Question
from launcher.planner.search import Search, strongest
from launcher.planner.space import Space
from launcher.preflight import assess, verdict
from launcher.spec import RunSpec

_CHUNKS = {"parallel.virtual_pipeline": (1,), "parallel.schedule": ("1f1b",)}
"""The values with which a pipeline needs least memory, used if the user typed neither."""

_PLACES = {"device": "on a GPU", "host": "in a node's host memory", "disk": "on disk"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The answer to the first question: a layout that fits for certain, one within the estimate's error, or neither."""

    fits: RunSpec | None = None  # A layout that fits for certain; None if there is none.
    tight: RunSpec | None = None  # The first tight one found; None if there is none, or if a certain one came first.


def attempt(question: Question, judge: Preflight) -> Attempt:
    """Search for a layout that fits for certain, and stop at the first."""
    tight = None
    for _, spec in _least(question, judge):
        found = judge.verdict(spec).name
        if found == "fits":
            return Attempt(fits=spec)
        if found == "tight":
            tight = tight or spec
    return Attempt(tight=tight)


def is_valid(question: Question, judge: Preflight) -> bool:
    """True if the words leave at least one valid layout."""
    return next(_least(question, judge), None) is not None


def closest(question: Question, judge: Preflight) -> Candidate | None:
    """The layout closest to fitting, if nothing fits; None if none is valid."""
    best: Candidate | None = None
    for order, (opening, spec) in enumerate(_least(question, judge)):
        found = verdict.judge(spec, needs(spec, **assess.parts(spec)))
        if best is None or found.excess_bytes < best.verdict.excess_bytes:
            best = Candidate(0.0, (), order, opening, spec, found)
    return best


def lacks(question: Question, judge: Preflight) -> str:
    """Why nothing fits for certain; empty if something does."""
    found = attempt(question, judge)
    if found.fits is not None:
        return ""
    if found.tight is not None:
        return "fits only within the error of the estimate, so it may run out of memory"
    nearest = closest(question, judge)
    if nearest is None:
        rule = next((error.rule for error in judge.errors(question.openings[0].spec) if error.path not in SEARCHED), "")
        return f"no layout is valid{': ' if rule else ''}{rule}"
    short = [
        f"{_PLACES[each.place]} by {gib(each.used_bytes - each.capacity_bytes)}" for each in nearest.verdict.shortages
    ]
    return f"too small {' and '.join(short)} for the closest layout"


def fastest(question: Question, judge: Preflight) -> Layout | None:
    """The best layout that fits for certain, from a plan's search stopped at its first result."""
    spaces = spaces_of(question, judge)
    search = Search(spaces, judge, certain=True)
    for found in search.run(degrees_of(spaces, judge)):
        if found.best:
            break
    shown = search.found.shown()
    return layout_of(question, shown[0], judge) if shown else None


def _least(question: Question, judge: Preflight) -> Iterator[tuple[int, RunSpec]]:
    """The layouts that need the least memory, each with the number of its engine's opening."""
    chunks = {} if _CHUNKS.keys() & question.fixed else _CHUNKS
    for number, opening in enumerate(question.openings):
        space = _Small.of(opening.spec, opening.fixed, {**question.choices, **chunks}, judge.errors)
        for degrees in space.degrees(judge.errors):
            for variant in space.variants(degrees, judge.errors):
                spec = strongest(variant, space.savings, reversed(range(len(space.savings.modes))), judge)
                if spec is not None:
                    yield number, spec


class _Small(Space):
    """The space restricted to the smallest and the largest micro-batch of a rank."""

    def _micro_batches(self, degrees: Settings) -> Iterator[Settings]:
        sizes = list(super()._micro_batches(degrees))
        typed = {"train.micro_batch_size", "train.gradient_accumulation"} & self.fixed
        yield from sizes if typed or len(sizes) < 2 else (sizes[0], sizes[-1])
