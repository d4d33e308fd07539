"""fp8 by ``torchao.float8``: its recipes, what it cannot do, and the memory of its casts."""

from collections.abc import Iterator, Mapping

from launcher.backends import _models
from launcher.base.errors import ConfigError
from launcher.base.formula import Value
from launcher.estimate import families
from launcher.estimate.memory.activations import content, running_blocks
from launcher.estimate.memory.moments import Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import BlockKind, RankModel
from launcher.spec import RunSpec, edit

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
"""``Float8LinearRecipeName`` of torchao 0.18, the first where none is set."""

_SOURCE = "torchao/float8/float8_linear.py, float8_training_tensor.py and float8_ops.py, torchao 0.18"
_MULTIPLE = 16  # Of each dimension of an fp8 product (``torch._scaled_mm``).


def recipe(spec: RunSpec) -> str:
    """The recipe of a run in fp8."""
    return spec.precision.recipe or RECIPES[0]


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Recipes of other engines, and models and layouts that this version does not convert."""
    if spec.precision.compute == "fp4":
        rule = "training in nvfp4 is Transformer Engine's, which Megatron-LM's layers are made of"
        yield ConfigError("precision.compute", "fp4", rule, ["precision=bf16", "precision=fp8", "parallel=tp"])
    if spec.zero.quantized_weights:
        yield from _gathered(spec)
    if spec.precision.compute != "fp8":
        return
    if recipe(spec) not in RECIPES:
        rule = f"torchao.float8 has the recipes {', '.join(RECIPES)}; Transformer Engine, in Megatron-LM, has others"
        ways = [f"precision.recipe={other}" for other in RECIPES]
        yield ConfigError("precision.recipe", spec.precision.recipe, rule, [*ways, "parallel=tp"])
    if families.of(spec.model).traits.not_linear is not None:
        rule = f"this version converts linears of the family llama alone to fp8, and this is {spec.model.family}"
        yield ConfigError("precision.compute", "fp8", rule, ["precision=bf16", *_models.by_megatron(spec)])
    if spec.adapter.name != "none":
        rule = "this version trains no adapter beside linears in fp8"
        yield ConfigError("precision.compute", "fp8", rule, ["precision=bf16", "adapter=none"])
    rule = "this version cuts no linears in fp8 over tensor parallel ranks"
    yield from edit.refused(spec, "parallel.tensor", rule, "precision=bf16")
    yield from _dimensions(spec)


def _gathered(spec: RunSpec) -> Iterator[ConfigError]:
    """Weights that FSDP2 gathers in fp8 (``WeightWithDynamicFloat8CastTensor`` of ``torchao/float8/fsdp_utils.py``)."""
    path, off = "zero.quantized_weights", "zero.quantized_weights=false"
    if not spec.parallel.shard or spec.precision.compute != "fp8":
        rule = "beside backend=fsdp it is torchao's all-gather in fp8, which FSDP2 has for products in fp8"
        yield ConfigError(path, True, rule, [off, "parallel=fsdp precision=fp8", "parallel=zero3"])
    elif recipe(spec) != RECIPES[0]:
        rule = "torchao gathers weights in fp8 by one scale for all of a weight"
        yield ConfigError("precision.recipe", recipe(spec), rule, ["precision.recipe=tensorwise", off])
    kept = spec.backend.reshard_after_forward if spec.backend.kept_over > 1 else None
    for key, found, *tried in (
        ("optimizer.name", spec.optimizer.name, "adamw", "sgd"),
        ("zero.offload_parameters", spec.zero.offload_parameters, "none"),
        ("parallel.pipeline", spec.parallel.pipeline, 1),
        ("backend.reshard_after_forward", kept, None),
    ):
        if found not in tried:
            rule = "this version does not gather weights in fp8 beside it"
            yield ConfigError(key, found, rule, [edit.override(key, tried[0]), off])


def _dimensions(spec: RunSpec) -> Iterator[ConfigError]:
    """Every linear of the blocks is converted, so each of its dimensions, and the tokens, are multiples of 16."""
    model = spec.model
    sizes = {
        "model.hidden_size": model.hidden_size,
        "model.intermediate_size": model.intermediate_size,
        "model.num_key_value_heads": model.key_value_size,
    }
    for path, size in sizes.items():
        if size % _MULTIPLE:
            rule = f"products in fp8 have dimensions that are multiples of {_MULTIPLE}, and this makes one of {size}"
            legal = edit.multiples_around(size, _MULTIPLE, 1) if path != "model.num_key_value_heads" else ()
            ways = [edit.override(path, each) for each in legal if each > size]
            yield ConfigError(path, edit.value_at(spec, path), rule, [*ways, "precision=bf16"])
    tokens = spec.micro_batch_size * spec.sequence_length // spec.parallel.context
    if tokens % _MULTIPLE and spec.hardware.device == "cuda":
        rule = f"products in fp8 take multiples of {_MULTIPLE} tokens, and a micro-batch has {tokens}"
        length = -(-spec.sequence_length // _MULTIPLE) * _MULTIPLE
        ways = [edit.override("train.sequence_length", length), "precision=bf16"]
        yield ConfigError("train.sequence_length", spec.sequence_length, rule, ways)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Runs in fp8 that are slower than in bf16."""
    if spec.precision.compute != "fp8" or spec.script is not None:
        return
    if spec.hardware.device == "cpu":
        rule = (
            "torchao emulates fp8 on the CPU, in products of fp32: it shows what training does, and is slower than bf16"
        )
        yield ConfigError("precision.compute", "fp8", rule, ["precision=bf16"])
    elif not spec.train.compile:
        rule = (
            "without a compiler each cast to fp8 is several kernels, often slower than bf16 (torchao/float8/README.md)"
        )
        yield ConfigError("train.compile", False, rule, ["train.compile=true"])


