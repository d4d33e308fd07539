"""Quantization-aware training by ``torchao.quantization.qat``: the models, layouts and formats that it rounds in."""

from collections.abc import Iterator
from math import gcd

from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.estimate.rank.engine import Rounding
from launcher.spec import PrecisionSpec, RunSpec, edit

_OFF = "precision.qat=null"


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Groups that do not divide an input, and what this version does not round beside."""
    precision, model = spec.precision, spec.model
    if precision.qat is None:
        return
    if families.of(model).traits.not_linear is not None or model.num_experts:
        rule = "this version rounds the linears of dense models of the family llama alone"
        yield ConfigError("precision.qat", precision.qat, rule, [_OFF, "model=llama3_8b"])
        return
    for path, found, tried in (
        ("precision.compute", precision.compute in ("fp8", "fp4"), "bf16"),
        ("adapter.name", spec.adapter.name in ("qlora", "oft"), "lora"),
        ("adapter.dora", spec.adapter.dora, False),
        ("parallel.tensor", spec.parallel.tensor > 1, 1),
        ("parallel.pipeline", spec.parallel.pipeline > 1, 1),
        ("checkpointing.modules", bool(spec.checkpointing.modules), []),
    ):
        if found:
            rule = "this version rounds no weights for a later quantization beside it"
            way_out = [edit.override(path, tried), _OFF]
            yield ConfigError(path, edit.value_at(spec, path), rule, way_out)
    block = families.of(model).block(model, 0)
    sizes = {weight.shape[1] for weight in block if len(weight.shape) == 2}
    if precision.qat_group_size == 1 or any(size % precision.qat_group_size for size in sizes):
        rule = f"a group is of at least 2 and divides the inputs of every linear: {', '.join(map(str, sorted(sizes)))}"
        legal = [edit.override("precision.qat_group_size", n) for n in edit.divisors(gcd(*sizes)) if 1 < n <= 256]
        yield ConfigError("precision.qat_group_size", precision.qat_group_size, rule, legal[:-4:-1] or [_OFF])


def saved(precision: PrecisionSpec, *, wide: bool) -> Rounding | None:
    """The bytes that linears save because they round their weights; None without quantization-aware training.

    By torchao 0.18 (``_fake_quantize_affine``, of int4 alone ``_bf16_activations_forward``). ``wide`` is true where
    linears are given weights in fp32.
    """
    if precision.qat is None:
        return None
    inputs, group = precision.qat != "int4", precision.qat_group_size
    if precision.qat == "int8_int4":  # What is clamped, and the inverse of its scale; scale and zero stay.
        return Rounding(inputs=inputs, saved=4, scales=4, kept=8, group=group)
    # The weight in fp32, unless it is in that, and what is divided, clamped and scaled again.
    return Rounding(inputs=inputs, saved=12 if wide else 16, scales=16, kept=0, group=group)
