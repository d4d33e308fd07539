"""Saved activations: what forward keeps for backward, what recomputation brings back, what backward adds."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from launcher.memory.moments import Moment
from launcher.memory.terms import MemoryTerm
from launcher.rank.model import BlockKind, RankModel
from launcher.rank.tensors import SavedTensor
from launcher.rank.view import rounded_up

SOURCE = "arXiv:2205.05198, section 4, with the tensors that the modules save (launcher/families)"

FULL: frozenset[Moment] = frozenset(("forward", "output", "loss", "loss_backward", "block_backward"))
RECOMPUTING: frozenset[Moment] = frozenset((
    "block_backward",
    "next_block_backward",
    "second_layer_backward",
    "first_layer_backward",
))

_MODULES = {
    "core_attn": ("core_attention",),
    "moe_act": ("activation",),
    "layernorm": ("norm",),
    "mla_up_proj": ("up_projection",),
    "mlp": ("mlp", "activation"),
    "moe": ("moe", "activation"),
    "shared_experts": (),
}
"""Megatron-core's ``--recompute-modules`` as parts of a block."""


def saved(rank: RankModel) -> Iterator[MemoryTerm]:
    """Activations of all layers and of all micro-batches in flight, less those that backward has freed.

    ``in_flight x L x kept``; at the next block's backward one block less, two at the second layer's, one at the
    first's.
    """
    sizes = [(kind.count, block_bytes(rank, kind)) for kind in rank.blocks]
    everything = sum(count * size for count, size in sizes)
    in_flight = rounded_up(everything, rank.view.in_flight)
    others = max(0, in_flight - everything)
    last = sizes[-1][1] if sizes else 0
    first = [size for count, size in sizes for _ in range(min(count, 2))][:2]
    per_token = everything / max(rank.tokens * rank.layers, 1)
    formula = (
        f"of {rank.layers}: {per_token:,.0f} B a token and layer x {rank.tokens:,} tokens"
        f" x {float(rank.view.in_flight):g} micro-batches in flight"
    )

    def term(moments: frozenset[Moment], size: int, what: str) -> MemoryTerm:
        return MemoryTerm(pile="activations", moments=moments, bytes=size, formula=f"{what} {formula}", source=SOURCE)

    yield term(FULL, in_flight, "all layers")
    yield term(frozenset(("next_block_backward",)), others + everything - last, "all layers but one")
    yield term(frozenset(("second_layer_backward",)), others + sum(first), "the first layers")
    yield term(frozenset(("first_layer_backward",)), others + sum(first[:1]), "the first layer")
    yield term(frozenset(("root_backward",)), others, "micro-batches still in flight")


def after_blocks(rank: RankModel) -> Iterator[MemoryTerm]:
    """The last norm and the input of the output projection, of one micro-batch, and the token ids."""
    ids = 2 * 8 * rank.tokens
    yield MemoryTerm(
        pile="activations",
        moments=frozenset(("output", "loss", "loss_backward")),
        bytes=rank.bytes_of(rank.after_blocks) + ids,
        formula=f"last norm and token ids of {rank.tokens:,} tokens",
        source=SOURCE,
    )


def recomputed(rank: RankModel) -> Iterator[MemoryTerm]:
    """What the backward pass of one group of checkpointed blocks brings back: ``saved`` of each, less what is there.

    The group's input is there where the first norm saves it as it is, and with selective checkpointing what that keeps.
    """
    spec = rank.spec.checkpointing
    if spec.mode == "none" or not rank.blocks:
        return
    group = min(spec.layers or 1, _chunk(rank)) if spec.mode == "full" and spec.method == "uniform" else 1
    kind = max(rank.blocks, key=lambda kind: rank.bytes_of(kind.saved))
    whole = rank.bytes_of(item for item in kind.saved if item.part != "cache")
    one = min(group, kind.count) * whole - _there(rank, kind)
    yield MemoryTerm(
        pile="activations",
        moments=RECOMPUTING,
        bytes=max(one, 0),
        formula=f"recomputed block: {whole / max(rank.tokens, 1):,.0f} B a token x {rank.tokens:,} tokens",
        source=SOURCE,
    )


def _there(rank: RankModel, kind: BlockKind) -> int:
    """What of a recomputed block's saved tensors is counted among those that it kept.

    The product that its last operation made is not: recomputation stops before it (``early_stop`` of
    ``torch/utils/checkpoint.py``), and it stays in the cache.
    """
    selective, engine = rank.spec.checkpointing.mode == "selective", rank.engine
    if engine.library == "megatron":
        return kept_bytes(rank, kind) if selective else 0
    rows = [item for item in kind.saved if item.kept_by_selective and not item.last] if selective else []
    if rank.family.saves_input(rank.spec.model, engine):
        rows.append(_input(rank))
    return rank.bytes_of(rows)


