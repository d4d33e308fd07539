"""Model states: parameters, gradients, master weights and optimizer states, and the temporaries of the step."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.memory.moments import ALWAYS, Moment
from launcher.memory.optimizer_moments import MOMENTS
from launcher.memory.terms import MemoryTerm
from launcher.rank.model import NF4_BITS, RankModel
from launcher.spec import OptimizerSpec
from launcher.units import count

_ZERO = "ZeRO, arXiv:1910.02054, section 3 and figure 1"
_BLOCK_8BIT = 256  # bitsandbytes blockwise quantisation: one fp32 scale for 256 values, functional.py.

AFTER_BACKWARD: frozenset[Moment] = frozenset(("root_backward", "clip", "step"))
_STEPPING: frozenset[Moment] = frozenset(("clip", "step"))
DURING_BACKWARD: frozenset[Moment] = frozenset(("next_block_backward", "second_layer_backward", "first_layer_backward"))
TRAINING: frozenset[Moment] = ALWAYS - {"load"}
WITHIN_MICRO_BATCH: frozenset[Moment] = frozenset(("forward", "output", "loss", "loss_backward", "block_backward"))


def parameters(rank: RankModel) -> Iterator[MemoryTerm]:
    """Parameters as the module holds them between two steps: ``size x P``, or ``size x P / N`` where they are sharded.

    Offloaded parameters are the backend's own account.
    """
    if rank.spec.zero.offload_parameters != "none":
        return
    elements, size = rank.elements, rank.dtypes.size("parameters")
    yield _state(rank, "parameters", elements.parameters - elements.quantised_parameters, size, ALWAYS)
    if elements.quantised_parameters:
        bits = NF4_BITS[rank.spec.adapter.double_quant]
        yield MemoryTerm(
            pile="parameters",
            moments=ALWAYS,
            bytes=rank.parameter_bytes(elements.quantised_parameters, elements.quantised_parameters, size),
            formula=f"{float(bits):.4g} bits x {count(elements.quantised_parameters)} of blocks' linears",
            source="QLoRA, arXiv:2305.14314, section 3",
        )


def dequantised(rank: RankModel) -> Iterator[MemoryTerm]:
    """The weight of one linear in the compute format while it multiplies, in forward and again in backward.

    bitsandbytes ``autograd/_functions.py``, ``MatMul4Bit``.
    """
    if rank.elements.largest_quantised:
        elements, size = rank.elements.largest_quantised, rank.engine.size
        yield MemoryTerm(
            pile="temporary",
            moments=DURING_BACKWARD | {"forward", "block_backward"},
            bytes=size * elements,
            formula=f"{size} B x {count(elements)} of the largest weight in 4 bits",
            source="bitsandbytes autograd/_functions.py, MatMul4Bit",
        )


def drawing(rank: RankModel) -> Iterator[MemoryTerm]:
    """While the model is loaded, one block of a weight's rows in fp32, from which each rank takes its part.

    It is gone before master weights and gradient buffers are made, and is counted where it is more than those.
    """
    size = drawn_bytes(rank)
    if size:
        yield MemoryTerm(
            pile="temporary",
            moments=frozenset(("load",)),
            bytes=size,
            formula=f"4 B x {count(rank.elements.drawn)} of a block of rows, less what is made after it",
            source="launcher/worker/model/initial.py",
        )


def drawn_bytes(rank: RankModel) -> int:
    """What :func:`drawing` adds to a load."""
    if rank.engine.library != "transformers":
        return 0
    later = rank.dtypes.size("master") * rank.elements.optimizer
    if rank.engine.gradients_stay:
        later += rank.dtypes.size("accumulate") * rank.elements.gradients
    return max(4 * rank.elements.drawn - later, 0)


def gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradients in the format in which micro-batches meet: ``size x P / N``.

    They live always (buffers), from one micro-batch to the next, or from the backward pass of a block to the step.
    Shards that have a buffer of their own are the backend's account, and whole gradients are gone before the step.
    """
    elements, size = rank.elements.gradients, rank.dtypes.size("accumulate")
    after = AFTER_BACKWARD
    if rank.engine.partition_buffer:
        if rank.view.states.gradients < 1:
            return
        after = AFTER_BACKWARD - _STEPPING
    if rank.engine.gradients_stay:
        yield _state(rank, "gradients", elements, size, ALWAYS)
    elif rank.spec.gradient_accumulation > 1:
        moments = after | DURING_BACKWARD | WITHIN_MICRO_BATCH
        yield _state(rank, "gradients", elements, size, moments)
        # What a block's reduction brings stands beside the sum of earlier micro-batches until it is added.
        yield _state(rank, "gradients", rank.largest_block.gradients, size, DURING_BACKWARD)
    else:
        block = rank.largest_block.gradients
        done = max(0, rank.all_blocks.gradients - 2 * block)
        yield _state(rank, "gradients", elements, size, after)
        yield _state(rank, "gradients", done, size, frozenset(("second_layer_backward",)))
        if rank.layers > 1:
            yield _state(rank, "gradients", block, size, frozenset(("next_block_backward",)))
            yield _state(rank, "gradients", done + block, size, frozenset(("first_layer_backward",)))


