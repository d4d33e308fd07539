"""nanotron as a backend of the memory model: what its blocks save and its optimizer holds beyond Megatron-core's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from benchmarks.memory.frameworks.nanotron.device_memory import BLOCK_LAUNCHES, LAUNCHES
from launcher.base.formula import Value
from launcher.estimate.memory import device
from launcher.estimate.memory.estimate import Backend
from launcher.estimate.memory.moments import ALWAYS, TRAINING, UNTIL_FIRST_GRADIENTS, Moment, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.model import RankModel
from launcher.estimate.rank.tensors import SavedTensor
from launcher.spec import RunSpec

_FORMATS = Dtypes(
    parameters="bf16",
    compute="bf16",
    gradients="bf16",
    accumulate="fp32",
    master="fp32",
    optimizer_states="fp32",
    reduce="fp32",
)
GROUP_BYTES = 2 * 10**9
"""A group's communicator: about 6 GB for three and more (NCCL issue 864)."""

PAIR_BYTES = 544 * 10**6
"""A communicator of two ranks, on A100 with NVLink (NCCL issue 964)."""

_GRADIENT = "nanotron optim/gradient_accumulator.py, FP32GradientAccumulator"


class Nanotron(Backend):
    """bf16 parameters, fp32 accumulation in one permanent buffer, a vocabulary-parallel loss, fused kernels."""

    framework: ClassVar[str] = "Nanotron"

    def dtypes(self, spec: RunSpec) -> Dtypes:
        """One format for all runs."""
        return _FORMATS

    def engine(self, spec: RunSpec) -> EngineTraits:
        """Engine traits: blocks save the tensors of Megatron-core's, and more (``saved``)."""
        return EngineTraits(
            library="megatron",
            size=2,
            residual_size=2,
            sequence_length=spec.sequence_length,
            vocabulary_multiple=spec.parallel.tensor,
            gradients_stay=True,
            vocabulary_parallel=True,
        )

    def overheads(self, rank: RankModel) -> Iterator[MemoryTerm]:
        """Buffers and tensors beside those of the terms that all backends share."""
        yield from buckets(rank)
        yield from gathered_parameters(rank)
        yield from gathered_sequence(rank)
        yield from saved(rank)
        yield from copied_logits(rank)
        yield from half_gradients(rank)
        yield from late_buffers(rank)
        yield from communicators(rank)


def buckets(rank: RankModel) -> Iterator[MemoryTerm]:
    """The bf16 buckets of DistributedDataParallel, which wraps a model with copies unless ZeRO shards them: ``2 P``."""
    if rank.spec.data_degree > 1 and rank.spec.zero.stage == 0:
        source = "nanotron trainer.py, make_ddp; torch reducer.cpp"
        yield term("reduce_buffers", ALWAYS, "bf16 buckets", "2 * P", source, P=rank.elements.whole)


def gathered_parameters(rank: RankModel) -> Iterator[MemoryTerm]:
    """ZeRO 1 gathers the stepped bf16 parameters: ``2 P / d`` flat; ``4 P``, a flat tensor a rank, and NCCL's."""
    if rank.spec.zero.stage == 1 and rank.spec.data_degree > 1:
        source = "nanotron distributed.py, all_gather_coalesced; torch ProcessGroupNCCL.cpp, allgather"
        what, shard, whole = "flat bf16 parameters, twice", rank.elements.optimizer, rank.elements.whole
        yield term("gather_buffers", ("step",), what, "2 * shard + 4 * P", source, shard=shard, P=whole)


def gathered_sequence(rank: RankModel) -> Iterator[MemoryTerm]:
    """Two permanent buffers for all tokens before a column's linear, in forward and in backward: ``2 x 2 h``.

    [inferred: with them the memory in the optimizer step is met to 0.1 GiB in all runs with tensor parallelism; the
    name ``tp_recompute_allgather`` is of later versions than the one that was read.]
    """
    if rank.spec.parallel.tensor > 1:
        what, source = "buffers for all tokens", "nanotron's runs in their optimizer step"
        h = rank.spec.model.hidden_size
        yield term("gather_buffers", TRAINING, what, "2 * 2 * h * tok", source, h=h, tok=rank.tokens)


def saved(rank: RankModel) -> Iterator[MemoryTerm]:
    """Bytes that a block saves beyond Megatron-core's: ``(4 h + 2 f) / t`` a token, of every micro-batch in flight.

    The output of ``silu``, ``2 f``; attention's output in the order of the sequence, ``2 h``; another tensor of h
    [inferred from the runs without tensor parallelism].
    """
    model = rank.spec.model
    rows = [
        SavedTensor(name="silu", bytes=2 * model.intermediate_size, share="tensor", part="mlp"),
        SavedTensor(name="attention output", bytes=4 * model.hidden_size, share="tensor", part="attention"),
    ]
    k, layers, f = rank.token_bytes(rows), rank.layers, rank.view.in_flight
    at: dict[Moments, int] = {
        UNTIL_FIRST_GRADIENTS: layers,
        frozenset(("next_block_backward",)): max(layers - 1, 0),
        frozenset(("second_layer_backward",)): min(layers, 2),
        frozenset(("root_backward",)): 0,
    }
    what, expression = "silu, attention's output", "((f - 1) * L + n) * k * tok"
    for moments, n in at.items():
        values: dict[str, Value] = {"f": f, "L": layers, "n": n, "k": k, "tok": rank.tokens}
        yield term("activations", moments, what, expression, "nanotron models/llama.py", **values)


