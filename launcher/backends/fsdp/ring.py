"""What torch's ring attention (``parallel.context``) has in memory while keys and values go round.

Read in torch 2.15, ``torch/distributed/tensor/experimental/_context_parallel/_attention.py``, with its rotation by
``alltoall``, and seen in traces of it. Of a group's ranks the first is counted: it attends with half of its queries to
all keys of each neighbour, the last with all of them to half of the keys, which is less but for a few per cent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from launcher.memory.activations import RECOMPUTING, forward_working
from launcher.memory.terms import MemoryTerm
from launcher.rank.model import Held
from launcher.rank.tensors import Saved, Share

_SOURCE = "torch/distributed/tensor/experimental/_context_parallel/_attention.py"
_FP32 = 4


def overheads(held: Held, *, gradients: int) -> Iterator[MemoryTerm]:
    """Both passes.

    Args:
        held: The rank.
        gradients: Weight gradients that are counted beside the block whose backward pass runs.
    """
    if held.spec.parallel.context > 1 and held.blocks:
        yield from forward(held)
        yield from backward(held, gradients)


def forward(held: Held) -> Iterator[MemoryTerm]:
    """``_templated_ring_attention`` while a neighbour's result is merged, where that is more than the block's MLP.

    Elements a token: queries ``q``, keys and values ``2 k``, of ``size`` bytes; the norm's output ``h``; neighbours'
    keys and values, ``2 k`` and from three ranks on ``2 k`` of the one after; the output before, its second half with
    and without the neighbour's, and the whole of it joined (``_SDPAMerger``): ``4 (q + q/2 + q/2 + q)`` and ``size
    q/2`` as the kernel returned it. Only a block that saves nothing is looked at: beside what it saves of its MLP the
    ring is less.
    """
    if held.spec.checkpointing.mode == "none":
        return
    size, queries, pairs = _sizes(held)
    kernel = size * queries // 2 if size < _FP32 else 0
    ring = size * (queries + (1 + _neighbours(held)) * pairs) + 3 * _FP32 * queries + kernel
    inside = held.bytes_of([_row(ring, "tensor"), _row(held.engine.residual_size * _hidden(held), "token")])
    counted = sum(term.bytes for term in forward_working(held))
    # Of the products that selective checkpointing keeps, the queries' alone is there beside what is counted here.
    counted += held.bytes_of(row for row in held.blocks[-1].saved if row.part == "cache" and row.made_by != "q_proj")
    yield MemoryTerm(
        pile="temporary",
        moments=frozenset(("forward",)),
        bytes=max(inside - counted, 0),
        formula=f"ring attention beyond the MLP, {held.tokens:,} tokens",
        source=_SOURCE,
    )


def backward(held: Held, gradients: int) -> Iterator[MemoryTerm]:
    """``_templated_ring_attention_backward`` in its second round, where that is more than the block's MLP before it.

    Elements a token as in :func:`forward`. In fp32 the sums ``q + 2 k``, and the gradients of keys and values on their
    way, sent and received: ``2 x 2 k``. In ``size`` bytes the kernel's gradients of the round before ``q + 2 k`` and of
    this one ``q/2 + 2 k``, keys and values sent and received, ``2 x 2 k`` or from three ranks on ``3 x 2 k``, and the
    gradient of the output ``q``; beside them that of the residual stream, and of every weight after the queries'.
    What the block saved after attention is freed by then, and so is the copy of attention's output.
    """
    size, queries, pairs = _sizes(held)
    sums = _FP32 * (queries + pairs + 2 * pairs)
    ring = sums + size * (2 * queries + queries // 2 + (3 + _neighbours(held)) * pairs)
    kind = max(held.blocks, key=lambda kind: held.bytes_of(kind.working))
    saved = [row for row in kind.saved if row.part != "cache"]
    freed = held.bytes_of(saved) - held.bytes_of(_before(saved))
    inside = held.bytes_of([_row(ring, "tensor"), _row(held.engine.residual_size * _hidden(held), "residual")])
    inside += held.engine.size * _later_weights(held)
    yield MemoryTerm(
        pile="temporary",
        moments=RECOMPUTING,
        bytes=max(inside - freed - held.bytes_of(kind.working) - gradients, 0),
        formula=f"ring attention's backward pass beyond the MLP's, {held.tokens:,} tokens",
        source=_SOURCE,
    )


def _sizes(held: Held) -> tuple[int, int, int]:
    """Bytes of an element, elements of a token's queries, and of its keys and values."""
    model = held.spec.model
    return held.engine.size, model.query_size, 2 * model.key_value_size


def _neighbours(held: Held) -> int:
    """Neighbours whose keys and values are here at once: the one attended to, and the next one's on their way."""
    return min(held.spec.parallel.context - 1, 2)


def _later_weights(held: Held) -> int:
    """Trained weights whose gradients FSDP2 holds unreduced: all of the block but queries, keys and values.

    DDP puts each into its bucket on its own.
    """
    if not held.spec.parallel.shard:
        return 0
    _, queries, pairs = _sizes(held)
    return max(held.largest_block.trained - int(_hidden(held) * (queries + pairs) * held.view.tensor), 0)


def _before(saved: Sequence[Saved]) -> list[Saved]:
    """What a block saves, in the order of its forward pass, until it has attention's output."""
    last = max(place for place, row in enumerate(saved) if row.part == "core_attention")
    return [row for row in saved[: last + 1] if row.part != "core_attention" or not row.only_readers]


def _hidden(held: Held) -> int:
    return held.spec.model.hidden_size


def _row(size: int, share: Share) -> Saved:
    return Saved(name="ring attention", bytes=size, share=share, part="core_attention")
