"""Saved activations: what forward keeps for backward, what recomputation restores, what backward adds.

``saved`` counts, block by block, what all blocks keep. At the moment of a block's backward pass that block is left out
of the sum: its saved, recomputed and temporary tensors are counted at each instant of the pass. The fullest instant
inside its MLP is ``mlp_backward``; a backend adds the instants at which its own buffers exist beside other tensors,
with ``content`` and terms of its own, and the fullest of all instants counts (``memory.terms.fullest``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from operator import mul
from typing import NamedTuple

from launcher.base.formula import Value
from launcher.estimate.memory.moments import BEFORE_BLOCKS_BACKWARD, BLOCK_BACKWARD, LOSS, PASSES, Moment, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank import counts, recomputed
from launcher.estimate.rank.model import BlockKind, RankModel
from launcher.estimate.rank.recomputed import BLOCK, method
from launcher.estimate.rank.tensors import SavedTensor

SOURCE = "arXiv:2205.05198, section 4, with the tensors that the modules save (launcher/estimate/families)"
BACKWARD_TRACE = "trace of the live tensors of a backward pass (launcher/estimate/families)"
_OFFLOAD = "megatron/core/pipeline_parallel/fine_grained_activation_offload.py; Transformer Engine, cpu_offload.py"
_MASK = "transformers/masking_utils.py and launcher/worker/model/network.py: a number for each pair of tokens"
_FORWARD_TRACE = "trace of the live tensors of a forward pass (launcher/estimate/families)"


def saved(rank: RankModel) -> Iterator[MemoryTerm]:
    """Activations of all layers and micro-batches in flight, ``f L k tok``, without the block whose backward runs.

    Backward frees one block after another: during the last block's pass one block fewer is held, during the one
    before it two fewer; during the second block's pass the first is left, during the first block's none. The other
    micro-batches in flight keep all of theirs.
    """
    if rank.blocks:
        kept = tuple(kept_per_token(rank, kind) - rank.token_bytes(kind.offloaded) for kind in rank.blocks)
        f = rank.view.in_flight
        every = tuple(kind.count * _others(rank, kind) for kind in rank.blocks)
        yield from _all_saved(_Held(f, rank.tokens, rank.order, _fullest_before_last(rank), kept, every))


def _others(rank: RankModel, kind: BlockKind) -> Value:
    """Share of the other micro-batches in flight that hold a kind of block: fewer have reached the last chunk."""
    f, own = rank.view.in_flight, rank.view.predicted_in_flight
    return 1 if kind.name != counts.FURTHER or own == f else (own - 1) / (f - 1) if f > 1 else 0


class _Held(NamedTuple):
    """All that the terms of :func:`saved` depend on."""

    f: Fraction  # Micro-batches in flight.
    tok: int  # Tokens of one.
    order: tuple[int, ...]  # The kind of each block.
    before: int  # Place of the block of ``next_block_backward``.
    kept: tuple[Value, ...]  # Bytes per token that a block of each kind keeps.
    every: tuple[Value, ...]  # Blocks of each kind that the other micro-batches hold.


@lru_cache(maxsize=4096)
def _all_saved(held: _Held) -> tuple[MemoryTerm, ...]:
    """The terms of :func:`saved`, cached: layouts that differ only in their sharding share them."""
    layers, kinds = len(held.order), range(len(held.kept))
    counts = [held.order.count(kind) for kind in kinds]
    left: dict[Moments, tuple[str, list[int]]] = {
        BEFORE_BLOCKS_BACKWARD: ("saved by all blocks", counts),
        frozenset(("block_backward",)): (
            "saved by all blocks but the last", [held.order[:-1].count(kind) for kind in kinds],
        ),
    }  # fmt: skip
    if layers > 1:
        gone = layers - held.before
        what = f"saved by all blocks but {'two' if gone == 2 else gone}"
        left[frozenset(("next_block_backward",))] = (what, [held.order[: held.before].count(kind) for kind in kinds])
    terms = [_saved(held, moments, what, rest) for moments, (what, rest) in left.items()]
    if layers > 1:
        first = [1 if kind == held.order[0] else 0 for kind in kinds]
        terms.append(_saved(held, frozenset(("second_layer_backward",)), "saved by the first block", first))
    if held.f > 1:
        late: Moments = frozenset(("first_layer_backward", "root_backward"))
        moments = late if layers > 1 else PASSES - BEFORE_BLOCKS_BACKWARD - {"block_backward"}
        terms.append(_saved(held, moments, "saved by other micro-batches in flight", [0 for _ in kinds]))
    return tuple(terms)


def _saved(held: _Held, moments: Moments, what: str, counts: list[int]) -> MemoryTerm:
    """Tensors saved by ``counts`` blocks of each kind, and by all blocks of the other micro-batches in flight."""
    f, tok, _, _, kept, every_count = held
    values: dict[str, Value] = {"k": kept[0], "n": counts[0]}
    one, every = "n * k", "L * k"
    if len(kept) > 1:
        values = {"k_sum": sum(count * k for count, k in zip(counts, kept, strict=True))}
        one, every = "k_sum", "k_all"
    if f <= 1:
        return term("activations", moments, what, f"{one} * tok", SOURCE, tok=tok, **values)
    values["f"] = int(f) if f.denominator == 1 else f
    if len(kept) > 1:
        values["k_all"] = sum(count * k for count, k in zip(every_count, kept, strict=True))
    else:
        values["L"] = every_count[0]
    return term("activations", moments, what, f"{one} * tok + (f - 1) * {every} * tok", SOURCE, tok=tok, **values)


def in_transit(rank: RankModel) -> Iterator[MemoryTerm]:
    """Offloadable tensors of one block that Megatron-core keeps on the GPU or has prefetched.

    It leaves the last group of each module on the GPU, since backward begins there (``should_bulk_offload`` of
    ``core/pipeline_parallel/fine_grained_activation_offload.py``). When whole layers are offloaded, the next layer is
    fetched during a layer's backward pass (Transformer Engine, ``cpu_offload.py``). Neither was measured here.
    """
    if rank.engine.library != "megatron" or not (kind := next((one for one in rank.blocks if one.offloaded), None)):
        return
    whole = not rank.spec.checkpointing.offload_modules
    what, k = "one block's offloaded activations, still or again on the GPU", rank.token_bytes(kind.offloaded)
    moments = PASSES if whole else BEFORE_BLOCKS_BACKWARD
    yield term("activations", moments, what, "k * tok", _OFFLOAD, k=k, tok=rank.tokens)


def after_blocks(rank: RankModel) -> Iterator[MemoryTerm]:
    """The last norm and the input of the output projection for one micro-batch, and two int64 lists of token ids.

    Where labels are marked, the ids are decoded from the marks into a third list (``launcher.worker.marks``); Megatron
    has the mask and the masked losses, 4 bytes each, in its place.
    """
    spec, what = rank.spec, "last norm and token ids"
    k, lists = rank.token_bytes(rank.after_blocks), 3 if spec.data.marked else 2
    yield term("activations", LOSS, what, f"(k + {lists} * 8) * tok", SOURCE, k=k, tok=rank.tokens)
    own = rank.view.head and spec.train.loss == "full" and rank.engine.logits is None and spec.parallel.tensor == 1
    if rank.blocks and (rank.engine.autocast or (own and not rank.head.trained)):
        h, z, what = spec.model.hidden_size, rank.engine.residual_size, "last norm's output as input of the head"
        yield term("activations", ("output", "loss"), what, "z_res * h * tok", SOURCE, z_res=z, h=h, tok=rank.tokens)


def mask(rank: RankModel) -> Iterator[MemoryTerm]:
    """Attention masks: one for all sequences, shared by all blocks that attend to the same tokens.

    A mask that is added to the scores is freed after forward, unless a block recomputes attention.
    """
    added = rank.engine.scores and not any(kind.repeats("attention") for kind in rank.blocks)
    moments: Moments = frozenset(("forward",)) if added else PASSES
    if rank.engine.documents_mask:
        b, s, size = rank.spec.micro_batch_size, rank.engine.sequence_length, rank.engine.size
        yield term("activations", moments, "document mask", "b * s * s * size", _MASK, b=b, s=s, size=size)
        return
    if m := rank.family.traits.mask(rank.spec.model, rank.engine):
        yield term("activations", moments, "attention masks", "m", _MASK, m=m)


def running_blocks(rank: RankModel) -> Iterator[tuple[Moments, BlockKind]]:
    """The kinds of blocks whose backward pass is counted, each with the moments of that pass."""
    if len(rank.blocks) < 2:
        return ((BLOCK_BACKWARD, kind) for kind in rank.blocks)
    found: dict[int, list[Moment]] = {}
    for moment, place in places(rank).items():
        found.setdefault(rank.order[place], []).append(moment)
    return ((frozenset(moments), rank.blocks[kind]) for kind, moments in found.items())


def places(rank: RankModel) -> dict[Moment, int]:
    """The place among the rank's blocks of the block whose backward pass runs, by moment."""
    last = len(rank.order) - 1
    return {
        "block_backward": last,
        "next_block_backward": _fullest_before_last(rank),
        "second_layer_backward": min(1, last),
        "first_layer_backward": 0,
    }