def master_weights(rank: RankModel) -> Iterator[MemoryTerm]:
    """A wider copy of the parameters for the optimizer: ``size x P / N``, none where the parameters are that copy."""
    size = rank.engine.master_size or rank.dtypes.size("master")
    if size and rank.spec.zero.offload_optimizer == "none":
        yield _state(rank, "master_weights", rank.elements.optimizer, size, ALWAYS)


def optimizer_states(rank: RankModel) -> Iterator[MemoryTerm]:
    """Adam's two moments, ``2 x size x P / N``; one for SGD, Lion and Muon's blocks; of frozen parameters none.

    Adafactor keeps the sums of rows and columns of a matrix, and no first moment (arXiv:1804.04235, algorithm 4).
    Eight-bit Adam keeps a byte a value and an fp32 scale for 256 of them; the paged one may keep all of it on the host.
    """
    name, elements = rank.spec.optimizer.name, rank.elements.optimizer
    if rank.spec.zero.offload_optimizer != "none":
        return
    if name in MOMENTS:
        size, (inside, outside) = rank.dtypes.size("optimizer_states"), MOMENTS[name]
        yield _state(rank, "optimizer_states", elements, inside * size, TRAINING)
        if outside > inside:
            yield _state(rank, "optimizer_states", rank.root.optimizer, (outside - inside) * size, TRAINING)
    elif name == "adafactor":
        factors = rank.elements.factors
        yield MemoryTerm(
            pile="optimizer_states",
            moments=TRAINING,
            bytes=4 * factors,
            formula=f"4 B x {count(factors)} sums of rows and columns",
            source="Adafactor, arXiv:1804.04235, algorithm 4",
        )
    elif name == "adamw_8bit":
        yield MemoryTerm(
            pile="optimizer_states",
            moments=TRAINING,
            bytes=2 * elements + 2 * 4 * -(-elements // _BLOCK_8BIT),
            formula=f"2 x (1 B + 4 B / {_BLOCK_8BIT}) x {count(elements)} parameters of this rank",
            source="bitsandbytes functional.py, blockwise quantisation",
        )


def step_temporaries(rank: RankModel) -> Iterator[MemoryTerm]:
    """What ``torch.optim`` adds in the step: nothing fused, ``4 P / N`` with lists, or a few tensors in a loop.

    Lists (foreach) make one more tensor of every parameter: AdamW a square root of the second moment, SGD the sum of a
    gradient and its weight decay. The loop makes SGD's for one parameter; of AdamW's a square root and a quotient of
    one parameter, and it holds the quotient of the one before: the largest two of a block follow each other, and the
    output projection follows a block.
    """
    optimizer, lists = rank.spec.optimizer, rank.engine.optimizer == "foreach"
    if rank.engine.optimizer == "fused" or not list_copies(optimizer):
        return
    size = rank.dtypes.size("optimizer_states")
    inside = rank.largest_block.largest_shard
    loop = max(2 * rank.embedding.largest_shard, inside + 2 * max(inside, rank.head.largest_shard))
    if optimizer.name == "sgd":
        loop = rank.elements.largest_shard
    elements = rank.elements.optimizer if lists else loop
    what = "all parameters" if lists else "one tensor after the other"
    yield MemoryTerm(
        pile="temporary",
        moments=frozenset(("step",)),
        bytes=size * elements,
        formula=f"{size} B x {count(elements)} ({what} of this rank)",
        source="torch/optim/adam.py and sgd.py, trace of the live tensors of a step",
    )


def list_copies(optimizer: OptimizerSpec) -> int:
    """Lists of as many elements as the parameters that torch's optimizer makes in a step.

    ``_multi_tensor_adam`` makes ``exp_avg_sq_sqrt`` (``torch/optim/adam.py``); ``_multi_tensor_sgd`` makes
    ``_foreach_add(grads, params, alpha=weight_decay)`` where there is weight decay (``torch/optim/sgd.py``).
    """
    return int(optimizer.name == "adamw" or (optimizer.name == "sgd" and optimizer.weight_decay != 0))


def _state(rank: RankModel, pile: str, elements: int, size: int, moments: frozenset[Moment]) -> MemoryTerm:
    return MemoryTerm(
        pile=pile,  # type: ignore[arg-type]
        moments=moments,
        bytes=size * elements,
        formula=f"{size} B x {count(elements)} of {count(rank.elements.whole)} parameters of this position",
        source=_ZERO,
    )
