"""Parameters that stage 3 of ZeRO gathers ahead of use, keeps whole, or shares a second time in a node."""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import ceil

from launcher.base.formula import Value
from launcher.estimate.memory.activations import block_input, content, running_blocks
from launcher.estimate.memory.adapted import read_last
from launcher.estimate.memory.moments import BEFORE_BLOCKS_BACKWARD, BLOCK_BACKWARD, ROOT_BACKWARD, TRAINING, Moment
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.adapters import module, targeted
from launcher.estimate.rank.counts import block_weights
from launcher.estimate.rank.model import RankModel
from launcher.spec import RunSpec

_TRACE = "trace of the live tensors of DeepSpeed 0.19.8"


def window(rank: RankModel) -> Iterator[MemoryTerm]:
    """Stage 3: gathered parameters, ``z min(P, max(live, reuse / 2) + w + kept)``.

    Each module's call, a parent's too, prefetches a bucket, until ``max_live_parameters`` are gathered, and what the
    prefetcher has met again on its way is not released (``fetch_sub_module``). A weight whose next use lies within
    ``max_reuse_distance`` stays: before backward begins, of the last ones of half of it (``__params_to_release``,
    partitioned_param_coordinator.py). The weight that exceeds the bound, a block's, comes on top.

    What one all-gather brings stays until the last of its weights is used; the weights are copies of it. It takes
    weights until they are no fewer than the bucket (``numel_prefetching``).

    Weights of few elements, or packed ones of few bytes, are not released but for the step (``ds_persist``;
    ``_partition_all_parameters`` and ``_post_step``, stage3.py). One rank alone trains on its shards themselves
    (``NoGatherCoalescedHandle``, partition_parameters.py).
    """
    if rank.spec.shard_degree == 1:
        return
    zero, (z, whole, kept) = rank.spec.zero, _gathered(rank)
    ahead = zero.prefetch_bucket_size + rank.elements.largest
    what, expression = "gathered parameters (stage3_max_live_parameters, max_reuse_distance)", "z * min(P, window)"
    ahead_only = not zero.prefetch_bucket_size or zero.offload_parameters == "nvme"  # It stops at weights on NVMe.
    live = zero.prefetch_bucket_size if ahead_only else zero.max_live_parameters
    w = rank.largest_block.largest
    bound = max(max(live, -(-zero.max_reuse_distance // 2)) + w, rank.elements.largest)
    traced = whole if _held_by_autograd(rank) else bound + kept
    at_loss, bound, moments = traced, traced, BEFORE_BLOCKS_BACKWARD
    if (stays := _without_trace(rank.spec, kept)) is not None:
        at_loss, bound = stays + (rank.embedding.whole if rank.tied else rank.head.whole), stays + w
        moments -= {"forward", "output"}
    yield _term(moments, what, expression, z=z, P=whole, window=at_loss)
    head = 0 if rank.tied else rank.head.whole - rank.head.kept  # Without a further use, it is released.
    head *= rank.engine.size if rank.elements.quantised else 1
    released = _last_linear(rank)
    yield _term(BLOCK_BACKWARD, what, expression, z=z, P=whole - head - released, window=bound)
    if released:
        yield from _last_linear_backward(rank, released)
    what = "weights that stay whole (stage3_param_persistence_threshold)"
    yield _term(ROOT_BACKWARD | {"idle", "checkpoint_save"}, what, "z * kept", z=z, kept=kept)
    if zero.quantized_weights:
        yield _quantized_ahead(rank, ahead)
        return
    what, every = "output of the all-gather ahead", _gathered(rank, table=True)[1]
    yield _term(("forward",), what, expression, z=z, P=every - kept, window=ahead)
    if rank.spec.task.has_reference and not rank.spec.task.precompute_reference:  # Its pass follows the policy's.
        missing = every - (kept if stays is None else stays)
        yield _term(("output",), f"{what}, of the reference", expression, z=z, P=missing, window=ahead)
        yield _term(("output",), "gathered parameters of the reference", expression, z=z, P=whole, window=traced)


def _without_trace(spec: RunSpec, kept: int) -> int | None:
    """Elements that stay between modules of a policy that a step calls more than once; None if it is called once.

    A trace ends where the next forward pass begins (``reset_step``): the pass that the backward pass follows has none,
    or one without a use to come. KTO calls it twice alike, for answers of other rows, and weights of few elements stay;
    as its own reference its modules differ, or an engine of inference is beside them, and none stays.
    """
    task = spec.task
    if task.name == "kto" and task.loss in (None, "kto") and not task.precompute_reference:
        return kept
    return 0 if task.has_reference and (task.precompute_reference or spec.adapter.name != "none") else None


def _gathered(rank: RankModel, *, table: bool = False) -> tuple[int, int, int]:
    """Bytes of an element, and in such elements the weights that ranks gather, and those that stay whole.

    A frozen token table is not used again in the backward pass, and goes with its call, though what brought it with
    others stays (``table``). Packed weights are bytes, of two values in 4 bits, which DeepSpeed takes for elements;
    their constants are no parameters.
    """
    counts, z = rank.elements, rank.engine.size
    whole = counts.whole - (0 if table or rank.embedding.trained or rank.tied else rank.embedding.whole)
    if not counts.quantised:
        return z, whole, counts.kept
    wide, kept = whole - counts.quantised, counts.kept - counts.kept_quantised
    part = Fraction(rank.spec.adapter.bits, 8)
    return 1, z * wide + ceil(counts.quantised * part), z * kept + ceil(counts.kept_quantised * part)


def _held_by_autograd(rank: RankModel) -> bool:
    """True if autograd keeps views of gathered weights until the backward pass, whatever DeepSpeed releases.

    The worker's linears keep the parameter itself (``LinearFunctionForZeroStage3``); those of adapters and AutoTP, and
    products of experts, keep views. What is recomputed keeps nothing.
    """
    spec = rank.spec
    if spec.checkpointing.mode == "full" and spec.checkpointing.layers is None:
        return False
    return spec.adapter.name != "none" or spec.model.num_experts > 0 or spec.parallel.tensor > 1


def _last_linear(rank: RankModel) -> int:
    """Elements of the MLP's last linear where it has an adapter and is recomputed: it is released after its gradient.

    Autograd keeps a view of it from the recomputed product on, which ends with its release; it is gathered once more.
    """
    spec = rank.spec
    if _held_by_autograd(rank) or spec.adapter.name == "none" or rank.elements.quantised:
        return 0
    read = {reader for kind in rank.blocks for row in read_last(kind) if row in kind.saved for reader in row.readers}
    weights = block_weights(rank.family, spec.model, spec.model.num_hidden_layers - 1)
    found = [weight for weight in targeted(weights, spec.adapter) if module(weight) in read]
    return sum(ceil(weight.elements * (rank.view.tensor if weight.split == "tensor" else 1)) for weight in found)


def _last_linear_backward(rank: RankModel, w: int) -> Iterator[MemoryTerm]:
    """The instant of its gradient, for which it is gathered beside that view.

    The gradient of its input comes twice, from its weight and from its adapter, which has let go of that input.
    """
    for moments, kind in running_blocks(rank):
        yield content(rank, kind, moments).at("last linear")
        yield _term(moments, "the last linear, twice", "2 * z * w", z=rank.engine.size, w=w).at("last linear")
        what, k = "gradients of its input and its output", rank.token_bytes([block_input(rank), *read_last(kind)])
        yield term("temporary", moments, what, "k * tok", _TRACE, k=k, tok=rank.tokens).at("last linear")


def _quantized_ahead(rank: RankModel, ahead: int) -> MemoryTerm:
    """ZeRO++ qwZ: what one all-gather brings, in 8 bits, and its fp16 copy, of which the weights are cut.

    ``AllGatherCoalescedHandle.wait`` (partition_parameters.py); the scales, 4 bytes of some 8,000 elements, are left
    out, as are the rank's own share before it is sent and the fp16 copy of the last weight.
    """
    what, expression = "output of the quantized all-gather ahead", "(1 + 2) * min(P, window)"
    return _term(("forward",), what, expression, P=rank.elements.whole, window=ahead)


def secondary_partition(rank: RankModel) -> Iterator[MemoryTerm]:
    """ZeRO++ hpZ: a second shard among ``hpz`` ranks, ``z P / d`` (``ds_secondary_tensor``)."""
    ranks, whole = rank.spec.zero.hpz, rank.elements.whole
    if ranks > 1:
        what, z = "secondary partition (hpZ)", rank.engine.size
        yield _term(TRAINING, what, "z * ceil(P / d)", z=z, P=whole, d=ranks)


def _term(moments: Iterable[Moment], what: str, expression: str, **values: Value) -> MemoryTerm:
    return term("gather_buffers", moments, what, expression, _TRACE, **values)
