"""A model with an adapter: frozen weights, low-rank matrices beside some of them, and other saved tensors.

LoRA (arXiv:2106.09685) as ``peft`` wraps it: ``base(x) + B(A(dropout(x)))``. The base, its norms, the embedding and the
output projection are frozen, so tensors that only their weight gradients need are not saved. The functions here take
the saved rows of a fully trained block, keep those that are still needed, and add the adapter's own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import FamilyTraits
from launcher.estimate.rank.tensors import Module, SavedTensor, Share, Weight
from launcher.spec import AdapterSpec, RunSpec


def weights(block: Sequence[Weight], adapter: AdapterSpec) -> list[Weight]:
    """The weights of a block, frozen and with QLoRA quantised, and the adapters beside them."""
    if adapter.name == "none":
        return list(block)
    base = [replace(weight, frozen=True, quantised=adapter.bits if packable(weight) else 0) for weight in block]
    own = (*targeted(block, adapter), *folded(block, adapter))
    return [*base, *(added for weight in own for added in matrices(weight, adapter))]


def packable(weight: Weight) -> bool:
    """True for linear layers and experts, except routers and linear layers whose weight other code reads."""
    return len(weight.shape) == 2 and module(weight) not in ("gate", "router") and not weight.whole


def frozen(outside: Sequence[Weight], adapter: AdapterSpec) -> list[Weight]:
    """The weights outside the blocks: frozen with an adapter, and never quantised; copies of some are trained.

    ``peft`` keeps a module of which it trains a copy (``ModulesToSaveWrapper``).
    """
    if adapter.name == "none":
        return list(outside)
    copies = [weight for weight in outside if module(weight) in adapter.modules_to_save]
    return [*(replace(weight, frozen=True) for weight in outside), *copies]


def trains(outside: Sequence[Weight], adapter: AdapterSpec) -> bool:
    """True if some of the weights outside the blocks are trained."""
    return adapter.name == "none" or any(module(weight) in adapter.modules_to_save for weight in outside)


def targeted(block: Sequence[Weight], adapter: AdapterSpec) -> list[Weight]:
    """The linear layers of a block that the adapter wraps."""
    return [weight for weight in block if len(weight.shape) == 2 and module(weight) in adapter.targets]


def folded(block: Sequence[Weight], adapter: AdapterSpec) -> list[Weight]:
    """The experts' weights of a block into which each pass merges the adapter's product (peft ``ParamWrapper``)."""
    return [weight for weight in block if adapter.parameters and parameter(weight) in adapter.parameters]


def parameter(weight: Weight) -> str:
    """The name of a weight of all experts as ``peft`` matches it, with its module's; empty for others."""
    together = weight.split == "expert" and not weight.stacked and len(weight.shape) == 2
    experts = together and not weight.name.endswith(".weight")
    return ".".join(weight.name.split(".")[-2:]) if experts else ""


def module(weight: Weight) -> str:
    """The name of the module that a weight belongs to, as ``peft`` matches it."""
    return weight.name.rpartition(".")[0].rpartition(".")[2]


