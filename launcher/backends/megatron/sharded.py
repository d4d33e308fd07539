"""Buffers of Megatron-FSDP (``zero.stage`` 2 and 3), and those of the distributed optimizer (1) while it moves states.

The first one's files are those of ``core/distributed/fsdp/src/megatron_fsdp`` of megatron-core 0.19.2. Of the bf16 run
of Megatron-LM's functional tests that uses it, static bytes come out 0.8% above and the peak 1.4% below what was
recorded.
"""

from collections.abc import Iterator

from launcher.backends.megatron.implementation import fsdp, reads_gradients_as_they_are
from launcher.backends.megatron.traits import reshardable
from launcher.estimate.memory import optimizer
from launcher.estimate.memory.host import gathered_at_once
from launcher.estimate.memory.moments import BETWEEN_PASSES, LOAD, ROOT_BACKWARD, SAVE, TRAINING, Moment, Moments
from launcher.estimate.memory.states import STATES_MADE
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import RankModel

UNIT = 10**9
"""Elements that are communicated at a time, at least (``megatron_fsdp.py``, ``suggested_communication_unit_size``)."""

_BY_THE_HOST = "distrib-optim-fully-reshardable-mem-efficient"  # By gloo, to the first data rank alone.
_QUEUE_IS_FULL: Moments = frozenset(("second_layer_backward", "first_layer_backward", "root_backward"))


def overheads(rank: RankModel) -> Iterator[MemoryTerm]:
    """All of it, where several ranks hold shards."""
    if not fsdp(rank.spec) or rank.spec.shard_degree == 1:
        return
    yield from waiting_gradients(rank)
    if rank.spec.zero.stage == 3:
        yield from whole_model(rank)
        yield from gathered_root(rank)
        yield from gathered_blocks(rank)


def distributed(rank: RankModel) -> Iterator[MemoryTerm]:
    """Tensors of the optimizer over its shards: while it is built, loaded and saved, and while gradients reach it."""
    for terms in (moving, restoring, cast_gradients, copies_of_gloo, saving):
        yield from terms(rank)


