"""nanotron as a backend of the memory model: what its blocks save and its optimizer holds beyond Megatron-core's."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from benchmarks.memory.frameworks.nanotron.device_memory import BLOCK_LAUNCHES, LAUNCHES
from launcher.blocks import Engine, Saved
from launcher.dtypes import Dtypes
from launcher.held import Held
from launcher.memory import device
from launcher.memory.activations import FULL
from launcher.spec import RunSpec
from launcher.terms import ALWAYS, MemoryTerm, Moment, Pile
from launcher.units import count

_FORMATS = Dtypes(
    parameters="bf16",
    compute="bf16",
    gradients="bf16",
    accumulate="fp32",
    master="fp32",
    optimizer_states="fp32",
    reduce="fp32",
)
COMMUNICATOR_BYTES = 2 * 10**9
"""About 6 GB for three communicators and more (NCCL issue 864)."""

_GRADIENT = "nanotron optim/gradient_accumulator.py, FP32GradientAccumulator"


class Nanotron:
    """bf16 parameters, fp32 accumulation in one permanent buffer, a vocabulary-parallel loss, fused kernels."""

    def dtypes(self, spec: RunSpec) -> Dtypes:
        """One format for all runs."""
        return _FORMATS

    def engine(self, spec: RunSpec) -> Engine:
        """Its blocks save what Megatron-core's save, and more (``saved``)."""
        return Engine(
            library="megatron",
            size=2,
            residual_size=2,
            sequence_length=spec.sequence_length,
            vocabulary_multiple=spec.parallel.tensor,
            gradients_stay=True,
            vocabulary_parallel=True,
        )

    def overheads(self, held: Held) -> Iterator[MemoryTerm]:
        """Buffers and tensors beside those of the terms that all backends share."""
        yield from buckets(held)
        yield from gathered_parameters(held)
        yield from gathered_sequence(held)
        yield from saved(held)
        yield from copied_logits(held)
        yield from half_gradients(held)
        yield from late_buffers(held)
        yield from communicators(held)


def buckets(held: Held) -> Iterator[MemoryTerm]:
    """The bf16 buckets of DistributedDataParallel, which wraps a model with copies unless ZeRO shards them: ``2 P``."""
    if held.spec.world.data > 1 and held.spec.zero.stage == 0:
        elements, source = held.elements.whole, "nanotron trainer.py, make_ddp; torch reducer.cpp"
        yield _term("reduce_buffers", ALWAYS, 2 * elements, f"bf16 buckets of {count(elements)}", source)


def gathered_parameters(held: Held) -> Iterator[MemoryTerm]:
    """ZeRO 1 gathers the stepped bf16 parameters: ``2 P / d`` flat; ``4 P``, a flat tensor a rank, and NCCL's."""
    if held.spec.zero.stage == 1 and held.spec.world.data > 1:
        size = 2 * held.elements.optimizer + 4 * held.elements.whole
        source = "nanotron distributed.py, all_gather_coalesced; torch ProcessGroupNCCL.cpp, allgather"
        yield _term("gather_buffers", frozenset(("step",)), size, "flat bf16 parameters, twice", source)


def gathered_sequence(held: Held) -> Iterator[MemoryTerm]:
    """Two permanent buffers for all tokens before a column's linear, in forward and in backward: ``2 x 2 h``.

    [inferred: with them the memory in the optimizer step is met to 0.1 GiB in all runs with tensor parallelism; the
    name ``tp_recompute_allgather`` is of later versions than the one that was read.]
    """
    if held.spec.parallel.tensor > 1:
        size = 2 * 2 * held.spec.model.hidden_size * held.tokens
        formula = f"2 x 2 B x hidden x {held.tokens:,} tokens"
        yield _term("gather_buffers", ALWAYS - {"load"}, size, formula, "nanotron's runs in their optimizer step")


