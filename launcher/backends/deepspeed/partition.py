"""Buffers of ZeRO 1 and 2 for gradients of a rank's partition, of pipeline stages for messages, and of NVMe offload."""

from collections.abc import Iterator

from launcher.backends.deepspeed import options
from launcher.base.formula import Value
from launcher.estimate.memory.moments import (
    BETWEEN_PASSES,
    BLOCK_BACKWARD,
    LATER_BLOCKS_BACKWARD,
    PASSES,
    ROOT_BACKWARD,
    SAVE,
    STEPPING,
    TRAINING,
    UNTIL_FIRST_GRADIENTS,
    Moment,
    Moments,
)
from launcher.estimate.memory.optimizer import flat_groups
from launcher.estimate.memory.terms import MemoryTerm, Pile, term
from launcher.estimate.rank.engine import Swapping
from launcher.estimate.rank.model import RankModel
from launcher.spec import RunSpec

_STAGES = "DeepSpeed 0.19.8 runtime/pipe/engine.py, pipe_buffers and _allocate_or_extend_buffers"
_SOURCE = "DeepSpeed 0.19.8 runtime/zero/stage_1_and_2.py"


def gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """One buffer for all parameters that a rank's partition touches, ``z P'``, as soon as one of them is reduced.

    ``copy_grads_in_partition`` allocates every one of them whole, so ``P' >= P / d``. Stage 2 reduces bucket by bucket,
    on the last rank, whose partition has the output projection, first. Gradients of earlier micro-batches stand beside
    it (``all_grad_tensors``). Stage 1 reduces at the end of the backward pass, beside whole gradients but for a bucket
    of them, whose memory the bucket takes over (``reduce_independent_p_g_buckets_and_remove_grads``).
    """
    z_acc, shard, touched = rank.dtypes.size("accumulate"), rank.elements.optimizer, partition(rank)
    after: Moments = STEPPING
    if rank.spec.zero.stage == 1:
        bucket = rank.spec.zero.reduce_bucket_size
        taken = min(bucket, sum(each for each in _matrices(rank) if each <= bucket))
        what, expression = "partition's gradients, copied beyond a bucket", "z_acc * (touched - bucket)"
        yield _term("reduce_buffers", ROOT_BACKWARD, what, expression, z_acc=z_acc, touched=touched, bucket=taken)
    else:
        after = STEPPING | ROOT_BACKWARD | reductions(rank)
    what, expression = "gradients that others share", "z_acc * (touched - shard)"
    for each in (
        _term("gradients", after, "gradients of the partition", "z_acc * shard", z_acc=z_acc, shard=shard),
        _term("reduce_buffers", after, what, expression, z_acc=z_acc, touched=touched, shard=shard),
    ):
        yield from _until_released(rank, each)
    if rank.spec.zero.stage == 2 and rank.spec.gradient_accumulation > 1:
        before = UNTIL_FIRST_GRADIENTS | LATER_BLOCKS_BACKWARD | ROOT_BACKWARD
        if accumulates_flat(rank):
            before -= after  # They are one tensor.
        what = "gradients of earlier micro-batches"
        yield _term("gradients", before, what, "z_acc * touched", z_acc=z_acc, touched=touched)


def in_one_bucket(rank: RankModel) -> bool:
    """True if one bucket takes all gradients: it is reduced before the partition's are copied out of it."""
    return rank.elements.trained <= rank.spec.zero.reduce_bucket_size


def _until_released(rank: RankModel, made: MemoryTerm) -> Iterator[MemoryTerm]:
    """A part of the partition's buffer: one bucket is reduced before it, and of one group it goes before the step.

    The group of the vectors, which do not decay, holds parts of the buffer until all others are stepped; where no
    vector is trained, nothing does once its gradients are flat.
    """
    one_group = len(flat_groups(rank)) == 1 and rank.elements.trained == sum(_matrices(rank))
    for apart, instant, moments in (
        (in_one_bucket(rank), "copying", ROOT_BACKWARD),
        (one_group, "flattening", frozenset(("step",))),
    ):
        if apart and made.moments & moments:
            yield made._replace(moments=made.moments & moments).at(instant)
            made = made._replace(moments=made.moments - moments)
    yield made


def tied(rank: RankModel) -> Iterator[MemoryTerm]:
    """From stage 2 on: the tied output projection's gradient, which autograd holds until the embedding's is there."""
    if rank.view.head and rank.view.embedding and rank.spec.model.tie_word_embeddings:
        z_grad, w = rank.dtypes.size("gradients"), rank.embedding.largest_trained
        what = "gradient of the tied output projection"
        yield _term("gradients", BLOCK_BACKWARD, what, "z_grad * w", z_grad=z_grad, w=w)


def partition(rank: RankModel) -> int:
    """Elements of the parameters that a partition touches: in stage 1 the first rank's, in stage 2 the last one's.

    They are the worst, since they are reduced first; another rank's may be a weight's more. With
    ``round_robin_gradients`` partitions take turns at the weights (``_round_robin_reorder``). Groups of weights with
    rules of their own are partitioned one by one.

    Where 16-bit gradients are accumulated in fp32, the partition alone (:func:`accumulates_flat`).
    """
    if accumulates_flat(rank):
        return rank.elements.optimizer
    return sum(_touched(rank, matrices, shard) for matrices, shard in flat_groups(rank))


