"""Buffers and temporaries of DeepSpeed 0.19.8, read in its source and seen in traces of its live tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil

from launcher.backends.deepspeed import optimizer, partition, pipeline, ulysses
from launcher.backends.deepspeed.dtypes import dtypes
from launcher.memory.activations import RECOMPUTING, backward_extra_parts
from launcher.memory.moments import ALWAYS, Moment
from launcher.memory.states import drawn_bytes, list_copies
from launcher.memory.terms import MemoryTerm, Pile
from launcher.rank.engine import EngineTraits
from launcher.rank.model import RankModel
from launcher.spec import RunSpec
from launcher.units import DTYPE_BYTES, count

_TRACE = "trace of the live tensors of DeepSpeed 0.19.8"
_BACKWARD: frozenset[Moment] = frozenset((
    "block_backward",
    "next_block_backward",
    "second_layer_backward",
    "first_layer_backward",
    "root_backward",
))
_GATHERED: frozenset[Moment] = frozenset((
    "forward",
    "output",
    "loss",
    "loss_backward",
    "block_backward",
    "next_block_backward",
    "second_layer_backward",
    "first_layer_backward",
))
_LATE = _BACKWARD - {"block_backward"}


def engine(spec: RunSpec) -> EngineTraits:
    """Hugging Face modules cast as a whole to the compute format; flat buffers cut evenly.

    Ulysses keeps attention's output with all tokens of some heads, for attention, and with all heads of some tokens,
    for the output projection.
    """
    meaning = dtypes(spec)
    size = DTYPE_BYTES["bf16" if meaning.compute == "fp8" else meaning.compute]
    return EngineTraits(
        library="transformers",
        size=size,
        residual_size=size,
        sequence_length=spec.sequence_length,
        scores=spec.model.attention == "eager",
        cpu=spec.hardware.device == "cpu",
        attention_copy=spec.parallel.ulysses > 1,
        key_heads=ulysses.key_heads(spec),
        gradients_stay=spec.zero.stage == 3 or flat_fp32_gradients(spec),
        grouped_experts=True,
        whole_embedding=True,
        partition_buffer=buffers_partition(spec),
    )


def flat_fp32_gradients(spec: RunSpec) -> bool:
    """Whether BF16_Optimizer runs: bf16 with fp32 accumulation, ZeRO 1, nothing offloaded (``runtime/engine.py``)."""
    meaning = dtypes(spec)
    formats = (meaning.parameters, meaning.accumulate) == ("bf16", "fp32")
    return formats and spec.zero.stage == 1 and spec.zero.offload_optimizer == "none"


def buffers_partition(spec: RunSpec) -> bool:
    """Whether ZeRO 1 or 2 copies the gradients of a rank's partition; offloaded ones go to the host."""
    zero = spec.zero
    return zero.stage in (1, 2) and not flat_fp32_gradients(spec) and zero.offload_optimizer == "none"


def overheads(rank: RankModel) -> Iterable[MemoryTerm]:
    """Everything that DeepSpeed adds at the run's stage."""
    stage = rank.spec.zero.stage
    yield from flattening(rank)
    yield from unreduced(rank)
    yield from step_copies(rank)
    yield from first_step(rank)
    yield from fp32_partition(rank)
    yield from pipeline.buffers(rank)
    if buffers_partition(rank.spec):
        yield from partition.gradients(rank)
    if stage == 2:
        yield from partition.oversized(rank)
    if stage >= 2:
        yield from partition.tied(rank)
    if stage == 0 or flat_fp32_gradients(rank.spec):
        yield from whole_reduction(rank)
    elif stage in (1, 2):
        yield from bucket(rank)
        yield from pipeline.buckets(rank)
    else:
        yield from stage3_bucket(rank)
        yield from stage3_window(rank)
        yield from secondary_partition(rank)


def flattening(rank: RankModel) -> Iterator[MemoryTerm]:
    """While it starts: a flat copy of the parameters in stages 1 and 2, or later zeros for gradients, ``4 P / N``.

    In stage 3 a flat copy of one weight, or the fp32 copy of the shard from which the master copy is cloned. DeepSpeed
    makes the first copy on the host where the device lacks the room, so it never decides what fits.
    """
    zero, size = rank.spec.zero, rank.dtypes.size("parameters")
    if not zero.stage:
        return
    shard = 4 * rank.elements.optimizer if zero.offload_optimizer == "none" else 0
    whole = rank.elements.largest if zero.stage == 3 else rank.elements.trained
    flat, capacity = size * whole, rank.spec.rank_memory_bytes
    if capacity is not None and 2 * flat > capacity:
        flat = 0
    if zero.stage == 3:
        gradients = rank.dtypes.size("accumulate") * rank.elements.gradients
        later = shard - gradients - rank.dtypes.size("gradients") * zero.reduce_bucket_size
        copy = max(flat, later if rank.dtypes.master else 0)
    else:
        copy = max(flat - shard, shard)
    copy -= drawn_bytes(rank)
    yield _term("temporary", frozenset(("load",)), copy, f"flat copy of {count(whole)} parameters, or after it zeros")


