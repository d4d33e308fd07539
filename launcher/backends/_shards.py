"""Rules of model states that are sharded over the data ranks, which several engines share."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit


def whole_gradients_in_stages(spec: RunSpec) -> Iterator[ConfigError]:
    """Pipelines of engines whose stages bear no sharded gradients."""
    if spec.parallel.pipeline > 1 and spec.zero.stage >= 2:
        rule = "ZeRO 2 and 3 shard gradients, which a pipeline accumulates over its micro-batches"
        yield ConfigError("zero.stage", spec.zero.stage, rule, ["zero.stage=1", "parallel.pipeline=1"])


def over_one_rank(spec: RunSpec, *, unasked: int = 0) -> Iterator[ConfigError]:
    """Sharding over one rank.

    Args:
        spec: The run.
        unasked: The stage up to which the engine shards although nobody asks for it.
    """
    meant = spec.parallel.shard or spec.zero.stage > unasked
    if meant and spec.shard_degree == 1:
        rule = f"one rank would hold all shards of the world of {spec.gpus}: nothing is saved by it"
        more = edit.override("cluster.gpus_per_node", 2 * spec.cluster.gpus_per_node)
        yield ConfigError("zero.stage", spec.zero.stage, rule, [more])
