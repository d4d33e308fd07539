"""Buffers and temporaries of Megatron-core with Transformer Engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil

from launcher.backends.megatron import permanent, sharded
from launcher.backends.megatron.dtypes import dtypes
from launcher.backends.megatron.implementation import Implementation, fsdp, implementation, reads_gradients_as_they_are
from launcher.backends.megatron.term import AFTER_BACKWARD, term
from launcher.memory.moments import Moment
from launcher.memory.terms import MemoryTerm
from launcher.rank.engine import EngineTraits
from launcher.rank.model import RankModel
from launcher.spec import RunSpec
from launcher.units import DTYPE_BYTES, count

VOCABULARY_MULTIPLE = 128
"""Megatron-LM's default of ``--make-vocab-size-divisible-by``, times the tensor-parallel degree."""

_BLOCK: frozenset[Moment] = frozenset(("forward", "block_backward", "next_block_backward", "second_layer_backward"))
_BATCH: frozenset[Moment] = frozenset(("forward", "output", "loss"))
_HELD: frozenset[Moment] = _BATCH | {"loss_backward", "block_backward", "next_block_backward"}


def engine(spec: RunSpec) -> EngineTraits:
    """Megatron-core's modules; gradients live in one permanent buffer; the loss is vocabulary-parallel."""
    meaning, how = dtypes(spec), implementation(spec)
    size = DTYPE_BYTES["bf16" if meaning.compute == "fp8" else meaning.compute]
    return EngineTraits(
        library="megatron",
        size=size,
        residual_size=size,
        sequence_length=spec.sequence_length,
        scores=how.attention == "unfused",
        softmax_size=4 if how.wide_softmax else None,
        # Of a micro-batch of one sequence the two layouts are the same.
        attention_copy=how.attention == "flash" and spec.train.micro_batch_size > 1,
        expert_outputs=how.deterministic and not spec.backend.argument("moe-permute-fusion"),
        cpu=spec.hardware.device == "cpu",
        vocabulary_multiple=vocabulary_multiple(spec) * spec.parallel.tensor,
        gradients_stay=True,
        vocabulary_parallel=True,
        master_size=_master_size(spec),
    )


def _master_size(spec: RunSpec) -> int | None:
    """Of an fp32 master copy beside bf16 parameters the precision-aware optimizer keeps the 16 bits that they lack.

    ``store_param_remainders`` (``optimizer/distrib_optimizer.py``, Transformer Engine 2.1 on). Megatron-FSDP has a
    buffer for all of it.
    """
    meaning = dtypes(spec)
    halves = (meaning.parameters, meaning.master) == ("bf16", "fp32")
    return 2 if halves and reads_gradients_as_they_are(spec) and not fsdp(spec) else None


def vocabulary_multiple(spec: RunSpec) -> int:
    """The rows of one tensor-parallel rank are a multiple of ``--make-vocab-size-divisible-by``."""
    return spec.backend.count("make-vocab-size-divisible-by") or VOCABULARY_MULTIPLE


def overheads(rank: RankModel) -> Iterable[MemoryTerm]:
    """Everything that Megatron adds."""
    how = implementation(rank.spec)
    yield from permanent.workspaces(rank, how)
    yield from permanent.global_buffer(rank, how)
    yield from permanent.unused_gradients(rank, how)
    yield from permanent.last_inputs(rank)
    yield from gathered_sequence(rank, how)
    yield from attention_mask(rank, how)
    yield from embedding_dropout(rank)
    yield from deferred_gradients(rank, how)
    yield from cast_gradients(rank)
    yield from sharded.overheads(rank)


def gathered_sequence(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """Sequence parallelism gathers the whole sequence before a linear, and again for its weight's gradient: ``size h``.

    arXiv:2205.05198, section 4.2.2: the gathered input is not saved. Megatron-core's own linears gather into the
    permanent buffer.
    """
    if rank.spec.parallel.sequence and rank.spec.parallel.tensor > 1 and how.transformer_engine:
        size = permanent.whole_sequence(rank)
        text = f"{rank.engine.size} B x {rank.spec.model.hidden_size:,} hidden x {rank.tokens:,} tokens"
        yield term("gather_buffers", _BLOCK, size, text, "arXiv:2205.05198, section 4.2.2")


def attention_mask(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """The mask of a micro-batch, a byte for each pair of positions, ``b s^2``, and the part of a context-parallel rank.

    ``create_attention_mask_in_dataloader`` of Megatron-core's GPT data set; only the first and the last stage get it.
    """
    if (rank.view.embedding or rank.view.head) and how.attention_mask:
        length, context = rank.spec.sequence_length, rank.spec.parallel.context
        size = rank.spec.train.micro_batch_size * length * length
        size += size // context if context > 1 else 0
        text = f"{rank.spec.train.micro_batch_size} x {length:,} x {length:,} positions"
        yield term("temporary", _BATCH, size, text, "Megatron-core datasets/gpt_dataset.py")


def embedding_dropout(rank: RankModel) -> Iterator[MemoryTerm]:
    """The mask of the dropout after the embedding, a byte an element, of every micro-batch in flight."""
    if rank.view.embedding and rank.spec.model.dropout:
        size = int(rank.spec.model.hidden_size * rank.tokens * rank.view.residual * rank.view.in_flight)
        yield term("activations", _HELD, size, "mask of the embedding's dropout", "arXiv:2205.05198, section 4.3")


def deferred_gradients(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """Input and output gradient of the output projection, of micro-batches whose weight gradient is computed later."""
    if rank.view.head and how.deferred:
        size = rank.engine.size
        logits = size * ceil(rank.vocabulary * rank.view.tensor) * rank.tokens
        inputs = ceil(size * rank.spec.model.hidden_size * rank.tokens * rank.view.residual)
        text = f"{how.deferred} micro-batches of gradients of the logits and inputs of the output projection"
        yield term("logits", _HELD, how.deferred * (logits + inputs), text, "Megatron-core tensor_parallel/layers.py")


def cast_gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradients narrower than fp32 are cast for the step: ``4 B x P / d``, kept until the next step begins.

    Megatron-core ``optimizer/optimizer.py`` and ``distrib_optimizer.py``, ``_copy_model_grads_to_main_grads``. The
    precision-aware optimizer reads them as they are.
    """
    if reads_gradients_as_they_are(rank.spec):
        return
    if rank.dtypes.size("accumulate") < 4 and rank.dtypes.master is not None:
        elements = rank.elements.optimizer
        text = f"4 B x {count(elements)} gradients of this rank"
        yield term("temporary", AFTER_BACKWARD, 4 * elements, text, "Megatron-core distrib_optimizer.py")
