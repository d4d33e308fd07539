"""Autocast's copies of weights under DDP: those of one micro-batch, and of others in flight over pipeline stages."""

from collections.abc import Iterator
from math import ceil

from launcher.estimate.memory.moments import PASSES, Moment
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import RankModel

TRACE_OF_STAGES = "trace of the live tensors of torch.distributed.pipelining, torch 2.15"
FSDP_TRACE = "trace of the live tensors of torch.distributed.fsdp.fully_shard, torch 2.15"
DDP_TRACE = "trace of the live tensors of DistributedDataParallel, torch 2.15"


def weight_cache(rank: RankModel) -> Iterator[MemoryTerm]:
    """Autocast's copy of every linear's weight in the compute format, saved for backward: ``z P`` of the matrices.

    Checkpointed blocks cast again in backward, one block at a time; a copy goes with the backward pass of its product,
    the output projection's first. Embeddings are looked up in fp32, and the grouped products of routed experts run in
    fp32. Of a frozen weight autocast itself keeps no copy, so that those of a checkpointed block are gone one by one in
    its forward pass, and only its adapters' stay; weights in few bits are not cast.
    """
    if not rank.engine.autocast:
        return
    times = _times_cast(rank)
    block = times * rank.largest_block.unpacked
    blocks = times * rank.all_blocks.unpacked
    head, kept = output_elements(rank), times * _kept_copies(rank)
    again = ceil(block * rank.last_block.recomputed_share) if rank.blocks else 0
    loops = times * sum(kind.count * ceil(kind.elements.stacked * kind.recomputed_share) for kind in rank.blocks)
    cached = blocks - loops  # Autocast keeps no copy of a part of a weight, as a loop over experts casts them.
    adapters = ceil(times * rank.all_blocks.trained * rank.last_block.recomputed_share) if rank.blocks else 0
    # Experts' adapters are joined with their weights, and no copy of them stays.
    inside = again if rank.spec.adapter.parameters else adapters + min(_one_frozen(rank), again)
    cast: list[tuple[tuple[Moment, ...], int]] = [
        (("forward",), cached if rank.spec.adapter.name == "none" else kept + inside),
        (("output", "loss"), head + (cached if rank.spec.adapter.name == "none" else kept + adapters)),
        (("loss_backward",), head + kept),
        (("block_backward",), kept + again),
        (("second_layer_backward", "first_layer_backward"), block),
    ]
    if rank.layers > 1:
        cast.append((("next_block_backward",), max(kept + again - (block - again), again)))
    for moments, w in cast:
        yield term(
            "gather_buffers", moments, "autocast's copies of weights", "z * P", DDP_TRACE, z=rank.engine.size, P=w
        )


def copies_in_flight(rank: RankModel) -> Iterator[MemoryTerm]:
    """Autocast's copies of weights that the other micro-batches in flight have saved: ``z blocks (f - 1)``.

    A micro-batch casts on its own, since autocast must not reach backward, and checkpointed blocks save no copies.
    """
    blocks = min(_times_cast(rank), 1) * _kept_copies(rank)
    if not rank.engine.autocast or not blocks:
        return
    what, z, f = "autocast's copies of other micro-batches in flight", rank.engine.size, rank.view.in_flight
    expression = "z * ceil((f - 1) * blocks)"
    yield term("gather_buffers", PASSES, what, expression, TRACE_OF_STAGES, z=z, f=f, blocks=blocks)


def output_elements(rank: RankModel) -> int:
    """Elements of the last norm and the output projection, once where a copy of that is trained."""
    copied = rank.head.trained if rank.spec.adapter.name != "none" else 0
    return rank.head.whole - copied + tied_table(rank)


def tied_table(rank: RankModel) -> int:
    """Elements of the token table that is the output projection, too; none in a model whose tables are apart."""
    return rank.embedding.largest if rank.tied else 0


def _kept_copies(rank: RankModel) -> int:
    """Elements of the copies that forward saves for backward: of the weights in what is not recomputed."""
    counts = ((kind, kind.elements.unpacked) for kind in rank.blocks)
    return sum(ceil(kind.count * count * (1 - kind.recomputed_share)) for kind, count in counts)


def _one_frozen(rank: RankModel) -> int:
    """Elements of the copy beside which a recomputed block holds most in forward.

    None beside experts that are not cast, or beside what DoRA makes of a whole weight.
    """
    block, adapter = rank.largest_block, rank.spec.adapter
    return 0 if adapter.bits or adapter.dora or block.expert > block.stacked else block.largest


def _times_cast(rank: RankModel) -> int:
    """Two where DoRA multiplies its input after dropout by the weight once more, which casts it again.

    None in fp8: torchao casts a weight for each product and saves it as it is; rounded weights are cast and saved too.
    """
    if rank.dtypes.compute == "fp8" or rank.engine.rounding:
        return 0
    adapter = rank.spec.adapter
    return 2 if adapter.dora and adapter.dropout else 1