def _fullest_before_last(rank: RankModel) -> int:
    """Place of the block, the last apart, during whose backward pass most is held; of equal ones the latest."""
    last = len(rank.order) - 1
    if len(rank.blocks) < 2 or last < 2:
        return max(0, last - 1)
    kept = [kept_per_token(rank, kind) for kind in rank.blocks]
    running = [rank.token_bytes((*kind.saved, *kind.backward_extra)) for kind in rank.blocks]
    # The last block of each kind, before which the most blocks are held.
    lasts = {kind: place for place, kind in enumerate(rank.order[:last])}
    before = {place: [rank.order[:place].count(each) for each in range(len(kept))] for place in lasts.values()}
    return max((running[kind] + sum(map(mul, before[place], kept)), place) for kind, place in lasts.items())[1]


def mlp_backward(rank: RankModel) -> Iterator[MemoryTerm]:
    """The backward pass of one block at its MLP's fullest: all that the block saved, and the gradients inside it."""
    for moments, kind in running_blocks(rank):
        yield content(rank, kind, moments).at("mlp")
        k = rank.token_bytes(kind.backward_extra)
        what = "gradients inside one block"
        yield term("temporary", moments, what, "k * tok", BACKWARD_TRACE, k=k, tok=rank.tokens).at("mlp")


