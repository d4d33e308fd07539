"""Saved activations: what forward keeps for backward, what recomputation brings back, what backward adds.

What all blocks keep is counted block by block (``saved``). The block whose backward pass runs is left out of that sum
at its moment: what it holds then, kept, recomputed and made, is counted at each instant of its own pass. The fullest
instant inside its MLP is ``mlp_backward``; a backend adds those at which its own buffers stand beside other tensors, by
``content`` and what it knows, and the fullest of them all counts (``memory.terms.fullest``).
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

    Backward frees a block after another: beside the last block's pass one block less is held, beside the one before it
    two; beside the second one the first is left, beside the first one none. Of the other micro-batches in flight all
    stay.
    """
    if rank.blocks:
        kept = tuple(kept_per_token(rank, kind) - rank.token_bytes(kind.offloaded) for kind in rank.blocks)
        f = rank.view.in_flight
        every = tuple(kind.count * _others(rank, kind) for kind in rank.blocks)
        yield from _all_saved(_Held(f, rank.tokens, rank.order, _fullest_before_last(rank), kept, every))


def _others(rank: RankModel, kind: BlockKind) -> Value:
    """Share of the other micro-batches in flight that hold a kind of block: the last chunk has run fewer of them."""
    f, own = rank.view.in_flight, rank.view.predicted_in_flight
    return 1 if kind.name != counts.FURTHER or own == f else (own - 1) / (f - 1) if f > 1 else 0


class _Held(NamedTuple):
    """Micro-batches in flight, tokens of one, kind of each block, bytes of a token that one keeps, others' blocks."""

    f: Fraction
    tok: int
    order: tuple[int, ...]
    before: int
    kept: tuple[Value, ...]
    every: tuple[Value, ...]


@lru_cache(maxsize=4096)
def _all_saved(held: _Held) -> tuple[MemoryTerm, ...]:
    """The terms of :func:`saved`, kept: layouts that differ in their sharding alone have equal ones."""
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
        terms.append(_saved(held, moments, "saved by micro-batches in flight", [0 for _ in kinds]))
    return tuple(terms)


def _saved(held: _Held, moments: Moments, what: str, counts: list[int]) -> MemoryTerm:
    """Tensors saved by so many blocks of each kind, and all blocks of the other micro-batches in flight."""
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


def on_its_way(rank: RankModel) -> Iterator[MemoryTerm]:
    """Tensors of one block that Megatron-core does not move, or has fetched ahead.

    It leaves the last group of each module on the GPU, since backward begins there (``should_bulk_offload`` of
    ``core/pipeline_parallel/fine_grained_activation_offload.py``). Of whole layers the next one is fetched while one
    is in its backward pass (Transformer Engine, ``cpu_offload.py``). Neither was measured here.
    """
    if rank.engine.library != "megatron" or not (kind := next((one for one in rank.blocks if one.offloaded), None)):
        return
    whole = not rank.spec.checkpointing.offload_modules
    what, k = "one block's of those that are offloaded", rank.token_bytes(kind.offloaded)
    moments = PASSES if whole else BEFORE_BLOCKS_BACKWARD
    yield term("activations", moments, what, "k * tok", _OFFLOAD, k=k, tok=rank.tokens)


def after_blocks(rank: RankModel) -> Iterator[MemoryTerm]:
    """The last norm and the input of the output projection, of one micro-batch, and two lists of token ids in int64.

    Where labels are marked, the ids are read out of the marks into a third list (``launcher.worker.marks``); Megatron
    has the mask and the masked losses, of 4 bytes each, in its place.
    """
    spec, what = rank.spec, "last norm and token ids"
    k, lists = rank.token_bytes(rank.after_blocks), 3 if spec.data.marked else 2
    yield term("activations", LOSS, what, f"(k + {lists} * 8) * tok", SOURCE, k=k, tok=rank.tokens)
    own = rank.view.head and spec.train.loss == "full" and rank.engine.logits is None and spec.parallel.tensor == 1
    if rank.blocks and (rank.engine.autocast or (own and not rank.head.trained)):
        h, z, what = spec.model.hidden_size, rank.engine.residual_size, "last norm's output as the head reads it"
        yield term("activations", ("output", "loss"), what, "z_res * h * tok", SOURCE, z_res=z, h=h, tok=rank.tokens)


