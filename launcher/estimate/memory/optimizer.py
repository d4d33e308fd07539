"""Optimizer states and the temporaries of a step, for the optimizers of torch, torchao and bitsandbytes.

An optimizer steps some parameters by its own rule and the rest by AdamW (``launcher/worker/model/optimizers.py``):
Muon the matrices of the blocks, the 8-bit optimizers all matrices but embeddings.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import prod

from launcher.base.formula import Value
from launcher.estimate.memory.moments import TRAINING
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.formats import FEW_BITS, MOMENTS_KEPT
from launcher.estimate.rank.model import RankModel
from launcher.spec import OptimizerSpec

_ZERO = "ZeRO, arXiv:1910.02054, section 3 and figure 1"
_TRACE = "trace of the live tensors of a step"
_STEP = "torch/optim/adam.py and sgd.py, trace of the live tensors of a step"
BLOCK = 256  # Values that share an fp32 scale (torchao ``optim/adam.py``, bitsandbytes ``optim/optimizer.py``).
CODES = 1024  # Bytes of the table of the 256 values of a code.
_FEWEST = 4096  # Values of the smallest tensor whose states both libraries keep in 8 bits.
_PAGED = 100_000  # Values of the smallest tensor whose states bitsandbytes pages (``get_state_buffer``).


def optimizer_states(rank: RankModel) -> Iterator[MemoryTerm]:
    """Adam's two moments, ``2 z P / d``; one for SGD, Lion and Muon's matrices; none for frozen parameters.

    Adafactor keeps the means of a matrix's rows and columns, whole on every rank, and no first moment
    (arXiv:1804.04235, algorithm 4; ``torch/optim/_adafactor.py``).
    """
    name, shard = rank.spec.optimizer.name, rank.elements.optimizer
    if rank.spec.zero.offload_optimizer != "none":
        return
    z = rank.dtypes.size("optimizer_states")
    if name == "muon":
        yield _states("z_opt * (2 * shard - matrices)", z_opt=z, shard=shard, matrices=sum(rank.all_blocks.stepped))
    elif name in MOMENTS_KEPT:
        yield _states("n * z_opt * shard", n=MOMENTS_KEPT[name], z_opt=z, shard=shard)
    elif name == "adafactor":
        source = "Adafactor, arXiv:1804.04235, algorithm 4; torch/optim/_adafactor.py"
        yield _states("z_opt * sums", source=source, z_opt=z, sums=rank.elements.factors)
    elif name in ("adamw_8bit", "adamw_4bit") and rank.engine.whole_blocks:
        yield _of_torchao(rank, z)
    else:
        yield _of_bitsandbytes(rank, z)


def _of_torchao(rank: RankModel, z: int) -> MemoryTerm:
    """Two moments in 8 or 4 bits, with one scale per block and one table of codes per tensor.

    Tensors of fewer than 4,096 values, or not a multiple of the block, keep the parameters' format (``_new_buffer``).
    """
    bits, block, codes = (4, BLOCK // 2, 16 * 4) if rank.spec.optimizer.name == "adamw_4bit" else (8, BLOCK, CODES)
    coded = [size for size in matrices_in_few_bits(rank) if size >= _FEWEST and size % block == 0]
    return _states(
        "2 * (z_state * coded + 4 * coded / group + codes * tensors) + 2 * z_opt * (shard - coded)",
        source=f"torchao optim/adam.py and optim/subclass_{bits}bit.py",
        z_state=Fraction(bits, 8), coded=sum(coded), group=block, codes=codes, tensors=len(coded), z_opt=z,
        shard=rank.elements.optimizer,
    )  # fmt: skip


def _of_bitsandbytes(rank: RankModel, z: int) -> MemoryTerm:
    """Two moments in 8 bits with one scale per 256 values, and two tables of codes for all tensors.

    Tensors of fewer than 4,096 values stay in fp32. On a GPU, paged codes count on the host (:func:`paged_values`).
    """
    coded = [size for size in matrices_in_few_bits(rank) if size >= _FEWEST]
    return _states(
        "2 * (coded - paged + 4 * scales + codes) + 2 * z_opt * (shard - coded)",
        source="bitsandbytes optim/optimizer.py, Optimizer2State",
        coded=sum(coded), paged=paged_values(rank), scales=sum(-(-size // BLOCK) for size in coded), codes=CODES,
        z_opt=z, shard=rank.elements.optimizer,
    )  # fmt: skip


def matrices_in_few_bits(rank: RankModel) -> Sequence[int]:
    """Elements of each tensor whose states a low-bit optimizer quantises: the matrices but embeddings."""
    head = () if rank.spec.model.tie_word_embeddings else rank.head.stepped
    found = (*rank.all_blocks.stepped, *head)
    return (sum(found),) if rank.engine.flat_states else found


def paged_values(rank: RankModel) -> int:
    """Values whose codes a paged optimizer keeps in memory that the driver may move to the host."""
    if rank.spec.optimizer.name != "paged_adamw_8bit" or not rank.cuda:
        return 0
    return sum(size for size in matrices_in_few_bits(rank) if size >= _PAGED)


def _states(expression: str, *, source: str = _ZERO, **values: Value) -> MemoryTerm:
    return term("optimizer_states", TRAINING, "optimizer states", expression, source, **values)


def step_temporaries(rank: RankModel) -> Iterator[MemoryTerm]:
    """Temporaries of the step, of an optimizer's own rule and of torch's AdamW or SGD."""
    optimizer = rank.spec.optimizer
    if optimizer.name in ("adamw", "sgd"):
        yield from _of_torch(rank)
        return
    if rank.engine.library == "megatron":
        return
    expression, values = _own_rule(rank)
    if expression:
        own = term("temporary", ("step",), f"a tensor's step by {optimizer.name}", expression, _TRACE, **values)
        yield own.at("own rule")
    if rank.engine.optimizer == "loop" and optimizer.name not in ("adafactor", "lion"):
        table, head = rank.embedding.largest_shard, rank.head.largest_shard if optimizer.name == "muon" else 0
        z = rank.dtypes.size("optimizer_states")
        expression = "z_opt * (table + max(table, 2 * head))"
        yield _step("AdamW's loop", expression, z_opt=z, table=table, head=head).at("AdamW")


def _own_rule(rank: RankModel) -> tuple[str, dict[str, Value]]:
    """Temporaries of the largest tensor that the optimizer steps by its own rule, as an expression and its values.

    The kernels of bitsandbytes on a GPU and torchao's compiled step have none. On the CPU, Lion and bitsandbytes' AdamW
    with 32-bit states hold three fp32 tensors, and that AdamW with 8-bit states five. Torchao's, which is not compiled
    there, takes 53 bytes per value: the parameter and both moments in fp32 and the search for the codes, and beside
    16-bit parameters the gradient in fp32 as well. Muon holds the update in the parameters' format, its bf16 copies and
    two Gram matrices; with shards, the whole matrix as gathered, transposed and concatenated. Adafactor holds the
    update, and with shards the whole parameter and gradient.
    """
    name, z, sharded = rank.spec.optimizer.name, rank.dtypes.size("parameters"), rank.view.states.optimizer < 1
    coded = max(matrices_in_few_bits(rank), default=0)
    if name == "muon":
        w, stepped = rank.largest_block.largest_trained, max(rank.all_blocks.stepped, default=0)
        if sharded:
            return "6 * w + (z + 2) * shard", {"w": w, "z": z, "shard": stepped}
        return "(z + 4) * w + 4 * h * h", {"z": z, "w": w, "h": rank.spec.model.hidden_size}
    if name == "adafactor":
        w = rank.elements.largest_trained * (rank.spec.parallel.tensor if sharded else 1)
        return "n * z * w", {"n": 3 if sharded else 1, "z": z, "w": w}
    if rank.cuda:
        return "", {}
    if rank.engine.flat_states:
        sizes = (_at_once(rank, shard) for _, shard in flat_groups(rank))
        n, w = max(zip((3 if name == "lion" else 5, 3), sizes, strict=False), key=prod)
        return "n * 4 * w", {"n": n, "w": w}
    if name == "lion":
        return "3 * 4 * w", {"w": rank.elements.largest_shard}
    of_torchao = name in ("adamw_8bit", "adamw_4bit") and rank.engine.whole_blocks
    return "k * w", {"k": 53 + 4 * (z < 4) if of_torchao else 5 * 4, "w": coded}


def flat_groups(rank: RankModel) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Groups of weights that ZeRO flattens: the elements of each group's matrices, and of the rank's shard of it."""
    head, blocks, outside = rank.head.matrices, rank.all_blocks.matrices, rank.embedding.matrices
    shard = rank.elements.optimizer
    if rank.spec.optimizer.name not in FEW_BITS:
        return (((*outside, *blocks, *head), shard),)
    coded = sum(matrices_in_few_bits(rank))
    if rank.spec.model.tie_word_embeddings:
        return ((blocks, coded), ((*outside, *head), shard - coded))
    return (((*blocks, *head), coded), (outside, shard - coded))


