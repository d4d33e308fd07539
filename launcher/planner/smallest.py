"""Sizes of a cluster: the smallest that trains a model, or trains it in time, and what helps where nothing fits.

Sizes of one node are the divisors of its GPUs; beyond it come whole nodes: every number of them up to 16, then those in
steps of at most an eighth (18, 20, ... 32, 36, ...), which are the numbers with four binary digits and zeros.
``cluster.gpus_per_node`` alone says what a node is, so that whole nodes are searched; ``cluster.nodes`` says how many
there are at most.

Every size is looked at, the smallest first, so that the answer is exact among them. A size whose layouts all need too
much is told in a fraction of a search. Where there is a limit on time, a size is left out without one if not even its
products, attention and memory-bound kernels end in time, spread over all GPUs with nothing between them; else the
fastest layout of it decides.

Changes of the run that would help where nothing fits are those that ``check`` finds, from the layout that lacks least.
All that a layout may do was tried there already, so what they change is more than that: the optimizer's states, the
precision, the sequence, the training.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher import backends
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.base.units import duration
from launcher.estimate.memory.estimate import needs
from launcher.estimate.speed.estimate import unknown
from launcher.estimate.speed.terms import StepPart
from launcher.planner import feasibility, length
from launcher.planner.judge import Preflight
from launcher.planner.layouts import GPUS, NODES, Assumption, Layout, Nearest, Size
from launcher.planner.planning import layout_of
from launcher.planner.question import Question
from launcher.preflight import assess, fixes, pricing, verdict
from launcher.preflight.fixes import Fix
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at, divisors, override

MOST_NODES, MOST_IN_TIME = 2**10, 2**14
"""Nodes of the largest cluster that is looked at: for memory alone, where more of them no longer help, and for time,
with 131,072 GPUs in nodes of eight more than any that is known of."""

_STEPS = 8  # Sizes between a power of two and the next.
_PASSES: tuple[StepPart, ...] = ("matrix_products", "attention", "memory_bound")
"""Parts of a step that no layout takes less GPU-seconds for than one GPU with all of the batch at once."""

_ALONE: dict[str, object] = {
    "cluster.nodes": 1,
    "cluster.gpus_per_node": 1,
    "parallel.tensor": 1,
    "parallel.sequence": False,
    "parallel.pipeline": 1,
    "parallel.virtual_pipeline": 1,
    "parallel.first_stage_layers": None,
    "parallel.last_stage_layers": None,
    "parallel.layout": (),
    "parallel.schedule": "1f1b",
    "parallel.context": 1,
    "parallel.ulysses": 1,
    "parallel.expert": 1,
    "parallel.expert_tensor": None,
    "parallel.replicate": 1,
    "zero.hpz": 1,
    "train.gradient_accumulation": None,
}
"""A run of one GPU."""

_ON_HOST = ("zero.offload_optimizer", "zero.offload_parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One size: its fastest layout, or why it is not enough; both where that is its time alone."""

    size: Size  # The size.
    layout: Layout | None = None  # None where nothing fits.
    lacks: str = ""  # Empty where it is enough.


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """The answer."""

    size: Size | None  # The smallest size that is enough; None where none is.
    smaller: Step | None  # The size before it; where none is enough, the largest that has a valid layout.
    larger: Step | None = None  # The size behind it; None where it is above what the words say.
    # Where it is a larger one, the smallest that is enough without model states in host memory; not looked for where
    # there is a limit on time.
    on_devices: Size | None = None


def smallest(question: Question, judge: Preflight, *, days: float | None = None, beyond: bool = False) -> Smallest:
    """Look for the fewest GPUs, for a training of at most so many days; ``beyond`` looks at more nodes than are said.

    Raises ConfigErrors: There is a limit on time and no speed is known.
    """
    most = MOST_NODES if days is None else MOST_IN_TIME
    ladder = tuple(sizes(question, most=most, beyond=beyond))
    place = first_enough(question, judge, ladder, days)
    if place is None:
        valid = (size for size in reversed(ladder) if feasibility.is_valid(sized(question, size), judge))
        return Smallest(size=None, smaller=_step(question, judge, next(valid, ladder[0]), days))
    return Smallest(
        size=ladder[place],
        smaller=_step(question, judge, ladder[place - 1], days) if place else None,
        larger=_step(question, judge, ladder[place + 1], days) if place + 1 < len(ladder) else None,
        on_devices=_on_devices(question, judge, ladder[place:]) if days is None else None,
    )


def first_enough(question: Question, judge: Preflight, ladder: Sequence[Size], days: float | None) -> int | None:
    """The place of the first size that is enough."""
    least = None if days is None else least_gpu_seconds(question, judge)
    for place, size in enumerate(ladder):
        if days is not None and least is not None and least / size.gpus > days * length.DAY:
            continue
        if _is_enough(sized(question, size), judge, days):
            return place
    return None