def matrices(weight: Weight, adapter: AdapterSpec) -> tuple[Weight, ...]:
    """The two factors beside a linear layer: ``r (in + out)`` parameters (arXiv:2106.09685, section 4.1).

    Tensor parallel ranks split the factor on the side on which they split the layer. DoRA adds a magnitude per output
    (arXiv:2402.09353, section 4.1). The factors of all experts of a layer are one matrix (peft ``ParamWrapper``).
    """
    (outputs, inputs), rank = weight.shape, adapter.rank * weight.copies
    name = weight.name.removesuffix(".weight")
    if adapter.rotates:  # The upper triangles of skew-symmetric blocks (peft ``tuners/oft/layer.py``).
        b = adapter.block_size
        return (Weight(name=f"{name}.oft_R.weight", shape=(inputs // b, b * (b - 1) // 2)),)
    down = Weight(name=f"{name}.lora_A.weight", shape=(rank, inputs))
    up = Weight(name=f"{name}.lora_B.weight", shape=(outputs, rank))
    if weight.split == "tensor":
        cut = (replace(up, split="tensor"), replace(down, split="tensor", dimension=1))
        down, up = (down, cut[0]) if weight.dimension == 0 else (cut[1], up)
    if not adapter.dora:
        return down, up
    return down, up, Weight(name=f"{name}.lora_magnitude_vector.weight", shape=(outputs,))


def saved(
    rows: Sequence[SavedTensor],
    block: Sequence[Weight],
    adapter: AdapterSpec,
    engine: EngineTraits,
    traits: FamilyTraits,
    *,
    first: bool,
) -> tuple[SavedTensor, ...]:
    """Tensors that a block with an adapter saves, the adapter's own included.

    In the model's first block nothing before the first adapted linear layer needs a gradient, so nothing is saved
    there. Tensors parallel to that layer still count: a gate beside an adapted up-projection. ``rows`` are the tensors
    that the block saves when all of it is trained; ``first`` is true for the model's first block.
    """
    if adapter.name == "none":
        return tuple(rows)
    found = targeted(block, adapter)
    names = frozenset(module(weight) for weight in (*found, *folded(block, adapter)))
    reads = not engine.wide_adapters and (engine.fused_adapters or not adapter.dropout)
    start = next((at for at, row in enumerate(rows) if names.intersection(row.readers)), len(rows)) if first else 0
    idle = _idle(block, adapter)
    # Gradients of frozen weights alone need no row; after dropout an adapter reads its own copy.
    needed = [row for row in rows[start:] if not row.only_readers or (reads and names.intersection(row.readers))]
    left = [row for row in needed if row.name not in idle]
    if adapter.dora and adapter.bits and engine.autocast:
        left = _widened(left, names, engine)
    own = (
        replace(row, module=_place(weight, rows))
        for weight in found
        for row in _own(weight, adapter, engine, traits.attention_output)
    )
    return (*left, *own)


def rounded(
    rows: Sequence[SavedTensor],
    block: Sequence[Weight],
    adapter: AdapterSpec,
    engine: EngineTraits,
    *,
    whole: Sequence[SavedTensor],
    first: bool,
) -> tuple[SavedTensor, ...]:
    """Tensors that a block saves where linear layers round their inputs: each one's fp32 clamp input and rounded copy.

    ``whole`` are the rows of a trained block. In the ``first`` block with an adapter, the inputs of the first adapted
    linear layer, and of those beside it, need no gradient.
    """
    if engine.rounding is None or not engine.rounding.inputs:
        return tuple(rows)
    linears = [weight for weight in block if len(weight.shape) == 2]
    trained, names = adapter.name == "none", {module(weight) for weight in linears}
    left = [row for row in rows if not row.only_readers or not trained or names.isdisjoint(row.readers)]
    if first and not trained:
        idle = next((row.readers for row in whole if not {*adapter.targets}.isdisjoint(row.readers)), ())
        linears = [weight for weight in linears if module(weight) not in idle]
    size = engine.rounding.codes or 4 + engine.size * trained
    return (*left, *(SavedTensor("rounded input", int(size * one.shape[1]), "token", "adapter") for one in linears))


def _widened(rows: Sequence[SavedTensor], names: frozenset[str], engine: EngineTraits) -> list[SavedTensor]:
    """The rows, with outputs of adapted linear layers, and the activation of an adapted gate, in fp32.

    With quantised weights ``peft`` does not cast the sum with DoRA's fp32 product back under autocast
    (``requires_conversion`` of ``tuners/lora/bnb.py``).
    """
    wide = {row.name for row in rows if row.output_of in names}
    wide |= {row.name for row in rows if row.part == "activation" and not row.readers and "gate" in wide}
    return [replace(row, bytes=4 * row.bytes // engine.size) if row.name in wide else row for row in rows]


def _idle(block: Sequence[Weight], adapter: AdapterSpec) -> set[str]:
    """Names of rows needed only for the gradients of experts' weights without an adapter, where others have one."""
    experts = [weight for weight in block if adapter.parameters and weight.split == "expert"]
    read = {"expert inputs": experts[:1], "expert products": experts[-1:]}
    return {name for name, weights in read.items() if weights and weights != folded(weights, adapter)}


def _place(weight: Weight, rows: Sequence[SavedTensor]) -> Module | None:
    """The module of ``checkpointing.modules`` that holds a linear layer: attention, or the MLP or its replacement."""
    if weight.module is not None:
        return weight.module
    if "attn" in weight.name or "attention" in weight.name:
        return "attention"
    return next((row.module for row in reversed(rows) if row.module not in (None, "norm")), None)


def backward_extra(
    rows: Sequence[SavedTensor], saved_if_trained: Sequence[SavedTensor], block: Sequence[Weight], adapter: AdapterSpec
) -> tuple[SavedTensor, ...]:
    """The gradients inside a block, with that of the input of the MLP's last linear layer if this is frozen.

    If that layer is trained, its saved input is freed before the earlier gradients exist, which makes room for that
    gradient; experts that compute all at once have freed their outputs by then.
    ``rows`` and ``saved_if_trained`` are those of a trained block.
    """
    if adapter.name == "none":
        return tuple(rows)
    names = frozenset(module(weight) for weight in (*targeted(block, adapter), *folded(block, adapter)))
    idle = _idle(block, adapter)
    gone = [replace(row, bytes=-row.bytes) for row in saved_if_trained if row.name == "expert outputs" and row.made]
    unsaved = [
        row
        for row in saved_if_trained
        if row.only_readers
        and (row.part == "activation" or (gone and row.name == "expert products"))
        and (row.name in idle or not names & set(row.readers))
    ]
    return (*rows, *(replace(row, name=f"gradient of the {row.name}") for row in unsaved), *gone)


def after_blocks(rows: Sequence[SavedTensor], spec: RunSpec) -> tuple[SavedTensor, ...]:
    """Tensors saved after the last block; a frozen output projection saves its input for a chunked loss only."""
    if spec.adapter.name == "none":
        return tuple(rows)
    chunked, saved = spec.train.loss != "full", "lm_head" in spec.adapter.modules_to_save
    names = frozenset(("lm_head",) if chunked or saved else ())
    return tuple(row for row in rows if not row.only_readers or names.intersection(row.readers))


def _own(weight: Weight, adapter: AdapterSpec, engine: EngineTraits, attention_output: str) -> Iterator[SavedTensor]:
    """Tensors that one adapter saves: ``r`` values between its two matrices; with dropout its input and a mask.

    Under autocast ``peft`` casts the input to the parameters' fp32 and autocast casts it back, so that each linear
    layer has a copy, except with quantised weights under CUDA's autocast (``requires_conversion`` of
    ``tuners/lora/bnb.py``). DoRA's gradients need both products of a layer before the magnitudes (``peft``
    ``dora.py``). Unsloth's kernels recompute the adapter in backward from its input after dropout, without a mask.
    """
    inputs, size = weight.shape[1], engine.size
    copies = engine.wide_adapters
    if copies and (adapter.rotates or not adapter.dropout):
        yield SavedTensor("cast of the adapter's input", size * inputs, "token", "adapter")
    if adapter.rotates:
        return
    if engine.fused_adapters:
        if adapter.dropout:
            yield SavedTensor("adapter's dropout", size * inputs, "token", "adapter")
        return
    share: Share = "residual" if weight.split == "tensor" and weight.dimension == 1 else "token"
    yield SavedTensor("between the adapter's matrices", size * adapter.rank, share, "adapter")
    if adapter.dora:
        bytes_ = 2 * size * weight.shape[0]
        yield SavedTensor("products before magnitudes", bytes_, "token", "adapter")
    if adapter.dropout:
        mask = (4 if engine.autocast or copies else size) if engine.cpu else 1
        yield SavedTensor("adapter's dropout", (size + mask) * inputs, "token", "adapter")
    elif engine.autocast and weight.name == attention_output and (engine.cpu or not adapter.bits):
        yield SavedTensor("cast of the attention output", size * inputs, "token", "adapter")
