"""The question of a rehearsal, and its ranks: of the stage that needs the most by the estimate, or those asked for."""

from __future__ import annotations

from launcher import backends
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.estimate.memory.result import MemoryEstimate
from launcher.spec import RunSpec

STEPS = 3  # The first two are followed, the rest are timed.

MINUTES = 15  # For all of its ranks and depths together: a rehearsal is to be short.

FILE = "rehearse.json"  # The question in the run directory of a Slurm job.


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The question of a rehearsal."""

    stage: int | None = None  # The pipeline stage; None is that which needs the most by the estimate.
    rank: int | None = None  # The rank, in place of a stage.
    all_stages: bool = False  # Every stage that holds something else than the others.
    steps: int = STEPS  # Training steps.
    # Layers of the models that are built; empty is the whole model, or what the device can hold of it.
    layers: tuple[int, ...] = ()
    minutes: float = MINUTES  # The limit on all of it.


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
    """The fullest rank of a stage; every engine lays its stages out outermost, so that a stage's ranks are in a row."""
    width = spec.gpus // spec.parallel.pipeline
    return stage * width + backends.of(spec).fullest_rank(spec) % width


def stage_of(spec: RunSpec, rank: int) -> int:
    """The pipeline stage of a rank."""
    return rank // (spec.gpus // spec.parallel.pipeline)


def distinct(estimate: MemoryEstimate) -> list[int]:
    """One of the stages that hold the same by the estimate, the fullest first."""
    found: dict[tuple[int, int], int] = {}
    for peak in estimate.ranks:
        found.setdefault((peak.allocated_bytes, peak.static_bytes), peak.stage)
    return [stage for _, stage in sorted(found.items(), key=lambda item: item[0], reverse=True)]


def _require_one(request: Request) -> None:
    given = {"--rank": request.rank is not None, "--stage": request.stage is not None}
    given["--all-stages"] = request.all_stages
    asked = [name for name, is_given in given.items() if is_given]
    if len(asked) > 1:
        raise ConfigErrors([ConfigError(asked[0], None, f"it chooses the rank, and so does {asked[1]}", asked)])


def _require_below(option: str, number: int, count: int, noun: str) -> None:
    if not 0 <= number < count:
        rule = f"the run has {count} {noun}, counted from 0"
        raise ConfigErrors([ConfigError(option, number, rule, [f"{option} {count - 1}"])])
