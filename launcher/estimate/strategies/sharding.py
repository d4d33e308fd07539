"""ZeRO, FSDP and Megatron's distributed optimizer: model states sharded over the data ranks (arXiv:1910.02054)."""

from collections.abc import Iterator
from functools import lru_cache

from launcher.base.errors import ConfigError
from launcher.estimate.rank.view import RankView, StateShares, part_of
from launcher.spec import RunSpec


def apply(view: RankView, spec: RunSpec) -> RankView:
    """Narrow the rank's shares of parameters, gradients and optimizer states.

    FSDP shards all three, whatever ``zero.stage`` says about resharding after forward. Routed experts have one
    data-parallel copy on each of ``world / (pipeline x expert x expert_tensor)`` ranks (Megatron-core
    ``parallel_state``).
    """
    stage = 3 if spec.parallel.shard else spec.zero.stage
    if not stage:
        return view
    inside = spec.parallel.pipeline * spec.parallel.expert * (spec.parallel.expert_tensor or spec.parallel.tensor)
    expert_copies = max(1, spec.gpus // inside // spec.parallel.replicate)
    return view._replace(
        states=_narrowed(view.states, stage, spec.shard_degree),
        expert_states=_narrowed(view.expert_states, stage, expert_copies),
    )


@lru_cache(maxsize=1024)
def _narrowed(shares: StateShares, stage: int, ranks: int) -> StateShares:
    if ranks == 1:
        return shares
    return StateShares(
        parameters=part_of(shares.parameters, ranks if stage >= 3 else 1),
        gradients=part_of(shares.gradients, ranks if stage >= 2 else 1),
        optimizer=part_of(shares.optimizer, ranks if stage >= 1 else 1),
    )


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of replicas without sharding. Each engine checks offload and the stages that a pipeline allows."""
    sharded = spec.parallel.shard or spec.zero.stage > 0
    if spec.parallel.replicate > 1 and not sharded:
        rule = "only a sharded model has replicas, and here every rank holds the whole model (zero.stage=0)"
        way_out = ["parallel.replicate=1", "zero.stage=1"]
        yield ConfigError("parallel.replicate", spec.parallel.replicate, rule, way_out)
