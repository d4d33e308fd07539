"""Buffers and temporaries of DeepSpeed 0.19.8, read in its source and seen in traces of its live tensors.

Each stage of ZeRO holds gradients in its own way: whole below stage 2, in a buffer of the rank's partition
(``partition``), or in stage 3 in shards beside a window of gathered parameters. ``block_instants`` names the instants
of a block's backward pass at which a gradient waits or a bucket is copied; ``start`` those of loading.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

from launcher.backends.deepspeed import gathered, optimizer, partition
from launcher.backends.deepspeed.traits import buffers_partition, flat_fp32_gradients
from launcher.base.formula import Value
from launcher.estimate.memory import states
from launcher.estimate.memory.activations import content, inside_mlp, running_blocks
from launcher.estimate.memory.host import offloaded_bytes
from launcher.estimate.memory.moments import (
    BACKWARD_FROM_BLOCKS,
    BLOCK_BACKWARD,
    GRADIENTS_COMPLETE,
    LATER_BLOCKS_BACKWARD,
    LOAD,
    PASSES,
    ROOT_BACKWARD,
    STEPPING,
    TRAINING,
    Moment,
    Moments,
)
from launcher.estimate.memory.optimizer import adamw_loop, flat_groups, list_copies, optimizer_states, stepped_at_once
from launcher.estimate.memory.states import STATES_MADE
from launcher.estimate.memory.terms import MemoryTerm, Pile, term
from launcher.estimate.rank.formats import moment_bytes
from launcher.estimate.rank.model import BlockKind, RankModel

_LARGEST_REDUCTION = 500_000_000  # Elements; MEMORY_OPT_ALLREDUCE_SIZE of DeepSpeed's runtime/engine.py.
_TRACE = "trace of the live tensors of DeepSpeed 0.19.8"


def overheads(rank: RankModel) -> Iterable[MemoryTerm]:
    """All terms that DeepSpeed adds at the run's ZeRO stage."""
    stage = rank.spec.zero.stage
    for terms in (start, restoring, whole_gradients, step_copies, first_step, fp32_partition, offloading):
        yield from terms(rank)
    yield from partition.stage_buffers(rank)
    for moments, kind in running_blocks(rank):
        yield from block_instants(rank, kind, moments)
    if buffers_partition(rank.spec):
        yield from partition.gradients(rank)
    if stage >= 2:
        yield from partition.tied(rank)
    if stage == 0 or flat_fp32_gradients(rank.spec):
        yield from whole_reduction(rank)
    elif stage in (1, 2):
        yield from bucket(rank)
        yield from partition.stage_buckets(rank)
    else:
        yield from stage3_bucket(rank)
        yield from gathered.window(rank)
        yield from states.constants(rank)
        yield from gathered.secondary_partition(rank)


def start(rank: RankModel) -> Iterator[MemoryTerm]:
    """Temporaries of the start: in stages 1 and 2 a flat copy of a weight group, later zero gradients, ``4 P / d``.

    DeepSpeed makes that copy on the host if the device lacks room, so it never decides what fits. Stage 3 gathers each
    weight while it is filled, and a trained one while it gets its hooks (``create_reduce_and_remove_grad_hooks``);
    later it holds the shard's fp32 copy and zeros for the gradients of the largest group
    (``initialize_optimizer_states``), before gradients and the bucket are allocated.
    """
    zero, z_par = rank.spec.zero, rank.dtypes.size("parameters")
    if not zero.stage:
        return
    shard, counts = rank.elements.optimizer if zero.offload_optimizer == "none" else 0, rank.elements
    if zero.stage < 3:
        groups, capacity = flat_groups(rank), rank.spec.rank_memory_bytes
        w = counts.trained if len(groups) == 1 else max(sum(matrices) for matrices, _ in groups)
        if capacity is None or 2 * z_par * w <= capacity:
            what = "flat copy of the parameters"
            yield _term("temporary", LOAD, what, "z_par * trained", z_par=z_par, trained=w).at("flat copy")
        if not flat_fp32_gradients(rank.spec):
            yield _term("temporary", LOAD, "zeros for gradients", "4 * shard", shard=shard).at(STATES_MADE)
        return
    for instant, w in (("drawing", counts.largest), (STATES_MADE, counts.largest_trained)):
        yield _term("gather_buffers", LOAD, "one weight, gathered", "z_par * w", z_par=z_par, w=w).at(instant)
    if rank.dtypes.master:
        what, expression = "fp32 copy of the shard, and zeros for gradients of a group", "4 * (shard + group)"
        group = stepped_at_once(rank) if shard else 0
        yield _term("master_weights", LOAD, what, expression, shard=shard, group=group).at("zeros")