def mask(rank: RankModel) -> Iterator[MemoryTerm]:
    """Masks that attention is given: one for all sequences, and for all blocks that see the same tokens.

    What is added to scores is not needed again, unless a block is recomputed.
    """
    added = rank.engine.scores and not any(kind.repeats("attention") for kind in rank.blocks)
    moments: Moments = frozenset(("forward",)) if added else PASSES
    if rank.engine.documents_mask:
        b, s, size = rank.spec.micro_batch_size, rank.engine.sequence_length, rank.engine.size
        yield term("activations", moments, "mask of documents", "b * s * s * size", _MASK, b=b, s=s, size=size)
        return
    if m := rank.family.traits.mask(rank.spec.model, rank.engine):
        yield term("activations", moments, "masks of attention", "m", _MASK, m=m)


def running_blocks(rank: RankModel) -> Iterator[tuple[Moments, BlockKind]]:
    """The kinds of blocks whose backward pass runs, each with the moments at which it does."""
    if len(rank.blocks) < 2:
        return ((BLOCK_BACKWARD, kind) for kind in rank.blocks)
    found: dict[int, list[Moment]] = {}
    for moment, place in places(rank).items():
        found.setdefault(rank.order[place], []).append(moment)
    return ((frozenset(moments), rank.blocks[kind]) for kind, moments in found.items())


def places(rank: RankModel) -> dict[Moment, int]:
    """The place among the rank's blocks of the one whose backward pass runs at a moment."""
    last = len(rank.order) - 1
    return {
        "block_backward": last,
        "next_block_backward": _fullest_before_last(rank),
        "second_layer_backward": min(1, last),
        "first_layer_backward": 0,
    }


def _fullest_before_last(rank: RankModel) -> int:
    """Place of the block before the last beside whose backward pass most is held: of equal ones the next to last."""
    last = len(rank.order) - 1
    if len(rank.blocks) < 2 or last < 2:
        return max(0, last - 1)
    kept = [kept_per_token(rank, kind) for kind in rank.blocks]
    running = [rank.token_bytes((*kind.saved, *kind.backward_extra)) for kind in rank.blocks]
    # Of each kind the last one, before which most blocks are held.
    lasts = {kind: place for place, kind in enumerate(rank.order[:last])}
    before = {place: [rank.order[:place].count(each) for each in range(len(kept))] for place in lasts.values()}
    return max((running[kind] + sum(map(mul, before[place], kept)), place) for kind, place in lasts.items())[1]


def mlp_backward(rank: RankModel) -> Iterator[MemoryTerm]:
    """The backward pass of one block at the fullest of its MLP: all that it saved, and the gradients inside it."""
    for moments, kind in running_blocks(rank):
        yield content(rank, kind, moments).at("mlp")
        k = rank.token_bytes(kind.backward_extra)
        what = "gradients inside one block"
        yield term("temporary", moments, what, "k * tok", BACKWARD_TRACE, k=k, tok=rank.tokens).at("mlp")


def expert_outputs(kind: BlockKind) -> SavedTensor | None:
    """The outputs of routed experts, if they are computed together and put back into the tokens' order."""
    return next((row for row in kind.saved_if_trained if row.part == "moe" and row.made), None)


def content(
    rank: RankModel, kind: BlockKind, moments: Moments, *, saved: Sequence[SavedTensor] | None = None
) -> MemoryTerm:
    """Tensors of a block's forward pass at the start of its backward pass: those that it kept, or has recomputed.

    Recomputation brings back ``saved`` of all blocks of a group, less what is there: the group's input, where the first
    norm saves it as it is, and with selective checkpointing what that keeps. ``saved`` are the tensors that are left by
    then; None is all of them.
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
        "kept and recomputed of one block",
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
    """The same with recomputed modules: what the block kept, and what the one whose backward pass runs brings back.

    Backward starts with the MLP or the experts; where tensors are left by then, or the block has neither, it has come
    to attention or to the mixer.
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
        again = again[1:]  # The module's input itself, of which under autocast each linear saves a cast.
    return term(
        "activations", moments, "kept and recomputed of one block", "(k_kept + k) * tok", SOURCE,
        k=rank.token_bytes(again), k_kept=rank.token_bytes(kept), tok=rank.tokens,
    )  # fmt: skip


def _recomputed_beside(rank: RankModel, kind: BlockKind) -> int:
    spec = rank.spec.checkpointing
    if spec.mode != "full" or method(spec, rank.engine) != "uniform":
        return 0
    return min(spec.layers or 1, _chunk(rank), kind.count) - 1


def inside_mlp(rank: RankModel, kind: BlockKind) -> Value:
    """Bytes of a token of the gradients inside a block's MLP."""
    return rank.token_bytes(kind.backward_extra)