def _input(rank: RankModel) -> SavedTensor:
    size = rank.engine.residual_size * rank.spec.model.hidden_size
    return SavedTensor(name="block input", bytes=size, share="residual", part="input")


def backward_extra(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradients inside the block whose backward pass runs."""
    if rank.blocks:
        kind = _fullest(rank)
        yield MemoryTerm(
            pile="temporary",
            moments=RECOMPUTING,
            bytes=rank.bytes_of(kind.backward_extra),
            formula=f"gradients inside one block, {rank.tokens:,} tokens",
            source="trace of the live tensors of a backward pass (launcher/families)",
        )


def backward_extra_parts(rank: RankModel) -> tuple[int, int]:
    """Of :func:`backward_extra` the gradients inside the MLP, and beyond them the reordering of experts' outputs.

    Half of the former exist when that of the MLP's last weight does, and none of the latter.
    """
    if not rank.blocks:
        return 0, 0
    rows = _fullest(rank).backward_extra
    outputs = rank.bytes_of(row for row in rows if row.part == "moe")
    return rank.bytes_of(rows) - outputs, outputs


def _fullest(rank: RankModel) -> BlockKind:
    """The kind of block whose backward pass adds the most."""
    return max(rank.blocks, key=lambda kind: rank.bytes_of(kind.backward_extra))


def forward_extra(rank: RankModel) -> Iterator[MemoryTerm]:
    """Inside the last block: its input, both residual sums and the MLP's output; with recomputation its MLP as well.

    A checkpointed block saves nothing in forward, but the tensors of its MLP still pass through memory; a product that
    selective checkpointing keeps is counted with what is kept, and experts in a loop run each on few tokens.
    """
    if not rank.blocks or rank.engine.library == "megatron":
        return
    kind, engine = rank.blocks[-1], rank.engine
    model, recomputes = rank.spec.model, rank.spec.checkpointing.mode != "none"
    # What a block saves is gone at once where it is checkpointed; a family may keep its embeddings as long as it runs.
    rows = 2 if recomputes and not rank.family.traits.keeps_embeddings else 4
    row = SavedTensor(
        name="residuals", bytes=rows * engine.residual_size * model.hidden_size, share="residual", part="input"
    )
    kept = {item.output_of for item in kind.saved if item.part == "cache"} - {""}
    inside = [item for item in kind.saved_if_trained if item.part in ("mlp", "activation", "moe")]
    loops = not engine.grouped_experts
    passing = [
        item
        for item in inside
        if item.in_forward_peak and item.output_of not in kept and not (loops and item.share.startswith("routed"))
    ]
    yield MemoryTerm(
        pile="temporary",
        moments=frozenset(("forward",)),
        bytes=rank.bytes_of([row, *(passing if recomputes else ())]),
        formula=f"tensors inside one block, {rank.tokens:,} tokens",
        source="trace of the live tensors of a forward pass (launcher/families)",
    )


def block_bytes(rank: RankModel, kind: BlockKind) -> int:
    """What one block keeps of one micro-batch, averaged over the blocks where only some are checkpointed."""
    spec = rank.spec.checkpointing
    whole = rank.bytes_of(kind.saved)
    if spec.mode == "none":
        return whole
    kept = kept_bytes(rank, kind)
    if spec.mode == "selective":
        return kept
    chunk = _chunk(rank)
    if spec.method == "block":
        checkpointed = min(spec.layers or chunk, chunk)
        return ceil((checkpointed * kept + (chunk - checkpointed) * whole) / chunk)
    return ceil(kept * -(-chunk // (spec.layers or 1)) / chunk)


def _chunk(rank: RankModel) -> int:
    """Layers among which those that are checkpointed are counted: Megatron-core begins anew in each model chunk.

    ``core/recompute.py``, ``num_layers_per_pipeline_rank``.
    """
    chunks = rank.spec.parallel.virtual_pipeline if rank.engine.library == "megatron" else 1
    return max(1, -(-rank.layers // chunks))


def kept_bytes(rank: RankModel, kind: BlockKind) -> int:
    """What one checkpointed block keeps: its input, and with selective checkpointing what that does not drop."""
    spec, engine, row = rank.spec.checkpointing, rank.engine, _input(rank)
    if spec.mode == "full":
        return rank.bytes_of([row])
    if engine.library == "transformers":
        return rank.bytes_of([row, *(item for item in kind.saved if item.kept_by_selective)])
    dropped = {part for name in spec.modules or ("core_attn",) for part in _MODULES.get(name, ())}
    return rank.bytes_of(item for item in kind.saved if item.part not in dropped)