def restoring(rank: RankModel) -> Iterator[MemoryTerm]:
    """Temporaries of loading a checkpoint: optimizer states and, on CPU ranks, the file that is read.

    Files are read on the host (``map_location`` in ``runtime/engine.py``): first the parameters, which stage 3 keeps
    with the states; then this rank's states and fp32 weights. On the CPU the states read are kept, except for
    bitsandbytes, which copies them (``load_state_dict``, optim/optimizer.py). Stage 0 has all in one file. With a
    master copy it has stepped once while it started, which took more (:func:`first_step`).
    """
    zero, dtypes = rank.spec.zero, rank.dtypes
    if rank.spec.save.load is None or (zero.stage == 0 and dtypes.master is not None):
        return
    made = (*states.master_weights(rank), *states.gradients(rank), *fp32_partition(rank))
    made = (*made, *(stage3_bucket(rank) if zero.stage == 3 else ()))
    kept = [each for each in made if each.moments == LOAD]
    read = [each._replace(moments=LOAD) for each in optimizer_states(rank)]
    if rank.spec.optimizer.name not in optimizer.OWN and not rank.cuda:
        read = [*read, *(each._replace(what="copy of the states read") for each in read)]
    z_par, w, shard = dtypes.size("parameters"), rank.elements.trained, rank.elements.optimizer
    model = _term("temporary", LOAD, "parameters of the file", "z_par * trained", z_par=z_par, trained=w)
    fp32 = _term("temporary", LOAD, "fp32 weights of the file", "4 * shard", shard=shard)
    if zero.stage == 0:
        yield from _restored((*kept, *read), model if not rank.cuda else None, "restoring")
        return
    yield from _restored((*kept, *read), fp32 if not rank.cuda else None, "restoring")
    if zero.stage < 3 and not rank.cuda:
        yield from _restored(kept, model, "restoring parameters")


def _restored(terms: Iterable[MemoryTerm], file: MemoryTerm | None, instant: str) -> Iterator[MemoryTerm]:
    for each in (*terms, *(() if file is None else (file,))):
        yield each.at(instant)


