"""DeepSpeed's ``ds_config.json``: keys and defaults of DeepSpeed 0.19.8 (``runtime/config.py``, ``runtime/zero``).

``"auto"`` is filled in by the program that reads the file, so its value is not in the file: such keys are named.
Keys without a setting of their own here that are DeepSpeed's alone travel in ``backend.extra``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.config.foreign import json_mapping, shown, word_in
from launcher.errors import ConfigError, ConfigErrors
from launcher.importers import Imported, imported

_ZERO = "zero_optimization"

_SETTINGS: Mapping[str, str] = {
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.micro_batch_size",
    "gradient_clipping": "optimizer.clip",
    "sequence_parallel_size": "parallel.ulysses",
    "tensor_parallel.autotp_size": "parallel.tensor",
    "optimizer.params.lr": "optimizer.lr",
    "optimizer.params.weight_decay": "optimizer.weight_decay",
    "optimizer.params.eps": "optimizer.epsilon",
    "scheduler.params.warmup_max_lr": "optimizer.lr",
    "scheduler.params.warmup_num_steps": "optimizer.warmup_steps",
    "scheduler.params.total_num_steps": "train.steps",
    f"{_ZERO}.stage": "zero.stage",
    f"{_ZERO}.overlap_comm": "zero.overlap_comm",
    f"{_ZERO}.reduce_bucket_size": "zero.reduce_bucket_size",
    f"{_ZERO}.allgather_bucket_size": "zero.allgather_bucket_size",
    f"{_ZERO}.sub_group_size": "zero.sub_group_size",
    f"{_ZERO}.zero_hpz_partition_size": "zero.hpz",
    f"{_ZERO}.stage3_max_live_parameters": "zero.max_live_parameters",
    f"{_ZERO}.stage3_max_reuse_distance": "zero.max_reuse_distance",
    f"{_ZERO}.stage3_prefetch_bucket_size": "zero.prefetch_bucket_size",
    f"{_ZERO}.stage3_param_persistence_threshold": "zero.param_persistence_threshold",
    f"{_ZERO}.offload_optimizer.device": "zero.offload_optimizer",
    f"{_ZERO}.offload_optimizer.nvme_path": "zero.nvme_path",
    f"{_ZERO}.offload_param.device": "zero.offload_parameters",
    f"{_ZERO}.offload_param.nvme_path": "zero.nvme_path",
}
"""Keys whose value is that of one setting."""

_COUNTS = frozenset(key for key in _SETTINGS if key.endswith(("_size", "_parameters", "_distance", "_threshold")))
"""Keys that are counts: DeepSpeed takes ``5e8`` for them, which is a float in JSON."""

_NUMBERS = (f"{_ZERO}.stage", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
            "optimizer.params.lr", "scheduler.params.cos_min_ratio", "scheduler.params.warmup_num_steps")  # fmt: skip
"""Other keys whose value is reckoned with."""

_GATHERED = (f"{_ZERO}.stage3_gather_16bit_weights_on_model_save", f"{_ZERO}.stage3_gather_fp16_weights_on_model_save")
"""The switch for whole weights of 16 bits in what is saved, and its spelling before DeepSpeed 0.6: an export here."""

_FORMATS = {"fp32": "fp32", "float32": "fp32", "fp16": "fp16", "float16": "fp16", "half": "fp16", "bf16": "bf16",
            "bfloat16": "bf16"}  # fmt: skip

_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "lion": "lion", "muon": "muon", "sgd": "sgd"}
"""``Adam`` is AdamW unless ``adam_w_mode`` is false (``ops/adam/fused_adam.py``)."""

_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}

_NO_EFFECT = (
    "autotuning", "checkpoint", "comet", "comms_logger", "csv_monitor", "dump_state", "flops_profiler", "log_level",
    "memory_breakdown", "steps_per_print", "tensorboard", "timers", "wall_clock_breakdown", "wandb",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "scheduler.params.warmup_min_lr",
    "scheduler.params.warmup_min_ratio", "scheduler.params.warmup_type", "scheduler.params.last_batch_iteration",
    "optimizer.params.adam_w_mode", "optimizer.params.torch_adam", "optimizer.params.bias_correction",
    f"{_ZERO}.ignore_unused_parameters", f"{_ZERO}.legacy_stage1", f"{_ZERO}.elastic_checkpoint",
    f"{_ZERO}.load_from_fp32_weights", f"{_ZERO}.offload_param.fast_init", f"{_ZERO}.offload_optimizer.fast_init",
)  # fmt: skip
"""Blocks and keys about logging, profiling and files, and those that the launcher itself decides anew."""

_CARRIED = (
    "aio", "dataloader_drop_last", "disable_allgather", "disable_python_gc", "gradient_allreduce_op",
    "gradient_predivide_factor", "prescale_gradients", "bf16.check_grad_overflow", "fp16.loss_scale",
    "fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.hysteresis", "fp16.consecutive_hysteresis",
    "fp16.min_loss_scale", f"{_ZERO}.round_robin_gradients", f"{_ZERO}.offload_optimizer.pipeline_read",
    f"{_ZERO}.offload_optimizer.pipeline_write", f"{_ZERO}.offload_optimizer.cpuadam_cores_perc",
    f"{_ZERO}.log_trace_cache_warnings", f"{_ZERO}.enable_sanity_checks",
)  # fmt: skip
"""Without effect on the GPU's memory, and handed on in ``backend.extra``."""

