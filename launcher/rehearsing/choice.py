"""Chooses the ranks to rehearse, and the depths to build of a model that is too large for the device.

The memory of a rank is linear in the layers that it runs, from four layers on (``launcher.worker.trace``), if
everything else is unchanged: the pipeline stages with the micro-batches that each holds at once, the dense layers of a
model with experts, and the layers in ``checkpointing.layers``. So both depths keep all of these, and differ only in
layers of the most common kind.
"""

from collections.abc import Iterator

from launcher import backends
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.estimate import families
from launcher.estimate.memory.result import MemoryEstimate
from launcher.estimate.rank.recomputed import method
from launcher.estimate.rank.stages import cut_of, flow_of, in_flight, rank_layers
from launcher.estimate.speed.products import model_flops
from launcher.preflight import findings
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at, with_micro_batches

STEPS = 3  # Memory is followed in the first two; the rest are timed.
MINUTES = 15  # Limit for all ranks and depths together: a rehearsal should be short.
FILE = "rehearse.json"  # The request in the run directory of a Slurm job.


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to rehearse."""

    stage: int | None = None  # The pipeline stage; None is the one with the largest estimate.
    rank: int | None = None  # The rank, instead of a stage.
    all_stages: bool = False  # Every stage whose memory differs from the others'.
    steps: int = STEPS  # Training steps.
    # Layers of the models to build; empty for the whole model, or as much of it as the device can hold.
    layers: tuple[int, ...] = ()
    minutes: float = MINUTES  # The time limit for everything.


def ranks(spec: RunSpec, estimate: MemoryEstimate, request: Request) -> tuple[int, ...]:
    """The ranks to rehearse, the fullest stage first. Raises ConfigErrors if the run has no such rank or stage."""
    _require_one(request)
    if request.rank is not None:
        _require_below("--rank", request.rank, spec.gpus, "ranks")
        return (request.rank,)
    stages = spec.parallel.pipeline
    if request.stage is not None:
        _require_below("--stage", request.stage, stages, "pipeline stages" if stages > 1 else "pipeline stage")
        return (rank_of(spec, request.stage),)
    if not request.all_stages:
        return (rank_of(spec, estimate.peak.stage),)
    return tuple(rank_of(spec, stage) for stage in distinct(estimate))


def rank_of(spec: RunSpec, stage: int) -> int:
    """The fullest rank of a stage."""
    width = spec.gpus // spec.parallel.pipeline
    return stage * width + backends.of(spec).fullest_rank(spec) % width


def distinct(estimate: MemoryEstimate) -> list[int]:
    """One stage of each group with equal estimates, the fullest first."""
    found: dict[tuple[int, int], int] = {}
    for peak in estimate.ranks:
        found.setdefault((peak.allocated_bytes, peak.static_bytes), peak.stage)
    return [stage for _, stage in sorted(found.items(), key=lambda item: item[0], reverse=True)]


def _require_one(request: Request) -> None:
    given = {"--rank": request.rank is not None, "--stage": request.stage is not None}
    given["--all-stages"] = request.all_stages
    asked = [name for name, is_given in given.items() if is_given]
    if len(asked) > 1:
        raise ConfigErrors([ConfigError(asked[0], None, f"it chooses the rank, but so does {asked[1]}", asked)])


def _require_below(option: str, number: int, count: int, noun: str) -> None:
    if not 0 <= number < count:
        rule = f"the run has {count} {noun}, counted from 0"
        raise ConfigErrors([ConfigError(option, number, rule, [f"{option} {count - 1}"])])


_FIRST = (4, 8, 16, 32, 3, 2, 1)
"""Smaller depths of a rank to try, in order. Memory is linear in the layers from four on, except for buckets of a fixed
size, which need more; fewer layers are for a device that cannot hold four."""

_APART = 2  # Layers between the two depths.
_RECOMPUTED = 4 / 3  # (Forward + backward + recomputed forward) / (forward + backward), with FLOPs of 1 to 2.


def layers_of(spec: RunSpec, stage: int) -> int:
    """Layers that a rank of a stage runs."""
    return len(rank_layers(cut_of(spec), stage))


def at(spec: RunSpec, layers: int) -> RunSpec:
    """The run with ``layers`` layers in total, split evenly among its stages, and with fresh weights."""
    if layers == spec.model.num_hidden_layers:
        return spec
    even = {"parallel.first_stage_layers": None, "parallel.last_stage_layers": None, "parallel.layout": ()}
    return changed_at(spec, {"model.num_hidden_layers": layers, "model.weights": None, **even})


def candidates(spec: RunSpec, stage: int) -> Iterator[tuple[int, ...]]:
    """Depths to build, the best first: the whole model, then pairs of depths."""
    yield (spec.model.num_hidden_layers,)
    chunks = spec.parallel.pipeline * spec.parallel.virtual_pipeline
    cut = cut_of(spec)
    of_a_chunk = layers_of(spec, stage) / spec.parallel.virtual_pipeline
    kept, step = _kept(spec, stage), _step(spec)
    seen = set()
    for first in _FIRST:
        start = -(-(kept + first) // step) * step
        sizes = [-(-size // spec.parallel.virtual_pipeline) for size in (start, start + max(min(_APART, first), step))]
        sizes[1] = max(sizes[1], sizes[0] + 1)
        depths = tuple(size * chunks - cut.embedding - cut.loss for size in sizes)
        if sizes[1] < of_a_chunk and depths not in seen:
            seen.add(depths)
            yield depths


def _kept(spec: RunSpec, stage: int) -> int:
    dense = spec.model.first_dense_layers if spec.model.num_experts and stage == 0 else 0
    recompute = spec.checkpointing
    alone = recompute.layers if recompute.mode != "none" and _method(spec) == "block" else None
    return max(dense, alone or 0)


def _step(spec: RunSpec) -> int:
    """Layers that are recomputed together; a depth consists of a whole number of such groups."""
    recompute = spec.checkpointing
    return (recompute.layers or 1) if recompute.mode == "full" and _method(spec) == "uniform" else 1


def _method(spec: RunSpec) -> str:
    return method(spec.checkpointing, backends.of(spec).engine(spec))


def asked(spec: RunSpec, layers: tuple[int, ...]) -> tuple[int, ...]:
    """The depths of ``--layers``, the smaller first. Raises ConfigErrors if the run cannot have so many layers."""
    whole, depths = spec.model.num_hidden_layers, tuple(sorted(set(layers)))
    if len(depths) > 2 or not all(0 < depth <= whole for depth in depths):
        rule = f"one depth or two, each from 1 to the model's {whole} layers"
        raise ConfigErrors([ConfigError("--layers", _typed(layers), rule, [f"--layers {whole}"])])
    for depth in depths:
        if errors := findings.errors(at(spec, depth)):
            reasons = "; ".join(f"{error.where}: {error.rule}" for error in errors)
            chunks = spec.parallel.pipeline * spec.parallel.virtual_pipeline
            ways = [f"--layers {chunks},{2 * chunks}"] if 2 * chunks <= whole else [f"--layers {whole}"]
            rule = f"the run cannot have {depth} layers: {reasons}"
            raise ConfigErrors([ConfigError("--layers", _typed(layers), rule, ways)])
    return depths


def _typed(layers: tuple[int, ...]) -> str:
    return ",".join(map(str, layers))


def fewer_micro_batches(spec: RunSpec, stage: int) -> RunSpec:
    """The run with the fewest micro-batches that need as much memory: a first, and one that accumulates gradients."""
    own, stages = spec.gradient_accumulation, spec.parallel.pipeline
    least = min(own, 2)
    if stages > 1:
        held = in_flight(flow_of(spec), stage)
        fewer = range(stages, own, stages)
        counts = (each for each in fewer if in_flight(flow_of(with_micro_batches(spec, each)), stage) == held)
        least = next(counts, own)
    return with_micro_batches(spec, least)


def flops(spec: RunSpec) -> float:
    """FLOPs of one step on one rank, with the work split evenly."""
    family = families.of(spec.model)
    whole = spec.global_batch_size * model_flops(family, spec.model, spec.adapter, spec.sequence_length)
    return whole * (_RECOMPUTED if spec.checkpointing.mode == "full" else 1.0) / spec.gpus
