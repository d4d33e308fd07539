"""Logits, their cross entropy and the last norm's backward pass, on the stage that computes the loss.

The loss decides how many bytes the logits take per token and vocabulary entry, and for how many tokens they are in
memory at once.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from launcher.base.formula import Value
from launcher.estimate.memory.activations import BACKWARD_TRACE, block_input
from launcher.estimate.memory.moments import Moment
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.engine import LogitsBytes
from launcher.estimate.rank.family import transformers_config
from launcher.estimate.rank.model import RankModel

_TORCH = "trace of the live tensors of torch.nn.functional.cross_entropy on fp32 logits"
_MEGATRON = "Megatron-core tensor_parallel/cross_entropy.py"
_LIGER = "liger_kernel/ops/fused_linear_cross_entropy.py, fused_linear_cross_entropy_forward"
_CHUNKS = "torch/utils/checkpoint.py and AccumulateGrad, one chunk after the other"


def logits(rank: RankModel) -> Iterator[MemoryTerm]:
    """Logits at the loss and at its gradient: bytes per token times the tokens that are in memory at once.

    Torch's full loss: forward ``z V + 4 V + 4 V`` (logits, fp32 copy, log-softmax), backward ``12 V`` (log-softmax, two
    gradients); fp32 needs no copy. Chunked: the same for ``loss_chunk`` tokens, backward recomputing forward.
    """
    if not rank.view.head:
        return
    if rank.engine.library == "megatron":
        yield from _megatron(rank)
        return
    if rank.spec.train.loss == "fused":
        yield from _liger(rank)
        return
    size, own = rank.engine.size, _torch(rank)
    tokens = rank.tokens if rank.spec.train.loss == "full" else min(rank.tokens, rank.spec.train.loss_chunk)
    yield _logits(rank, "output", own.output, tokens, own.source)
    yield _logits(rank, "loss", own.loss, tokens, own.source)
    yield _logits(rank, "loss_backward", own.backward, tokens, own.source).at("softmax")
    if rank.spec.train.loss != "full":
        yield from _chunked_gradients(rank, size, tokens)


def _liger(rank: RankModel) -> Iterator[MemoryTerm]:
    """Liger's fused loss: logits of one chunk, overwritten by their gradient, and the gradients computed from it.

    The gradients of the hidden states and of the output projection are computed with the loss and kept for the backward
    pass; under autocast each product casts the weight again.
    """
    z, h, v = rank.engine.size, rank.spec.model.hidden_size, rank.vocabulary
    yield _logits(rank, "loss", z, liger_tokens(rank.tokens, v, h), _LIGER)
    if rank.engine.autocast:
        yield term("temporary", ("loss",), "cast of the output projection", "z * V * h", _LIGER, z=z, V=v, h=h)
    made: tuple[Moment, ...] = ("loss", "loss_backward")
    z = rank.engine.residual_size
    yield term("temporary", made, "gradient of the hidden states", "z * tok * h", _LIGER, z=z, tok=rank.tokens, h=h)
    if w := _trained_projection(rank):
        z = 4 if rank.engine.autocast else rank.engine.size
        yield term("temporary", made, "gradient of the output projection", "z * w", _LIGER, z=z, w=w)


def liger_tokens(tokens: int, vocabulary: int, hidden: int) -> int:
    """Tokens whose logits Liger holds at once: a power of two, so that they take about as much as the hidden states."""
    parts = ceil(tokens / ceil(vocabulary / hidden))
    return min(tokens, 1 << (parts - 1).bit_length())


def _torch(rank: RankModel) -> LogitsBytes:
    """Bytes of torch's full loss per token and entry of the rank's vocabulary.

    Split logits are gathered and then concatenated into a third tensor (DTensor's redistribution, AutoTP's
    ``GatherFromTensorParallelRegion``).
    """
    engine, size = rank.engine, rank.engine.size
    if engine.logits:
        return engine.logits
    whole = rank.view.tensor == 1 or (engine.whole_embedding and rank.spec.model.tie_word_embeddings)
    made = size if whole or engine.vocabulary_parallel else size * (2 + rank.view.tensor)
    if engine.vocabulary_parallel:
        return LogitsBytes(output=made, loss=16, backward=16, source=_TORCH)
    copy, capped = 4 if size < 4 else 0, _capped(rank)
    loss, again = size + copy + 4, rank.spec.train.loss == "chunked"
    # A z-loss has its own autograd function, whose gradient is one tensor; chunks recompute their forward pass.
    backward = max(8, loss if again else 0) if rank.spec.train.z_loss else 12
    return LogitsBytes(output=made, loss=loss + capped, backward=backward + capped, source=_TORCH)


def _capped(rank: RankModel) -> int:
    """Bytes of the tanh that a cap on the logits saves (Gemma 2, ``launcher/worker/model/__init__.py``)."""
    config = transformers_config(rank.family, rank.spec.model)
    return rank.engine.size if config is not None and config.logits_cap else 0


def _chunked_gradients(rank: RankModel, size: int, tokens: int) -> Iterator[MemoryTerm]:
    """Gradients of the output projection in a chunked loss: those summed over earlier chunks, ``z V h``.

    They exist beside a chunk's logits; at a later instant the chunk's own gradient exists beside both, when only the
    gradient of the logits is left. A single chunk has none before it.
    """
    w = _trained_projection(rank)
    if not w:
        return
    what = "gradient of the output projection"
    if rank.tokens > tokens:
        yield term("temporary", ("loss_backward",), f"{what} of earlier chunks", "z * w", _CHUNKS, z=size, w=w)
    yield _logits(rank, "loss_backward", size, tokens, _CHUNKS).at("product")
    yield term("temporary", ("loss_backward",), what, "z * w", _CHUNKS, z=size, w=w).at("product")


def _trained_projection(rank: RankModel) -> int:
    w = rank.head.largest_trained
    return max(w, rank.embedding.largest_trained) if rank.spec.model.tie_word_embeddings else w


def _megatron(rank: RankModel) -> Iterator[MemoryTerm]:
    """Megatron's in-place vocabulary-parallel cross entropy: ``(2 + 4) V / t`` per token, in fp32 ``4 V / t``.

    The fused one's compiled functions write to one more fp32 tensor: ``10 V / t`` (``fusions/fused_cross_entropy.py``).
    An engine may state its own bytes.
    """
    own, layers = _of_megatron(rank), rank.spec.model.mtp_layers
    # Each multi-token prediction layer keeps its softmax, or the gradient in its place (``process_mtp_loss``).
    more = layers * (own.loss if rank.engine.logits else 4)
    yield _logits(rank, "loss", own.loss + more, rank.tokens, own.source)
    yield _logits(rank, "loss_backward", own.backward + more, rank.tokens, own.source).at("softmax")
    yield from _of_hidden_states(rank, own.output + more)


def _of_megatron(rank: RankModel) -> LogitsBytes:
    if rank.engine.logits:
        return rank.engine.logits
    size = rank.engine.size
    most = (size + 4 if size < 4 else 4) + (4 if rank.spec.train.loss == "fused" else 0)
    return LogitsBytes(output=size, loss=most, backward=most, source=_MEGATRON)


def _of_hidden_states(rank: RankModel, per_entry: Value) -> Iterator[MemoryTerm]:
    """The backward pass of the output projection: gradients of its logits and of its input, whole and reduced.

    Sequence parallelism scatters the sum over tensor parallel ranks
    (``LinearWithGradAccumulationAndAsyncCommunication`` of Megatron-core ``tensor_parallel/layers.py``).
    """
    source, z, h = "Megatron-core tensor_parallel/layers.py", rank.engine.size, rank.spec.model.hidden_size
    tok = rank.tokens
    yield _logits(rank, "loss_backward", per_entry, tok, source).at("product")
    share = rank.view.residual if rank.view.residual < 1 else 0
    what, part = "gradient of the hidden states", ceil(h * share)
    values = {"z": z, "h": h, "part": part, "tok": tok}
    yield term("logits", ("loss_backward",), what, "z * (h + part) * tok", source, **values).at("product")


def last_norm_backward(rank: RankModel) -> Iterator[MemoryTerm]:
    """The backward pass of the last RMSNorm, beside all that blocks saved: its input and five products, all in fp32.

    Its other saved tensors are freed by then. Under FSDP2 the gradient of the output projection exists beside it; the
    chunked loss counts that gradient itself. A norm in one kernel is left out: it holds less than the blocks do, and
    less than a library's own loss holds in its fp32 sums.
    """
    spec, engine = rank.spec, rank.engine
    small = engine.library == "megatron" or engine.fused_norm or engine.logits is not None
    if small or not rank.view.head or spec.model.normalization != "rmsnorm":
        return
    made = replace(block_input(rank), bytes=6 * 4 * spec.model.hidden_size)
    values = {"k": rank.token_bytes([made]), "k_there": rank.token_bytes(rank.after_blocks), "tok": rank.tokens}
    w = rank.head.trained if spec.parallel.shard and spec.train.loss == "full" else 0
    formula, what = "(k - k_there) * tok + z * w", "backward pass of the last norm"
    gradients = term("temporary", ("loss_backward",), what, formula, BACKWARD_TRACE, z=engine.size, w=w, **values)
    yield gradients.at("last norm")


def _logits(rank: RankModel, moment: Moment, per_entry: Value, tokens: int, source: str) -> MemoryTerm:
    share = rank.view.tensor if rank.engine.vocabulary_parallel else 1
    entries = ceil(rank.vocabulary * share)
    return term("logits", (moment,), "logits", "k_entry * V * tok", source, k_entry=per_entry, V=entries, tok=tokens)
