"""``backend.extra``: keys of ds_config.json as they are, merged in last. No typo passes, nor a rival to a setting.

DeepSpeed ignores keys that it does not know, so only those that its release reads are let through. A key that a setting
of ours gives is refused with that setting, in the key's own value where it can be translated: the memory estimate and
the record read settings, and a rival would make them wrong. Blocks that need the training program's help are refused
for our worker and left to a script. All else is handed on, with a warning that the estimate does not see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit
from launcher.spec.parse import closest

_SAME = ("stage", "allgather_bucket_size", "overlap_comm", "reduce_bucket_size", "sub_group_size")
_SAME_OF_STAGE_3 = (
    "max_live_parameters", "max_reuse_distance", "param_persistence_threshold", "prefetch_bucket_size",
)  # fmt: skip
"""Keys of ``zero_optimization`` that have the same name here, the second ones without their prefix ``stage3_``."""

SETTINGS = {
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_accumulation_steps": "train.gradient_accumulation",
    "gradient_clipping": "optimizer.clip",
    "communication_data_type": "precision.reduce",
    "data_types.grad_accum_dtype": "precision.accumulate",
    "bf16.enabled": "precision.compute",
    "bf16.bf16_master_weights_and_grads": "precision.master",
    "bf16.bf16_optimizer_states": "precision.optimizer_states",
    "fp16.enabled": "precision.compute",
    "optimizer": "optimizer.name",
    "scheduler": "optimizer.schedule",
    **{f"zero_optimization.{key}": f"zero.{key}" for key in _SAME},
    **{f"zero_optimization.stage3_{key}": f"zero.{key}" for key in _SAME_OF_STAGE_3},
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": "zero.gather_16bit_weights_on_save",
    "zero_optimization.zero_hpz_partition_size": "zero.hpz",
    "zero_optimization.offload_optimizer.device": "zero.offload_optimizer",
    "zero_optimization.offload_optimizer.nvme_path": "zero.nvme_path",
    "zero_optimization.offload_param.device": "zero.offload_parameters",
    "zero_optimization.offload_param.nvme_path": "zero.nvme_path",
    "tensor_parallel.autotp_size": "parallel.tensor",
    "sequence_parallel_size": "parallel.ulysses",
}
"""Keys of ds_config.json that have a setting of their own, which the memory estimate reads as well."""

_PARAMETERS = {"lr": "lr", "weight_decay": "weight_decay", "eps": "epsilon"}

_WORKER = ("activation_checkpointing", "checkpoint", "compile", "data_efficiency", "expert_parallel", "hybrid_engine",
           "managed_gradient_accumulation", "pipeline", "tensor_parallel", "torch_autocast", "autotuning",
           "weight_quantization", "datastates")  # fmt: skip
"""Blocks that a training program must play along with; the launcher's own worker does not."""

_FREE = (
    "aio", "comet", "comms_logger", "csv_monitor", "dataloader_drop_last", "data_types", "disable_allgather",
    "disable_python_gc", "dump_state", "flops_profiler", "gradient_allreduce_op", "gradient_predivide_factor",
    "log_level", "memory_breakdown", "prescale_gradients", "seq_parallel_communication_data_type", "steps_per_print",
    "tensorboard", "timers", "use_data_before_expert_parallelism", "vocabulary_size", "wall_clock_breakdown", "wandb",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
)  # fmt: skip
"""Every other key that DeepSpeed 0.19.8 reads at the top of the file (runtime/config.py)."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Keys that DeepSpeed does not know (it would ignore them), that have a setting, or that the worker ignores."""
    if not spec.backend.extra:
        return
    own = {path.partition(".")[0] for path in SETTINGS}
    known = sorted({*own, *_WORKER, *_FREE})
    for key, value in _plain(spec.backend.extra).items():
        if key not in known:
            rule = "DeepSpeed 0.19.8 reads no such key and would ignore it"
            yield ConfigError(f"backend.extra.{key}", value, rule, _near(known, key, value))
        elif key in _WORKER and spec.script is None and key != "tensor_parallel":
            rule = "the training program must play along with it, and the launcher's own worker does not"
            yield ConfigError(f"backend.extra.{key}", value, rule, ["script=path/to/train.py"])
    for path, value in _leaves(spec.backend.extra):
        inside = sorted(key for key in SETTINGS if key.startswith(f"{path}."))
        if inside and value != {}:
            rule = f"it is a block, of which settings give a part ({inside[0]}): hand over single keys of it"
            way_out = [f"launch show {SETTINGS[inside[0]].partition('.')[0]}"]
            yield ConfigError(f"backend.extra.{path}", value, rule, way_out)
        setting = next((SETTINGS[head] for head in _heads(path) if head in SETTINGS), None)
        if setting is not None:
            rule = f"it has a setting of its own, {setting}, which the memory estimate reads too"
            yield ConfigError(f"backend.extra.{path}", value, rule, _same_by_setting(spec, path, setting, value))
        elif path.partition(".")[0] == "tensor_parallel" and spec.parallel.tensor == 1:
            rule = "DeepSpeed reads it only where tensors are cut, and this run cuts none"
            degrees = edit.divisors(spec.model.key_value_heads)
            cut = edit.nearest(spec, "parallel.tensor", degrees, _cuts_tensors, limit=2)
            yield ConfigError(f"backend.extra.{path}", value, rule, cut)


def _cuts_tensors(spec: RunSpec) -> bool:
    return spec.parallel.tensor > 1 and spec.gpus % spec.model_parallel == 0


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Everything that is handed through: nothing but DeepSpeed itself judges it."""
    if spec.backend.extra:
        paths = ", ".join(path for path, _ in _leaves(spec.backend.extra))
        rule = f"handed to DeepSpeed as it is and not part of the memory estimate: {paths}"
        yield ConfigError("backend.extra", _plain(spec.backend.extra), rule)


def _leaves(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _plain(value)


def _heads(path: str) -> Iterator[str]:
    """The path and every block that it lies in: ``a.b.c``, ``a.b``, ``a``."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _near(known: list[str], key: str, value: Any) -> list[str]:
    return [f"+backend.extra.{name}={edit.override('', value)[1:]}" for name in closest(key, list(known))[:2]]


def _same_by_setting(spec: RunSpec, path: str, setting: str, value: Any) -> list[str]:
    if setting == "precision.compute":
        return [f"precision={path.partition('.')[0] if value else 'fp32'}"]
    if setting in ("precision.master", "precision.optimizer_states"):
        return [f"{setting}={'bf16' if value else 'null'}"]
    if setting == "optimizer.name":
        key = _PARAMETERS.get(path.rpartition(".")[2])
        return [f"optimizer.{key}={value}"] if key else ["optimizer=adamw", "optimizer=sgd"]
    if setting == "optimizer.schedule":
        return [f"optimizer.schedule={name}" for name in ("constant", "linear", "cosine")]
    return [edit.override(setting, value)]
