"""Logits and their cross entropy, on the stage that computes the loss."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from launcher.memory.moments import Moment
from launcher.memory.terms import MemoryTerm
from launcher.rank.engine import LogitsBytes
from launcher.rank.model import Held
from launcher.units import count

_TORCH = "trace of the live tensors of torch.nn.functional.cross_entropy on fp32 logits"
_MEGATRON = "Megatron-core tensor_parallel/cross_entropy.py"


def logits(held: Held) -> Iterator[MemoryTerm]:
    """Bytes of a token's logits at the loss and at its gradient, times the tokens that are in memory at once.

    Full loss by torch: forward ``size V + 4 V + 4 V`` (logits, fp32 copy, log-softmax), backward ``12 V`` (log-softmax,
    two gradients); in fp32 the copy is none. Chunked: the same for ``loss_chunk`` tokens, backward recomputing forward.
    """
    if not held.view.head:
        return
    if held.engine.library == "megatron":
        yield from _megatron(held)
        return
    yield from _chunked_gradients(held)
    size, tokens = held.engine.size, _tokens(held)
    copy = 4 if size < 4 else 0
    forward, backward = size + copy + 4, 12
    if held.engine.vocabulary_parallel:
        forward = backward = 16
    # A vocabulary that is split is gathered, and put together in a third tensor (DTensor's redistribution, AutoTP's
    # ``GatherFromTensorParallelRegion``).
    whole = held.view.tensor == 1 or (held.engine.whole_embedding and held.spec.model.tie_word_embeddings)
    made = size if whole or held.engine.vocabulary_parallel else size * (2 + held.view.tensor)
    own = held.engine.logits or LogitsBytes(output=size, loss=forward, backward=backward, source=_TORCH)
    yield _term(held, "output", own.output if held.engine.logits else made, tokens, own.source)
    yield _term(held, "loss", own.loss, tokens, own.source)
    yield _term(held, "loss_backward", own.backward, tokens, own.source)


def _chunked_gradients(held: Held) -> Iterator[MemoryTerm]:
    """Chunked loss: the sum of the output projection's gradients of earlier chunks beside a chunk's logits.

    ``size V h``; or later the chunk's own gradient beside both, with only the gradient left of the logits. The only
    chunk has none before it.
    """
    elements, size = held.head.largest_trained, held.engine.size
    if held.spec.model.tie_word_embeddings:
        elements = max(elements, held.embedding.largest_trained)
    if held.spec.train.loss == "full" or not elements:
        return
    one, tokens = size * elements, _tokens(held)
    earlier = one if held.tokens > tokens else 0
    later = earlier + one - (12 - size) * held.vocabulary * tokens
    yield MemoryTerm(
        pile="temporary",
        moments=frozenset(("loss_backward",)),
        bytes=max(earlier, later, 0),
        formula=f"gradient of the output projection, {size} B x {count(elements)}",
        source="torch/utils/checkpoint.py and AccumulateGrad, one chunk after the other",
    )


def _megatron(held: Held) -> Iterator[MemoryTerm]:
    """Vocabulary-parallel cross entropy in place: ``(2 + 4) V / t`` a token, in fp32 ``4 V / t``.

    Fused, the compiled functions write to one more fp32 tensor: ``10 V / t`` (``fusions/fused_cross_entropy.py``).
    """
    size = held.engine.size
    per_element = size + 4 if size < 4 else 4
    if held.spec.train.loss == "fused":
        per_element += 4
    yield _term(held, "loss", per_element, held.tokens, _MEGATRON)
    yield _term(held, "loss_backward", per_element, held.tokens, _MEGATRON)


def _tokens(held: Held) -> int:
    """Tokens whose logits are in memory at once."""
    if held.spec.train.loss == "full":
        return held.tokens
    return min(held.tokens, held.spec.train.loss_chunk)


def _term(held: Held, moment: Moment, per_element: int | Fraction, tokens: int, source: str) -> MemoryTerm:
    share = held.view.tensor if held.engine.vocabulary_parallel else 1
    vocabulary = -(-held.vocabulary * share // 1)
    return MemoryTerm(
        pile="logits",
        moments=frozenset((moment,)),
        bytes=int(per_element * vocabulary * tokens),
        formula=f"{float(per_element):g} B x {int(vocabulary):,} vocabulary x {tokens:,} tokens",
        source=source,
    )