def overheads(rank: RankModel) -> Iterator[MemoryTerm]:
    """Casts and products of the MLP's linears, whose inputs and outputs are the widest of a block, in both passes.

    A cast holds the scaled and the clamped values in fp32 beside the result, ``4 + 4 + 1`` bytes an element
    (``_ToFloat8ConstrFunc``, ``to_fp8_saturated``). torchao's emulation makes each operand of a product in fp32, twice
    while it is divided by its scale (``float8_mm``), beside copies of the operands in the order of a GPU's kernel.
    """
    if rank.dtypes.compute != "fp8" or not rank.blocks:
        return
    model, tok = rank.spec.model, rank.tokens
    i, h = model.intermediate_size, model.hidden_size
    sizes = {"i": i, "h": h, "tok": tok} | ({} if _casts_no_weight(rank) else {"w": i * h})
    z, z_res = rank.engine.size, rank.engine.residual_size
    inside = f"({2 * z_res} * h{f' + {z} * i' if rank.last_block.recomputed else ''}) * tok"
    what = "tensors inside one block, and the casts of a linear to fp8"
    yield term("temporary", ("forward",), what, f"{inside} + {_forward(rank)}", _SOURCE, **sizes).at("fp8")
    what = "gradients and casts to fp8 in the MLP"
    for moments, kind in running_blocks(rank):
        yield content(rank, kind, moments).at("fp8")
        instants = ", ".join(_backward(rank, recomputed=bool(kind.recomputed)))
        yield term("temporary", moments, what, f"max({instants})", _SOURCE, **sizes).at("fp8")
        if "w" in sizes and rank.cuda and rank.spec.parallel.shard:
            yield from _first_weight(rank, kind, moments, sizes)


def _first_weight(
    rank: RankModel, kind: BlockKind, moments: Moments, sizes: Mapping[str, Value]
) -> Iterator[MemoryTerm]:
    """The MLP's first linear casts its weight beside the gradients of the weights behind it, which wait for the block.

    What the MLP saved is gone; gradients of the residual stream, of the norm's output and, cast too, of the linear's
    output are there.
    """
    left = [row for row in kind.saved if row.part not in ("mlp", "activation")]
    yield content(rank, kind, moments, saved=left).at("first weight")
    z, behind = rank.engine.size, 2 if rank.spec.model.gated else 1
    what = "weights' gradients and a weight's cast to fp8"
    formula = f"({2 * z} * h + {z + 1} * i) * tok + {9 + behind * z} * w"
    yield term("temporary", moments, what, formula, _SOURCE, **sizes).at("first weight")


def _casts_no_weight(rank: RankModel) -> bool:
    """True on a GPU whose weights were gathered in fp8; the emulation multiplies copies in fp32 of these, too."""
    return rank.spec.zero.quantized_weights and rank.spec.hardware.device != "cpu"


def _forward(rank: RankModel) -> str:
    """The last linear casts its input of ``i``, then its weight beside it, unless it was gathered in fp8."""
    if rank.spec.hardware.device == "cpu":
        return "max(9 * i * tok + w, 5 * i * tok + 9 * w)"
    return "9 * i * tok" if _casts_no_weight(rank) else "max(9 * i * tok, i * tok + 9 * w)"


def _backward(rank: RankModel, *, recomputed: bool) -> Iterator[str]:
    """Bytes beside the content of a block at several instants of its backward pass.

    The last linear is recomputed, where it is; it casts the gradient of its output of ``h`` and the weight, and makes
    the gradient of its input; beside these and the gradient in fp8 once more, it casts its input, unless the recipe
    leaves the products of weights' gradients in 16 bits. Then the gradients of both of its factors are there, of which
    one is cast, and of what was saved three tensors of ``i`` are gone.
    """
    z, z_res = rank.engine.size, rank.engine.residual_size
    gradient = z if z == z_res else z + z_res  # Autocast makes its own of the residual stream's.
    emulated = rank.spec.hardware.device == "cpu"
    if recomputed:
        yield f"{gradient + z_res} * h * tok + {_forward(rank)}"
    cast = f"{gradient + 9} * h * tok" if _casts_no_weight(rank) else f"{gradient + 1} * h * tok + 9 * w"
    yield f"{gradient + 5} * h * tok + 10 * w" if emulated else cast
    if recipe(rank.spec) == "rowwise_with_gw_hp":
        yield f"({gradient} * h + {9 - z} * i) * tok"
    elif emulated:
        yield f"({gradient + 7} * h + {z + 10} * i) * tok + w"
    else:
        yield f"({gradient + 2} * h + {z + 9} * i) * tok{'' if _casts_no_weight(rank) else ' + w'}"