_USUAL: Mapping[str, object] = {
    "data_types.buffer_dtype": None,
    "data_types.param_dtype": None,
    "gradient_accumulation_steps": 1,
    "sparse_gradients": False,
    "fp16.auto_cast": False,
    "fp16.fp16_master_weights_and_grads": False,
    "fp16.opt_level": "O1",
    "bf16.immediate_grad_update": False,
    f"{_ZERO}.allgather_partitions": True,
    f"{_ZERO}.contiguous_gradients": True,
    f"{_ZERO}.memory_efficient_linear": True,
    f"{_ZERO}.offload_optimizer.pin_memory": True,
    f"{_ZERO}.offload_optimizer.ratio": 1.0,
    f"{_ZERO}.offload_param.pin_memory": True,
    f"{_ZERO}.reduce_scatter": True,
    f"{_ZERO}.use_multi_rank_bucket_allreduce": True,
    f"{_ZERO}.zero_quantized_gradients": False,
    f"{_ZERO}.zero_quantized_nontrainable_weights": False,
    f"{_ZERO}.zero_quantized_weights": False,
    "activation_checkpointing.contiguous_memory_optimization": False,
    "activation_checkpointing.cpu_checkpointing": False,
    "activation_checkpointing.number_checkpoints": None,
    "activation_checkpointing.partition_activations": False,
    "activation_checkpointing.profile": False,
    "activation_checkpointing.synchronize_checkpoint_boundary": False,
}
"""Values with which a key changes nothing here: DeepSpeed's defaults, which the translation writes out."""

_HANDED_ON = ("data_types", "bf16", "fp16", _ZERO)
"""Blocks of which any other key is named, and handed on too: DeepSpeed alone acts on it."""


@dataclass(slots=True)
class _Found:
    """Findings so far."""

    choose: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    not_understood: list[str] = field(default_factory=list)


def read(text: str, path: str) -> Imported:
    """Read a ``ds_config.json``.

    Args:
        text: The file's content.
        path: The file, for messages.

    Raises:
        ConfigErrors: It is not a ``ds_config.json``, or a value has the wrong type.
    """
    content = json_mapping(text, path, "a ds_config.json")
    _check(content, path)
    leaves = dict(_leaves(content))
    automatic = [key for key, value in leaves.items() if value == "auto"]
    leaves = {key: value for key, value in leaves.items() if value != "auto"}
    found = _Found()
    if automatic:
        keys = ", ".join(automatic)
        found.not_understood.append(f"auto, which the program that reads the file decides; defaults stand for: {keys}")
    _precision(leaves, found, automatic)
    _optimizer(leaves, found)
    steps = _accumulation(leaves, found)
    for key, value in leaves.items():
        _place(key, value, found)
    stage = int(found.settings.pop("zero.stage", 0))
    if "gradient_clipping" not in automatic:
        found.settings.setdefault("optimizer.clip", 0.0)  # DeepSpeed does not clip unless it is told to.
    return imported(
        summary=f"DeepSpeed ZeRO-{stage}",
        source="a ds_config.json",
        choose={"parallel": f"zero{stage}", **found.choose},
        settings=found.settings,
        not_understood=found.not_understood,
        accumulation=steps,
    )


def _check(content: Mapping[str, Any], path: str) -> None:
    """Blocks must be mappings and counts numbers; every error at once."""
    errors = []
    for block in (_ZERO, "bf16", "fp16", "optimizer", "scheduler", "data_types", "activation_checkpointing"):
        if block in content and not isinstance(content[block], dict):
            rule = "is a block of keys in ds_config.json"
            errors.append(ConfigError(f"{path}: {block}", content[block], rule, [f'"{block}": {{}}']))
    for key, value in _leaves(content):
        counted = key in _COUNTS or key in _NUMBERS
        if counted and value != "auto" and not _is_number(value):
            errors.append(ConfigError(f"{path}: {key}", value, "is a number in ds_config.json"))
    stage = (content.get(_ZERO) or {}).get("stage", 0) if not errors else 0
    if stage not in (0, 1, 2, 3, "auto"):
        errors.append(ConfigError(f"{path}: {_ZERO}.stage", stage, "is 0, 1, 2 or 3", ["zero=1", "zero=2", "zero=3"]))
    if errors:
        raise ConfigErrors(errors)


