"""Buffers and temporaries of DeepSpeed 0.19.8, read in its source and seen in traces of its live tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil

from launcher.backends.deepspeed.dtypes import dtypes
from launcher.backends.deepspeed.optimizer import is_torch
from launcher.blocks import Engine
from launcher.held import Held
from launcher.spec import RunSpec
from launcher.terms import ALWAYS, MemoryTerm, Moment, Pile
from launcher.units import DTYPE_BYTES, count

_TRACE = "trace of the live tensors of DeepSpeed 0.19.8"
_BACKWARD: frozenset[Moment] = frozenset((
    "loss_backward",
    "block_backward",
    "next_block_backward",
    "second_layer_backward",
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
))


def engine(spec: RunSpec) -> Engine:
    """Hugging Face modules cast as a whole to the compute format; flat buffers cut evenly."""
    meaning = dtypes(spec)
    size = DTYPE_BYTES["bf16" if meaning.compute == "fp8" else meaning.compute]
    return Engine(
        library="transformers",
        size=size,
        residual_size=size,
        sequence_length=spec.sequence_length,
        scores=spec.model.attention == "eager",
        cpu=spec.hardware.device == "cpu",
        gradients_stay=spec.zero.stage == 3 or flat_fp32_gradients(spec),
    )


def flat_fp32_gradients(spec: RunSpec) -> bool:
    """Whether BF16_Optimizer runs: bf16 with fp32 accumulation, ZeRO 1, nothing offloaded (``runtime/engine.py``)."""
    meaning = dtypes(spec)
    formats = (meaning.parameters, meaning.accumulate) == ("bf16", "fp32")
    return formats and spec.zero.stage == 1 and spec.zero.offload_optimizer == "none"


def overheads(held: Held) -> Iterable[MemoryTerm]:
    """Everything that DeepSpeed adds at the run's stage."""
    stage = held.spec.zero.stage
    yield from flattening(held)
    yield from step_copies(held)
    yield from first_step(held)
    yield from fp32_partition(held)
    if stage == 0 or flat_fp32_gradients(held.spec):
        yield from whole_reduction(held)
    elif stage in (1, 2):
        yield from bucket(held)
    else:
        yield from stage3_bucket(held)
        yield from stage3_window(held)
        yield from secondary_partition(held)


def flattening(held: Held) -> Iterator[MemoryTerm]:
    """While it starts, a flat copy of the parameters beside the module's own; in stage 3 of one weight at a time.

    DeepSpeed makes the copy on the host where the device lacks the room, so it never decides what fits.
    """
    elements, capacity = held.elements, held.spec.rank_memory_bytes
    whole = elements.largest if held.spec.zero.stage == 3 else elements.trained
    size = held.dtypes.size("parameters") * whole
    if capacity is not None and 2 * size > capacity:
        return
    yield _term("temporary", frozenset(("load",)), size, f"flat copy of {count(whole)} parameters")


def bucket(held: Held) -> Iterator[MemoryTerm]:
    """Stages 1 and 2: contiguous gradient buckets of ``reduce_bucket_size``, two with ``overlap_comm``.

    Stage 2's ``allreduce_and_scatter`` flattens a bucket into a copy, so one more is counted, at most the model's size.
    """
    zero, size = held.spec.zero, held.dtypes.size("gradients")
    buckets = size * zero.reduce_bucket_size * (2 if zero.overlap_comm else 1)
    copy = size * min(zero.reduce_bucket_size, held.elements.trained)
    text = f"{size} B x reduce_bucket_size {count(zero.reduce_bucket_size)}"
    yield _term("reduce_buffers", _BACKWARD, buckets, text)
    late: frozenset[Moment] = frozenset(("next_block_backward", "second_layer_backward", "root_backward"))
    yield _term("reduce_buffers", late, copy, "flattened copy of a bucket")


def whole_reduction(held: Held) -> Iterator[MemoryTerm]:
    """Stage 0: gradients flattened for the all-reduce, at most a bucket; BF16_Optimizer casts all of them at once.

    BF16_Optimizer also keeps the module's own bf16 gradients, zeroed and not freed.
    """
    size, elements = held.dtypes.size("gradients"), held.elements.trained
    end: frozenset[Moment] = frozenset(("root_backward",))
    if flat_fp32_gradients(held.spec):
        yield _term("reduce_buffers", end, size * elements, f"bf16 copy of {count(elements)} gradients")
        yield _term("gradients", ALWAYS - {"load"}, size * elements, f"bf16 gradients of {count(elements)}")
    else:
        flat = size * min(elements, held.spec.zero.reduce_bucket_size)
        yield _term("reduce_buffers", end, flat, "flattened gradients of one all-reduce")


