"""Model states: parameters, gradients, master weights and optimizer states, and the temporaries of the step.

Each is bytes of an element times elements of this rank's shard; which moments they live at is what differs.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from launcher.estimate.rank.formats import MOMENTS_KEPT
from launcher.estimate.rank.model import NF4_BITS, RankModel
from launcher.spec import OptimizerSpec

_ZERO = "ZeRO, arXiv:1910.02054, section 3 and figure 1"
_STEP = "torch/optim/adam.py and sgd.py, trace of the live tensors of a step"
STATES_MADE = "states"
"""The instant of loading at which parameters, master weights and buffers for gradients all exist."""

_BLOCK_8BIT = 256  # bitsandbytes blockwise quantisation: one fp32 scale for 256 values, functional.py.


def parameters(rank: RankModel) -> Iterator[MemoryTerm]:
    """Parameters as the module holds them between two steps: ``z P``, or ``z P / d`` where they are sharded.

    Offloaded parameters are the backend's own account.
    """
    if rank.spec.zero.offload_parameters != "none":
        return
    elements, quantised = rank.elements.parameters, rank.elements.quantised_parameters
    z = rank.dtypes.size("parameters")
    yield term("parameters", ALWAYS, "parameters", "z_par * shard", _ZERO, z_par=z, shard=elements - quantised)
    if quantised:
        bits, what, source = NF4_BITS[rank.spec.adapter.double_quant], "quantised weights", "QLoRA, arXiv:2305.14314, 3"
        yield term("parameters", ALWAYS, what, "ceil(bits * shard / 8)", source, bits=bits, shard=quantised)


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
    """
    after = GRADIENTS_COMPLETE
    if rank.engine.partition_buffer:
        if rank.view.states.gradients < 1:
            return
        after = GRADIENTS_COMPLETE - STEPPING
    if rank.engine.gradients_stay:
        yield _gradients(rank, TRAINING, "gradient buffers", rank.elements.gradients)
        yield _gradients(rank, LOAD, "gradient buffers", rank.elements.gradients).at(STATES_MADE)
        return
    block = rank.largest_block.gradients
    if rank.spec.gradient_accumulation > 1:
        yield from _complete(rank, after)
        moments = UNTIL_FIRST_GRADIENTS | LATER_BLOCKS_BACKWARD
        yield _gradients(rank, moments, "gradients of earlier micro-batches", rank.elements.gradients)
        # What a block's reduction brings stands beside the sum of earlier micro-batches until it is added.
        yield _gradients(rank, LATER_BLOCKS_BACKWARD, "new gradients of one block", block)
        return
    done = max(0, rank.all_blocks.gradients - 2 * block)
    yield from _complete(rank, after)
    yield _gradients(rank, frozenset(("second_layer_backward",)), "gradients of all blocks but two", done)
    if rank.layers > 1:
        yield _gradients(rank, frozenset(("next_block_backward",)), "gradients of one block", block)
        yield _gradients(rank, frozenset(("first_layer_backward",)), "gradients of all blocks but one", done + block)


def _complete(rank: RankModel, moments: Moments) -> Iterator[MemoryTerm]:
    """All gradients; at the end of the backward pass a backend may know of a fuller instant before they exist."""
    shard = rank.elements.gradients
    yield _gradients(rank, moments & ROOT_BACKWARD, "gradients", shard).at("all gradients")
    if later := moments - ROOT_BACKWARD:
        yield _gradients(rank, later, "gradients", shard)


def _gradients(rank: RankModel, moments: Moments, what: str, shard: int) -> MemoryTerm:
    z = rank.dtypes.size("accumulate")
    return term("gradients", moments, what, "z_acc * shard", _ZERO, z_acc=z, shard=shard)