def expert_outputs(kind: BlockKind) -> SavedTensor | None:
    """The outputs of routed experts, if these are computed together and their outputs are put back in token order."""
    return next((row for row in kind.saved_if_trained if row.part == "moe" and row.made), None)


def content(
    rank: RankModel, kind: BlockKind, moments: Moments, *, saved: Sequence[SavedTensor] | None = None
) -> MemoryTerm:
    """Tensors of a block's forward pass, kept or recomputed, that are held during its backward pass.

    Recomputation restores the tensors of all blocks of a group, without those that were kept: the group's input where
    the first norm saves it as it is, and what selective checkpointing keeps. ``saved`` are the tensors still held; None
    is all of them.
    """
    tok = rank.tokens
    every = [item for item in kind.saved if item.part != "cache"]
    whole = rank.token_bytes(every if saved is None else saved)
    if not kind.recomputed:
        return term("activations", moments, "saved by one block", "k * tok", SOURCE, k=whole, tok=tok)
    if kind.kept:
        return _content_of_modules(rank, kind, moments, saved)
    if others := _recomputed_beside(rank, kind):
        whole += others * rank.token_bytes(every)
    return term(
        "activations",
        moments,
        "kept and recomputed by one block",
        "(k_kept + max(k - k_there, 0)) * tok",
        SOURCE,
        k=whole,
        k_there=_there(rank, kind),
        k_kept=kept_per_token(rank, kind),
        tok=tok,
    )