def waiting_gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Whole gradients in the buffer's format until reductions are waited for: ``size min(P, max(1e9, 2 b) + 2 b)``.

    A block is waited for once more than ``max(1e9, 2 b)`` elements are queued, while the next is queued and the one
    after it filled; at stage 2, where buckets take the place of blocks, beyond 1e9. All are at the end of a backward
    pass (``param_and_grad_buffer.py``, ``GradReducePipeline``). The parameters' own gradient, one weight's at a time,
    is left out.
    """
    size, block = rank.dtypes.size("accumulate"), rank.largest_block.trained
    queued = max(UNIT, 2 * block) if rank.spec.zero.stage == 3 else UNIT
    most = min(rank.elements.trained, queued + 2 * block)
    output = rank.root.trained if rank.spec.model.tie_word_embeddings else rank.head.trained

    what, source = "gradients that wait for their reduction", "Megatron-FSDP param_and_grad_buffer.py"
    first: dict[Moment, int] = {"block_backward": 1, "next_block_backward": 2}
    for moment, n in first.items():
        values = {"z_acc": size, "head": output, "n": n, "block": block, "queue": most}
        yield term("reduce_buffers", (moment,), what, "z_acc * min(head + n * block, queue)", source, **values)
    yield term("reduce_buffers", _QUEUE_IS_FULL, what, "z_acc * queue", source, z_acc=size, queue=most)


def whole_model(rank: RankModel) -> Iterator[MemoryTerm]:
    """Every rank builds the whole model before shards are cut from it: ``z P``, its own shard counted elsewhere.

    ``--init-model-with-meta-device`` builds it block by block (``_init_each_parameter_group_buffers``).
    """
    if rank.spec.backend.argument("init-model-with-meta-device"):
        return
    what, source = "the other ranks' part of the model, not yet cut away", "Megatron-FSDP param_and_grad_buffer.py"
    z_par, whole, shard = rank.dtypes.size("parameters"), rank.elements.whole, rank.elements.parameters
    whole_built = term("temporary", LOAD, what, "z_par * (P - shard)", source, z_par=z_par, P=whole, shard=shard)
    yield whole_built.at("whole model")


def gathered_root(rank: RankModel) -> Iterator[MemoryTerm]:
    """Parameters outside the blocks stay gathered once they have been: ``z root``, of ``V h + V h + h`` elements.

    ``AllGatherPipeline.reset`` keeps buckets outside of FSDP units, which are the layers alone
    (``mcore_fsdp_adapter.py``).
    """
    what, source = "parameters outside the blocks, gathered", "Megatron-FSDP megatron_fsdp.py"
    yield term("gather_buffers", TRAINING, what, "z * root", source, z=rank.engine.size, root=rank.root.whole)


def gathered_blocks(rank: RankModel) -> Iterator[MemoryTerm]:
    """The current block and those gathered ahead, as many as ``max(1e9, 2 b) / 2`` elements take: ``size (1 + k) b``.

    Forward frees a block at its end, and gathers none after the last; backward goes the other way
    (``AllGatherPipeline.all_gather_params``).
    """
    block, layers = rank.largest_block.whole, rank.layers
    if not layers:
        return
    ahead = -(-max(UNIT // 2, block) // block)

    at: dict[Moment, int] = {
        "forward": 1,
        "block_backward": min(1 + ahead, layers),
        "next_block_backward": min(1 + ahead, max(layers - 1, 1)),
        "second_layer_backward": min(2, layers),
        "first_layer_backward": 1,
    }
    what, source, z = "gathered blocks", "Megatron-FSDP param_and_grad_buffer.py", rank.engine.size
    for moment, n in at.items():
        yield term("gather_buffers", (moment,), what, "n * z * block", source, n=n, z=z, block=block)


def cast_gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradients narrower than fp32 are cast for the step: ``4 B x P / d``, kept until the next step begins.

    Megatron-core ``optimizer/optimizer.py`` and ``distrib_optimizer.py``, ``_copy_model_grads_to_main_grads``. The
    precision-aware optimizer reads them as they are.
    """
    if reads_gradients_as_they_are(rank.spec):
        return
    if rank.dtypes.size("accumulate") < 4 and rank.dtypes.master is not None:
        what, source = "fp32 gradients of this rank", "Megatron-core distrib_optimizer.py"
        yield term("temporary", BETWEEN_PASSES, what, "4 * shard", source, shard=rank.elements.optimizer)


