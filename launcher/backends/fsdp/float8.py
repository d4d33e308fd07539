"""fp8, mxfp8 and nvfp4 by torchao: recipes, what it cannot do, and the memory of casts but nvfp4's (``rounded.py``)."""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from launcher.backends import _models
from launcher.base.errors import ConfigError
from launcher.base.formula import Value
from launcher.estimate import families
from launcher.estimate.memory.activations import content, running_blocks
from launcher.estimate.memory.moments import Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import BlockKind, RankModel
from launcher.spec import RunSpec, edit
from launcher.spec.hardware import BLACKWELL

MXFP8, NVFP4 = "mxfp8", "nvfp4"
RECIPES = {"fp8": ("tensorwise", "rowwise", "rowwise_with_gw_hp", MXFP8), "fp4": (NVFP4,)}
"""``Float8LinearRecipeName`` of torchao 0.18, ``MXFP8Linear`` and ``nvfp4_linear``; the first is the default."""

_SOURCE = "torchao/float8/float8_linear.py, float8_training_tensor.py and float8_ops.py, torchao 0.18"
_BLOCK = 32  # Values that share a scale in mxfp8.
_UNBUILT = 12.0  # From this compute capability on torchao's wheels lack casts by columns (``_C_mxfp8``, sm_100).
_MX_SOURCE = "torchao/prototype/moe_training/mxfp8_linear.py, prototype/mx_formats/mx_tensor.py, torchao 0.18"


def recipe(spec: RunSpec) -> str | None:
    """The recipe of a run in fp8 or fp4; None in other formats."""
    recipes = RECIPES.get(spec.precision.compute)
    return spec.precision.recipe or recipes[0] if recipes else None


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for other engines' recipes, and for models and layouts that this version does not convert."""
    if spec.zero.quantized_weights:
        yield from _gathered(spec)
    word = spec.precision.compute
    if word not in RECIPES:
        return
    if recipe(spec) not in RECIPES[word]:
        known = ", ".join(RECIPES[word])
        rule = f"for {word} torchao has {known}; Transformer Engine, in Megatron-LM, has others"
        ways = [f"precision.recipe={other}" for other in RECIPES[word]]
        yield ConfigError("precision.recipe", spec.precision.recipe, rule, [*ways, "parallel=tp"])
    if families.of(spec.model).traits.not_linear is not None:
        rule = f"this version converts only the family llama to {word}, and this is {spec.model.family}"
        yield ConfigError("precision.compute", word, rule, ["precision=bf16", *_models.by_megatron(spec)])
    if spec.adapter.name != "none":
        rule = f"this version trains no adapter with linear layers in {word}"
        yield ConfigError("precision.compute", word, rule, ["precision=bf16", "adapter=none"])
    rule = f"this version does not split linear layers in {word} over tensor parallel ranks"
    yield from edit.refused(spec, "parallel.tensor", rule, "precision=bf16")
    if recipe(spec) in (MXFP8, NVFP4):
        yield from _sharing(spec)
    yield from _dimensions(spec)