def stepped_at_once(rank: RankModel) -> int:
    """Elements of the largest flat tensor that ZeRO steps: a group's shard, or in stage 3 a sub-group of it."""
    return max(_at_once(rank, shard) for _, shard in flat_groups(rank))


def _at_once(rank: RankModel, shard: int) -> int:
    zero = rank.spec.zero
    return min(shard, zero.sub_group_size or rank.elements.largest_shard) if zero.stage == 3 else shard


def _of_torch(rank: RankModel) -> Iterator[MemoryTerm]:
    """Temporaries of torch's AdamW or SGD: none if fused, ``z P / d`` with foreach, a few tensors in a loop.

    Foreach makes one more tensor for every parameter: AdamW the square root of the second moment, SGD the sum of the
    gradient and its weight decay. The loop makes SGD's sum for one parameter at a time.
    """
    optimizer = rank.spec.optimizer
    if rank.engine.optimizer == "fused" or not list_copies(optimizer):
        return
    z = rank.dtypes.size("optimizer_states")
    if rank.engine.optimizer == "foreach":
        yield _step("foreach lists of the optimizer", "z_opt * shard", z_opt=z, shard=rank.elements.optimizer)
    elif optimizer.name == "sgd":
        yield _step("the optimizer's loop", "z_opt * w", z_opt=z, w=rank.elements.largest_shard)
    else:
        yield adamw_loop(rank)