def saved(held: Held) -> Iterator[MemoryTerm]:
    """What a block saves beyond Megatron-core's: ``(4 h + 2 f) / t`` a token, of every micro-batch in flight.

    The output of ``silu``, ``2 f``; attention's output in the order of the sequence, ``2 h``; another tensor of h
    [inferred from the runs without tensor parallelism].
    """
    model = held.spec.model
    rows = [
        Saved(name="silu", bytes=2 * model.intermediate_size, share="tensor", part="mlp"),
        Saved(name="attention output", bytes=4 * model.hidden_size, share="tensor", part="attention"),
    ]
    block, layers, in_flight = held.bytes_of(rows), held.layers, held.view.in_flight
    others = ceil((in_flight - 1) * layers * block)
    at: dict[frozenset[Moment], int] = {
        FULL: others + layers * block,
        frozenset(("next_block_backward",)): others + max(layers - 1, 0) * block,
        frozenset(("second_layer_backward",)): others + min(layers, 2) * block,
        frozenset(("root_backward",)): others,
    }
    for moments, size in at.items():
        yield _term("activations", moments, size, "silu, attention's output", "nanotron models/llama.py")


def copied_logits(held: Held) -> Iterator[MemoryTerm]:
    """The loss subtracts the maximum into another fp32 tensor: 8 V / t a token in forward, 2 V / t more."""
    if held.view.head:
        size = int(2 * held.vocabulary * held.view.tensor * held.tokens)
        source = "nanotron parallel/tensor_parallel/functional.py, _ShardedCrossEntropy"
        yield _term("logits", frozenset(("loss",)), size, "fp32 logits beside their copy", source)


def half_gradients(held: Held) -> Iterator[MemoryTerm]:
    """bf16 gradients, added to the fp32 ones only after the whole backward pass of a micro-batch: up to ``2 P``."""
    block, whole = held.largest_block.whole, held.elements.whole
    at: dict[Moment, int] = {
        "block_backward": max(held.largest_block.largest, held.head.largest),
        "next_block_backward": block + held.head.whole,
        "second_layer_backward": max(whole - held.embedding.whole - block, 0),
        "root_backward": whole,
    }
    for moment, elements in at.items():
        yield _term("gradients", frozenset((moment,)), 2 * elements, f"2 B x {count(elements)}", _GRADIENT)


def late_buffers(held: Held) -> Iterator[MemoryTerm]:
    """What the linears of rows made for all tokens, ``2 x 2 h`` a block, until the GPU is through with its reduction.

    The host runs ahead of the GPU, by the launches of up to 32 blocks, and a block of memory that NCCL's stream reads
    is not given out again before (torch ``record_stream``). [inferred: runs without a pipeline hold them so]
    """
    if held.spec.parallel.tensor > 1:
        blocks = min(held.layers, LAUNCHES // BLOCK_LAUNCHES)
        size = 2 * 2 * held.spec.model.hidden_size * held.tokens * blocks
        formula = f"2 x 2 B x hidden x {held.tokens:,} tokens x {blocks} blocks"
        moments: frozenset[Moment] = frozenset(("forward", "output", "loss", "loss_backward", "block_backward"))
        yield _term("temporary", moments, size, formula, "torch c10/cuda/CUDACachingAllocator.cpp, record_stream")


def communicators(held: Held) -> Iterator[MemoryTerm]:
    """What nanotron's communicators take beyond the estimate's own account of them.

    Of the world, the copies, the tensor and the pipeline ranks, and of a model's ranks for the norm of its gradients
    (nanotron ``parallel/context.py``); three and more take about 6 GB together (NCCL issue 864), of which the shared
    formula sees less. Some runs prove that it can be much less: 77.4 GiB were reserved on 64 GPUs.
    """
    number, counted = communicator_count(held.spec), sum(term.bytes for term in device.communicators(held))
    size = max(0, number * COMMUNICATOR_BYTES - counted)
    yield _term("communicators", ALWAYS, size, f"{number} communicators x 2 GB, the rest", "NCCL issue 864")


def communicator_count(spec: RunSpec) -> int:
    """The world's communicator, and those of the groups that have more than one rank."""
    world = spec.world
    return 1 + sum(size > 1 for size in (world.data, world.tensor, world.pipeline, world.tensor * world.pipeline))


def usable_bytes(spec: RunSpec) -> int:
    """What is left to torch's allocator on the card."""
    capacity = spec.rank_memory_bytes
    if capacity is None:
        raise AssertionError("the card's memory is known")
    return capacity - device.CONTEXT_BYTES - communicator_count(spec) * COMMUNICATOR_BYTES


def _term(pile: Pile, moments: frozenset[Moment], size: int, formula: str, source: str) -> MemoryTerm:
    return MemoryTerm(pile=pile, moments=moments, bytes=size, formula=formula, source=source)
