"""The tensors of a block that stay until backward: recomputed modules of ``transformers`` classes, and offloading.

``checkpointing.modules`` names attention, the MLP, the experts and the norms. Each is a child of a block's module; a
recomputed one keeps only its input, in place of all that it saves.
"""

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

_PARTS = {
    "core_attn": ("core_attention",),
    "moe_act": ("activation",),
    "layernorm": ("norm",),
    "mla_up_proj": ("up_projection",),
    "mlp": ("mlp", "activation"),
    "moe": ("moe", "activation"),
    "shared_experts": (),
}
"""Megatron-core's ``--recompute-modules`` as parts of a block."""

_SHARES: dict[Module, Share] = {"norm": "residual"}
"""How ranks split a module's input, for modules before which a split sequence is not gathered."""

BLOCK = "block"  # The whole block, as ``checkpointing.mode`` without modules means.


def recomputed(spec: RunSpec) -> tuple[str, ...]:
    """The parts of a block that backward recomputes: the whole block, or the named modules."""
    how = spec.checkpointing
    if how.mode == "none":
        return ()
    return how.modules if how.mode == "selective" and how.modules else (BLOCK,)


def method(how: CheckpointingSpec, engine: EngineTraits) -> Literal["uniform", "block"]:
    """The meaning of ``checkpointing.layers``: ``checkpointing.method`` if set, else the engine's default."""
    return how.method or engine.recompute_method


@lru_cache(maxsize=256)
def modules(family: Family, model: ModelSpec) -> tuple[Module, ...]:
    """The names in ``checkpointing.modules`` of modules that some block of the model has."""
    kinds = kinds_of(family, model, tuple(range(model.num_hidden_layers)), first_apart=False)
    found = {word for _, layer, _ in kinds for word in children(family, model, layer).values()}
    return tuple(word for word in MODULES if word in found)


@lru_cache(maxsize=256)
def children(family: Family, model: ModelSpec, layer: int) -> dict[str, Module]:
    """The children of a block's module with weights, and their ``checkpointing.modules``; not lone linear layers."""
    return dict(_named(block_weights(family, model, layer)))


def _named(block: Sequence[Weight]) -> Iterator[tuple[str, Module]]:
    routed = any(weight.split == "expert" for weight in block)
    for weight in block:
        child, _, rest = weight.name.partition(".")
        if (module := weight.module or _module(child, rest, weight, routed=routed)) is not None:
            yield child, module


def _module(child: str, rest: str, weight: Weight, *, routed: bool) -> Module | None:
    if "." not in rest:
        return "norm" if len(weight.shape) == 1 and "norm" in child.replace("ln_", "norm_") else None
    if "attn" in child or "attention" in child:
        return "attention"
    return "experts" if routed else "mlp"


@lru_cache(maxsize=1024)
def share_of_weights(family: Family, model: ModelSpec, layer: int, parts: tuple[str, ...]) -> Fraction:
    """The share of a block's matrices, without routed experts, whose products backward recomputes."""
    block = block_weights(family, model, layer)
    names = {name for name, module in children(family, model, layer).items() if module in parts}
    dense = [weight for weight in block if len(weight.shape) > 1 and weight.split != "expert"]
    again = sum(weight.elements for weight in dense if BLOCK in parts or weight.name.partition(".")[0] in names)
    return Fraction(again, sum(weight.elements for weight in dense) or 1)


def kept(
    saved: Iterable[SavedTensor], parts: tuple[str, ...], model: ModelSpec, engine: EngineTraits
) -> Iterator[SavedTensor]:
    """Tensors of ``saved`` that no recomputed module drops, and each input of these modules once."""
    read: dict[str, SavedTensor] = {}
    for row in saved:
        if row.module is None or row.module not in parts:
            yield row
        elif row.input and row.input not in read:
            size, share = engine.residual_size * model.hidden_size, _SHARES.get(row.module, "token")
            read[row.input] = SavedTensor(row.input, size, share, "input", module=row.module)
    yield from read.values()


def dropped_parts(how: CheckpointingSpec) -> frozenset[str]:
    """The parts of a block that Megatron-core's selective recomputation drops."""
    names = () if how.mode != "selective" else how.modules or ("core_attn",)
    return frozenset(part for name in names for part in _PARTS.get(name, ()))


@lru_cache(maxsize=256)
def block_input(model: ModelSpec, engine: EngineTraits) -> SavedTensor:
    """The residual stream before a block, for one token."""
    return SavedTensor("block input", engine.residual_size * model.hidden_size, "residual", "input")


def offloaded(
    spec: RunSpec, engine: EngineTraits, saved: Iterable[SavedTensor], parts: tuple[str, ...]
) -> Iterator[SavedTensor]:
    """Tensors of one block that are offloaded to the host: a recomputed block's input, or Megatron-LM's named modules.

    CPU ranks offload nothing, as the host memory is their device's. Megatron-core does not offload tensors of fewer
    than ``--min-offloaded-tensor-size`` elements; a block's are larger.
    """
    how = spec.checkpointing
    if spec.hardware.device != "cuda":
        return
    if engine.library == "transformers":
        if parts:
            yield block_input(spec.model, engine)
        return
    dropped = dropped_parts(how)
    for row in saved:
        if row.part not in dropped and (not how.offload_modules or row.offloaded_by in how.offload_modules):
            yield row


def layers_moved(spec: RunSpec) -> int | None:
    """Number of first layers that Megatron-LM offloads if no module is named: by default all but one; None if none.

    ``--cpu-offloading-num-layers`` is less than the number of layers (``core/transformer/transformer_config.py``).
    """
    how = spec.checkpointing
    if not how.offload or how.offload_modules:
        return None
    return how.layers or max(1, spec.model.num_hidden_layers - 1)