def moving(rank: RankModel) -> Iterator[MemoryTerm]:
    """While the model is built: parameters as their modules made them, beside the buffer that they are copied into.

    The distributed optimizer's buffers, of gradients too, are made whole before the first parameter is moved
    (``_ParamAndGradBuffer.__init__`` of ``core/distributed/param_and_grad_buffer.py``). A main copy is made of a clone
    (``_build_model_and_main_param_groups`` of ``distrib_optimizer.py``), of the token table last.
    """
    if rank.spec.zero.stage != 1 or (rank.engine.quantised is not None and rank.engine.quantised.parameters):
        return
    z_par, z_acc = map(rank.dtypes.size, ("parameters", "accumulate"))
    e, apart = rank.elements, rank.spec.model.num_experts and rank.spec.parallel.expert > 1
    left = max(e.expert, e.dense - z_acc * e.expert // z_par) if apart else e.whole  # Those of experts come last.
    what, values = "parameters not yet in their buffer", {"P": left, "trained": e.trained}
    source, expression = "Megatron-core param_and_grad_buffer.py", "z_par * P + z_acc * trained"
    yield term("temporary", LOAD, what, expression, source, z_par=z_par, z_acc=z_acc, **values).at("moving")
    kept = reads_gradients_as_they_are(rank.spec) or rank.dtypes.master != "fp32"
    if rank.embedding.matrices and not kept and rank.spec.save.load is None:
        what, table, source = "a clone of the token table", rank.embedding.largest, "Megatron-core distrib_optimizer.py"
        clone = {"z_par": z_par, "table": table, "shard": rank.elements.optimizer}
        yield term("temporary", LOAD, what, "z_par * min(table, shard)", source, **clone).at(STATES_MADE)


def restoring(rank: RankModel) -> Iterator[MemoryTerm]:
    """While a checkpoint is loaded: optimizer states, made first (``is_loading`` of ``sharded_state_dict``).

    Whole fp32 weights and states are read on the host and copied, so on the CPU these stand beside what stays, and so
    do the parameters read. Of two such runs on the CPU this is 10% and 12% short: what joins parts of a tensor that the
    file has apart is left out. Of parameters alone a rank reads its share.
    """
    spec = rank.spec
    if spec.save.load is None or spec.zero.offload_optimizer != "none":
        return
    whole, values = reshardable(spec), {"z_par": rank.dtypes.size("parameters"), "P": rank.elements.trained}
    for each in optimizer.optimizer_states(rank):
        yield each._replace(moments=LOAD).at(STATES_MADE)
        if whole and not rank.cuda:
            yield each._replace(pile="temporary", moments=LOAD, what="states of the file").at(STATES_MADE)
    if not rank.cuda and not fsdp(spec):
        expression = "(4 + z_par) * P" if whole else "z_par * P / N"
        values |= {} if whole else {"N": spec.shard_degree}
        what, source = "weights of the file", "Megatron-core distrib_optimizer.py"
        yield term("temporary", LOAD, what, expression, source, **values).at(STATES_MADE)


def copies_of_gloo(rank: RankModel) -> Iterator[MemoryTerm]:
    """Copies of what CPU ranks reduce and scatter: the buffers of gradients, and the gradient of the hidden states.

    Gloo sums a copy of its input and takes its part of that (torch ``ProcessGroupGloo.cpp``,
    ``reduce_scatter_tensor_coalesced``); NCCL needs none.
    """
    spec, source = rank.spec, "torch csrc/distributed/c10d/ProcessGroupGloo.cpp"
    if rank.cuda:
        return
    if spec.zero.stage == 1:  # Of one data rank, too.
        what, z, w = "copy of the gradients that gloo sums", rank.dtypes.size("accumulate"), rank.elements.trained
        yield term("reduce_buffers", ROOT_BACKWARD, what, "z_acc * trained", source, z_acc=z, trained=w)
    if spec.parallel.sequence and spec.parallel.tensor > 1 and rank.view.head:
        what, h = "copy of the hidden states' gradient that gloo sums", spec.model.hidden_size
        values = {"z": rank.engine.size, "h": h, "tok": rank.tokens}
        yield term("reduce_buffers", ("loss_backward",), what, "z * h * tok", source, **values).at("product")


def saving(rank: RankModel) -> Iterator[MemoryTerm]:
    """A save that gathers the states of all data ranks; none where a run saves only if it is stopped.

    A GPU receives the shards of one bucket and one tensor, weights or a moment, in a flat buffer of NCCL's and then in
    a list, beside its own shard (torch ``ProcessGroupNCCL.cpp``, ``allgather``); the host has the rest
    (``launcher.estimate.memory.host``). On the CPU all of it is the rank's: zeros for the whole of weights and moments,
    its own shard of them, two lists of one's shards as they come and one that is joined
    (``get_parameter_state_dp_zero`` of ``optimizer/distrib_optimizer.py``).
    """
    spec = rank.spec
    if not spec.saves:
        return
    if not reshardable(spec):
        yield from _written_parameters(rank)
        return
    what, source = "weights and moments of all shards", "Megatron-core distrib_optimizer.py"
    if not rank.cuda:
        values = {"trained": rank.elements.trained, "shard": rank.elements.optimizer}
        yield term("temporary", SAVE, what, "4 * (3 + 3) * trained + 4 * 3 * shard", source, **values)
    elif rank.view.states.optimizer < 1 and not spec.backend.argument(_BY_THE_HOST):
        values = {"bucket": gathered_at_once(rank), "N": spec.shard_degree}
        yield term("temporary", SAVE, what, "4 * (2 + 1 / N) * bucket", source, **values)


def _written_parameters(rank: RankModel) -> Iterator[MemoryTerm]:
    """The CPU's copies of the parameters that this rank writes: they are views of a buffer, a GPU's go to the host.

    Data ranks share them out (``core/dist_checkpointing/strategies``: ``filesystem_async.py``, ``fully_parallel.py``).
    """
    if not rank.cuda and not fsdp(rank.spec):
        what, source = "copies of the parameters that are written", "Megatron-core filesystem_async.py"
        values = {"z_par": rank.dtypes.size("parameters"), "P": rank.elements.trained, "N": rank.spec.shard_degree}
        yield term("temporary", SAVE, what, "z_par * P / N", source, **values)
