"""Memory of torch's ring attention (``parallel.context``) while keys and values go round.

Read in torch 2.15, ``torch/distributed/tensor/experimental/_context_parallel/_attention.py``, with its rotation by
``alltoall``, and seen in traces of it. Of a group's ranks the first is counted: it attends with half of its queries to
all keys of each neighbour, the last with all of them to half of the keys, which is less but for a few per cent.
"""

from collections.abc import Iterator, Sequence

from launcher.estimate.memory.activations import content, running_blocks
from launcher.estimate.memory.moments import Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import BlockKind, RankModel
from launcher.estimate.rank.tensors import SavedTensor, Share

_SOURCE = "torch/distributed/tensor/experimental/_context_parallel/_attention.py"
_FP32 = 4


def overheads(rank: RankModel) -> Iterator[MemoryTerm]:
    """Both passes, each as the instant of attention beside that of the MLP."""
    if rank.spec.parallel.context > 1 and rank.blocks:
        yield from forward(rank)
        for moments, kind in running_blocks(rank):
            yield from backward(rank, kind, moments)


def forward(rank: RankModel) -> Iterator[MemoryTerm]:
    """``_templated_ring_attention`` while a neighbour's result is merged.

    Elements a token: queries ``q``, keys and values ``2 k``, of ``size`` bytes; the norm's output ``h``; neighbours'
    keys and values, ``2 k`` and from three ranks on ``2 k`` of the one after; the output before, its second half with
    and without the neighbour's, and the whole of it joined (``_SDPAMerger``): ``4 (q + q/2 + q/2 + q)`` and ``size
    q/2`` as the kernel returned it. Only a block that saves nothing is looked at: beside what it saves of its MLP the
    ring is less. Of the products that selective checkpointing keeps, the queries' alone is there by then.
    """
    if not rank.last_block.repeats("attention"):
        return
    size, queries, pairs = _sizes(rank)
    kernel = size * queries // 2 if size < _FP32 else 0
    ring = size * (queries + (1 + _neighbours(rank)) * pairs) + 3 * _FP32 * queries + kernel
    k = rank.token_bytes([_row(ring, "tensor"), _row(rank.engine.residual_size * _hidden(rank), "token")])
    kept = (row for row in rank.last_block.saved if row.part == "cache" and row.output_of != "q_proj")
    values = {"k": k, "k_there": rank.token_bytes(kept), "tok": rank.tokens}
    what, expression = "ring attention, less products to come", "(k - k_there) * tok"
    yield term("temporary", ("forward",), what, expression, _SOURCE, **values).at("attention")


def backward(rank: RankModel, kind: BlockKind, moments: Moments) -> Iterator[MemoryTerm]:
    """``_templated_ring_attention_backward`` in its second round.

    Elements a token as in :func:`forward`. In fp32 the sums ``q + 2 k``, and the gradients of keys and values on their
    way, sent and received: ``2 x 2 k``. In ``size`` bytes the kernel's gradients of the round before ``q + 2 k`` and of
    this one ``q/2 + 2 k``, keys and values sent and received, ``2 x 2 k`` or from three ranks on ``3 x 2 k``, and the
    gradient of the output ``q``; beside them that of the residual stream, and of every weight after the queries'.
    What the block saved after attention is freed by then, and so is the copy of attention's output.
    """
    size, queries, pairs = _sizes(rank)
    sums = _FP32 * (queries + pairs + 2 * pairs)
    ring = sums + size * (2 * queries + queries // 2 + (3 + _neighbours(rank)) * pairs)
    k = rank.token_bytes([_row(ring, "tensor"), _row(rank.engine.residual_size * _hidden(rank), "residual")])
    values = {"k": k, "tok": rank.tokens, "z": size, "w": _later_weights(rank)}
    what = "ring attention's backward pass and gradients of the weights after it"
    yield term("temporary", moments, what, "k * tok + z * w", _SOURCE, **values).at("attention")
    before = _before([row for row in kind.saved if row.part != "cache"])
    yield content(rank, kind, moments, saved=before).at("attention")


def _sizes(rank: RankModel) -> tuple[int, int, int]:
    """Bytes of an element, elements of a token's queries, and of its keys and values."""
    model = rank.spec.model
    return rank.engine.size, model.query_size, 2 * model.key_value_size


def _neighbours(rank: RankModel) -> int:
    """Neighbours whose keys and values are here at once: the one attended to, and the next one's on their way."""
    return min(rank.spec.parallel.context - 1, 2)


def _later_weights(rank: RankModel) -> int:
    """Trained weights whose gradients FSDP2 holds unreduced: all of the block but queries, keys and values.

    DDP puts each into its bucket on its own.
    """
    if not rank.spec.parallel.shard:
        return 0
    _, queries, pairs = _sizes(rank)
    return max(rank.largest_block.trained - int(_hidden(rank) * (queries + pairs) * rank.view.tensor), 0)


def _before(saved: Sequence[SavedTensor]) -> list[SavedTensor]:
    """Tensors that a block saves, in the order of its forward pass, until it has attention's output."""
    last = max(place for place, row in enumerate(saved) if row.part == "core_attention")
    return [row for row in saved[: last + 1] if row.part != "core_attention" or not row.only_readers]


def _hidden(rank: RankModel) -> int:
    return rank.spec.model.hidden_size


def _row(size: int, share: Share) -> SavedTensor:
    return SavedTensor(name="ring attention", bytes=size, share=share, part="core_attention")
