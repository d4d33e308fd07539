"""Number formats that DeepSpeed can hold, each rule with the place in its source."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.backends.deepspeed.dtypes import dtypes
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """One format for parameters and gradients; fp32 accumulation from ZeRO 1 on; narrow masters with narrow states."""
    if spec.precision.compute == "fp8":
        rule = "this version of backend=deepspeed computes in bf16, fp16 or fp32"
        yield ConfigError("precision.compute", "fp8", rule, ["precision=bf16", "backend=megatron"])
        return
    yield from _one_format(spec)
    yield from _accumulation(spec)
    yield from _master(spec)
    yield from _fp16(spec)


def _one_format(spec: RunSpec) -> Iterator[ConfigError]:
    """The module is cast as a whole (``DeepSpeedEngine._cast_module_mixed_precision``)."""
    compute = spec.precision.compute
    for key in ("parameters", "gradients"):
        value = getattr(spec.precision, key)
        if value is not None and value != compute:
            rule = f"DeepSpeed casts the whole module: {key} have the format of the computation, {compute}"
            yield ConfigError(f"precision.{key}", value, rule, [f"precision.{key}=null", f"precision={value}"])
    if spec.precision.reduce == "fp8":
        rule = "communication_data_type is fp16, bf16 or fp32"
        yield ConfigError("precision.reduce", "fp8", rule, ["precision.reduce=null"])
    elif spec.precision.reduce not in (None, compute) and spec.zero.stage == 0 and compute == "fp32":
        rule = "without ZeRO, fp32 gradients are reduced as they are"
        yield ConfigError("precision.reduce", spec.precision.reduce, rule, ["precision.reduce=null", "zero=1"])


def _accumulation(spec: RunSpec) -> Iterator[ConfigError]:
    compute, accumulate = spec.precision.compute, spec.precision.accumulate
    if accumulate in (None, compute):
        return
    path, keep = "precision.accumulate", "precision.accumulate=null"
    if accumulate != "fp32":
        rule = f"gradients in {compute} are accumulated in {compute} or fp32"
        yield ConfigError(path, accumulate, rule, [keep, "precision.accumulate=fp32"])
    elif spec.zero.stage == 0:
        rule = f"without ZeRO, {compute} gradients are accumulated in {compute} (unsupported mix, runtime/engine.py)"
        yield ConfigError(path, accumulate, rule, [keep, "zero=1"])


def _master(spec: RunSpec) -> Iterator[ConfigError]:
    """Runtime/base_optimizer.py ``_configure_master_weights``: bf16 masters stay on the GPU with bf16 moments alone."""
    formats = dtypes(spec)
    if spec.precision.compute == "fp32":
        for key in ("master", "optimizer_states"):
            value = getattr(spec.precision, key)
            if value not in (None, "fp32") and (key, value) != ("master", "none"):
                rule = "in fp32 the parameters themselves are the master weights, and the states are fp32"
                yield ConfigError(f"precision.{key}", value, rule, [f"precision.{key}=null", "precision=bf16"])
        return
    narrow = {"precision.master": formats.master, "precision.optimizer_states": formats.optimizer_states}
    path = next((path for path, value in narrow.items() if value != "fp32"), None)
    if path is None:
        return
    if {*narrow.values()} != {"bf16"} or formats.parameters != "bf16":
        rule = "master weights and optimizer states are both fp32, or both bf16 beside bf16 parameters"
        both = ["precision.master=null", "precision.optimizer_states=null"]
        yield ConfigError(path, narrow[path], rule, both)
    elif spec.zero.stage == 0:
        rule = "bf16 master weights need ZeRO"
        yield ConfigError("precision.master", "bf16", rule, ["zero=1", "precision.master=null"])
    elif spec.zero.offload_optimizer != "none":
        rule = "offloaded bf16 optimizer states are not translated in this version"
        yield ConfigError("precision.master", "bf16", rule, ["precision.master=null", "zero.offload_optimizer=none"])


def _fp16(spec: RunSpec) -> Iterator[ConfigError]:
    """``DeepSpeedEngine.backward`` scales the loss for ZeRO's optimizers alone, yet FP16_UnfusedOptimizer unscales."""
    if spec.precision.compute != "fp16":
        return
    if spec.hardware.device == "cpu":
        rule = "DeepSpeed's CPU accelerator takes fp16 only on processors that compute in it (AVX512-FP16)"
        yield ConfigError("precision.compute", "fp16", rule, ["precision=bf16", "precision=fp32"])
    if spec.zero.stage == 0:
        rule = "without ZeRO, DeepSpeed 0.19.8 divides fp16 gradients by a loss scale that it never multiplied in"
        yield ConfigError("precision.compute", "fp16", rule, ["zero=1", "precision=bf16"])
