"""Model states: parameters, gradients and master weights; optimizer states are counted in a module of their own.

Each is bytes of an element times elements of this rank's shard; which moments they live at is what differs.
"""

from collections.abc import Iterator

from launcher.estimate.memory.activations import places
from launcher.estimate.memory.moments import (
    ALWAYS,
    GRADIENTS_COMPLETE,
    LATER_BLOCKS_BACKWARD,
    LOAD,
    ROOT_BACKWARD,
    STEPPING,
    TRAINING,
    UNTIL_FIRST_GRADIENTS,
    Moments,
)
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import RankModel, code_bits

_ZERO = "ZeRO, arXiv:1910.02054, section 3 and figure 1"
STATES_MADE = "states"
"""The instant of loading at which parameters, master weights and buffers for gradients all exist."""


def parameters(rank: RankModel) -> Iterator[MemoryTerm]:
    """Parameters as the module holds them between two steps: ``z P``, or ``z P / d`` where they are sharded.

    Offloaded parameters are the backend's own account.
    """
    if rank.spec.zero.offload_parameters != "none":
        return
    elements, quantised = rank.elements.parameters, rank.elements.quantised_parameters
    if rank.engine.quantised is not None and rank.engine.quantised.parameters:
        elements -= rank.sharded_linears  # The backend counts them.
    z = rank.dtypes.size("parameters")
    yield term("parameters", ALWAYS, "parameters", "z_par * shard", _ZERO, z_par=z, shard=elements - quantised)
    if quantised:
        bits, what, source = code_bits(rank.spec.adapter), "quantised weights", "QLoRA, arXiv:2305.14314, 3"
        yield term("parameters", ALWAYS, what, "ceil(bits * shard / 8)", source, bits=bits, shard=quantised)
    if rank.spec.adapter.bits == 8:  # Every rank has those of all rows.
        what, lines = "largest values of rows of 8-bit weights", rank.elements.quantised_rows
        yield term("parameters", ALWAYS, what, "4 * lines", "LLM.int8, arXiv:2208.07339, 2.1", lines=lines)


def constants(rank: RankModel) -> Iterator[MemoryTerm]:
    """Constants of other ranks' 4-bit weights: every rank has all of them, and its own shard's are counted already."""
    bits = code_bits(rank.spec.adapter) - rank.spec.adapter.bits
    if bits and (shared := rank.elements.quantised - rank.elements.quantised_parameters):
        what, source = "constants of other ranks' 4-bit weights", "launcher/worker/model/quantised.py"
        yield term("parameters", ALWAYS, what, "ceil(bits * P / 8)", source, bits=bits, P=shared)


def drawing(rank: RankModel) -> Iterator[MemoryTerm]:
    """While the model is loaded, one block of a weight's rows in fp32, from which each rank takes its part.

    It is gone before master weights and gradient buffers are made.
    """
    if rank.engine.library == "transformers":
        what, source, rows = "values of some rows", "launcher/worker/model/initial.py", rank.elements.drawn
        yield term("temporary", LOAD, what, "4 * rows", source, rows=rows).at("drawing")


def gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradients in the format in which micro-batches meet: ``z P / d``.

    They live always (buffers), from one micro-batch to the next, or from the backward pass of a block to the step.
    Shards that have a buffer of their own are the backend's account, and whole gradients are gone before the step.
    Those that leave for the host are counted there (``memory.host``).
    """
    after = GRADIENTS_COMPLETE
    if rank.engine.gradients_leave:
        return
    if rank.engine.partition_buffer:
        if rank.spec.zero.stage == 2:
            return
        after = GRADIENTS_COMPLETE - STEPPING
    if rank.engine.gradients_stay:
        yield _gradients(rank, TRAINING, "gradient buffers", rank.elements.gradients)
        yield _gradients(rank, LOAD, "gradient buffers", rank.elements.gradients).at(STATES_MADE)
        return
    if rank.engine.gradients_last:
        yield from _complete(rank, after)
        return
    block = rank.largest_block.gradients
    if rank.spec.gradient_accumulation > 1:
        yield from _complete(rank, after)
        moments = UNTIL_FIRST_GRADIENTS | LATER_BLOCKS_BACKWARD
        yield _gradients(rank, moments, "gradients of earlier micro-batches", rank.elements.gradients)
        # What a block's reduction brings stands beside the sum of earlier micro-batches until it is added.
        yield _gradients(rank, LATER_BLOCKS_BACKWARD, "new gradients of one block", block)
        return
    yield from _complete(rank, after)
    each = [kind.elements.gradients for kind in rank.blocks]
    for moment, place in places(rank).items():
        if done := sum(each[kind] for kind in rank.order[place + 1 :]):
            yield _gradients(rank, frozenset((moment,)), "gradients of the blocks behind", done)


def _complete(rank: RankModel, moments: Moments) -> Iterator[MemoryTerm]:
    """All gradients; at the end of the backward pass a backend may know of a fuller instant before they exist."""
    shard = rank.elements.gradients
    yield _gradients(rank, moments & ROOT_BACKWARD, "gradients", shard).at("all gradients")
    if later := moments - ROOT_BACKWARD:
        yield _gradients(rank, later, "gradients", shard)


def _gradients(rank: RankModel, moments: Moments, what: str, shard: int) -> MemoryTerm:
    return term("gradients", moments, what, "z_acc * shard", _ZERO, z_acc=rank.dtypes.size("accumulate"), shard=shard)


def master_weights(rank: RankModel) -> Iterator[MemoryTerm]:
    """A wider copy of the parameters for the optimizer: ``z P / d``, none where the parameters are that copy."""
    z = rank.engine.master_size or rank.dtypes.size("master")
    if z and rank.spec.zero.offload_optimizer == "none":
        shard = rank.elements.optimizer
        made = term("master_weights", LOAD, "master weights", "z_master * shard", _ZERO, z_master=z, shard=shard)
        yield made._replace(moments=TRAINING)
        yield made.at(STATES_MADE)