def _gathered(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for gathering weights in fp8 (``WeightWithDynamicFloat8CastTensor``, ``torchao/float8/fsdp_utils.py``)."""
    path, off = "zero.quantized_weights", "zero.quantized_weights=false"
    if not spec.parallel.shard or spec.precision.compute != "fp8":
        rule = "with backend=fsdp it is torchao's fp8 all-gather, which FSDP2 has only for fp8 products"
        yield ConfigError(path, True, rule, [off, "parallel=fsdp precision=fp8", "parallel=zero3"])
    elif recipe(spec) != RECIPES["fp8"][0]:
        rule = "torchao gathers weights in fp8 only with one scale per weight"
        yield ConfigError("precision.recipe", recipe(spec), rule, ["precision.recipe=tensorwise", off])
    kept = spec.backend.reshard_after_forward if spec.backend.kept_over > 1 else None
    for key, found, *tried in (
        ("optimizer.name", spec.optimizer.name, "adamw", "sgd"),
        ("zero.offload_parameters", spec.zero.offload_parameters, "none"),
        ("parallel.pipeline", spec.parallel.pipeline, 1),
        ("backend.reshard_after_forward", kept, None),
    ):
        if found not in tried:
            rule = "this version does not gather weights in fp8 with it"
            yield ConfigError(key, found, rule, [edit.override(key, tried[0]), off])


def _sharing(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for mxfp8 or nvfp4 runs that torchao's linear layers, or its kernels on the card, do not support."""
    card, word = spec.hardware, recipe(spec)
    if word == MXFP8 and card.device == "cuda" and not BLACKWELL <= card.effective_capability < _UNBUILT:
        rule = (
            f"torchao has mxfp8 kernels from compute capability {BLACKWELL} on and below {_UNBUILT}, and"
            f" {card.title} has {card.effective_capability}"
        )
        yield ConfigError("precision.recipe", MXFP8, rule, ["precision=fp8", "hardware=b200"])
    if not spec.parallel.shard and spec.precision.parameters != "bf16":
        rule = f"torchao's {word} linear layers do not run under autocast on fp32 parameters"
        yield ConfigError("parallel.shard", False, rule, ["parallel=fsdp", "precision.parameters=bf16"])
    if word == NVFP4 and spec.checkpointing.mode == "selective":
        rule = "selective recomputation would save no nvfp4 product; this version recomputes whole blocks with nvfp4"
        yield ConfigError("checkpointing.mode", "selective", rule, ["checkpointing=full", "precision=mxfp8"])


def _dimensions(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for sizes that products of converted linear layers do not support: reduced dimensions and tokens.

    They must be multiples of 16 (``torch._scaled_mm``; on the CPU not the tokens), in mxfp8 of the values that share a
    scale, in nvfp4 of 128, as must the tokens of a sequence (``nvfp4_mm_triton``).
    """
    model, found = spec.model, recipe(spec)
    word, multiple = {MXFP8: (MXFP8, _BLOCK), NVFP4: (NVFP4, 128)}.get(str(found), ("fp8", 16))
    sizes = {
        "model.hidden_size": model.hidden_size,
        "model.intermediate_size": model.intermediate_size,
        "model.num_key_value_heads": model.key_value_size,
    }
    for path, size in sizes.items():
        if size % multiple:
            rule = f"products in {word} need dimensions that are multiples of {multiple}, and this gives {size}"
            legal = edit.multiples_around(size, multiple, 1) if path != "model.num_key_value_heads" else ()
            ways = [edit.override(path, each) for each in legal if each > size]
            yield ConfigError(path, edit.value_at(spec, path), rule, [*ways, "precision=bf16"])
    sequences, whole = (1, "sequence") if found == NVFP4 else (spec.micro_batch_size, "micro-batch")
    ranks = spec.parallel.context * spec.parallel.ulysses
    tokens = sequences * spec.sequence_length // ranks
    if tokens % multiple and (word != "fp8" or spec.hardware.device == "cuda"):
        rule = f"products in {word} need multiples of {multiple} tokens, and a {whole} has {tokens}"
        length = -(-spec.sequence_length // (multiple * ranks)) * multiple * ranks
        ways = [edit.override("train.sequence_length", length), "precision=bf16"]
        yield ConfigError("train.sequence_length", spec.sequence_length, rule, ways)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Warn about fp8 runs that are slower than bf16."""
    if spec.precision.compute != "fp8" or spec.script is not None:
        return
    if spec.hardware.device == "cpu":
        word, wide = (MXFP8, "bf16") if recipe(spec) == MXFP8 else ("fp8", "fp32")
        rule = (
            f"torchao emulates {word} on the CPU with {wide} products: the training is the same, but slower than bf16"
        )
        yield ConfigError("precision.compute", "fp8", rule, ["precision=bf16"])
    elif not spec.train.compile and recipe(spec) != MXFP8:
        rule = "uncompiled, each cast to fp8 is several kernels, often slower than bf16 (torchao/float8/README.md)"
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
    sizes: dict[str, Value] = {"i": i, "h": h, "tok": tok, **({} if _casts_no_weight(rank) else {"w": i * h})}
    source = _SOURCE
    if recipe(rank.spec) == MXFP8:
        sizes |= _shared_scales(rank)
        source = _MX_SOURCE
    z, z_res = rank.engine.size, rank.engine.residual_size
    inside = f"({2 * z_res} * h{f' + {z} * i' if rank.last_block.recomputed else ''}) * tok"
    what = "tensors inside one block, and the casts of a linear to fp8"
    yield term("temporary", ("forward",), what, f"{inside} + {_forward(rank)}", source, **sizes).at("fp8")
    what = "gradients and casts to fp8 in the MLP"
    for moments, kind in running_blocks(rank):
        yield content(rank, kind, moments).at("fp8")
        first, *others = _backward(rank, recomputed=bool(kind.recomputed))
        formula = f"max({', '.join((first, *others))})" if others else first
        yield term("temporary", moments, what, formula, source, **sizes).at("fp8")
        if "w" in sizes and (rank.cuda or "z_code" in sizes) and rank.spec.parallel.shard:
            yield from _first_weight(rank, kind, moments, sizes)


def _shared_scales(rank: RankModel) -> dict[str, Value]:
    """Bytes of an element in mxfp8, and while torch makes it so: on a GPU one kernel does, and products copy scales.

    The emulation holds the values in fp32, scaled and clamped, and of each 32 the largest, it by the format's largest,
    the scale and its inverse (``to_mx``, ``_to_mx_rceil``).
    """
    if rank.spec.hardware.device != "cpu":
        return {"z_code": 1 + Fraction(2, _BLOCK)}
    return {"z_code": 1 + Fraction(1, _BLOCK), "z_made": 12 + Fraction(13, _BLOCK)}


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
    source = _MX_SOURCE if "z_code" in sizes else _SOURCE
    if "z_made" in sizes:
        formula = f"({2 * z} * h + {z} * i + z_code * i) * tok + (z_made + {(behind + 1) * z}) * w"
    elif "z_code" in sizes:
        formula = f"({3 * z} * h + {z} * i + z_code * (h + 2 * i)) * tok + (z_code + {(behind + 1) * z}) * w"
    else:
        formula = f"({2 * z} * h + {z + 1} * i) * tok + {9 + behind * z} * w"
    yield term("temporary", moments, what, formula, source, **sizes).at("first weight")


def _casts_no_weight(rank: RankModel) -> bool:
    """True on a GPU whose weights were gathered in fp8; the emulation multiplies copies in fp32 of these, too."""
    return rank.spec.zero.quantized_weights and rank.spec.hardware.device != "cpu"


def _forward(rank: RankModel) -> str:
    """The last linear casts its input of ``i``, then its weight beside it, unless it was gathered in fp8."""
    emulated = rank.spec.hardware.device == "cpu"
    if recipe(rank.spec) == MXFP8:
        made = "max(z_made * i * tok, z_code * i * tok + z_made * w)"
        return made if emulated else f"z_code * (i * tok + w) + {rank.engine.size} * h * tok"
    if emulated:
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
    if recipe(rank.spec) == MXFP8:
        yield from _of_shared_scales(f"{gradient} * h * tok", z, emulated=emulated)
        return
    cast = f"{gradient + 9} * h * tok" if _casts_no_weight(rank) else f"{gradient + 1} * h * tok + 9 * w"
    yield f"{gradient + 5} * h * tok + 10 * w" if emulated else cast
    if recipe(rank.spec) == "rowwise_with_gw_hp":
        yield f"({gradient} * h + {9 - z} * i) * tok"
    elif emulated:
        yield f"({gradient + 7} * h + {z + 10} * i) * tok + w"
    else:
        yield f"({gradient + 2} * h + {z + 9} * i) * tok{'' if _casts_no_weight(rank) else ' + w'}"


def _of_shared_scales(gradient: str, z: int, *, emulated: bool) -> Iterator[str]:
    """The last linear's backward pass in mxfp8 (``mx_mm.backward``), whose operands all stay to its end.

    Gradient and weight are cast, then gradient and input once more by columns. The emulation casts a transposed copy of
    each of the latter three, and the weight's stays, too.
    """
    if emulated:
        yield f"{gradient} + z_made * h * tok"
        yield f"{gradient} + z_code * h * tok + ({z} + z_made) * w"
        yield f"{gradient} + (({z} + z_made) * i + 2 * z_code * h) * tok + ({z} + z_code) * w"
    else:
        yield f"{gradient} + (({z} + z_code) * i + 2 * z_code * h) * tok + ({z} + z_code) * w"
