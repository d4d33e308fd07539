"""Memory-saving changes that several engines share; each backend picks those that apply to it."""

from collections.abc import Iterator
from typing import Literal

from launcher.estimate import families
from launcher.estimate.rank import recomputed
from launcher.spec import ParallelSpec, RunSpec, edit
from launcher.spec.change import Change, same_batch, set_to

_NODE = 8  # GPUs of the usual node.
_FEWEST_TOKENS = 4096
"""Fewest tokens of a sequence per rank: with fewer, communication takes longer than the attention that hides it."""

SHARDED = {
    1: "no more traffic than data parallelism",
    2: "no more traffic than data parallelism",
    3: "1.5 times the traffic of data parallelism",
}
"""ZeRO sends 2 P elements per step at stages 1 and 2, and 3 P at stage 3 (arXiv:1910.02054, section 7)."""

_SEQUENCE = {
    "context": "keys and values sent around the ranks in each layer",
    "ulysses": "four all-to-alls a layer, each way",
}


def is_preset(spec: RunSpec, name: str, *, shard: bool, stage: int) -> bool:
    """True if the parallel group is the preset ``parallel=<name>`` with no degree changed."""
    preset = ParallelSpec(
        name=name,
        tensor=1,
        pipeline=1,
        virtual_pipeline=1,
        first_stage_layers=None,
        last_stage_layers=None,
        context=1,
        expert=1,
        expert_tensor=None,
        sequence=False,
        async_tensor=False,
        ulysses=1,
        replicate=1,
        schedule="1f1b",
        shard=shard,
    )
    return spec.parallel == preset and spec.zero.stage == stage


def higher_stages(spec: RunSpec) -> Iterator[Change]:
    """Higher ZeRO stages, set by ``zero.stage``."""
    for larger in range(spec.zero.stage + 1, 4):
        yield set_to(spec, SHARDED[larger], {"zero.stage": larger})


def tensor_ranks(spec: RunSpec, **also: object) -> Iterator[Change]:
    """Each layer split over more GPUs of a node. ``also`` are further keys of the group ``parallel`` to set."""
    degree, settings = spec.parallel.tensor, {f"parallel.{key}": value for key, value in also.items()}
    while (degree := degree * 2) <= min(_NODE, spec.cluster.gpus_per_node):
        change = set_to(spec, "", {"parallel.tensor": degree, **settings})
        yield same_batch(spec, change, "two all-reduces a layer, each way")


def sequence_ranks(spec: RunSpec, axis: Literal["context", "ulysses"]) -> Iterator[Change]:
    """Each sequence split over more ranks, while each rank keeps at least ``_FEWEST_TOKENS`` of its tokens."""
    degree = getattr(spec.parallel, axis)
    while (degree := degree * 2) <= min(spec.gpus, spec.sequence_length // _FEWEST_TOKENS):
        yield same_batch(spec, set_to(spec, "", {f"parallel.{axis}": degree}), _SEQUENCE[axis])


def recomputed_modules(spec: RunSpec) -> Iterator[Change]:
    """The norms of each block, then its MLP or experts as well."""
    known = recomputed.modules(families.of(spec.model), spec.model)
    for names in (("norm",), ("mlp", "experts", "norm")):
        if chosen := tuple(name for name in names if name in known):
            cost = f"a second forward pass of these modules: {', '.join(chosen)}"
            settings: dict[str, object] = {"checkpointing.mode": "selective", "checkpointing.modules": chosen}
            yield set_to(
                spec, cost, settings, ("checkpointing=selective", edit.override("checkpointing.modules", [*chosen]))
            )
