"""Number formats, trackers, and the blocks of ``ds_config.json`` that a launcher has other words or no words for."""

from collections.abc import Iterable, Mapping

from launcher.config.ledger import word_in
from launcher.importers._table import table
from launcher.importers.deepspeed.reading import Reading
from launcher.spec import bounds

_FORMATS = {
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
}

_SCALE: Mapping[str, object] = {
    "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "hysteresis": 2,
    "consecutive_hysteresis": False, "min_loss_scale": 1,
}  # fmt: skip
"""Keys of the loss scale with DeepSpeed's defaults (``runtime/precision_config.py``)."""

_TABLE = table("deepspeed")
_ACTING: Mapping[str, object] = _TABLE["acting"]  # Keys on which DeepSpeed alone acts, with its defaults.
_UNCOUNTED: Mapping[str, tuple[object, str]] = _TABLE["uncounted"]
"""Options whose memory is not counted, so that runs here have the default: it, and what a run does by it."""

_IDLE: Mapping[str, str] = _TABLE["idle"]  # Keys and blocks without effect on a run here, with the reason.
_ABSENT: Mapping[str, str] = _TABLE["absent"]  # Features that the run does not have, and what it does in their place.
_PRINTING = ("comms_logger", "flops_profiler", "timers")
"""Blocks with a switch that DeepSpeed alone acts on: what it prints."""

_BY_PARTS = ("compression_training", "data_efficiency")  # Features whose parts have switches of their own.

HEADS = frozenset({
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("optimizer", "scheduler", "zero_optimization", "allgather_size", "fp16", "bf16", "bfloat16", "data_types"),
    *("communication_data_type", "steps_per_print", "tensorboard", "wandb", "activation_checkpointing", "pipeline"),
    *("tensor_parallel", "sequence_parallel_size", "aio"),
    *(key.partition(".")[0] for key in (*_ACTING, *_UNCOUNTED)),
    *_PRINTING,
    *_IDLE,
    *_ABSENT,
})
"""Every key that some release of DeepSpeed reads at the top of the file."""


def settings() -> Mapping[str, str]:
    """Keys and the settings that decide in their place."""
    found: Mapping[str, str] = _TABLE["decided"]
    return found


def precision(reading: Reading) -> None:
    """Say the formats of the computation, the gradients and the optimizer."""
    bf16 = "bfloat16" if reading.has("bfloat16") and not reading.has("bf16") else "bf16"
    for block in ("fp16", bf16):
        reading.require_block(block, '"enabled": true')
    keys = {"fp16": "fp16.enabled", "bf16": f"{bf16}.enabled"}
    on = [word for word, key in keys.items() if reading.flag(key)]
    if len(on) == 2:
        rule = "bfloat16 and fp16 modes cannot be enabled at once (DeepSpeed's own check)"
        reading.wrong(keys["bf16"], rule, ['"fp16": {"enabled": false}', f'"{bf16}": {{"enabled": false}}'])
    open_ = any(not reading.absent(key) and reading.value(key) is None for key in keys.values())
    if on or not open_:
        reading.choose["precision"] = on[0] if on else "fp32"
    for key in keys.values():
        if reading.value(key) is not None and reading.ledger.is_open(key):
            reading.ledger.say(key, "precision")
    if "bf16" in on:
        _narrow(reading, bf16)
    if "fp16" in on:
        _scaled(reading)
    whose = "the file leaves open" if open_ else "is not the run's"
    reading.idle(f"it belongs to a number format that {whose}", "fp16", "bf16", "bfloat16")
    _formats(reading)


def _narrow(reading: Reading, block: str) -> None:
    for key, setting in (
        ("bf16_master_weights_and_grads", "precision.master"),
        ("bf16_optimizer_states", "precision.optimizer_states"),
    ):
        if reading.value(f"{block}.{key}") is not None:
            reading.say(f"{block}.{key}", {setting: "bf16"} if reading.flag(f"{block}.{key}") else {})
    if block == "bf16":
        reading.keep_unless("bf16.check_grad_overflow", usual=True)
        effect = "gradients are added up at the end of a backward pass here"
        reading.leave_unless("bf16.immediate_grad_update", usual=False, effect=effect)
    reading.idle("bf16 has no loss scale", block)


def _scaled(reading: Reading) -> None:
    _loss_scale(reading)
    for key, usual in _SCALE.items():
        reading.keep_unless(f"fp16.{key}", usual)
    masters = "fp16.fp16_master_weights_and_grads"
    if reading.flag(masters):
        reading.leave("master weights and their gradients are fp32 here, not fp16", masters)
    reading.default(masters)
    reading.idle("token ids are not cast", "fp16.auto_cast")
    reading.idle("it is a word of Apex", "fp16.opt_level", "fp16.fp16_opt_level")
    reading.leave("DeepSpeed 0.19.8 has no such key in this block and refuses the file for it", "fp16")


def _loss_scale(reading: Reading) -> None:
    """Say what has settings of its own, where it differs from DeepSpeed's defaults; a scale of 0 adapts."""
    scale = reading.number("fp16.loss_scale")
    if scale:
        reading.say("fp16.loss_scale", {"precision.loss_scale": scale})
        reading.idle("a constant scale has neither", "fp16.initial_scale_power", "fp16.loss_scale_window")
        return
    power = reading.count("fp16.initial_scale_power")
    if power not in (None, _SCALE["initial_scale_power"]) and power <= bounds.LARGEST_SCALE_POWER:
        reading.say("fp16.initial_scale_power", {"precision.initial_loss_scale": 2**power})
    if reading.count("fp16.loss_scale_window", 1) not in (None, _SCALE["loss_scale_window"]):
        reading.say_count("fp16.loss_scale_window", "precision.loss_scale_window")


