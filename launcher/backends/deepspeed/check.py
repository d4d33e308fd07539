"""Limits of this backend, each with the way out, and pitfalls of runs that are valid (DeepSpeed 0.19.8).

A setting is refused where the translation or the worker would drop it, where DeepSpeed stops with an error, and, most
important, where it goes on with something else: each such rule names the file of DeepSpeed that shows it. Rules of one
feature (AutoTP, pipeline stages, Ulysses, formats) are in its module. A script of the user's own is held to what
DeepSpeed itself demands, not to what our worker lacks.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.backends import _models, _shared, _worker
from launcher.backends.deepspeed import extra, optimizer, pipeline, precision, tensor, ulysses
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit, nearest

_AXES = {
    "context": "cp",
    "expert": "ep",
    "replicate": "hsdp",
}
"""The axes that this backend's worker does not drive yet, and the preset that has each."""

_STAGE_3 = {
    "zero.prefetch_bucket_size": 50_000_000,
    "zero.max_live_parameters": 1_000_000_000,
    "zero.max_reuse_distance": 1_000_000_000,
    "zero.param_persistence_threshold": 100_000,
    "zero.sub_group_size": 1_000_000_000,
}
"""Keys that DeepSpeed reads at stage 3 alone, with its defaults (runtime/zero/config.py)."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Everything that the translation or the worker would otherwise drop, or that DeepSpeed refuses or gets wrong."""
    yield from _shared.whole_gradients_in_stages(spec)
    yield from _axes(spec)
    yield from tensor.check(spec)
    yield from pipeline.check(spec)
    yield from ulysses.check(spec)
    yield from _stages(spec)
    yield from _offload(spec)
    yield from precision.check(spec)
    yield from _optimizer(spec)
    if spec.script is None:
        yield from _training(spec)
    yield from extra.check(spec)


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Keys that are idle at this stage, kernels that are compiled on the node, values that the estimate cannot see."""
    zero = spec.zero
    yield from _shared.over_one_rank(spec)
    if zero.stage < 3:
        for path, neutral in _STAGE_3.items():
            if edit.value_at(spec, path) != neutral:
                rule = f"DeepSpeed reads it at stage 3 alone, and this is stage {zero.stage}"
                yield ConfigError(path, edit.value_at(spec, path), rule, ["zero=3", edit.override(path, neutral)])
    if spec.hardware.device == "cuda" and not optimizer.is_torch(spec):
        kernel = "FusedAdam" if zero.offload_optimizer == "none" else "DeepSpeedCPUAdam"
        when = "on each node at first use, which takes a compiler and minutes"
        rule = f"DeepSpeed compiles its {kernel} {when}; torch's AdamW needs neither"
        yield ConfigError("optimizer.fused", None, rule, ["optimizer.fused=true"])
    for path in ("zero.offload_optimizer", "zero.offload_parameters"):
        if edit.value_at(spec, path) == "nvme":
            rule = "DeepSpeed 0.19.8 restores neither weights nor optimizer states from NVMe: the run cannot be resumed"
            yield ConfigError(path, "nvme", rule, [f"{path}=cpu", "save.export=safetensors"])
    if zero.hpz > spec.cluster.gpus_per_node:
        rule = f"the second partition is meant to stay inside a node of {spec.cluster.gpus_per_node}"
        yield ConfigError("zero.hpz", zero.hpz, rule, [f"zero.hpz={spec.cluster.gpus_per_node}"])
    yield from extra.warnings(spec)


def _axes(spec: RunSpec) -> Iterator[ConfigError]:
    for axis, preset in _AXES.items():
        degree = getattr(spec.parallel, axis)
        if degree > 1:
            rule = "backend=deepspeed has data, tensor, pipeline and Ulysses parallelism and ZeRO in this version"
            yield ConfigError(f"parallel.{axis}", degree, rule, [f"parallel.{axis}=1", f"parallel={preset}"])


def _stages(spec: RunSpec) -> Iterator[ConfigError]:
    zero = spec.zero
    if zero.stage == 0 and zero.overlap_comm is not None:
        rule = "without ZeRO there is no reduction that could overlap"
        yield ConfigError("zero.overlap_comm", zero.overlap_comm, rule, ["zero=1", "zero.overlap_comm=null"])
    if zero.gather_16bit_weights_on_save:
        rule = "checkpoints keep each rank's shard and the export gathers one parameter at a time, so nothing reads it"
        yield ConfigError(
            "zero.gather_16bit_weights_on_save",
            True,
            rule,
            ["zero.gather_16bit_weights_on_save=false", "save.export=safetensors"],
        )
    if zero.hpz > 1 and zero.stage != 3:
        rule = "a secondary partition of the parameters needs ZeRO 3, which partitions them"
        yield ConfigError("zero.hpz", zero.hpz, rule, ["zero.hpz=1", "zero=3"])
    elif spec.gpus % zero.hpz:
        path = "zero.hpz"
        legal = nearest.nearest(spec, path, nearest.divisors(spec.gpus), lambda _: True, limit=2)
        yield ConfigError(path, zero.hpz, f"must divide the {spec.gpus} ranks", legal)


def _offload(spec: RunSpec) -> Iterator[ConfigError]:
    zero = spec.zero
    for part, least in (("optimizer", 1), ("parameters", 3)):
        path, device = f"zero.offload_{part}", getattr(zero, f"offload_{part}")
        # ZeRO 1 and 2 take "nvme" for "cpu" without a word (runtime/zero/stage_1_and_2.py).
        needed = 3 if device == "nvme" else least
        if device != "none" and zero.stage < needed:
            rule = f"offload of {part} to {device} needs ZeRO {needed}" + (" or more" if needed < 3 else "")
            instead = ["zero.offload_optimizer=cpu"] if device == "nvme" and part == "optimizer" and zero.stage else []
            yield ConfigError(path, device, rule, [f"zero={needed}", *instead, f"{path}=none"])
        if device == "nvme" and zero.nvme_path is None:
            rule = f"{path}=nvme needs a folder on the NVMe disk of each node"
            yield ConfigError("zero.nvme_path", None, rule, ["zero.nvme_path=/local_nvme"])


def _optimizer(spec: RunSpec) -> Iterator[ConfigError]:
    name = spec.optimizer.name
    if name not in optimizer.SUPPORTED:
        rule = f"backend=deepspeed runs {' or '.join(optimizer.SUPPORTED)} in this version"
        ways_out = [f"optimizer={other}" for other in optimizer.SUPPORTED]
        yield ConfigError("optimizer.name", name, rule, ways_out)
    if name != "adamw" and spec.zero.offload_optimizer != "none":
        rule = f"{name} would step on the CPU without a kernel of DeepSpeed's for it"
        path = "zero.offload_optimizer"
        yield ConfigError(path, spec.zero.offload_optimizer, rule, ["optimizer=adamw", f"{path}=none"])
    for key in ("fused", "foreach"):
        if getattr(spec.optimizer, key) is not None and spec.zero.offload_optimizer == "nvme":
            rule = "NVMe offload swaps the state of DeepSpeedCPUAdam, which has no such choice"
            path = f"optimizer.{key}"
            yield ConfigError(path, edit.value_at(spec, path), rule, [f"{path}=null", "zero.offload_optimizer=cpu"])


def _training(spec: RunSpec) -> Iterator[ConfigError]:
    """Settings that the worker does not honour; a script of the user's own may."""
    yield from _worker.check(spec)
    yield from _models.check(spec)
    if spec.train.compile:
        rule = "blocks are compiled by backend=fsdp alone: ZeRO's hooks inside them would break the graph"
        yield ConfigError("train.compile", True, rule, ["train.compile=false", "parallel=fsdp"])
    if spec.save.asynchronous:
        rule = "backend=deepspeed writes checkpoints in the foreground"
        yield ConfigError("save.async", True, rule, ["save.async=false", "parallel=fsdp"])
    if spec.adapter.name == "qlora":
        rule = "ZeRO flattens and casts parameters, which 4-bit weights do not survive"
        yield ConfigError("adapter.name", "qlora", rule, ["adapter=lora"])