def step_copies(held: Held) -> Iterator[MemoryTerm]:
    """The step: fp32 gradients of the rank's shard, and the square root and quotient of torch's AdamW on flat tensors.

    A flat copy in the gradients' format is gone before torch's step begins. Stage 3 steps one sub-group at a time; fp32
    gradients of stage 0 are stepped on as they are.
    """
    if held.spec.zero.offload_optimizer != "none":
        return
    elements = held.elements.optimizer
    if held.spec.zero.stage == 3:
        elements = min(elements, held.spec.zero.sub_group_size)
    if held.dtypes.accumulate != "fp32":
        yield _term("temporary", frozenset(("step",)), 4 * elements, f"fp32 gradients of {count(elements)}")
    if is_torch(held.spec) and held.spec.zero.stage == 0:
        largest = max(held.largest_block.largest_trained, held.root.largest_trained)
        yield _term("temporary", frozenset(("step",)), 3 * 4 * largest, "square root and quotients of one parameter")
    elif is_torch(held.spec) and not held.spec.optimizer.fused:
        text = f"square root and quotient of {count(elements)}"
        yield _term("temporary", frozenset(("step",)), 2 * 4 * elements, text)
    elif held.dtypes.accumulate != "fp32" and held.spec.zero.stage in (1, 2):
        flat = held.dtypes.size("accumulate") * elements
        yield _term("temporary", frozenset(("step",)), flat, f"flat gradients of {count(elements)}")


def stage3_bucket(held: Held) -> Iterator[MemoryTerm]:
    """Stage 3: one gradient bucket, permanent, and the copy that ``reduce_scatter_coalesced`` concatenates."""
    size, elements = held.dtypes.size("gradients"), held.spec.zero.reduce_bucket_size
    text = f"{size} B x reduce_bucket_size {count(elements)}"
    yield _term("reduce_buffers", ALWAYS, size * elements, text)
    copy = size * min(elements, held.elements.trained)
    late: frozenset[Moment] = frozenset(("next_block_backward", "second_layer_backward", "root_backward"))
    yield _term("reduce_buffers", late, copy, "concatenated copy of a bucket")


def stage3_window(held: Held) -> Iterator[MemoryTerm]:
    """Stage 3: gathered parameters, ``size x min(P, max_reuse_distance + current + prefetch)``.

    The current module is a leaf, so the largest weight; parameters below the persistence threshold stay gathered.
    """
    zero, elements = held.spec.zero, held.elements
    window = min(elements.whole, zero.max_reuse_distance + elements.largest + zero.prefetch_bucket_size)
    size = held.engine.size * window
    text = f"{held.engine.size} B x {count(window)} gathered parameters (stage3_max_reuse_distance and prefetch)"
    yield _term("gather_buffers", _GATHERED, size, text)


def secondary_partition(held: Held) -> Iterator[MemoryTerm]:
    """ZeRO++ hpZ: a second shard among ``hpz`` ranks, ``size P / k`` (``ds_secondary_tensor``)."""
    ranks = held.spec.zero.hpz
    if ranks > 1:
        size = held.engine.size * ceil(held.elements.whole / ranks)
        yield _term("gather_buffers", ALWAYS - {"load"}, size, f"secondary partition among {ranks} ranks")


def fp32_partition(held: Held) -> Iterator[MemoryTerm]:
    """ZeRO clones its shard for the optimizer in fp32 even where the parameters are fp32: ``4 P / N``.

    ``single_partition_of_fp32_groups`` in ``stage_1_and_2.py``, ``fp32_partitioned_groups_flat`` in ``stage3.py``.
    """
    zero = held.spec.zero
    if zero.stage and held.dtypes.master is None and zero.offload_optimizer == "none":
        elements = held.elements.optimizer
        yield _term("master_weights", ALWAYS, 4 * elements, f"4 B x {count(elements)}")


def first_step(held: Held) -> Iterator[MemoryTerm]:
    """Stage 0 beside a master copy steps once while it starts, so that loading takes what a step takes.

    ``FP16_UnfusedOptimizer.initialize_optimizer_states``: moments and fp32 gradients of all parameters.
    """
    if held.spec.zero.stage == 0 and held.dtypes.master is not None:
        elements = held.elements.trained
        moment: frozenset[Moment] = frozenset(("load",))
        yield _term("optimizer_states", moment, 8 * elements, f"8 B x {count(elements)}")
        yield _term("gradients", moment, 4 * elements, f"fp32 gradients of {count(elements)}")


def _term(pile: Pile, moments: frozenset[Moment], size: int, formula: str) -> MemoryTerm:
    return MemoryTerm(pile=pile, moments=moments, bytes=max(size, 0), formula=formula, source=_TRACE)