def whole_gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradient of the output projection below stage 2, whole from the first block's backward pass on.

    It stays until the end of the backward pass; from stage 2 on each gradient is freed once it is in a bucket.
    """
    if rank.spec.zero.stage >= 2 or not rank.blocks:
        return
    if rank.root.trained and rank.spec.gradient_accumulation == 1:
        tied = rank.view.head and rank.view.embedding and rank.spec.model.tie_word_embeddings
        head = rank.head.gradients - rank.counts.shared.gradients + (rank.embedding.largest if tied else 0)
        what = "gradient of the output projection"
        gradient = _term("gradients", BLOCK_BACKWARD, what, "z * head", z=rank.engine.size, head=head)
        yield gradient
        if _has_own_projection(rank):
            yield gradient._replace(moments=frozenset(("loss_backward",))).at("last norm")


def block_instants(rank: RankModel, kind: BlockKind, moments: Moments) -> Iterator[MemoryTerm]:
    """Further instants of a block's backward pass, besides that of its MLP.

    A weight's gradient waits while all gradients inside the MLP exist. From the second block on a bucket that is
    reduced is copied when half of them exist: flattened in stages 1 and 2 (``allreduce_and_scatter``), concatenated in
    stage 3 (``reduce_scatter_coalesced``). Neither coincides with the reordering of experts' outputs.
    """
    zero, inside, tok = rank.spec.zero, inside_mlp(rank, kind), rank.tokens
    expression, values = waiting_gradient(rank)
    saved = content(rank, kind, moments)
    yield saved.at("weight gradient")
    what = "gradients inside the MLP and of a weight that waits"
    yield _term("temporary", moments, what, f"inside * tok + {expression}", inside=inside, tok=tok, **values).at(
        "weight gradient"
    )
    reducing = moments & LATER_BLOCKS_BACKWARD & partition.reductions(rank)
    if not reducing or zero.stage == 0 or flat_fp32_gradients(rank.spec):
        return
    yield saved._replace(moments=reducing).at("reduction")
    what = "half of the gradients inside the MLP, and of a weight that waits"
    formula = f"ceil(inside * tok / 2) + {expression}"
    yield _term("temporary", reducing, what, formula, inside=inside, tok=tok, **values).at("reduction")
    yield bucket_copy(rank, reducing).at("reduction")


def waiting_gradient(rank: RankModel) -> tuple[str, dict[str, Value]]:
    """Gradients of a block's weights that wait while others are made, as an expression and its values.

    Below stage 2 that of the block's last weight, which stays whole. In stage 2 gradients of more elements than a
    bucket, which stay until the next (``extra_large_param_to_reduce``): that of the block's last weight beside all that
    the block saved; that of experts' first weight comes when what their products saved is freed, four times their
    width, of which the gradients inside them are two.
    """
    zero, block, z = rank.spec.zero, rank.largest_block, rank.engine.size
    if zero.stage == 2:
        z = rank.dtypes.size("gradients")
        last, largest = (
            each if each > zero.reduce_bucket_size else 0 for each in (block.last_trained, block.largest_trained)
        )
        if block.expert:
            return "max(z * w, z * (w + w_next) - 2 * inside * tok)", {"z": z, "w": last, "w_next": largest}
        return "z * w", {"z": z, "w": last}
    return "z * w", {"z": z, "w": block.last_trained if zero.stage < 2 else 0}


def bucket_copy(rank: RankModel, moments: Moments) -> MemoryTerm:
    """The copy of a bucket that is reduced: of ``reduce_bucket_size``, at most the model's size.

    Where gradients are added up in fp32, one after the other of a reduced bucket is cast
    (``_add_to_grad_partition_buffer``). In stage 3 a bucket has the format that gradients travel in; of offloaded ones
    the shard of a bucket is added up on the device before it goes back to the host (``partition_grads``, stage3.py).
    Those that travel in 4 bits (qgZ) are not concatenated: one after the other is quantized, sent within a node of
    ``n`` ranks, reduced, sent between nodes, and made fp16 again (``all_to_all_quant_reduce``,
    coalesced_collectives.py).
    """
    zero, dtypes = rank.spec.zero, rank.dtypes
    if zero.quantized_gradients:
        w, n = rank.elements.largest, rank.spec.cluster.gpus_per_node
        return _term("reduce_buffers", moments, "a weight's gradient in 4 bits", "w * (1 + 3 / n)", w=w, n=n)
    size, z = min(zero.reduce_bucket_size, rank.elements.trained), dtypes.size(_bucket_format(rank))
    if zero.stage == 3 and rank.engine.gradients_leave and rank.cuda:
        what, expression = "copy of a bucket, and its shard on the way to the host", "z_grad * bucket + z_acc * shard"
        shard, z_acc = -(-size // rank.spec.shard_degree), dtypes.size("accumulate")
        return _term("reduce_buffers", moments, what, expression, z_grad=z, bucket=size, z_acc=z_acc, shard=shard)
    if partition.accumulates_flat(rank):
        w = max(rank.largest_block.largest_trained, rank.embedding.largest_trained if moments == ROOT_BACKWARD else 0)
        w, what = min(w, rank.elements.optimizer), "copy of a bucket, and of a gradient in fp32"
        return _term("reduce_buffers", moments, what, "z_grad * bucket + 4 * w", z_grad=z, bucket=size, w=w)
    n = 2 if zero.stage == 3 and rank.engine.cpu else 1  # gloo copies what it scatters.
    return _term("reduce_buffers", moments, "copy of a bucket", "n * z_grad * bucket", n=n, z_grad=z, bucket=size)


def _bucket_format(rank: RankModel) -> Literal["reduce", "gradients"]:
    """The format of a bucket's gradients: ``ipg_buckets`` of stage 3 has one for each that gradients travel in."""
    return "reduce" if rank.spec.zero.stage == 3 else "gradients"


def bucket(rank: RankModel) -> Iterator[MemoryTerm]:
    """Stages 1 and 2: contiguous gradient buckets of ``reduce_bucket_size``, two with ``overlap_comm``.

    Stage 1 reduces after the last micro-batch, and keeps them from the first one's backward pass on
    (``setup_buckets``). At the end of the backward pass a copy of one stands beside them.
    """
    zero, z_grad = rank.spec.zero, rank.dtypes.size("gradients")
    n, size = 2 if zero.overlap_comm else 1, zero.reduce_bucket_size
    keeps = zero.stage == 1 and rank.spec.gradient_accumulation > 1
    moments, expression = PASSES if keeps else BACKWARD_FROM_BLOCKS, "n * z_grad * bucket"
    buckets = _term("reduce_buffers", moments, "buckets", expression, n=n, z_grad=z_grad, bucket=size)
    yield buckets
    if not keeps and _has_own_projection(rank):
        yield buckets._replace(moments=frozenset(("loss_backward",))).at("last norm")
    copy = bucket_copy(rank, ROOT_BACKWARD)
    if partition.in_one_bucket(rank):
        yield copy.at("reduction")
    elif zero.stage == 2 or partition.accumulates_flat(rank):
        yield copy  # Else it takes the place of a bucket of gradients, which stage 1 has moved.


