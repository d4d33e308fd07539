"""Quantization-aware training with ``torchao.quantization.qat``: supported models, layouts and formats."""

from collections.abc import Iterator
from fractions import Fraction
from math import gcd

from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.estimate.rank.engine import Rounding
from launcher.spec import PrecisionSpec, RunSpec, edit

FP4 = {"mxfp4": 32, "nvfp4": 16}
"""4-bit floating-point formats, each with the number of values that share a scale (``torchao.prototype.qat``)."""

_MULTIPLE = 32  # Of an operand's inputs: mxfp4's block, and 16 bytes of nvfp4 (``_scaled_mm`` of torch).
_OFF = "precision.qat=null"


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for groups that do not divide an input, and for settings that do not work with rounding."""
    precision, model = spec.precision, spec.model
    if precision.qat is None:
        return
    if families.of(model).traits.not_linear is not None or model.num_experts:
        rule = "this version rounds only linear layers of dense models in the family llama"
        yield ConfigError("precision.qat", precision.qat, rule, [_OFF, "model=llama3_8b"])
        return
    for path, found, tried in (
        ("precision.compute", precision.compute in ("fp8", "fp4"), "bf16"),
        ("adapter.name", spec.adapter.rotates or spec.adapter.bits > 0, "lora"),
        ("adapter.dora", spec.adapter.dora, False),
        ("parallel.tensor", spec.parallel.tensor > 1, 1),
        ("parallel.pipeline", spec.parallel.pipeline > 1, 1),
        ("checkpointing.modules", bool(spec.checkpointing.modules), []),
    ):
        if found:
            rule = "this version has no quantization-aware training with it"
            way_out = [edit.override(path, tried), _OFF]
            yield ConfigError(path, edit.value_at(spec, path), rule, way_out)
    yield from _products(spec) if precision.qat in FP4 else _groups(spec)


def _products(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for linear layers that torchao cannot compute in 4-bit floating point (``torchao/prototype/qat``)."""
    precision, model, word, sizes = spec.precision, spec.model, str(spec.precision.qat), _inputs(spec)
    qat, group, whole = "precision.qat", FP4[word], spec.adapter.name == "none"
    wide = precision.compute == "bf16" and precision.parameters != "bf16" and not spec.parallel.shard
    undivided, integers = any(size % _MULTIPLE for size in sizes), "precision.qat=int8_int4_asymmetric"
    told = f"in {word} linear inputs must be multiples of {_MULTIPLE}, and these are {', '.join(map(str, sizes))}"
    units = f"torchao emulates no nvfp4 products, and {spec.hardware.title} has no units for them; Blackwell has"
    biased, unbiased = whole and (model.attention_bias or model.mlp_bias), f"{word} has no gradients for linear biases"
    cast = f"torchao's {word} linear layers do not run under autocast on fp32 parameters"
    for path, found, rule, *ways in (
        ("precision.qat_group_size", precision.qat_group_size != group, f"{group} values share a scale in {word}",
         f"precision.qat_group_size={group}"),
        (qat, undivided, told, f"{integers} precision.qat_group_size={gcd(*sizes)}"),
        (qat, word == "nvfp4" and "fp4" not in spec.hardware.dtypes, units,
         "precision.qat=mxfp4 precision.qat_group_size=32", "hardware=b200"),
        (qat, biased, f"torchao's {unbiased}", "adapter=lora", f"{integers} precision.qat_group_size=32"),
        ("parallel.shard", wide and (whole or spec.task.name == "pretrain"), cast,
         "parallel=fsdp", "precision=fp32", "precision.parameters=bf16"),
        ("precision.qat_after", precision.qat_after > 0, f"{word} rounds from the first step", "precision.qat_after=0"),
        ("checkpointing.mode", word == "nvfp4" and spec.checkpointing.mode == "selective",
         "selective recomputation would save no nvfp4 product", "checkpointing=full"),
        ("precision.compute", precision.compute == "fp16", f"torchao makes {word} from bf16 or fp32", "precision=bf16"),
    ):  # fmt: skip
        if found:
            yield ConfigError(path, edit.value_at(spec, path), rule, [*ways, _OFF])


def _inputs(spec: RunSpec) -> list[int]:
    block = families.of(spec.model).block(spec.model, 0)
    return sorted({weight.shape[1] for weight in block if len(weight.shape) == 2})


def _groups(spec: RunSpec) -> Iterator[ConfigError]:
    precision, sizes = spec.precision, _inputs(spec)
    if precision.qat_group_size == 1 or any(size % precision.qat_group_size for size in sizes):
        rule = f"must be at least 2 and divide every linear layer's inputs: {', '.join(map(str, sizes))}"
        legal = [edit.override("precision.qat_group_size", n) for n in edit.divisors(gcd(*sizes)) if 1 < n <= 256]
        yield ConfigError("precision.qat_group_size", precision.qat_group_size, rule, legal[:-4:-1] or [_OFF])


def saved(precision: PrecisionSpec, *, wide: bool) -> Rounding | None:
    """Bytes that linear layers save because they round their weights; None without quantization-aware training.

    By torchao 0.18 (``_fake_quantize_affine``, of int4 alone ``_bf16_activations_forward``). ``wide`` is true where
    linears are given weights in fp32. Training in nvfp4 saves the same codes, which kernels make (``nvfp4_linear.py``).
    """
    if precision.compute == "fp4":
        codes, group = Fraction(1, 2) + Fraction(1, FP4["nvfp4"]), FP4["nvfp4"]
        return Rounding(True, saved=0, scales=0, kept=0, group=group, codes=codes, kernel=True, trains=True)
    if precision.qat is None:
        return None
    inputs, group = precision.qat != "int4", precision.qat_group_size
    if precision.qat in FP4:
        codes, kernel = Fraction(1, 2) + Fraction(1, group), precision.qat == "nvfp4"
        return Rounding(inputs=True, saved=0, scales=0, kept=0, group=group, codes=codes, kernel=kernel)
    if precision.qat == "int8_int4":  # What is clamped, and the inverse of its scale; scale and zero stay.
        return Rounding(inputs=inputs, saved=4, scales=4, kept=8, group=group)
    # The weight in fp32, unless it is in that, and what is divided, clamped and scaled again.
    return Rounding(inputs=inputs, saved=12 if wide else 16, scales=16, kept=0, group=group)
