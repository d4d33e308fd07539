"""Number formats against the hardware and against each other."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec

_PREFERENCE = ("bf16", "fp16", "fp32")
"""Formats to fall back to, best first: bf16 has the range of fp32 and needs no loss scale."""

_CAPABLE = {"fp8": "h100_80g", "bf16": "a100_80g", "fp16": "a100_80g"}
"""A GPU whose matrix units have the format (NVIDIA's data sheets; see conf/hardware)."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """A format that the GPU lacks, and fp8 without its recipe."""
    compute, hardware = spec.precision.compute, spec.hardware
    if compute not in hardware.dtypes:
        instead = [word for word in _PREFERENCE if word in hardware.dtypes]
        way_out = [f"precision={word}" for word in instead]
        if compute in _CAPABLE:
            way_out.append(f"hardware={_CAPABLE[compute]}")
        rule = f"{hardware.title} computes in {', '.join(hardware.dtypes)}"
        yield ConfigError("precision.compute", compute, rule, way_out)
    if compute == "fp8" and spec.precision.recipe is None:
        rule = "fp8 needs a scaling recipe"
        ways = [f"precision.recipe={recipe}" for recipe in ("delayed", "tensorwise", "blockwise", "mxfp8")]
        yield ConfigError("precision.recipe", None, rule, ways)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Formats that train, but often not well."""
    precision, hardware = spec.precision, spec.hardware
    if precision.compute == "fp16" and "bf16" in hardware.dtypes:
        rule = (
            "fp16 overflows above 65,504 and needs a loss scale, so steps are skipped while it adapts;"
            f" {hardware.title} has bf16, with the range of fp32"
        )
        yield ConfigError("precision.compute", "fp16", rule, ["precision=bf16"])
    if precision.optimizer_states in ("fp16", "fp8"):
        rule = "the second moment underflows in fp16 and fp8: squared gradients are far below their smallest numbers"
        yield ConfigError(
            "precision.optimizer_states", precision.optimizer_states, rule, ["precision.optimizer_states=null"]
        )
