"""Buffers and temporaries of PyTorch's FSDP2 and DDP, as seen in traces of the live tensors of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Literal

from launcher.backends.fsdp import ring, stages
from launcher.backends.fsdp.dtypes import dtypes
from launcher.memory.activations import RECOMPUTING, backward_extra_parts
from launcher.memory.moments import ALWAYS, Moment
from launcher.memory.states import WITHIN_MICRO_BATCH, drawn_bytes
from launcher.memory.terms import MemoryTerm, Pile
from launcher.rank.engine import EngineTraits
from launcher.rank.model import NF4_BITS, RankModel
from launcher.spec import RunSpec
from launcher.units import DTYPE_BYTES, count

_TRACE = "trace of the live tensors of torch.distributed.fsdp.fully_shard, torch 2.15"
_DDP_TRACE = "trace of the live tensors of DistributedDataParallel, torch 2.15"


def engine(spec: RunSpec) -> EngineTraits:
    """Hugging Face modules; FSDP2 casts whole shards to the compute format, DDP runs under autocast.

    Ring attention joins its results with heads before tokens, and the output projection reads a copy the other way.
    """
    meaning = dtypes(spec)
    size = DTYPE_BYTES["bf16" if meaning.compute == "fp8" else meaning.compute]
    cpu = spec.hardware.device == "cpu"
    return EngineTraits(
        library="transformers",
        size=size,
        residual_size=4 if meaning.autocast else size,
        autocast=meaning.autocast,
        sequence_length=spec.sequence_length,
        scores=spec.model.attention == "eager",
        attention_copy=spec.parallel.context > 1,
        cpu=cpu,
        grouped_experts=True,
        shard_rows=spec.parallel.shard,
        gradients_stay=is_ddp(spec) and spec.backend.bucket_view,
        optimizer=_step(spec),
    )


def is_ddp(spec: RunSpec) -> bool:
    """Whether DistributedDataParallel wraps the model: several ranks, none of which holds shards."""
    return not spec.parallel.shard and spec.shard_degree * spec.parallel.replicate > 1


def _step(spec: RunSpec) -> Literal["fused", "foreach", "loop"]:
    """The worker's choice where none is set: one kernel on a GPU, torch's loop on the CPU."""
    optimizer = spec.optimizer
    unset = optimizer.fused is None and optimizer.foreach is None
    if optimizer.fused or (unset and spec.hardware.device == "cuda"):
        return "fused"
    return "foreach" if optimizer.foreach else "loop"


def overheads(rank: RankModel) -> Iterable[MemoryTerm]:
    """Everything of FSDP2, or of DDP and autocast."""
    if rank.spec.parallel.shard:
        yield from constants(rank)
        yield from gathered(rank)
        yield from block_reduction(rank)
        yield from root_reduction(rank)
        yield from unreduced(rank)
    else:
        yield from weight_cache(rank)
        yield from buckets(rank)
    in_flight = [*gradients_in_flight(rank)]
    yield from in_flight
    yield from untied(rank)
    yield from ring.overheads(rank, gradients=sum(term.bytes for term in in_flight))
    yield from stages.overheads(rank, ddp=is_ddp(rank.spec))


def constants(rank: RankModel) -> Iterator[MemoryTerm]:
    """What 4-bit weights' constants, of which every rank has all, take more than the shard that is counted of them."""
    bits = NF4_BITS[rank.spec.adapter.double_quant] - 4
    shared = rank.elements.quantised - rank.elements.quantised_parameters
    if shared:
        text = f"{float(bits):.3f} bits x {count(shared)} of other ranks' weights in 4 bits"
        yield _term("parameters", ALWAYS, ceil(bits * shared / 8), text, "launcher/worker/model/quantised.py")