def unreduced(rank: RankModel) -> Iterator[MemoryTerm]:
    """Below stage 2, whole gradients: of the block's last weight, and of the output projection from the first on.

    They stay until the end of the backward pass; from stage 2 on each is freed once it is in a bucket.
    """
    if rank.engine.gradients_stay or rank.spec.zero.stage >= 2:
        return
    size = rank.engine.size
    last = rank.largest_block.last_trained
    _, outputs = backward_extra_parts(rank)
    yield _term("temporary", RECOMPUTING, size * last - outputs, f"one weight's gradient of {count(last)}")
    accumulating = rank.spec.gradient_accumulation > 1
    if rank.root.trained and not accumulating:
        tied = rank.view.head and rank.view.embedding and rank.spec.model.tie_word_embeddings
        elements = rank.head.gradients + (rank.embedding.largest if tied else 0)
        yield _term("gradients", RECOMPUTING, size * elements, "gradient of the output projection")


def bucket(rank: RankModel) -> Iterator[MemoryTerm]:
    """Stages 1 and 2: contiguous gradient buckets of ``reduce_bucket_size``, two with ``overlap_comm``.

    Stage 2's ``allreduce_and_scatter`` flattens a bucket into a copy, so one more is counted, at most the model's size.
    """
    zero, size = rank.spec.zero, rank.dtypes.size("gradients")
    buckets = size * zero.reduce_bucket_size * (2 if zero.overlap_comm else 1)
    copy = size * min(zero.reduce_bucket_size, rank.elements.trained)
    text = f"{size} B x reduce_bucket_size {count(zero.reduce_bucket_size)}"
    yield _term("reduce_buffers", _BACKWARD, buckets, text)
    yield from _beside_backward(rank, copy, "flattened copy of a bucket")


def whole_reduction(rank: RankModel) -> Iterator[MemoryTerm]:
    """Stage 0: gradients flattened for the all-reduce, at most a bucket; BF16_Optimizer casts all of them at once.

    BF16_Optimizer also keeps the module's own bf16 gradients, zeroed and not freed.
    """
    size, elements = rank.dtypes.size("gradients"), rank.elements.trained
    end: frozenset[Moment] = frozenset(("root_backward",))
    if flat_fp32_gradients(rank.spec):
        yield _term("reduce_buffers", end, size * elements, f"bf16 copy of {count(elements)} gradients")
        yield _term("gradients", ALWAYS - {"load"}, size * elements, f"bf16 gradients of {count(elements)}")
    else:
        flat = size * min(elements, rank.spec.zero.reduce_bucket_size)
        yield _term("reduce_buffers", end, flat, "flattened gradients of one all-reduce")


def step_copies(rank: RankModel) -> Iterator[MemoryTerm]:
    """The step: gradients of the rank's shard in one flat tensor, and in fp32; what torch's optimizer adds to that.

    Stage 3 steps one sub-group at a time; gradients of stage 0 are stepped on as they are. Before it, the norm is
    computed of one gradient at a time in fp64 (``complete_grad_norm_calculation_for_cpu_offload``,
    ``get_grad_norm_direct``).
    """
    zero, elements = rank.spec.zero, rank.elements.optimizer
    if zero.offload_optimizer != "none":
        return
    moment: frozenset[Moment] = frozenset(("step",))
    if zero.stage == 3:
        elements = min(elements, zero.sub_group_size)
    size = rank.dtypes.size("accumulate")
    flat = size * elements if zero.stage and not flat_fp32_gradients(rank.spec) else 0
    if size < 4:
        yield _term("temporary", moment, 4 * elements, f"fp32 gradients of {count(elements)}")
    torch_states = torch_temporaries(rank, elements)
    # A flat copy in another format is gone before the step of torch begins.
    more = max(flat, torch_states) if size < 4 else flat + torch_states
    yield _term("temporary", moment, more, f"flat gradients and torch's temporaries of {count(elements)}")
    if zero.stage and not flat_fp32_gradients(rank.spec):
        norm = rank.elements.largest_shard if zero.stage == 3 else min(rank.elements.largest_trained, elements)
        yield _term("temporary", frozenset(("clip",)), 8 * norm, f"fp64 copy of a gradient of {count(norm)}")