def accumulates_flat(rank: RankModel) -> bool:
    """True if ZeRO 1 or 2 adds 16-bit gradients up in one fp32 tensor of the partition, which the step takes as it is.

    ``_use_compact_grad_partition_buffer`` and ``_get_preflattened_grad_partition``; Muon's groups have none.
    """
    differ = rank.dtypes.accumulate != rank.dtypes.gradients
    return differ and rank.spec.zero.stage in (1, 2) and rank.spec.optimizer.name != "muon"


def _touched(rank: RankModel, matrices: tuple[int, ...], shard: int) -> int:
    touched, shards = 0, rank.spec.shard_degree
    if options.read(rank.spec.backend.extra, "zero_optimization.round_robin_gradients"):
        matrices = tuple(each for first in range(shards) for each in matrices[first::shards])
    for matrix in matrices[:: -1 if rank.spec.zero.stage == 2 else 1]:
        if touched >= shard:
            break
        touched += matrix
    return max(touched, shard)


def _matrices(rank: RankModel) -> tuple[int, ...]:
    return rank.embedding.matrices + rank.all_blocks.matrices + rank.head.matrices


def reductions(rank: RankModel) -> Moments:
    """Moments of a block's backward pass by which a bucket was full, the output projection's gradient in it first.

    Stage 1 reduces at the end, but for ``overlap_comm`` (``create_gradient_handling_hooks``, ``reduce_gradients``).
    """
    zero, block = rank.spec.zero, rank.largest_block
    if zero.stage == 1 and not zero.overlap_comm:
        return frozenset()
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


def _term(pile: Pile, moments: Moments, what: str, expression: str, **values: Value) -> MemoryTerm:
    return term(pile, moments, what, expression, _SOURCE, **values)


def stage_buffers(rank: RankModel) -> Iterator[MemoryTerm]:
    """Hidden states that go from stage to stage: ``z h tok`` each.

    One buffer, kept between steps, receives states and gradients alike. Of every micro-batch in flight a stage keeps
    the states that it received, of which its layers run on a clone, and those that it sent, until their backward pass;
    the last stage keeps what its layers made of two micro-batches, since nothing takes it out of ``pipe_buffers``.
    """
    view, stages = rank.view, rank.view.stages
    if stages == 1:
        return
    made = min(2, rank.spec.gradient_accumulation) if view.head else 0
    neighbours = (1 if view.stage > 0 else 0) + (0 if view.head else 1)
    during = int(view.in_flight) * neighbours + max(made - 1, 0)  # The last is the loss's own input.
    yield _states(rank, TRAINING, "buffer for states and gradients of other stages", 1)
    yield _states(rank, PASSES, "states that stages exchange", during)
    yield _states(rank, BETWEEN_PASSES, "last states", made)
    if rank.engine.cpu:  # A GPU's are copied to the host.
        values = {"z_par": rank.dtypes.size("parameters"), "shard": rank.elements.parameters}
        what, source = "the stage's copy of its parameters", "DeepSpeed 0.19.8 runtime/pipe/module.py, save_state_dict"
        yield term("temporary", SAVE, what, "z_par * shard", source, **values)


def _states(rank: RankModel, moments: Moments, what: str, n: int) -> MemoryTerm:
    z, h, tok = rank.engine.size, rank.spec.model.hidden_size, rank.tokens
    return term("activations", moments, what, "n * z * h * tok", _STAGES, n=n, z=z, h=h, tok=tok)


def stage_buckets(rank: RankModel) -> Iterator[MemoryTerm]:
    """A pipeline's second bucket at the end, made beside ZeRO 1's own.

    ``reduce_gradients(pipeline_parallel=True)`` (runtime/zero/stage_1_and_2.py).
    """
    if rank.view.stages > 1:
        values = {"z_grad": rank.dtypes.size("gradients"), "bucket": rank.spec.zero.reduce_bucket_size}
        what = "a second bucket for the reduction at the end"
        yield term("reduce_buffers", ROOT_BACKWARD, what, "z_grad * bucket", _STAGES, **values)


_STEP = 2**20
"""Buffers are whole multiples of this many elements, so that their bytes keep the alignment of direct I/O."""

_STATES, _WEIGHTS = "offload_optimizer", "offload_param"
STATE_BUFFERS, PARAMETER_BUFFERS = 4, 5  # DeepSpeed's own defaults: ``buffer_count`` of either kind.


def swapping(spec: RunSpec) -> Swapping | None:
    """The buffers in host memory of a run that offloads to NVMe; None for any other.

    DeepSpeed's own defaults are a guess of a buffer's size (``runtime/zero/offload_config.py``); the translation says
    how large they are, and ``backend.extra`` may say otherwise.
    """
    if "nvme" not in (spec.zero.offload_optimizer, spec.zero.offload_parameters):
        return None
    return Swapping(
        state_buffers=_option(spec, f"{_STATES}.buffer_count", STATE_BUFFERS),
        parameter_buffers=_option(spec, f"{_WEIGHTS}.buffer_count", PARAMETER_BUFFERS),
        buffer_elements=_option(spec, f"{_WEIGHTS}.buffer_size", _elements(spec)),
        in_memory=_option(spec, f"{_WEIGHTS}.max_in_cpu", 0),
    )


def _option(spec: RunSpec, path: str, default: int) -> int:
    return int(options.read(spec.backend.extra, f"zero_optimization.{path}", default))


def _elements(spec: RunSpec) -> int:
    """Elements of one buffer: DeepSpeed demands that the largest parameter's share fits."""
    model = spec.model
    largest = model.hidden_size * max(
        model.vocab_size, model.intermediate_size, model.query_size, 2 * model.num_experts * model.moe_intermediate_size
    )
    share = -(-largest // spec.shard_degree)
    return -(-share // _STEP) * _STEP