def gathered(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gathered parameters in the compute format: the root group, the current block, and one all-gather's output.

    ``size (root + 2 b)`` in forward (the all-gather's output is held one step by ``all_gather_state``) and in backward
    (the prefetched next block). The worker computes the loss inside the root module, which stays gathered from forward
    to backward, and the last block's all-gather output lasts as long. Without resharding after forward every
    block stays until its own backward pass, which gathers nothing.
    """
    root, block = rank.gathered_bytes(rank.root), rank.gathered_bytes(rank.largest_block)
    every = rank.gathered_bytes(rank.all_blocks)
    two = root + min(rank.layers, 2) * block
    keeps = not reshards(rank.spec)
    after = root + (every + block if keeps else block)
    yield _gather(rank, "forward", root + (every + block if keeps else 2 * block))
    yield _gather(rank, "output", after)
    yield _gather(rank, "loss", after)
    yield _gather(rank, "loss_backward", root + (every if keeps else block))
    yield _gather(rank, "block_backward", root + every if keeps else two)
    third = 2 * block if rank.layers > 2 else block
    yield _gather(rank, "next_block_backward", root + (max(every - block, 0) if keeps else third))
    yield _gather(rank, "second_layer_backward", two)
    yield _gather(rank, "first_layer_backward", root + block)


def block_reduction(rank: RankModel) -> Iterator[MemoryTerm]:
    """The reduce-scatter's input of the block before, in the reduce format, held until the next reduction: ``size b``.

    Its output is the gradient shard itself, counted there; beside it the unreduced gradient of the output projection.
    """
    elements = rank.largest_block.trained
    size = rank.dtypes.size("reduce") * elements
    head = rank.engine.size * (output_elements(rank) if rank.root.trained else 0)
    yield _reduce("block_backward", head, "gradient of the output projection")
    if rank.layers > 1:
        yield _reduce("next_block_backward", size + head, f"reduce-scatter input of {count(elements)}")
        yield _reduce("second_layer_backward", size + head, f"reduce-scatter input of {count(elements)}")
        yield _reduce("first_layer_backward", size + head, f"reduce-scatter input of {count(elements)}")


def unreduced(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradients that wait unreduced for the last micro-batch, whole and in the reduce format: ``size P``.

    ``set_requires_gradient_sync(False)`` accumulates them in ``unsharded_accumulated_grad`` (``_fsdp_param.py``).
    """
    spec = rank.spec
    if spec.gradient_accumulation > 1 and not spec.backend.micro_step_sync:
        size = rank.dtypes.size("reduce") * rank.elements.trained
        moments = ALWAYS - {"load", "clip", "step", "idle", "checkpoint_save"}
        yield _term("gradients", moments, size, f"unreduced gradients of {count(rank.elements.trained)}", _TRACE)


def root_reduction(rank: RankModel) -> Iterator[MemoryTerm]:
    """The end of backward: gradients of the root group and, in the reduce format, the reduce-scatter's input.

    Before that, the gathered root group and the last block's reduction are still held beside those gradients; the
    gradients are freed before the reduction's output, the root group's gradient shards, is made.
    """
    size, reduce = rank.engine.size, rank.dtypes.size("reduce")
    root, block = rank.root.trained, rank.largest_block.trained
    gathered = rank.gathered_bytes(rank.root)
    during = max(gathered + size * root + reduce * block, (size + reduce) * root) - _root_shards(rank)
    after = reduce * root
    yield _reduce("root_backward", max(during, after), f"gradients and reduction of {count(root)} outside the blocks")


def _root_shards(rank: RankModel) -> int:
    """Gradient shards of the root group, which exist only after its reduction."""
    return rank.dtypes.size("accumulate") * rank.root.gradients


def gradients_in_flight(rank: RankModel) -> Iterator[MemoryTerm]:
    """Weight gradients of the block whose backward pass runs, before they are reduced or accumulated.

    Early on the last weight's gradient beside all of the block's activations, at the end all of the block's
    gradients and only the first norm's activations: the greater of both, less what is counted anyway. DDP puts each
    into its bucket on its own, under autocast through an fp32 copy, when half of the gradients inside the MLP exist;
    that of a tied output projection waits for the embedding's. Experts' gradients need no copy: autocast leaves their
    products alone; the first of theirs comes like an MLP's, the larger when what their products saved is freed.
    """
    size, block = rank.engine.size, rank.largest_block
    early = size * block.last_trained
    moments = RECOMPUTING
    inside, outputs = backward_extra_parts(rank)
    if not rank.spec.parallel.shard:
        if rank.engine.autocast and block.expert:
            whole = rank.dtypes.size("parameters")
            early = max(whole * block.last_trained, whole * block.largest_trained - 3 * inside // 2)
        elif rank.engine.autocast:
            early += 4 * block.largest_trained
        early -= inside // 2 + outputs
        if rank.root.trained and rank.spec.model.tie_word_embeddings:
            tied = rank.dtypes.size("accumulate") * output_elements(rank)
            yield _term("temporary", moments, tied, "gradient of the tied output projection", _DDP_TRACE)
        yield _term("temporary", moments, early, f"one weight's gradient of {count(block.largest_trained)}", _DDP_TRACE)
        return
    kinds = rank.blocks
    freed = max(
        (
            rank.bytes_of(kind.saved) + rank.bytes_of(kind.backward_extra) - rank.bytes_of(kind.first_norm_backward)
            for kind in kinds
        ),
        default=0,
    )
    late = size * block.trained - freed
    yield _term(
        "temporary", moments, max(early - outputs, late), f"gradients of one block of {count(block.trained)}", _TRACE
    )


def untied(rank: RankModel) -> Iterator[MemoryTerm]:
    """While the model is loaded: a tied output projection has memory of its own until it is tied again.

    ``to_empty`` (``torch/nn/modules/module.py``) makes each module's parameters anew. DDP's buckets come later and are
    more.
    """
    tied = rank.view.head and rank.view.embedding and rank.spec.model.tie_word_embeddings
    if tied and not rank.engine.gradients_stay and rank.spec.zero.offload_parameters == "none":
        shard = ceil(rank.embedding.largest * rank.view.states.parameters)
        size = rank.dtypes.size("parameters") * shard - drawn_bytes(rank)
        text = f"memory of the tied output projection of {count(shard)}, less a block of rows"
        yield _term(
            "temporary", frozenset(("load",)), size, text, "launcher/worker/fsdp/engine.py, torch.nn.Module.to_empty"
        )


def output_elements(rank: RankModel) -> int:
    """Elements of the last norm and the output projection, which a tied model has as its token table."""
    tied = rank.view.head and rank.view.embedding and rank.spec.model.tie_word_embeddings
    return rank.head.whole + (rank.embedding.largest if tied else 0)


def weight_cache(rank: RankModel) -> Iterator[MemoryTerm]:
    """Autocast's copy of every linear's weight in the compute format, saved for backward: ``size P`` of the matrices.

    Checkpointed blocks cast again in backward, one block at a time; a copy goes with the backward pass of its product,
    the output projection's first. Embeddings are looked up in fp32, and the grouped
    products of routed experts run in fp32. Of a frozen weight autocast itself keeps no copy, so that a checkpointed
    block's are gone after its forward pass; weights in 4 bits are not cast.
    """
    if not rank.engine.autocast:
        return
    size, block = rank.engine.size, rank.largest_block.dense - rank.largest_block.quantised
    blocks = rank.all_blocks.dense - rank.all_blocks.quantised
    head = output_elements(rank)
    full = rank.spec.checkpointing.mode != "none"
    inside, text = block if full and not rank.root.trained else blocks, "autocast's copies of weights"
    yield _term("gather_buffers", frozenset(("forward",)), size * inside, text, _DDP_TRACE)
    yield _term("gather_buffers", frozenset(("output", "loss")), size * (head + inside), text, _DDP_TRACE)
    yield _term(
        "gather_buffers", frozenset(("loss_backward",)), size * (head + (0 if full else blocks)), text, _DDP_TRACE
    )
    yield _term("gather_buffers", frozenset(("block_backward",)), size * (block if full else blocks), text, _DDP_TRACE)
    if rank.layers > 1:
        left = size * (block if full else blocks - block)
        moment: frozenset[Moment] = frozenset(("next_block_backward",))
        yield _term("gather_buffers", moment, left, "autocast's copies of weights", _DDP_TRACE)
    last: frozenset[Moment] = frozenset(("second_layer_backward", "first_layer_backward"))
    yield _term("gather_buffers", last, size * block, "autocast's copies of weights", _DDP_TRACE)


def buckets(rank: RankModel) -> Iterator[MemoryTerm]:
    """DDP's buckets where gradients are not views of them: fp32, permanent, ``4 P`` beside the gradients.

    Where they are views, gradients of earlier micro-batches are not (``zero_grad(set_to_none=True)`` ends the view, and
    ``no_sync`` leaves them outside): they stand beside the buckets until the last backward pass copies each.
    """
    if not is_ddp(rank.spec):
        return
    size, elements = rank.dtypes.size("accumulate"), rank.elements.trained
    if not rank.spec.backend.bucket_view:
        yield _term("reduce_buffers", ALWAYS, size * elements, f"buckets of {count(elements)}", _DDP_TRACE)
    elif rank.spec.gradient_accumulation > 1:
        text = f"gradients of earlier micro-batches, of {count(elements)}"
        block, left = rank.largest_block.trained, rank.embedding.trained
        yield _term("gradients", WITHIN_MICRO_BATCH, size * elements, text, _DDP_TRACE)
        rest = max(rank.all_blocks.trained - block, 0)
        yield _term("gradients", frozenset(("next_block_backward",)), size * (rest + left), text, _DDP_TRACE)
        late: frozenset[Moment] = frozenset(("second_layer_backward", "first_layer_backward"))
        yield _term("gradients", late, size * (block + left), text, _DDP_TRACE)


def reshards(spec: RunSpec) -> bool:
    """Whether gathered parameters are freed after forward: as set, or as ``zero.stage`` says."""
    if spec.backend.reshard_after_forward is not None:
        return spec.backend.reshard_after_forward
    return spec.zero.stage != 2


def _gather(rank: RankModel, moment: Moment, size: int) -> MemoryTerm:
    block, root = rank.largest_block.whole, rank.root.whole
    formula = f"{rank.engine.size} B x (root {count(root)} + blocks of {count(block)})"
    return _term("gather_buffers", frozenset((moment,)), size, formula, _TRACE)


def _reduce(moment: Moment, size: int, formula: str) -> MemoryTerm:
    return _term("reduce_buffers", frozenset((moment,)), size, formula, _TRACE)


def _term(pile: Pile, moments: frozenset[Moment], size: int, formula: str, source: str) -> MemoryTerm:
    return MemoryTerm(pile=pile, moments=moments, bytes=max(size, 0), formula=formula, source=source)
