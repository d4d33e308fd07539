"""Activation checkpointing of a block module by module, for engines that run ``transformers``.

``checkpointing.modules`` names attention, the MLP, the experts and the norms. Each is a child of a block's module; one
that is recomputed keeps the tensor that it reads, in the place of all that it saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal, get_args

from launcher.estimate.rank.counts import block_weights, kinds_of
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import Family
from launcher.estimate.rank.tensors import Module, SavedTensor, Share, Weight
from launcher.spec import CheckpointingSpec, ModelSpec, RunSpec

MODULES: tuple[Module, ...] = get_args(Module.__value__)

_SHARES: dict[Module, Share] = {"norm": "residual"}
"""Which ranks share the input of a module, where a split sequence is not gathered before it."""

BLOCK = "block"
"""The whole of a block, which ``checkpointing.mode`` alone means."""


def recomputed(spec: RunSpec) -> tuple[str, ...]:
    """The parts of a block that backward computes again: the whole, or the modules that are named."""
    how = spec.checkpointing
    if how.mode == "none":
        return ()
    return how.modules if how.mode == "selective" and how.modules else (BLOCK,)


def method(how: CheckpointingSpec, engine: EngineTraits) -> Literal["uniform", "block"]:
    """What ``checkpointing.layers`` counts: as it is set, or as the engine means it."""
    return how.method or engine.recompute_method


@lru_cache(maxsize=256)
def modules(family: Family, model: ModelSpec) -> tuple[Module, ...]:
    """The words for modules that some block of the model has."""
    kinds = kinds_of(family, model, tuple(range(model.num_hidden_layers)), first_apart=False)
    found = {word for _, layer, _ in kinds for word in children(family, model, layer).values()}
    return tuple(word for word in MODULES if word in found)


@lru_cache(maxsize=256)
def children(family: Family, model: ModelSpec, layer: int) -> dict[str, Module]:
    """The children of one block's module that have weights, each with its word; a linear that stands alone has none."""
    return dict(_named(block_weights(family, model, layer)))


def _named(block: Sequence[Weight]) -> Iterator[tuple[str, Module]]:
    routed = any(weight.split == "expert" for weight in block)
    for weight in block:
        child, _, rest = weight.name.partition(".")
        if (module := _module(child, rest, weight, routed=routed)) is not None:
            yield child, module


def _module(child: str, rest: str, weight: Weight, *, routed: bool) -> Module | None:
    if "." not in rest:
        return "norm" if len(weight.shape) == 1 and "norm" in child.replace("ln_", "norm_") else None
    if "attn" in child or "attention" in child:
        return "attention"
    return "experts" if routed else "mlp"


@lru_cache(maxsize=1024)
def share_of_weights(family: Family, model: ModelSpec, layer: int, parts: tuple[str, ...]) -> Fraction:
    """The part of a block's matrices, without routed experts, whose products backward computes again."""
    block = block_weights(family, model, layer)
    names = {name for name, module in children(family, model, layer).items() if module in parts}
    dense = [weight for weight in block if len(weight.shape) > 1 and weight.split != "expert"]
    again = sum(weight.elements for weight in dense if BLOCK in parts or weight.name.partition(".")[0] in names)
    return Fraction(again, sum(weight.elements for weight in dense) or 1)


def kept(
    saved: Iterable[SavedTensor], parts: tuple[str, ...], model: ModelSpec, engine: EngineTraits
) -> Iterator[SavedTensor]:
    """Tensors of ``saved`` that no recomputed module drops, and the tensors that these modules read, each once."""
    read: dict[str, SavedTensor] = {}
    for row in saved:
        if row.module is None or row.module not in parts:
            yield row
        elif row.input and row.input not in read:
            size, share = engine.residual_size * model.hidden_size, _SHARES.get(row.module, "token")
            read[row.input] = SavedTensor(name=row.input, bytes=size, share=share, part="input", module=row.module)
    yield from read.values()