def _content_of_modules(
    rank: RankModel, kind: BlockKind, moments: Moments, saved: Sequence[SavedTensor] | None
) -> MemoryTerm:
    """The same with recomputed modules: what the block kept, and what the module in its backward pass restores.

    Backward starts with the MLP or the experts. Where ``saved`` names the tensors left, or the block has neither, it
    has reached attention or the mixer.
    """
    there = kind.saved if saved is None else saved
    reached = {row.module for row in there}
    begins = saved is None or any(row.share.startswith("routed") for row in saved)
    first = begins and not reached.isdisjoint(("mlp", "experts"))
    runs = ("mlp", "experts") if first else ("attention", "mixer")
    kept = [row for row in kind.kept if row.part == "input" and row.module in reached]
    kept += [row for row in there if row.module not in kind.recomputed]
    again = [row for row in there if row.module in runs and row.module in kind.recomputed]
    if again and again[0].part == "norm" and not rank.engine.autocast:
        again = again[1:]  # The module's input itself; under autocast each linear layer saves a cast of it.
    return term(
        "activations", moments, "kept and recomputed by one block", "(k_kept + k) * tok", SOURCE,
        k=rank.token_bytes(again), k_kept=rank.token_bytes(kept), tok=rank.tokens,
    )  # fmt: skip


def _recomputed_beside(rank: RankModel, kind: BlockKind) -> int:
    spec = rank.spec.checkpointing
    if spec.mode != "full" or method(spec, rank.engine) != "uniform":
        return 0
    return min(spec.layers or 1, _chunk(rank), kind.count) - 1


def inside_mlp(rank: RankModel, kind: BlockKind) -> Value:
    """Bytes per token of the gradients inside a block's MLP."""
    return rank.token_bytes(kind.backward_extra)


def first_norm(rank: RankModel, kind: BlockKind) -> Value:
    """Bytes per token that a block holds at the end of its backward pass, in its first norm."""
    left = rank.token_bytes(kind.first_norm_backward)
    if not kind.recomputed:
        return left
    if kind.kept:
        own = [row for row in kind.kept if row.module == "norm" and row.part == "input"][:1]
        return left + (0 if rank.family.saves_input(rank.spec.model, rank.engine) else rank.token_bytes(own))
    if others := _recomputed_beside(rank, kind):
        left += others * rank.token_bytes(item for item in kind.saved if item.part != "cache")
    return left + max(kept_per_token(rank, kind) - _there(rank, kind), 0)


def _there(rank: RankModel, kind: BlockKind) -> Value:
    """Bytes per token of a recomputed block's saved tensors that it had kept all along.

    The product of its last operation is not among them: recomputation stops once the last tensor is saved
    (``early_stop`` of ``torch/utils/checkpoint.py``). Torch's own linear layer saves before its product, which then
    stays in the cache; a linear layer that saves after its product has taken it from the cache by then.
    """
    selective, engine = rank.spec.checkpointing.mode == "selective", rank.engine
    if engine.library == "megatron":
        return checkpoint_per_token(rank, kind) if selective else 0
    rows = []
    if selective:
        late = engine.saves_after_products
        rows = [item for item in kind.saved if item.kept_by_selective and (late or not item.last)]
    if rank.family.saves_input(rank.spec.model, engine):
        rows.append(block_input(rank))
    return rank.token_bytes(rows)


def block_input(rank: RankModel) -> SavedTensor:
    """The residual stream before a block, for one token."""
    return recomputed.block_input(rank.spec.model, rank.engine)


def forward_extra(rank: RankModel) -> Iterator[MemoryTerm]:
    """Temporaries of the last block's forward: its input, both residual sums, the MLP's output; its MLP if recomputed.

    A checkpointed block saves nothing in forward, but the tensors of its MLP still pass through memory. A product that
    selective checkpointing keeps is counted with what is kept, and experts in a loop each run on few tokens.
    """
    if not rank.blocks or rank.engine.library == "megatron":
        return
    engine, kind = rank.engine, fullest_in_forward(rank)
    model, recomputes = rank.spec.model, BLOCK in kind.recomputed
    # A checkpointed block frees what it saves at once; a family may keep its embeddings throughout the forward pass.
    rows = 2 if recomputes and not rank.family.traits.keeps_embeddings else 4
    if kind.kept and (kind.repeats("mlp") or kind.repeats("experts")):
        rows = 0 if kind.repeats("norm") else 2  # Norms keep the block's input and the first sum.
    rows += bool(kind.offloaded)  # Its own input is still here beside the host's copy.
    row = replace(block_input(rank), name="residuals", bytes=rows * engine.residual_size * model.hidden_size)
    k = rank.token_bytes([row, *(_passing(rank, kind) if kind.recomputed else ())])
    what = "tensors inside one block"
    yield term("temporary", ("forward",), what, "k * tok", _FORWARD_TRACE, k=k, tok=rank.tokens).at("mlp")


