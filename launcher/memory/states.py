"""Model states: parameters, gradients, master weights and optimizer states, and the temporaries of the step."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.memory.moments import ALWAYS, Moment
from launcher.memory.terms import MemoryTerm
from launcher.rank.model import NF4_BITS, Held
from launcher.spec import OptimizerSpec
from launcher.units import count

_ZERO = "ZeRO, arXiv:1910.02054, section 3 and figure 1"
_ADAM_STATES = {"adamw": 2, "sgd": 1, "lion": 1}
_BLOCK_8BIT = 256  # bitsandbytes blockwise quantisation: one fp32 scale for 256 values, functional.py.

AFTER_BACKWARD: frozenset[Moment] = frozenset(("root_backward", "clip", "step"))
_STEPPING: frozenset[Moment] = frozenset(("clip", "step"))
DURING_BACKWARD: frozenset[Moment] = frozenset(("next_block_backward", "second_layer_backward", "first_layer_backward"))
TRAINING: frozenset[Moment] = ALWAYS - {"load"}
WITHIN_MICRO_BATCH: frozenset[Moment] = frozenset(("forward", "output", "loss", "loss_backward", "block_backward"))


def parameters(held: Held) -> Iterator[MemoryTerm]:
    """Parameters as the module holds them between two steps: ``size x P``, or ``size x P / N`` where they are sharded.

    Offloaded parameters are the backend's own account.
    """
    if held.spec.zero.offload_parameters != "none":
        return
    elements, size = held.elements, held.dtypes.size("parameters")
    yield _state(held, "parameters", elements.parameters - elements.quantised_parameters, size, ALWAYS)
    if elements.quantised_parameters:
        bits = NF4_BITS[held.spec.adapter.double_quant]
        yield MemoryTerm(
            pile="parameters",
            moments=ALWAYS,
            bytes=held.parameter_bytes(elements.quantised_parameters, elements.quantised_parameters, size),
            formula=f"{float(bits):.4g} bits x {count(elements.quantised_parameters)} of blocks' linears",
            source="QLoRA, arXiv:2305.14314, section 3",
        )


def dequantised(held: Held) -> Iterator[MemoryTerm]:
    """The weight of one linear in the compute format while it multiplies, in forward and again in backward.

    bitsandbytes ``autograd/_functions.py``, ``MatMul4Bit``.
    """
    if held.elements.largest_quantised:
        elements, size = held.elements.largest_quantised, held.engine.size
        yield MemoryTerm(
            pile="temporary",
            moments=DURING_BACKWARD | {"forward", "block_backward"},
            bytes=size * elements,
            formula=f"{size} B x {count(elements)} of the largest weight in 4 bits",
            source="bitsandbytes autograd/_functions.py, MatMul4Bit",
        )


def drawing(held: Held) -> Iterator[MemoryTerm]:
    """While the model is loaded, one block of a weight's rows in fp32, from which each rank takes its part.

    It is gone before master weights and gradient buffers are made, and is counted where it is more than those.
    """
    size = drawn_bytes(held)
    if size:
        yield MemoryTerm(
            pile="temporary",
            moments=frozenset(("load",)),
            bytes=size,
            formula=f"4 B x {count(held.elements.drawn)} of a block of rows, less what is made after it",
            source="launcher/worker/model/initial.py",
        )


def drawn_bytes(held: Held) -> int:
    """What :func:`drawing` adds to a load."""
    if held.engine.library != "transformers":
        return 0
    later = held.dtypes.size("master") * held.elements.optimizer
    if held.engine.gradients_stay:
        later += held.dtypes.size("accumulate") * held.elements.gradients
    return max(4 * held.elements.drawn - later, 0)


def gradients(held: Held) -> Iterator[MemoryTerm]:
    """Gradients in the format in which micro-batches meet: ``size x P / N``.

    They live always (buffers), from one micro-batch to the next, or from the backward pass of a block to the step.
    Shards that have a buffer of their own are the backend's account, and whole gradients are gone before the step.
    """
    elements, size = held.elements.gradients, held.dtypes.size("accumulate")
    after = AFTER_BACKWARD
    if held.engine.partition_buffer:
        if held.view.states.gradients < 1:
            return
        after = AFTER_BACKWARD - _STEPPING
    if held.engine.gradients_stay:
        yield _state(held, "gradients", elements, size, ALWAYS)
    elif held.spec.gradient_accumulation > 1:
        moments = after | DURING_BACKWARD | WITHIN_MICRO_BATCH
        yield _state(held, "gradients", elements, size, moments)
        # What a block's reduction brings stands beside the sum of earlier micro-batches until it is added.
        yield _state(held, "gradients", held.largest_block.gradients, size, DURING_BACKWARD)
    else:
        block = held.largest_block.gradients
        done = max(0, held.all_blocks.gradients - 2 * block)
        yield _state(held, "gradients", elements, size, after)
        yield _state(held, "gradients", done, size, frozenset(("second_layer_backward",)))
        if held.layers > 1:
            yield _state(held, "gradients", block, size, frozenset(("next_block_backward",)))
            yield _state(held, "gradients", done + block, size, frozenset(("first_layer_backward",)))


def master_weights(held: Held) -> Iterator[MemoryTerm]:
    """A wider copy of the parameters for the optimizer: ``size x P / N``, none where the parameters are that copy."""
    size = held.engine.master_size or held.dtypes.size("master")
    if size and held.spec.zero.offload_optimizer == "none":
        yield _state(held, "master_weights", held.elements.optimizer, size, ALWAYS)


def optimizer_states(held: Held) -> Iterator[MemoryTerm]:
    """Adam's two moments, ``2 x size x P / N``; one moment for SGD and Lion; of frozen parameters none.

    Adafactor keeps the sums of rows and columns of a matrix, and no first moment (arXiv:1804.04235, algorithm 4).
    Eight-bit Adam keeps a byte a value and an fp32 scale for 256 of them; the paged one may keep all of it on the host.
    """
    name, elements = held.spec.optimizer.name, held.elements.optimizer
    if held.spec.zero.offload_optimizer != "none":
        return
    if name in _ADAM_STATES:
        size = _ADAM_STATES[name] * held.dtypes.size("optimizer_states")
        yield _state(held, "optimizer_states", elements, size, TRAINING)
    elif name == "muon":
        # Muon steps the matrices of the blocks; embedding, output and norms are AdamW's (Keller Jordan's Muon).
        size = held.dtypes.size("optimizer_states")
        yield _state(held, "optimizer_states", elements + held.root.optimizer, size, TRAINING)
    elif name == "adafactor":
        factors = held.elements.factors
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


def step_temporaries(held: Held) -> Iterator[MemoryTerm]:
    """What ``torch.optim`` adds in the step: nothing fused, ``4 P / N`` with lists, or a few tensors in a loop.

    Lists (foreach) make one more tensor of every parameter: AdamW a square root of the second moment, SGD the sum of a
    gradient and its weight decay. The loop makes SGD's for one parameter; of AdamW's a square root and a quotient of
    one parameter, and it holds the quotient of the one before: the largest two of a block follow each other, and the
    output projection follows a block.
    """
    optimizer, lists = held.spec.optimizer, held.engine.optimizer == "foreach"
    if held.engine.optimizer == "fused" or not list_copies(optimizer):
        return
    size = held.dtypes.size("optimizer_states")
    inside = held.largest_block.largest_shard
    loop = max(2 * held.embedding.largest_shard, inside + 2 * max(inside, held.head.largest_shard))
    if optimizer.name == "sgd":
        loop = held.elements.largest_shard
    elements = held.elements.optimizer if lists else loop
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


def _state(held: Held, pile: str, elements: int, size: int, moments: frozenset[Moment]) -> MemoryTerm:
    return MemoryTerm(
        pile=pile,  # type: ignore[arg-type]
        moments=moments,
        bytes=size * elements,
        formula=f"{size} B x {count(elements)} of {count(held.elements.whole)} parameters of this position",
        source=_ZERO,
    )
