"""ZeRO, FSDP and Megatron's distributed optimizer: model states shared out among the data ranks (arXiv:1910.02054)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from launcher import ways
from launcher.errors import ConfigError
from launcher.rank import RankView, StateShares
from launcher.spec import RunSpec


def apply(view: RankView, spec: RunSpec) -> RankView:
    """What the rank keeps of parameters, gradients and optimizer states.

    FSDP keeps shards of all three whatever ``zero.stage`` says about resharding after forward. Routed experts have
    one data-parallel copy for ``world / (pipeline x expert x expert_tensor)`` ranks (Megatron-core ``parallel_state``).
    """
    stage = 3 if spec.parallel.shard else spec.zero.stage
    inside = spec.parallel.pipeline * spec.parallel.expert * (spec.parallel.expert_tensor or spec.parallel.tensor)
    expert_copies = max(1, spec.gpus // inside // spec.parallel.replicate)
    return replace(
        view,
        states=_narrowed(view.states, stage, max(1, spec.world.shard)),
        expert_states=_narrowed(view.expert_states, stage, expert_copies),
    )


def _narrowed(shares: StateShares, stage: int, ranks: int) -> StateShares:
    share = Fraction(1, ranks)
    return StateShares(
        parameters=shares.parameters * (share if stage >= 3 else 1),
        gradients=shares.gradients * (share if stage >= 2 else 1),
        optimizer=shares.optimizer * (share if stage >= 1 else 1),
    )


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Offload needs what it offloads to be sharded; replicas need shards; pipelines bear no sharded gradients."""
    yield from _offload(spec)
    sharded = spec.parallel.shard or spec.zero.stage > 0
    if spec.parallel.replicate > 1 and not sharded:
        rule = "replicas are of a sharded model, and here every rank holds the whole (zero.stage=0)"
        way_out = ["parallel.replicate=1", "zero.stage=1"]
        yield ConfigError("parallel.replicate", spec.parallel.replicate, rule, way_out)
    if spec.parallel.pipeline > 1 and spec.zero.stage >= 2 and spec.backend.name != "fsdp":
        rule = "ZeRO 2 and 3 shard gradients, which a pipeline accumulates over its micro-batches"
        yield ConfigError("zero.stage", spec.zero.stage, rule, ["zero.stage=1", "parallel.pipeline=1"])
    if spec.zero.hpz > 1:
        yield from _secondary(spec)


def _offload(spec: RunSpec) -> Iterator[ConfigError]:
    zero = spec.zero
    if zero.offload_optimizer != "none" and zero.stage == 0:
        rule = "optimizer states are offloaded as shards, and zero.stage=0 has none"
        way_out = ["zero.offload_optimizer=none", "zero.stage=1", "zero.stage=3"]
        yield ConfigError("zero.offload_optimizer", zero.offload_optimizer, rule, way_out)
    if zero.offload_parameters != "none" and zero.stage < 3:
        rule = f"parameters are offloaded as shards, and zero.stage={zero.stage} keeps them whole"
        way_out = ["zero.offload_parameters=none", "zero.stage=3"]
        yield ConfigError("zero.offload_parameters", zero.offload_parameters, rule, way_out)
    if "nvme" in (zero.offload_optimizer, zero.offload_parameters) and zero.nvme_path is None:
        rule = "offloading to NVMe needs a folder on that disk"
        key = "offload_optimizer" if zero.offload_optimizer == "nvme" else "offload_parameters"
        way_out = ["zero.nvme_path=/path/on/nvme"]
        if zero.offload_optimizer != zero.offload_parameters:
            way_out.append(f"zero.{key}=cpu")
        yield ConfigError("zero.nvme_path", None, rule, way_out)


def _secondary(spec: RunSpec) -> Iterator[ConfigError]:
    """ZeRO++ keeps a second copy of the parameters within a group of ranks (arXiv:2306.10209, section 3.2)."""
    ranks, group = spec.zero.hpz, spec.world.shard
    if spec.zero.stage < 3:
        rule = f"a secondary copy of the parameters is for zero.stage=3; zero.stage={spec.zero.stage} keeps them whole"
        yield ConfigError("zero.hpz", ranks, rule, ["zero.hpz=1", "zero.stage=3"])
    elif group % ranks:
        rule = f"the ranks of a secondary copy must divide the {group} that shard the parameters"
        legal = ways.nearest(spec, "zero.hpz", ways.divisors(group), lambda _: True)
        yield ConfigError("zero.hpz", ranks, rule, legal)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Sharding over one rank."""
    if (spec.parallel.shard or spec.zero.stage > 0) and spec.world.shard == 1:
        rule = f"one rank would hold all shards of the world of {spec.gpus}: nothing is saved by it"
        more = ways.override("cluster.gpus_per_node", 2 * spec.cluster.gpus_per_node)
        yield ConfigError("zero.stage", spec.zero.stage, rule, [more])
