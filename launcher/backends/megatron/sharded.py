"""Megatron-FSDP (``zero.stage`` 2 and 3) beside its shards: gathered parameters, gradients not yet reduced.

The files named are those of ``core/distributed/fsdp/src/megatron_fsdp`` of megatron-core 0.19.2. Of the bf16 run of
Megatron-LM's functional tests that uses it, static bytes come out 0.8% above and the peak 1.4% below what was recorded.
"""

from collections.abc import Iterator

from launcher.backends.megatron.implementation import fsdp
from launcher.estimate.memory.moments import LOAD, TRAINING, Moment, Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import RankModel

UNIT = 10**9
"""Elements that are communicated at a time, at least (``megatron_fsdp.py``, ``suggested_communication_unit_size``)."""

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