def _formats(reading: Reading) -> None:
    reading.idle("it can only be the format that the run computes in", "data_types.param_dtype")
    for key, setting in (
        ("data_types.grad_accum_dtype", "precision.accumulate"),
        ("communication_data_type", "precision.reduce"),
    ):
        value = reading.value(key)
        if (known := word_in(_FORMATS, value)) is not None:
            reading.say(key, {setting: known})
        elif value is not None:
            leaf = key.rpartition(".")[2]
            reading.wrong(key, "is fp32, fp16 or bf16", [f'"{leaf}": "bf16"', f'"{leaf}": "fp32"'])


def tracking(reading: Reading) -> None:
    """Say one tracker of the file; the run logs as often as DeepSpeed prints."""
    if reading.value("steps_per_print") != 0:
        reading.say_count("steps_per_print", "train.log_every", least=1)
    for kind in ("wandb", "tensorboard"):
        if reading.flag(f"{kind}.enabled") and "tracking" not in reading.choose:
            reading.choose["tracking"] = kind
            reading.ledger.say(f"{kind}.enabled", "tracking")
        if not reading.flag(f"{kind}.enabled"):
            reading.default(kind)
    project = reading.value("wandb.project")
    if reading.choose.get("tracking") == "wandb" and project is not None and reading.ledger.is_open("wandb.project"):
        reading.say("wandb.project", {"tracking.project": str(project)})
    reading.idle("of the tracker: its own variables (WANDB_ENTITY, WANDB_RUN_GROUP) say it", "wandb")
    reading.idle("of the tracker: the run directory holds its files", "tensorboard")
    reading.idle("of what is printed", "steps_per_print")


def parallel(reading: Reading) -> None:
    """Say Ulysses and AutoTP; enter pipelines and DeepSpeed's activation checkpointing."""
    reading.say_count("sequence_parallel_size", "parallel.ulysses", least=1)
    degree = reading.count("tensor_parallel.autotp_size")
    if degree is not None:
        reading.say("tensor_parallel.autotp_size", {"parallel.tensor": max(1, degree)})
    if (degree or 0) > 1:
        reading.keep_unless("tensor_parallel.tp_overlap_comm", usual=False)
        reading.leave("tensors are cut as transformers plans for the model here", "tensor_parallel")
    reading.idle("DeepSpeed reads it where tensors are cut, and this file cuts none", "tensor_parallel")
    interval = "pipeline.activation_checkpoint_interval"
    if reading.value(interval) is not None and reading.count(interval):
        effect = "which activations are recomputed has a setting of its own here: set checkpointing.mode"
        reading.leave(effect, interval)
    reading.idle("parallel.pipeline and its kin decide about stages here", "pipeline")
    _activations(reading, cut=(degree or 0) > 1)


def _activations(reading: Reading, *, cut: bool) -> None:
    """Settings of ``deepspeed.checkpointing``, which act in a program that calls it; the worker calls torch's."""
    block = "activation_checkpointing"
    reading.ledger.default(*(key for key in reading.inside(block) if reading.value(key) in (False, {})))
    printed = (f"{block}.profile", f"{block}.synchronize_checkpoint_boundary")
    reading.idle("of speed and of what is printed", *printed)
    if not cut:
        why = "activations are cut over tensor parallel ranks, of which there is one"
        reading.idle(why, f"{block}.partition_activations")
    if not reading.value(f"{block}.contiguous_memory_optimization"):
        reading.idle("it belongs to contiguous_memory_optimization", f"{block}.number_checkpoints")
    if reading.value(f"{block}.cpu_checkpointing") is True:
        effect = "inputs of recomputed blocks stay on the GPU here: set checkpointing=full checkpointing.offload=true"
        reading.leave(effect, f"{block}.cpu_checkpointing")
    reading.leave("activations stay on the GPU here as they are, or are recomputed: set checkpointing.mode", block)


def engine(reading: Reading) -> None:
    """Enter the keys that DeepSpeed acts on by itself."""
    reading.say_number("gradient_clipping", "optimizer.clip")
    for key, usual in _ACTING.items():
        reading.keep_unless(key, usual)
    for block in _PRINTING:
        if reading.flag(f"{block}.enabled") or (block == "timers" and reading.has(block)):
            reading.keep_inside(block)
        reading.default(block)
    for key, (usual, effect) in _UNCOUNTED.items():
        reading.leave_unless(key, usual, effect)
    reading.keep_inside("aio")


def features(reading: Reading) -> None:
    """Enter features that a run does not have here, or has in another way."""
    for block, why in _IDLE.items():
        if not reading.absent(f"{block}.enabled") and not reading.flag(f"{block}.enabled"):
            reading.default(block)
        reading.idle(why, block)
    for block, effect in _ABSENT.items():
        keys = list(reading.inside(block))
        if _is_on(reading, block, keys):
            switches = [key for key in keys if key.endswith("enabled") and reading.flag(key)]
            reading.leave(effect, *(switches or keys[:1]))
            reading.idle(f"it belongs to {block}, which the run is without", *keys)
        else:
            reading.ledger.default(*keys)


def _is_on(reading: Reading, block: str, keys: Iterable[str]) -> bool:
    top = f"{block}.enabled"
    if block in keys:
        return reading.value(block) not in (False, None, {})
    if reading.value(top) is not None and not reading.flag(top):
        return False
    parts = [key for key in keys if key != top and key.endswith("enabled")]
    if block in _BY_PARTS and parts:
        return any(reading.flag(key) for key in parts)
    return True
