"""Buffers and temporaries of Megatron-core with Transformer Engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from launcher.backends.megatron.dtypes import dtypes
from launcher.blocks import Engine
from launcher.held import Held
from launcher.spec import RunSpec
from launcher.terms import ALWAYS, MemoryTerm, Moment, Pile
from launcher.units import DTYPE_BYTES, MIB, count

VOCABULARY_MULTIPLE = 128
"""Megatron-LM's default of ``--make-vocab-size-divisible-by``, times the tensor-parallel degree."""

TRANSFORMER_ENGINE_WORKSPACE = {True: 32 * MIB, False: 4 * MIB}
"""``get_cublas_workspace_size_bytes`` of Transformer Engine: 32 MiB from compute capability 9.0 on, else 4 MiB."""

OTHER_BYTES = 12 * MIB
"""Random states, the batch and small buffers: what recorded static bytes hold beyond model states and workspaces, with
which they are 80 MiB on A100 and 108 MiB on H100 whatever the model (Megatron-LM functional tests)."""

_BLOCK: frozenset[Moment] = frozenset((
    "forward",
    "output",
    "block_backward",
    "next_block_backward",
    "second_layer_backward",
    "loss",
    "loss_backward",
))


def engine(spec: RunSpec) -> Engine:
    """Megatron-core's modules; gradients live in one permanent buffer; the loss is vocabulary-parallel."""
    meaning = dtypes(spec)
    size = DTYPE_BYTES["bf16" if meaning.compute == "fp8" else meaning.compute]
    return Engine(
        library="megatron",
        size=size,
        residual_size=size,
        sequence_length=spec.sequence_length,
        scores=spec.model.attention == "eager",
        cpu=spec.hardware.device == "cpu",
        vocabulary_multiple=VOCABULARY_MULTIPLE * spec.parallel.tensor,
        gradients_stay=True,
        vocabulary_parallel=True,
    )


def overheads(held: Held) -> Iterable[MemoryTerm]:
    """Everything that Megatron adds."""
    yield from workspaces(held)
    yield from gathered_sequence(held)
    yield from embedding_dropout(held)
    yield from cast_gradients(held)


def workspaces(held: Held) -> Iterator[MemoryTerm]:
    """Transformer Engine's workspace and small buffers inside torch's allocator; they do not grow with the model."""
    if held.cuda:
        new = "fp8" in held.spec.hardware.dtypes
        source = "transformer_engine/pytorch/module/base.py; Megatron-LM functional tests, recorded static bytes"
        size = TRANSFORMER_ENGINE_WORKSPACE[new] + OTHER_BYTES
        yield _term("workspace", ALWAYS, size, "Transformer Engine and small buffers", source)


def gathered_sequence(held: Held) -> Iterator[MemoryTerm]:
    """Sequence parallelism gathers the whole sequence before a linear, and again for its weight's gradient: ``size h``.

    arXiv:2205.05198, section 4.2.2: the gathered input is not saved.
    """
    if held.spec.parallel.sequence and held.spec.parallel.tensor > 1:
        size = held.engine.size * held.spec.model.hidden_size * held.tokens
        text = f"{held.engine.size} B x {held.spec.model.hidden_size:,} hidden x {held.tokens:,} tokens"
        yield _term("gather_buffers", _BLOCK, size, text, "arXiv:2205.05198, section 4.2.2")


def embedding_dropout(held: Held) -> Iterator[MemoryTerm]:
    """The mask of the dropout after the embedding, a byte an element, of every micro-batch in flight."""
    if held.view.embedding and held.spec.model.dropout:
        size = int(held.spec.model.hidden_size * held.tokens * held.view.residual * held.view.in_flight)
        moments = _BLOCK - {"second_layer_backward"}
        yield _term("activations", moments, size, "mask of the embedding's dropout", "arXiv:2205.05198, section 4.3")


def cast_gradients(held: Held) -> Iterator[MemoryTerm]:
    """Gradients narrower than fp32 are cast for the step: ``4 B x P / d`` (Megatron-core ``distrib_optimizer.py``)."""
    if held.dtypes.size("accumulate") < 4 and held.dtypes.master is not None:
        elements = held.elements.optimizer
        text = f"4 B x {count(elements)} gradients of this rank"
        yield _term("temporary", frozenset(("step",)), 4 * elements, text, "Megatron-core distrib_optimizer.py")


def _term(pile: Pile, moments: frozenset[Moment], size: int, formula: str, source: str) -> MemoryTerm:
    return MemoryTerm(pile=pile, moments=moments, bytes=max(size, 0), formula=formula, source=source)
