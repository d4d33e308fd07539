"""Model states: parameters, gradients and master weights; ``optimizer`` counts the optimizer states.

Each is bytes per element times elements of this rank's shard; they differ in the moments at which they are alive.
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
"""The instant of loading at which parameters, master weights and gradient buffers all exist."""


def parameters(rank: RankModel) -> Iterator[MemoryTerm]:
    """Parameters as the module holds them between two steps: ``z P``, or ``z P / d`` where they are sharded.

    The backend counts offloaded parameters.
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
    if rank.spec.adapter.bits == 8:  # Every rank has the scales of all rows.
        what, lines = "row scales (largest values) of 8-bit weights", rank.elements.quantised_rows
        yield term("parameters", ALWAYS, what, "4 * lines", "LLM.int8, arXiv:2208.07339, 2.1", lines=lines)


def constants(rank: RankModel) -> Iterator[MemoryTerm]:
    """Quantisation constants of other ranks' 4-bit weights: every rank holds all; its own shard's are counted there."""
    bits = code_bits(rank.spec.adapter) - rank.spec.adapter.bits
    if bits and (shared := rank.elements.quantised - rank.elements.quantised_parameters):
        what, source = "quantisation constants of other ranks' 4-bit weights", "launcher/worker/model/quantised.py"
        yield term("parameters", ALWAYS, what, "ceil(bits * P / 8)", source, bits=bits, P=shared)


def drawing(rank: RankModel) -> Iterator[MemoryTerm]:
    """One block of a weight's rows in fp32 while the model is initialised; each rank copies its part of it.

    It is freed before master weights and gradient buffers are allocated.
    """
    if rank.engine.library == "transformers":
        what, source, rows = "initial values of some rows", "launcher/worker/model/initial.py", rank.elements.drawn
        yield term("temporary", LOAD, what, "4 * rows", source, rows=rows).at("drawing")


def gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradients in the format in which micro-batches accumulate: ``z P / d``.

    They are alive always (buffers), from one micro-batch to the next, or from a block's backward pass to the step.
    Where shards have a buffer of their own, the backend counts it, and whole gradients are freed before the step.
    Gradients that are offloaded are counted on the host (``memory.host``).
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
        # A block's reduced gradients exist beside the sum of earlier micro-batches until they are added to it; without
        # FSDP each weight's is added as soon as it exists (``AccumulateGrad``).
        if rank.spec.parallel.shard and rank.spec.parallel.replicate > 1:
            yield _gradients(rank, LATER_BLOCKS_BACKWARD, "new gradients of one block", block)
        return
    yield from _complete(rank, after)
    each = [kind.elements.gradients for kind in rank.blocks]
    for moment, place in places(rank).items():
        if done := sum(each[kind] for kind in rank.order[place + 1 :]):
            yield _gradients(rank, frozenset((moment,)), "gradients of the later blocks", done)


def _complete(rank: RankModel, moments: Moments) -> Iterator[MemoryTerm]:
    """All gradients; a backend may add a fuller instant at the end of the backward pass, before they all exist."""
    shard = rank.elements.gradients
    yield _gradients(rank, moments & ROOT_BACKWARD, "gradients", shard).at("all gradients")
    if later := moments - ROOT_BACKWARD:
        yield _gradients(rank, later, "gradients", shard)


def _gradients(rank: RankModel, moments: Moments, what: str, shard: int) -> MemoryTerm:
    return term("gradients", moments, what, "z_acc * shard", _ZERO, z_acc=rank.dtypes.size("accumulate"), shard=shard)


def master_weights(rank: RankModel) -> Iterator[MemoryTerm]:
    """The optimizer's wider copy of the parameters: ``z P / d``; none where the parameters themselves are that copy."""
    z = rank.engine.master_size or rank.dtypes.size("master")
    if z and rank.spec.zero.offload_optimizer == "none":
        shard = rank.elements.optimizer
        made = term("master_weights", LOAD, "master weights", "z_master * shard", _ZERO, z_master=z, shard=shard)
        yield made._replace(moments=TRAINING)
        yield made.at(STATES_MADE)