def torch_temporaries(rank: RankModel, elements: int) -> int:
    """What ``torch.optim`` makes of ``elements`` to step: a list, or tensor after tensor in a loop.

    ZeRO hands over flat tensors, stage 0 those of the model. A loop makes AdamW's square root and quotient of one, and
    of several holds the quotient of the one before; SGD's is the same sum in a loop (``torch/optim/adam.py``,
    ``sgd.py``).
    """
    how, copies = optimizer.step(rank.spec), list_copies(rank.spec.optimizer)
    if how == "fused":
        return 0
    if how == "loop":
        adam, stage = rank.spec.optimizer.name == "adamw", rank.spec.zero.stage
        copies *= (2 if stage else 3) if adam else 1
        elements = elements if stage else max(rank.largest_block.largest_trained, rank.root.largest_trained)
    return rank.dtypes.size("optimizer_states") * copies * elements


def stage3_bucket(rank: RankModel) -> Iterator[MemoryTerm]:
    """Stage 3: one gradient bucket, permanent, and the copy that ``reduce_scatter_coalesced`` concatenates."""
    size, elements = rank.dtypes.size("gradients"), rank.spec.zero.reduce_bucket_size
    text = f"{size} B x reduce_bucket_size {count(elements)}"
    yield _term("reduce_buffers", ALWAYS, size * elements, text)
    copy = size * min(elements, rank.elements.trained)
    yield from _beside_backward(rank, copy, "concatenated copy of a bucket")


def stage3_window(rank: RankModel) -> Iterator[MemoryTerm]:
    """Stage 3: gathered parameters, ``size x min(P, max_reuse_distance + current + prefetch)``.

    The current module is a leaf, so the largest weight; parameters below the persistence threshold stay gathered.
    """
    zero, elements = rank.spec.zero, rank.elements
    window = min(elements.whole, zero.max_reuse_distance + elements.largest + zero.prefetch_bucket_size)
    size = rank.engine.size * window
    text = f"{rank.engine.size} B x {count(window)} gathered parameters (stage3_max_reuse_distance and prefetch)"
    yield _term("gather_buffers", _GATHERED, size, text)
    # What one all-gather brings stays until the last of its weights is used; the weights are copies of it. It takes
    # weights until they are no fewer than the bucket (``numel_prefetching``, partitioned_param_coordinator.py).
    ahead = rank.engine.size * min(elements.whole, zero.prefetch_bucket_size + elements.largest)
    yield _term("gather_buffers", frozenset(("forward",)), ahead, "output of the all-gather ahead")


def secondary_partition(rank: RankModel) -> Iterator[MemoryTerm]:
    """ZeRO++ hpZ: a second shard among ``hpz`` ranks, ``size P / k`` (``ds_secondary_tensor``)."""
    ranks = rank.spec.zero.hpz
    if ranks > 1:
        size = rank.engine.size * ceil(rank.elements.whole / ranks)
        yield _term("gather_buffers", ALWAYS - {"load"}, size, f"secondary partition among {ranks} ranks")


def fp32_partition(rank: RankModel) -> Iterator[MemoryTerm]:
    """ZeRO clones its shard for the optimizer in fp32 even where the parameters are fp32: ``4 P / N``.

    ``single_partition_of_fp32_groups`` in ``stage_1_and_2.py``, ``fp32_partitioned_groups_flat`` in ``stage3.py``.
    """
    zero = rank.spec.zero
    if zero.stage and rank.dtypes.master is None and zero.offload_optimizer == "none":
        elements = rank.elements.optimizer
        yield _term("master_weights", ALWAYS, 4 * elements, f"4 B x {count(elements)}")


def first_step(rank: RankModel) -> Iterator[MemoryTerm]:
    """Stage 0 beside a master copy steps once while it starts, so that loading takes what a step takes.

    ``FP16_UnfusedOptimizer.initialize_optimizer_states``: moments, fp32 gradients and the compute format's, and what
    torch's optimizer makes.
    """
    if rank.spec.zero.stage == 0 and rank.dtypes.master is not None:
        elements = rank.elements.trained
        moment: frozenset[Moment] = frozenset(("load",))
        states = (2 if rank.spec.optimizer.name == "adamw" else 1) * 4
        yield _term("optimizer_states", moment, states * elements, f"{states} B x {count(elements)}")
        yield _term("temporary", moment, torch_temporaries(rank, elements), "torch's temporaries of the first step")
        size = rank.dtypes.size("gradients") + 4
        yield _term("gradients", moment, size * elements, f"gradients in both formats of {count(elements)}")


def _beside_backward(rank: RankModel, size: int, text: str) -> Iterator[MemoryTerm]:
    """What lives while one gradient is reduced: half of the gradients inside the MLP exist by then."""
    inside, outputs = backward_extra_parts(rank)
    yield _term("reduce_buffers", _LATE - {"root_backward"}, size - inside // 2 - outputs, text)
    yield _term("reduce_buffers", frozenset(("root_backward",)), size, text)


def _term(pile: Pile, moments: frozenset[Moment], size: int, formula: str) -> MemoryTerm:
    return MemoryTerm(pile=pile, moments=moments, bytes=max(size, 0), formula=formula, source=_TRACE)