def adamw_loop(rank: RankModel) -> MemoryTerm:
    """Temporaries of AdamW's loop: square root and quotient of one parameter, and the quotient of the previous one.

    The two largest parameters of a block follow each other, and the output projection follows a block. Megatron-core
    fuses gate and up into one parameter. It shards whole buffers, not each weight, and steps them from end to start, so
    that the token table follows a weight as well and the output projection follows none.
    """
    inside, head, table = (part.largest_shard for part in (rank.largest_block, rank.head, rank.embedding))
    joined = inside
    if rank.engine.states_in_buffers:
        parts, shard = (rank.largest_block, rank.head, rank.embedding), rank.elements.optimizer
        inside, head, table = (min(part.largest, shard) for part in parts)
        joined = min(inside * (1 + rank.spec.model.gated), shard)
    expression, z = "z_opt * max(2 * table, w + 2 * max(joined, head))", rank.dtypes.size("optimizer_states")
    return _step("the optimizer's loop", expression, z_opt=z, table=table, w=inside, joined=joined, head=head)


def _step(what: str, expression: str, **values: int) -> MemoryTerm:
    return term("temporary", ("step",), what, expression, _STEP, **values)


def list_copies(optimizer: OptimizerSpec) -> int:
    """Temporary lists, as large as the parameters, that torch's optimizer makes in a step.

    ``_multi_tensor_adam`` makes ``exp_avg_sq_sqrt`` (``torch/optim/adam.py``); ``_multi_tensor_sgd`` makes
    ``_foreach_add(grads, params, alpha=weight_decay)`` where there is weight decay (``torch/optim/sgd.py``).
    """
    return int(optimizer.name == "adamw" or (optimizer.name == "sgd" and optimizer.weight_decay != 0))
