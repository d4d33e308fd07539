"""Cluster sizes: the smallest that trains a model, or trains it in time, and what helps if nothing fits.

Sizes within one node are the divisors of its GPUs; beyond that come whole nodes: every number up to 16, then steps of
at most an eighth (18, 20, ... 32, 36, ...), which are numbers of four binary digits followed by zeros. Setting only
``cluster.gpus_per_node`` fixes the node, so that whole nodes are searched; ``cluster.nodes`` sets the largest number of
nodes.

Every size is tried, the smallest first, so that the answer is exact among them. A size whose layouts all need too much
is ruled out in a fraction of a search. With a time limit, a size is skipped if its matrix products, attention and
memory-bound kernels alone would take too long, spread over all GPUs without communication; otherwise its fastest layout
decides.

If nothing fits, the changes that would help are those that ``check`` finds for the layout closest to fitting. All keys
of a layout have been tried by then, so these changes go further: optimizer states, precision, sequence length, the
training.
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
"""Nodes of the largest cluster tried: for memory alone, where more no longer help, and for a time limit, where 131,072
GPUs in nodes of eight are more than in any known cluster."""

_STEPS = 8  # Sizes from one power of two to the next.
_PASS_PARTS: tuple[StepPart, ...] = ("matrix_products", "attention", "memory_bound")
"""Parts of a step whose GPU-seconds are least on one GPU with the whole batch at once."""

_ONE_GPU: dict[str, object] = {
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
"""The settings of a run on one GPU."""

_ON_HOST = ("zero.offload_optimizer", "zero.offload_parameters")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One size with its fastest layout, or why it is not enough; with both if only its time is too long."""

    size: Size  # The size.
    layout: Layout | None = None  # Its fastest layout; None if nothing fits.
    lacks: str = ""  # Why it is not enough; empty if it is.


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """The smallest cluster that is enough, and the sizes next to it."""

    size: Size | None  # The smallest size that is enough; None if none is.
    smaller: Step | None  # The next smaller size; if none is enough, the largest that has a valid layout.
    larger: Step | None = None  # The next larger size; None if it exceeds the limit that the words set.
    # The smallest size that is enough without model states in host memory, if it is a larger one; not searched for with
    # a time limit.
    on_devices: Size | None = None


def smallest(question: Question, judge: Preflight, *, days: float | None = None, beyond: bool = False) -> Smallest:
    """Find the fewest GPUs that train within ``days``, if given; ``beyond`` also tries more nodes than the words set.

    Raises ConfigErrors: There is a time limit and no speed is known.
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
    """The index of the first size that is enough; None if none is."""
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
    """A lower bound on the GPU-seconds of the training: one GPU with enough memory and the whole batch at once."""
    return min(_one_gpu_seconds(opening.spec, judge) for opening in question.openings)


def _one_gpu_seconds(spec: RunSpec, judge: Preflight) -> float:
    alone = changed_at(spec, {**_ONE_GPU, "train.micro_batch_size": spec.global_batch_size})
    speed = judge.speed(alone, Verdict(name="fits"))
    if speed is None:
        why = unknown(alone, backends.of(alone)) or "no speed is predicted"
        rule = f"a time limit needs a predicted speed, and there is none: {why}"
        raise ConfigErrors([ConfigError("--days", None, rule)])
    return spec.steps * sum(term.seconds for term in speed.terms if term.part in _PASS_PARTS)


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
    """The smallest size, from the found one up, with all model states on the GPUs; None if it is the found one."""
    if question.fixed & set(_ON_HOST):
        return None
    here = dict.fromkeys(_ON_HOST, ("none",))
    place = first_enough(replace(question, choices={**question.choices, **here}), judge, ladder, None)
    return ladder[place] if place else None


def size_of(question: Question) -> Size:
    """The cluster size in a question."""
    cluster = question.openings[0].spec.cluster
    return Size(cluster.nodes, cluster.gpus_per_node)


def sizes(question: Question, *, most: int = MOST_NODES, beyond: bool = False) -> Iterator[Size]:
    """The sizes to try for a question, the smallest first; ``beyond`` adds more nodes than the words set."""
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
    """The same question for another cluster size, with the same training and global batch."""
    settings = {NODES: size.nodes, GPUS: size.gpus_per_node}
    kept = [each for each in question.assumptions if each.override.partition("=")[0] not in settings]
    before = dict(zip(settings, size_of(question), strict=True))
    words = [
        Assumption(override=override(path, value), why="the cluster size being tried")
        for path, value in settings.items()
        if path not in question.fixed or value != before[path]
    ]
    openings = tuple(replace(opening, spec=changed_at(opening.spec, settings)) for opening in question.openings)
    return replace(question, assumptions=(*words, *kept), openings=openings)


def nearest(question: Question, judge: Preflight) -> Nearest:
    """What would have to change for a question that no layout answers."""
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
    # Compare speeds by the shipped constants only, since a measured constant would apply to the first run alone.
    before = pricing.predicted(spec, parts, closest.verdict).speed
    found = pricing.priced(fixes.search(spec, judged), spec, before, parts)
    return tuple(fix for fix in found.found if fix.spec.gpus <= closest.spec.gpus)
