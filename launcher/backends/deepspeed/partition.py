"""Gradients in ZeRO: the buffer of a rank's partition, weights that are larger than a bucket, and tied ones."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.memory.activations import RECOMPUTING, backward_extra_parts
from launcher.memory.moments import Moment
from launcher.memory.states import DURING_BACKWARD, WITHIN_MICRO_BATCH
from launcher.memory.terms import MemoryTerm, Pile
from launcher.rank.model import RankModel
from launcher.units import count

_AT_THE_END: frozenset[Moment] = frozenset(("root_backward",))
_SOURCE = "DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py"


def gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """One buffer for all parameters that a rank's partition touches, ``size P'``, as soon as one of them is reduced.

    ``copy_grads_in_partition`` allocates every one of them whole, so ``P' >= P / N``. Stage 2 reduces bucket by bucket,
    on the last rank, whose partition has the output projection, first. Gradients of earlier micro-batches stand beside
    it (``all_grad_tensors``). Stage 1 reduces at the end of the backward pass, beside whole gradients but for a bucket
    of them, whose memory the bucket takes over (``reduce_independent_p_g_buckets_and_remove_grads``).
    """
    size, shard = rank.dtypes.size("accumulate"), rank.elements.optimizer
    rest = partition(rank) - shard
    text, more = f"{size} B x {count(shard)} of this rank", f"{size} B x {count(rest)} of parameters that others share"
    after: frozenset[Moment] = frozenset(("clip", "step"))
    if rank.spec.zero.stage == 1:
        bucket = rank.spec.zero.reduce_bucket_size
        copied = shard + rest - min(bucket, sum(each for each in _matrices(rank) if each <= bucket))
        yield _term("reduce_buffers", _AT_THE_END, size * copied, f"{size} B x {count(copied)} copied beyond a bucket")
    else:
        after |= _from_the_first_bucket(rank) | _AT_THE_END
    yield _term("gradients", after, size * shard, text)
    yield _term("reduce_buffers", after, size * rest, more)
    if rank.spec.zero.stage == 2 and rank.spec.gradient_accumulation > 1:
        before = WITHIN_MICRO_BATCH | DURING_BACKWARD | _AT_THE_END
        yield _term("gradients", before, size * (shard + rest), f"gradients of earlier micro-batches, {size} B each")


def oversized(rank: RankModel) -> Iterator[MemoryTerm]:
    """Stage 2: gradients of more elements than a bucket, which stay until the next (``extra_large_param_to_reduce``).

    That of the block's last weight stands beside all that the block saved. That of experts' first weight comes when
    what their products saved is freed, four times their width, of which the gradients inside them are two.
    """
    size, block = rank.dtypes.size("gradients"), rank.largest_block
    inside, outputs = backward_extra_parts(rank)
    waiting = [
        each * (each > rank.spec.zero.reduce_bucket_size) for each in (block.last_trained, block.largest_trained)
    ]
    late = size * sum(waiting) - 2 * inside if block.expert else 0
    text = f"gradient of {count(waiting[0])}, more than a bucket"
    yield _term("gradients", RECOMPUTING, max(size * waiting[0], late) - outputs, text)


def tied(rank: RankModel) -> Iterator[MemoryTerm]:
    """From stage 2 on: the tied output projection's gradient, which autograd holds until the embedding's is there."""
    if rank.view.head and rank.view.embedding and rank.spec.model.tie_word_embeddings:
        size, table = rank.dtypes.size("gradients"), rank.embedding.largest_trained
        yield _term("gradients", RECOMPUTING, size * table, "gradient of the tied output projection")


def partition(rank: RankModel) -> int:
    """Elements of the parameters that a partition touches: in stage 1 the first rank's, in stage 2 the last one's.

    They are the worst, since they are reduced first; another rank's may be a weight's more.

    Where 16-bit gradients are accumulated in fp32, the partition alone (``_build_compact_grad_partition_buffer``).
    """
    shard = rank.elements.optimizer
    if rank.dtypes.accumulate != rank.dtypes.gradients:
        return shard
    touched = 0
    for matrix in _matrices(rank)[:: -1 if rank.spec.zero.stage == 2 else 1]:
        if touched >= shard:
            break
        touched += matrix
    return max(touched, shard)


def _matrices(rank: RankModel) -> tuple[int, ...]:
    return rank.embedding.matrices + rank.all_blocks.matrices + rank.head.matrices


def _from_the_first_bucket(rank: RankModel) -> frozenset[Moment]:
    """Moments of the backward pass by which stage 2 has filled a bucket, the output projection's gradient first."""
    zero, block = rank.spec.zero, rank.largest_block
    moments: dict[Moment, int] = {
        "block_backward": 0,
        "next_block_backward": 1,
        "second_layer_backward": rank.layers - 2,
        "first_layer_backward": rank.layers - 1,
    }
    done = rank.head.trained + block.last_trained
    return frozenset(
        moment for moment, blocks in moments.items() if done + blocks * block.trained > zero.reduce_bucket_size
    )


def _term(pile: Pile, moments: frozenset[Moment], size: int, formula: str) -> MemoryTerm:
    return MemoryTerm(pile=pile, moments=moments, bytes=max(size, 0), formula=formula, source=_SOURCE)