def _is_enough(question: Question, judge: Preflight, days: float | None) -> bool:
    fits = feasibility.attempt(question, judge).fits is not None
    if not fits or days is None:
        return fits
    layout = feasibility.fastest(question, judge)
    return layout is not None and length.in_time(layout, days) is True


def least_gpu_seconds(question: Question, judge: Preflight) -> float:
    """A bound below the GPU-seconds of the training: one GPU with memory for all, that has the whole batch at once."""
    return min(_alone(opening.spec, judge) for opening in question.openings)


def _alone(spec: RunSpec, judge: Preflight) -> float:
    alone = changed_at(spec, {**_ALONE, "train.micro_batch_size": spec.global_batch_size})
    speed = judge.speed(alone, Verdict(name="fits"))
    if speed is None:
        why = unknown(alone, backends.of(alone)) or "no speed is predicted"
        rule = f"a limit on time needs a predicted speed, and there is none: {why}"
        raise ConfigErrors([ConfigError("--days", None, rule)])
    return spec.steps * sum(term.seconds for term in speed.terms if term.part in _PASSES)


def _step(question: Question, judge: Preflight, size: Size, days: float | None) -> Step:
    question = sized(question, size)
    if lacks := feasibility.lacks(question, judge):
        return Step(size=size, lacks=lacks)
    layout = feasibility.fastest(question, judge)
    cost = None if layout is None else length.cost_of(layout)
    slow = days is not None and cost is not None and cost.days > days
    lacks = f"takes {duration(cost.days * length.DAY)}" if slow and cost is not None else ""
    return Step(size=size, layout=layout, lacks=lacks)


def _on_devices(question: Question, judge: Preflight, ladder: Sequence[Size]) -> Size | None:
    """The smallest size, from the found one on, with all model states on the GPUs; None where it is the found one."""
    if question.fixed & set(_ON_HOST):
        return None
    here = dict.fromkeys(_ON_HOST, ("none",))
    place = first_enough(replace(question, choices={**question.choices, **here}), judge, ladder, None)
    return ladder[place] if place else None


def size_of(question: Question) -> Size:
    """The size that a question has."""
    cluster = question.openings[0].spec.cluster
    return Size(cluster.nodes, cluster.gpus_per_node)


def sizes(question: Question, *, most: int = MOST_NODES, beyond: bool = False) -> Iterator[Size]:
    """The sizes that a question may be asked of, the smallest first; ``beyond`` adds more nodes than are said."""
    own = size_of(question)
    typed = NODES in question.fixed and not beyond
    most = own.nodes if typed else most
    if GPUS not in question.fixed or NODES in question.fixed:
        yield from (Size(1, gpus) for gpus in divisors(own.gpus_per_node) if gpus < own.gpus_per_node)
    whole = {nodes for nodes in _nodes() if nodes <= most} | ({most} if typed else set())
    yield from (Size(nodes, own.gpus_per_node) for nodes in sorted(whole))


def _nodes() -> Iterator[int]:
    """All numbers up to 16, then those with four significant binary digits."""
    yield from range(1, 2 * _STEPS)
    step = 2
    while _STEPS * step <= MOST_IN_TIME:
        yield from (digits * step for digits in range(_STEPS, 2 * _STEPS))
        step *= 2


def sized(question: Question, size: Size) -> Question:
    """The same question of another cluster: the training stays, its global batch among it."""
    settings = {NODES: size.nodes, GPUS: size.gpus_per_node}
    kept = [each for each in question.assumptions if each.override.partition("=")[0] not in settings]
    before = dict(zip(settings, size_of(question), strict=True))
    words = [
        Assumption(override=override(path, value), why="the cluster's size that is looked at")
        for path, value in settings.items()
        if path not in question.fixed or value != before[path]
    ]
    openings = tuple(replace(opening, spec=changed_at(opening.spec, settings)) for opening in question.openings)
    return replace(question, assumptions=(*words, *kept), openings=openings)


def nearest(question: Question, judge: Preflight) -> Nearest:
    """Look for what would help a question that no layout answers."""
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


def _fixes(closest: Layout, judge: Preflight) -> tuple[Fix, ...]:

    def judged(spec: RunSpec, /, *, roughly: bool = False) -> Verdict | None:
        if next(iter(judge.errors(spec)), None) is not None:
            return None
        return judge.verdict(spec) if roughly else verdict.judge(spec, needs(spec, **assess.parts(spec)))

    spec, parts = closest.spec, assess.parts
    # Speeds over one another, each by the shipped constants: a measured one would be in the first of them alone.
    before = pricing.predicted(spec, parts, closest.verdict).speed
    found = pricing.priced(fixes.search(spec, judged), spec, before, parts)
    return tuple(fix for fix in found.found if fix.spec.gpus <= closest.spec.gpus)