def _is_number(value: object) -> bool:
    """True if JSON's value is a finite number; Python's reader takes ``Infinity`` and ``NaN`` too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _leaves(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in block.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        elif value != {}:
            yield f"{prefix}{key}", value


def _precision(leaves: dict[str, Any], found: _Found, automatic: list[str]) -> None:
    """The format of the computation, and those of the gradients and the optimizer beside it."""
    bf16, fp16 = leaves.pop("bf16.enabled", False), leaves.pop("fp16.enabled", False)
    if bf16 or fp16:
        found.choose["precision"] = "bf16" if bf16 else "fp16"
    elif not {"bf16.enabled", "fp16.enabled"} & set(automatic):
        found.choose["precision"] = "fp32"
    for key, setting in (("data_types.grad_accum_dtype", "accumulate"), ("communication_data_type", "reduce")):
        value = leaves.pop(key, None)
        if known := word_in(_FORMATS, value):
            found.settings[f"precision.{setting}"] = known
        elif value is not None:
            found.not_understood.append(shown(key, value))
    if leaves.pop("bf16.bf16_master_weights_and_grads", False):
        found.settings["precision.master"] = "bf16"
    if leaves.pop("bf16.bf16_optimizer_states", False):
        found.settings["precision.optimizer_states"] = "bf16"


def _optimizer(leaves: dict[str, Any], found: _Found) -> None:
    """The optimizer, its momenta and the schedule; a schedule's own learning rate comes after the optimizer's."""
    name = leaves.pop("optimizer.type", None)
    if str(name).lower() in _OPTIMIZERS:
        found.choose["optimizer"] = _OPTIMIZERS[str(name).lower()]
    elif name is not None:
        found.not_understood.append(shown("optimizer.type", name))
    betas = leaves.pop("optimizer.params.betas", None)
    if isinstance(betas, list) and len(betas) == 2:
        found.settings |= {"optimizer.beta1": betas[0], "optimizer.beta2": betas[1]}
    schedule = leaves.pop("scheduler.type", None)
    if known := word_in(_SCHEDULES, schedule):
        found.settings["optimizer.schedule"] = known
    elif schedule is not None:
        found.not_understood.append(shown("scheduler.type", schedule))
    ratio = leaves.pop("scheduler.params.cos_min_ratio", None)
    if ratio is not None and "optimizer.params.lr" in leaves:
        found.settings["optimizer.min_lr"] = ratio * leaves["optimizer.params.lr"]


def _accumulation(leaves: dict[str, Any], found: _Found) -> int | None:
    """Accumulation is derived here from the global batch, which without it needs the number of data ranks."""
    given = "gradient_accumulation_steps" in leaves
    steps = leaves.pop("gradient_accumulation_steps", 1)
    if steps != 1 and "train_batch_size" not in leaves:
        text = shown("gradient_accumulation_steps", steps)
        found.not_understood.append(f"{text}: set train.global_batch_size to micro-batch x {steps} x data ranks")
    return int(steps) if given else None


def _place(key: str, value: Any, found: _Found) -> None:
    """Put one key where it belongs."""
    if key in _SETTINGS:
        found.settings[_SETTINGS[key]] = int(value) if key in _COUNTS else value
    elif key in (f"{_ZERO}.cpu_offload", f"{_ZERO}.cpu_offload_param"):  # Spelt so before DeepSpeed 0.4.
        setting = "zero.offload_parameters" if key.endswith("param") else "zero.offload_optimizer"
        found.settings.setdefault(setting, "cpu" if value else "none")
    elif key in _GATHERED:
        found.settings |= {"save.export": "safetensors"} if value else {}
    elif _within(key, _NO_EFFECT) or (key in _USUAL and _USUAL[key] == value) or _is_idle(key, found):
        return
    elif _within(key, _CARRIED):
        found.settings[f"backend.extra.{key}"] = value
    else:
        found.not_understood.append(shown(key, value))
        if key.partition(".")[0] in _HANDED_ON:
            found.settings[f"backend.extra.{key}"] = value


def _is_idle(key: str, found: _Found) -> bool:
    """True if it belongs to the other of the two half-precision blocks, which many files hold side by side."""
    block = key.partition(".")[0]
    return block in ("bf16", "fp16") and found.choose.get("precision") not in (None, block)


def _within(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)