def copied_logits(rank: RankModel) -> Iterator[MemoryTerm]:
    """The loss subtracts the maximum into another fp32 tensor: 8 V / t a token in forward, 2 V / t more."""
    if rank.view.head:
        source = "nanotron parallel/tensor_parallel/functional.py, _ShardedCrossEntropy"
        what, entries = "fp32 logits beside their copy", rank.vocabulary * rank.view.tensor
        yield term("logits", ("loss",), what, "2 * V * tok", source, V=entries, tok=rank.tokens)


def half_gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """bf16 gradients, added to the fp32 ones only after the whole backward pass of a micro-batch: up to ``2 P``."""
    block, whole = rank.largest_block.whole, rank.elements.whole
    at: dict[Moment, int] = {
        "block_backward": max(rank.largest_block.largest, rank.head.largest),
        "next_block_backward": block + rank.head.whole,
        "second_layer_backward": max(whole - rank.embedding.whole - block, 0),
        "root_backward": whole,
    }
    for moment, elements in at.items():
        yield term("gradients", (moment,), "bf16 gradients", "2 * w", _GRADIENT, w=elements)


def late_buffers(rank: RankModel) -> Iterator[MemoryTerm]:
    """Outputs of the linears of rows for all tokens, ``2 x 2 h`` a block, until the GPU is through with its reduction.

    The host runs ahead of the GPU, by the launches of up to 32 blocks, and a block of memory that NCCL's stream reads
    is not given out again before (torch ``record_stream``). [inferred: runs without a pipeline hold them so]
    """
    if rank.spec.parallel.tensor > 1:
        what, source = "buffers that NCCL still reads", "torch c10/cuda/CUDACachingAllocator.cpp, record_stream"
        n, h = min(rank.layers, LAUNCHES // BLOCK_LAUNCHES), rank.spec.model.hidden_size
        expression = "n * 2 * 2 * h * tok"
        yield term("temporary", UNTIL_FIRST_GRADIENTS, what, expression, source, n=n, h=h, tok=rank.tokens)


def communicators(rank: RankModel) -> Iterator[MemoryTerm]:
    """Bytes of nanotron's communicators: groups of 2 GB and pairs of 0.544 GB, beyond the estimate's own account.

    Some runs prove that it can be much less: 77.4 GiB were reserved on 64 GPUs.
    """
    spec, stage = rank.spec, rank.view.stage
    values = {
        "n": groups(spec),
        "size": GROUP_BYTES,
        "n_pairs": pairs(spec, stage),
        "size_pair": PAIR_BYTES,
        "counted": sum(each.bytes for each in device.communicators(rank)),
    }
    what, expression = "communicators of groups and pairs, beyond NCCL's", "n * size + n_pairs * size_pair - counted"
    yield term("communicators", ALWAYS, what, expression, "NCCL issues 864 and 964", **values)


def communicator_bytes(spec: RunSpec, stage: int) -> int:
    """All communicators of a rank of one stage."""
    return groups(spec) * GROUP_BYTES + pairs(spec, stage) * PAIR_BYTES


def groups(spec: RunSpec) -> int:
    """Groups of more than one rank: the world, the copies, the tensor and the pipeline ranks, a whole model.

    A model's ranks sum the norm of its gradients; where they are the tensor or the pipeline ranks, they share that
    group's communicator (nanotron ``parallel/context.py``, ``create_new_group``).
    """
    degrees = (spec.data_degree, spec.parallel.tensor, spec.parallel.pipeline)
    own = len([degree for degree in degrees if degree > 1])
    whole_model = 1 if spec.parallel.tensor > 1 and spec.parallel.pipeline > 1 else 0
    return 1 + own + whole_model


def pairs(spec: RunSpec, stage: int) -> int:
    """Communicators of two ranks: with every neighbour in the pipeline, and between the ends that share the embedding.

    A send that is not part of a batch makes one with its peer (nanotron ``parallel/pipeline_parallel/p2p.py``; torch
    ``ProcessGroupNCCL.cpp``, ``pointToPoint``). The ends have a group of their own (nanotron
    ``parallel/tied_parameters.py``) unless they are the whole pipeline.
    """
    last = spec.parallel.pipeline - 1
    neighbours = [other for other in (stage - 1, stage + 1) if 0 <= other <= last]
    shared = last > 1 and spec.model.tie_word_embeddings and stage in (0, last)
    return len(neighbours) + (1 if shared else 0)


def usable_bytes(spec: RunSpec) -> int:
    """Bytes left to torch's allocator on the card of a rank of the first stage."""
    capacity = spec.rank_memory_bytes
    if capacity is None:
        raise AssertionError("the card's memory is known")
    return capacity - device.CONTEXT_BYTES - communicator_bytes(spec, 0)