def _has_own_projection(rank: RankModel) -> bool:
    """True if the output projection has a gradient of its own, which comes before that of the last norm."""
    return rank.view.head and rank.head.trained > 0 and not rank.spec.model.tie_word_embeddings


def whole_reduction(rank: RankModel) -> Iterator[MemoryTerm]:
    """Stage 0: gradients flattened for the all-reduce, at most a bucket.

    BF16_Optimizer's fp32 ones are flattened likewise, in buckets of 500 million elements whatever
    ``reduce_bucket_size`` is, and cast to the format that they travel in (``allreduce_bucket``, runtime/engine.py).
    """
    size, w = rank.spec.zero.reduce_bucket_size, rank.elements.trained
    expression, values = "z_grad * min(trained, bucket)", {"z_grad": rank.dtypes.size("gradients")}
    if flat_fp32_gradients(rank.spec):
        yield from module_gradients(rank)
        size, travelling = _LARGEST_REDUCTION, rank.dtypes.size("reduce")
        expression, values = "(4 + z_reduce) * min(trained, bucket)", {"z_reduce": travelling % 4}
    yield _term("reduce_buffers", ROOT_BACKWARD, "flattened gradients", expression, trained=w, bucket=size, **values)


def module_gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Bf16 gradients that the backward pass makes beside BF16_Optimizer's fp32 ones, until the step is done.

    It adds them up at the end (``update_hp_grads``); those of one micro-batch are zeroed, not freed, for the next.
    """
    z, what, expression = rank.engine.size, "bf16 gradients of the module", "z * w"

    def made(moments: Moments, w: int) -> MemoryTerm:
        return _term("gradients", moments, what, expression, z=z, w=w)

    if rank.spec.gradient_accumulation > 1:
        yield made(PASSES | STEPPING, rank.elements.trained)
        return
    block, blocks = rank.largest_block.trained, rank.all_blocks.trained
    yield made(GRADIENTS_COMPLETE, rank.elements.trained)
    yield made(frozenset(("second_layer_backward",)), max(0, blocks - 2 * block))
    if rank.layers > 1:
        yield made(frozenset(("next_block_backward",)), block)
        yield made(frozenset(("first_layer_backward",)), blocks - block)


def step_copies(rank: RankModel) -> Iterator[MemoryTerm]:
    """Temporaries of the step: the shard's gradients in one flat tensor and in fp32, and those of torch's optimizer.

    Stage 3 steps one sub-group at a time; gradients of stage 0 are stepped on as they are. Before it, the norm is
    computed of one gradient at a time in fp64 (``complete_grad_norm_calculation_for_cpu_offload``,
    ``get_grad_norm_direct``). A flat copy in another format is gone before the step of torch begins.
    """
    zero, shard = rank.spec.zero, stepped_at_once(rank)
    if zero.offload_optimizer != "none":
        if zero.offload_optimizer == "cpu" and not rank.cuda:
            yield from torch_temporaries(rank, shard, ("step",))
        return
    z_acc = rank.dtypes.size("accumulate")
    flattens = zero.stage > 0 and not flat_fp32_gradients(rank.spec)
    copies = flattens and not partition.accumulates_flat(rank)
    if z_acc < 4:
        yield _term("temporary", ("step",), "fp32 gradients", "4 * shard", shard=shard)
    if copies:
        flat = _term("temporary", ("step",), "flat gradients", "z_acc * shard", z_acc=z_acc, shard=shard)
        yield flat.at("flattening") if z_acc < 4 else flat
    if flattens:
        norm = max(min(max(matrices, default=0), part) for matrices, part in flat_groups(rank))
        w = rank.elements.largest_shard if zero.stage == 3 else norm
        yield _term("temporary", ("clip",), "fp64 copy of a gradient", "8 * w", w=w)
    yield from (each.at("torch") for each in torch_temporaries(rank, shard, ("step",)))


def torch_temporaries(rank: RankModel, shard: int, moments: Iterable[Moment]) -> Iterator[MemoryTerm]:
    """Temporaries of ``torch.optim`` in the step of a shard: a list, or tensor after tensor in a loop.

    ZeRO hands over flat tensors, of which AdamW's loop makes a square root and a quotient; stage 0 hands over those of
    the model. SGD's is the same sum in a loop (``torch/optim/adam.py``, ``sgd.py``).
    """
    how, name, n = optimizer.step(rank.spec), rank.spec.optimizer.name, list_copies(rank.spec.optimizer)
    if how == "fused" or not n:
        return
    w, looped = shard, how == "loop"
    if looped and not rank.spec.zero.stage:
        if name == "adamw":
            yield adamw_loop(rank)._replace(moments=frozenset(moments))
            return
        w = max(rank.largest_block.largest_trained, rank.root.largest_trained)
    n, z_opt = 2 if looped and name == "adamw" else n, rank.dtypes.size("optimizer_states")
    yield _term("temporary", moments, "torch's temporaries of the step", "n * z_opt * w", n=n, z_opt=z_opt, w=w)


def stage3_bucket(rank: RankModel) -> Iterator[MemoryTerm]:
    """Stage 3: one gradient bucket, permanent; at the end of the backward pass a copy of it."""
    z_grad, size = rank.dtypes.size(_bucket_format(rank)), rank.spec.zero.reduce_bucket_size
    made = _term("reduce_buffers", LOAD, "bucket", "z_grad * bucket", z_grad=z_grad, bucket=size)
    yield made._replace(moments=TRAINING)
    yield made.at(STATES_MADE)
    yield bucket_copy(rank, ROOT_BACKWARD)


def fp32_partition(rank: RankModel) -> Iterator[MemoryTerm]:
    """The fp32 clone of the shard that ZeRO makes for the optimizer, even of fp32 parameters: ``4 P / d``.

    ``single_partition_of_fp32_groups`` in ``stage_1_and_2.py``, ``fp32_partitioned_groups_flat`` in ``stage3.py``.
    """
    zero = rank.spec.zero
    if zero.stage and rank.dtypes.master is None and zero.offload_optimizer == "none":
        made = _term("master_weights", LOAD, "fp32 clone of the shard", "4 * shard", shard=rank.elements.optimizer)
        yield made._replace(moments=TRAINING)
        yield made.at(STATES_MADE)


def offloading(rank: RankModel) -> Iterator[MemoryTerm]:
    """ZeRO 1 and 2: a permanent buffer of the largest weight, through which gradients go to the host and back.

    ``temp_grad_buffer_for_gpu_offload`` in ``stage_1_and_2.py``. What CPU ranks offload stays in their own memory,
    where moments come with the first step.
    """
    zero, z, w = rank.spec.zero, rank.dtypes.size("parameters"), rank.elements.largest_trained
    if zero.stage in (1, 2) and zero.offload_optimizer != "none":
        what, n = "buffer for gradients of the host", 1 if rank.cuda else 2  # Its twin lies on the host.
        made = _term("reduce_buffers", LOAD, what, "n * z_par * w", n=n, z_par=z, w=w)
        yield made._replace(moments=TRAINING)
        yield made.at(STATES_MADE)
    if zero.offload_optimizer == "cpu" and not rank.cuda:
        size, shard = offloaded_bytes(rank), rank.elements.optimizer
        moments = moment_bytes(rank.spec.optimizer.name, shard, rank.root.optimizer, 4)
        what = "states on the host, a CPU rank's own memory"
        yield _term("optimizer_states", TRAINING, what, "size", size=size)
        yield _term("optimizer_states", LOAD, what, "size", size=size - moments).at(STATES_MADE)


def first_step(rank: RankModel) -> Iterator[MemoryTerm]:
    """Memory of the step that stage 0 with a master copy makes while it starts.

    ``FP16_UnfusedOptimizer.initialize_optimizer_states``: moments, fp32 gradients and the compute format's, and what
    torch's optimizer makes.
    """
    if rank.spec.zero.stage == 0 and rank.dtypes.master is not None:
        w, z_grad = rank.elements.trained, rank.dtypes.size("gradients")
        n = 2 if rank.spec.optimizer.name == "adamw" else 1
        what, expression = "gradients in both formats", "(z_grad + 4) * trained"
        for each in (
            _term("optimizer_states", LOAD, "moments of the first step", "n * 4 * trained", n=n, trained=w),
            *torch_temporaries(rank, w, LOAD),
            _term("gradients", LOAD, what, expression, z_grad=z_grad, trained=w),
        ):
            yield each.at(STATES_MADE)


def _term(pile: Pile, moments: Iterable[Moment], what: str, expression: str, **values: Value) -> MemoryTerm:
    return term(pile, moments, what, expression, _TRACE, **values)