def master_weights(rank: RankModel) -> Iterator[MemoryTerm]:
    """A wider copy of the parameters for the optimizer: ``z P / d``, none where the parameters are that copy."""
    z = rank.engine.master_size or rank.dtypes.size("master")
    if z and rank.spec.zero.offload_optimizer == "none":
        shard = rank.elements.optimizer
        made = term("master_weights", LOAD, "master weights", "z_master * shard", _ZERO, z_master=z, shard=shard)
        yield made._replace(moments=TRAINING)
        yield made.at(STATES_MADE)


def optimizer_states(rank: RankModel) -> Iterator[MemoryTerm]:
    """Adam's two moments, ``2 z P / d``; one for SGD, Lion and Muon's blocks; of frozen parameters none.

    Adafactor keeps the sums of rows and columns of a matrix, and no first moment (arXiv:1804.04235, algorithm 4).
    Eight-bit Adam keeps a byte a value and an fp32 scale for 256 of them; the paged one may keep all of it on the host.
    """
    name, shard = rank.spec.optimizer.name, rank.elements.optimizer
    if rank.spec.zero.offload_optimizer != "none":
        return
    z = rank.dtypes.size("optimizer_states")
    if name in MOMENTS_KEPT:
        inside, outside = MOMENTS_KEPT[name]
        if inside == outside:
            yield _states("n * z_opt * shard", n=inside, z_opt=z, shard=shard)
        else:
            expression, root = "z_opt * (n * (shard - root) + n_root * root)", rank.root.optimizer
            yield _states(expression, z_opt=z, shard=shard, n=inside, n_root=outside, root=root)
    elif name == "adafactor":
        yield _states("4 * sums", source="Adafactor, arXiv:1804.04235, algorithm 4", sums=rank.elements.factors)
    elif name == "adamw_8bit":
        source = "bitsandbytes functional.py, blockwise quantisation"
        yield _states("2 * shard + 2 * 4 * ceil(shard / group)", source=source, shard=shard, group=_BLOCK_8BIT)


def _states(expression: str, *, source: str = _ZERO, **values: int) -> MemoryTerm:
    return term("optimizer_states", TRAINING, "optimizer states", expression, source, **values)


def step_temporaries(rank: RankModel) -> Iterator[MemoryTerm]:
    """Temporaries of ``torch.optim`` in the step: nothing fused, ``z P / d`` with lists, or a few tensors in a loop.

    Lists (foreach) make one more tensor of every parameter: AdamW a square root of the second moment, SGD the sum of a
    gradient and its weight decay. The loop makes SGD's for one parameter; of AdamW's a square root and a quotient of
    one parameter, and it holds the quotient of the one before: the largest two of a block follow each other, and the
    output projection follows a block.
    """
    optimizer = rank.spec.optimizer
    if rank.engine.optimizer == "fused" or not list_copies(optimizer):
        return
    z = rank.dtypes.size("optimizer_states")
    if rank.engine.optimizer == "foreach":
        yield _step("lists of the optimizer", "z_opt * shard", z_opt=z, shard=rank.elements.optimizer)
    elif optimizer.name == "sgd":
        yield _step("the optimizer's loop", "z_opt * w", z_opt=z, w=rank.elements.largest_shard)
    else:
        inside, head = rank.largest_block.largest_shard, rank.head.largest_shard
        expression = "z_opt * max(2 * table, w + 2 * max(w, head))"
        table = rank.embedding.largest_shard
        yield _step("the optimizer's loop", expression, z_opt=z, table=table, w=inside, head=head)


def _step(what: str, expression: str, **values: int) -> MemoryTerm:
    return term("temporary", ("step",), what, expression, _STEP, **values)


def list_copies(optimizer: OptimizerSpec) -> int:
    """Lists of as many elements as the parameters that torch's optimizer makes in a step.

    ``_multi_tensor_adam`` makes ``exp_avg_sq_sqrt`` (``torch/optim/adam.py``); ``_multi_tensor_sgd`` makes
    ``_foreach_add(grads, params, alpha=weight_decay)`` where there is weight decay (``torch/optim/sgd.py``).
    """
    return int(optimizer.name == "adamw" or (optimizer.name == "sgd" and optimizer.weight_decay != 0))