def fullest_in_forward(rank: RankModel) -> BlockKind:
    """The last block's kind; where it is recomputed and keeps little, the kind with most temporaries and gathered."""

    def passing(kind: BlockKind) -> Value:
        gathered = 2 * engine.size * rank.compute_parameters(kind.elements) if rank.spec.parallel.shard else 0
        return rank.tokens * rank.token_bytes(_passing(rank, kind)) + gathered

    engine = rank.engine
    return max(reversed(rank.blocks), key=passing) if rank.last_block.recomputed else rank.last_block


def _passing(rank: RankModel, kind: BlockKind) -> list[SavedTensor]:
    """The tensors of a checkpointed block that are in memory together: those of its MLP, mixer or experts, the largest.

    Shared experts run after the routed ones. An adapted linear layer's output, the adapter's output and its scaled copy
    coexist (peft ``tuners/lora/layer.py``), beside the activation of a gate.
    """
    rows = list(_together(rank, kind))
    apart = [[row for row in rows if row.part == part] for part in ("mixer", "moe")]
    mlp = [row for row in rows if row.part not in ("mixer", "moe")]
    outputs = expert_outputs(kind)
    apart += [mlp, [replace(outputs, bytes=outputs.made)] if outputs and kind.repeats("experts") else []]
    adapted = [row for row in mlp if row.output_of in rank.spec.adapter.targets and rank.spec.adapter.name != "none"]
    apart += [
        [replace(row, bytes=3 * row.bytes), *(each for each in mlp if each.name == "activation")] for row in adapted
    ]
    return max(apart, key=rank.token_bytes)


def _together(rank: RankModel, kind: BlockKind) -> Iterator[SavedTensor]:
    kept = {item.output_of for item in kind.saved if item.part == "cache"} - {""}
    loops = not rank.engine.grouped_experts
    for item in kind.saved_if_trained:
        inside = item.in_forward_peak and item.part in ("mlp", "activation", "moe", "mixer")
        if kind.kept and item.module not in kind.recomputed:
            continue
        if inside and item.output_of not in kept and not (loops and item.share.startswith("routed")):
            yield item


def kept_per_token(rank: RankModel, kind: BlockKind) -> Value:
    """Bytes per token that one block keeps until its backward pass, averaged where only some are checkpointed."""
    spec = rank.spec.checkpointing
    whole = rank.token_bytes(kind.saved)
    if not kind.recomputed:
        return whole
    kept = rank.token_bytes(kind.kept) if kind.kept else checkpoint_per_token(rank, kind)
    if spec.mode == "selective" or rank.engine.library == "transformers":
        return kept
    if kind.outside:  # Multi-token prediction: ``_checkpointed_forward`` of Megatron-core's multi_token_prediction.py.
        return kept if method(spec, rank.engine) == "uniform" else whole
    chunk = _chunk(rank)
    if method(spec, rank.engine) == "block":
        checkpointed = min(spec.layers or chunk, chunk)
        return Fraction(checkpointed * kept + (chunk - checkpointed) * whole) / chunk
    groups = -(-chunk // (spec.layers or 1))
    return kept if groups == chunk else Fraction(kept * groups) / chunk


def _chunk(rank: RankModel) -> int:
    """Layers among which ``checkpointing.layers`` counts; Megatron-core starts over in each model chunk.

    ``core/recompute.py``, ``num_layers_per_pipeline_rank``.
    """
    chunks = rank.spec.parallel.virtual_pipeline if rank.engine.library == "megatron" else 1
    return max(1, -(-(rank.layers - rank.view.predicted) // chunks))


def checkpoint_per_token(rank: RankModel, kind: BlockKind) -> Value:
    """Bytes per token that one checkpointed block keeps: its input, and what selective checkpointing does not drop."""
    spec, engine, row = rank.spec.checkpointing, rank.engine, block_input(rank)
    if spec.mode == "full":
        return rank.token_bytes([row, *kind.outside])
    if engine.library == "transformers":
        return rank.token_bytes([row, *(item for item in kind.saved if item.kept_by_selective)])
    dropped = recomputed.dropped_parts(spec)
    return rank.token_bytes(item for item in kind.saved if item.part not in dropped)
