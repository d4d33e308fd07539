"""Logits and their cross entropy, on the stage that computes the loss."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from launcher.memory.moments import Moment
from launcher.memory.terms import MemoryTerm
from launcher.rank.engine import LogitsBytes
from launcher.rank.model import RankModel
from launcher.units import count

_TORCH = "trace of the live tensors of torch.nn.functional.cross_entropy on fp32 logits"
_MEGATRON = "Megatron-core tensor_parallel/cross_entropy.py"


def logits(rank: RankModel) -> Iterator[MemoryTerm]:
    """Bytes of a token's logits at the loss and at its gradient, times the tokens that are in memory at once.

    Full loss by torch: forward ``size V + 4 V + 4 V`` (logits, fp32 copy, log-softmax), backward ``12 V`` (log-softmax,
    two gradients); in fp32 the copy is none. Chunked: the same for ``loss_chunk`` tokens, backward recomputing forward.
    """
    if not rank.view.head:
        return
    if rank.engine.library == "megatron":
        yield from _megatron(rank)
        return
    yield from _chunked_gradients(rank)
    size, tokens = rank.engine.size, _tokens(rank)
    copy = 4 if size < 4 else 0
    forward, backward = size + copy + 4, 12
    if rank.engine.vocabulary_parallel:
        forward = backward = 16
    # A vocabulary that is split is gathered, and put together in a third tensor (DTensor's redistribution, AutoTP's
    # ``GatherFromTensorParallelRegion``).
    whole = rank.view.tensor == 1 or (rank.engine.whole_embedding and rank.spec.model.tie_word_embeddings)
    made = size if whole or rank.engine.vocabulary_parallel else size * (2 + rank.view.tensor)
    own = rank.engine.logits or LogitsBytes(output=size, loss=forward, backward=backward, source=_TORCH)
    yield _term(rank, "output", own.output if rank.engine.logits else made, tokens, own.source)
    yield _term(rank, "loss", own.loss, tokens, own.source)
    yield _term(rank, "loss_backward", own.backward, tokens, own.source)


def _chunked_gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Chunked loss: the sum of the output projection's gradients of earlier chunks beside a chunk's logits.

    ``size V h``; or later the chunk's own gradient beside both, with only the gradient left of the logits. The only
    chunk has none before it.
    """
    elements, size = rank.head.largest_trained, rank.engine.size
    if rank.spec.model.tie_word_embeddings:
        elements = max(elements, rank.embedding.largest_trained)
    if rank.spec.train.loss == "full" or not elements:
        return
    one, tokens = size * elements, _tokens(rank)
    earlier = one if rank.tokens > tokens else 0
    later = earlier + one - (12 - size) * rank.vocabulary * tokens
    yield MemoryTerm(
        pile="temporary",
        moments=frozenset(("loss_backward",)),
        bytes=max(earlier, later, 0),
        formula=f"gradient of the output projection, {size} B x {count(elements)}",
        source="torch/utils/checkpoint.py and AccumulateGrad, one chunk after the other",
    )


def _megatron(rank: RankModel) -> Iterator[MemoryTerm]:
    """Vocabulary-parallel cross entropy in place: ``(2 + 4) V / t`` a token, in fp32 ``4 V / t``.

    Fused, the compiled functions write to one more fp32 tensor: ``10 V / t`` (``fusions/fused_cross_entropy.py``).
    """
    size = rank.engine.size
    per_element = size + 4 if size < 4 else 4
    if rank.spec.train.loss == "fused":
        per_element += 4
    yield _term(rank, "loss", per_element, rank.tokens, _MEGATRON)
    yield _term(rank, "loss_backward", per_element, rank.tokens, _MEGATRON)


def _tokens(rank: RankModel) -> int:
    """Tokens whose logits are in memory at once."""
    if rank.spec.train.loss == "full":
        return rank.tokens
    return min(rank.tokens, rank.spec.train.loss_chunk)


def _term(rank: RankModel, moment: Moment, per_element: int | Fraction, tokens: int, source: str) -> MemoryTerm:
    share = rank.view.tensor if rank.engine.vocabulary_parallel else 1
    vocabulary = -(-rank.vocabulary * share // 1)
    return MemoryTerm(
        pile="logits",
        moments=frozenset((moment,)),
        bytes=int(per_element * vocabulary * tokens),
        formula=f"{float(per_element):g} B x {int(vocabulary):,} vocabulary x {tokens:,} tokens",
        source=source,
    )