def first_norm(rank: RankModel, kind: BlockKind) -> Value:
    """Bytes of a token that a block holds at the end of its backward pass, in its first norm."""
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
    """Bytes of a token of a recomputed block's saved tensors that are among those that it kept.

    The product that its last operation made is not: recomputation stops where the last tensor is saved (``early_stop``
    of ``torch/utils/checkpoint.py``), which torch's own linear does before its product, and it stays in the cache. A
    linear that saves after its product has taken it out of there by then.
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
    """The residual stream before a block, of one token."""
    return recomputed.block_input(rank.spec.model, rank.engine)


def forward_extra(rank: RankModel) -> Iterator[MemoryTerm]:
    """Inside the last block: its input, both residual sums and the MLP's output; with recomputation its MLP as well.

    A checkpointed block saves nothing in forward, but the tensors of its MLP still pass through memory; a product that
    selective checkpointing keeps is counted with what is kept, and experts in a loop run each on few tokens.
    """
    if not rank.blocks or rank.engine.library == "megatron":
        return
    engine, kind = rank.engine, fullest_in_forward(rank)
    model, recomputes = rank.spec.model, BLOCK in kind.recomputed
    # What a block saves is gone at once where it is checkpointed; a family may keep its embeddings as long as it runs.
    rows = 2 if recomputes and not rank.family.traits.keeps_embeddings else 4
    if kind.kept and (kind.repeats("mlp") or kind.repeats("experts")):
        rows = 0 if kind.repeats("norm") else 2  # Norms keep the block's input and the first sum.
    rows += bool(kind.offloaded)  # Its own input is still here beside the host's copy.
    row = replace(block_input(rank), name="residuals", bytes=rows * engine.residual_size * model.hidden_size)
    k = rank.token_bytes([row, *(_passing(rank, kind) if kind.recomputed else ())])
    what = "tensors inside one block"
    yield term("temporary", ("forward",), what, "k * tok", _FORWARD_TRACE, k=k, tok=rank.tokens).at("mlp")


def fullest_in_forward(rank: RankModel) -> BlockKind:
    """The last block's kind; of recomputed ones, which keep little, that with most on its way and gathered."""

    def passing(kind: BlockKind) -> Value:
        gathered = 2 * engine.size * rank.compute_parameters(kind.elements) if rank.spec.parallel.shard else 0
        return rank.tokens * rank.token_bytes(_passing(rank, kind)) + gathered

    engine = rank.engine
    return max(reversed(rank.blocks), key=passing) if rank.last_block.recomputed else rank.last_block


def _passing(rank: RankModel, kind: BlockKind) -> list[SavedTensor]:
    """The tensors of a checkpointed block that are in memory together: of its MLP, mixer or experts, the most.

    Experts that every token meets run behind the routed ones. Of an adapted linear its own output, the adapter's and
    its multiple meet (peft ``tuners/lora/layer.py``), beside the activation of a gate.
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
    """Bytes that one block keeps of a token until its backward pass, averaged where only some are checkpointed."""
    spec = rank.spec.checkpointing
    whole = rank.token_bytes(kind.saved)
    if not kind.recomputed:
        return whole
    kept = rank.token_bytes(kind.kept) if kind.kept else checkpoint_per_token(rank, kind)
    if spec.mode == "selective" or rank.engine.library == "transformers":
        return kept
    if kind.outside:  # Further tokens: ``_checkpointed_forward`` of Megatron-core's multi_token_prediction.py.
        return kept if method(spec, rank.engine) == "uniform" else whole
    chunk = _chunk(rank)
    if method(spec, rank.engine) == "block":
        checkpointed = min(spec.layers or chunk, chunk)
        return Fraction(checkpointed * kept + (chunk - checkpointed) * whole) / chunk
    groups = -(-chunk // (spec.layers or 1))
    return kept if groups == chunk else Fraction(kept * groups) / chunk


def _chunk(rank: RankModel) -> int:
    """Layers among which those that are checkpointed are counted: Megatron-core begins anew in each model chunk.

    ``core/recompute.py``, ``num_layers_per_pipeline_rank``.
    """
    chunks = rank.spec.parallel.virtual_pipeline if rank.engine.library == "megatron" else 1
    return max(1, -(-(rank.layers - rank.view.predicted) // chunks))


def checkpoint_per_token(rank: RankModel, kind: BlockKind) -> Value:
    """Bytes of a token that one checkpointed block keeps: its input, and what selective checkpointing does not drop."""
    spec, engine, row = rank.spec.checkpointing, rank.engine, block_input(rank)
    if spec.mode == "full":
        return rank.token_bytes([row, *kind.outside])
    if engine.library == "transformers":
        return rank.token_bytes([row, *(item for item in kind.saved if item.kept_by_selective)])
    dropped = recomputed.dropped_parts(spec)
    return rank.token_bytes(item for item in kind.saved if item.part not in dropped)
