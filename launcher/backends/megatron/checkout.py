"""Checkpoints of Megatron-LM, and the program of a checkout (``backend.path``), which trains without our worker."""

from collections.abc import Iterator

from launcher.backends import _models
from launcher.backends.megatron.implementation import fsdp
from launcher.backends.megatron.traits import reads_shards, reshardable
from launcher.backends.megatron.translate import name
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.spec import RunSpec, edit

_WATCHED = "train.on_hang train.hang_factor train.on_spike train.spike_deviations train.enforce_memory"
"""Settings that need the worker's heartbeat, loss or memory account."""

_MINUTE = 60
_PER_TOKEN = "calculate-per-token-loss"

_DEGREES = tuple(f"parallel.{key}" for key in ("tensor", "pipeline", "virtual_pipeline", "expert", "expert_tensor"))
_KEPT = {
    "zero.stage": "each of its sharded optimizers has its own checkpoint format",
    "precision.compute": "its optimizer keeps different copies of the weights for each number format",
    "train.global_batch_size": "it counts its position in data and schedule in steps of one batch size",
    **dict.fromkeys(_DEGREES, "it saves the optimizer's shards as they are; save.reshardable=true saves whole states"),
}
"""Settings that the format of a checkpoint depends on, and why."""
_OF_EXPERTS = "with expert parallel ranks it saves two optimizers, that of the experts apart, and without them one"


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for settings that a checkout's program would drop."""
    if spec.backend.path is None:
        return
    rule = "only the launcher's worker reads it; a checkout's pretrain_gpt.py shuffles its indexed data set"
    yield from edit.refused(spec, "data.shuffle data.token_dtype data.stages", rule, "backend.path=null")
    rule = "a checkout's pretrain_gpt.py runs on its own: only the launcher's worker is monitored"
    yield from edit.refused(spec, _WATCHED, rule, "backend.path=null")


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Warnings about checkpoints that are never deleted, and a ``save.load`` that is loaded again."""
    if spec.backend.path is None:
        return
    if spec.save_every is not None and spec.steps // spec.save_every > spec.save.keep:
        rule = "a checkout's pretrain_gpt.py keeps every checkpoint"
        yield ConfigError("save.keep", spec.save.keep, rule, ["backend.path=null"])
    rule = "a checkout's pretrain_gpt.py loads it again when the job is requeued or resumed"
    yield from edit.refused(spec, "save.load", rule, first=["backend.path=null"])


def check_data(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for data and trackers that a checkout's own program does not support."""
    data = spec.data
    if spec.backend.path is not None and data.source not in ("synthetic", "tokens"):
        rule = "a checkout's pretrain_gpt.py reads indexed data sets (PREFIX.bin, PREFIX.idx): name the prefix"
        way_out = ["data=tokens data.path=PREFIX", "data=synthetic", "backend.path=null"]
        yield ConfigError("data.source", data.source, rule, way_out)
    given = [key for key in spec.backend.extra if name(key) == _PER_TOKEN]
    if data.marked and given:
        rule = f"data.source={data.source} sets it: the loss is averaged over the trained tokens"
        path = f"backend.extra.{given[0]}"
        yield ConfigError(path, spec.backend.extra[given[0]], rule, [f"+{path}=null"])
    if spec.backend.path is not None and spec.tracking.kind == "mlflow":
        rule = "a checkout's pretrain_gpt.py logs to tensorboard and wandb"
        yield ConfigError("tracking.kind", "mlflow", rule, ["tracking=tensorboard", "tracking=wandb", "tracking=none"])


def check_saving(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for ``save`` settings that Megatron-LM, or a checkout's program, does not honour."""
    save, steps, timeout = spec.save, spec.steps, spec.train.timeout_s
    if save.reshardable is not None and save.reshardable != reshardable(spec):
        rule = "whole states are gathered from the shards of AdamW's distributed optimizer (zero.stage=1)"
        yield ConfigError("save.reshardable", True, rule, ["save.reshardable=null", "zero.stage=1 optimizer=adamw"])
    elif save.reshardable is False and not reads_shards(spec):
        rule = (
            "Megatron-core reads shards back correctly only with 16-bit parameters and the fused AdamW of "
            "Transformer Engine or Apex"
        )
        yield ConfigError("save.reshardable", False, rule, ["save.reshardable=null"])
    if spec.backend.path is not None and spec.save_every is not None and not save.last and steps % spec.save_every:
        rule = f"a checkout's pretrain_gpt.py also saves after its last step, {steps}, if it saves at all"
        yield ConfigError("save.last", False, rule, ["save.last=true", "save.every=null"])
    if spec.train.on_spike == "rollback":
        rule = "Megatron-LM's own loop counts its position in the data in steps, and cannot skip samples"
        yield ConfigError("train.on_spike", "rollback", rule, ["train.on_spike=stop", "parallel=fsdp"])
    if spec.train.patience is not None:
        rule = "Megatron-LM's own loop continues regardless of its evaluations"
        yield ConfigError("train.patience", spec.train.patience, rule, ["train.patience=null", "parallel=fsdp"])
    if timeout % _MINUTE:
        rule = "Megatron-LM counts the timeout in whole minutes"
        up = -(-timeout // _MINUTE) * _MINUTE
        yield ConfigError("train.timeout_s", timeout, rule, [f"train.timeout_s={up}"])


def check_conversion(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for ``model.weights`` and ``save.export`` where the worker cannot convert the model."""
    if spec.model.weights is not None:
        yield from _neither(spec, "model.weights", spec.model.weights, "model.weights=null")
    if spec.save.export != "none":
        yield from _neither(spec, "save.export", spec.save.export, "save.export=none")
        if fsdp(spec) and spec.backend.path is None:
            rule = "this version does not join the parameters that Megatron-FSDP shards"
            yield ConfigError("save.export", spec.save.export, rule, ["save.export=none", "zero.stage=1"])


def _neither(spec: RunSpec, path: str, value: str, without: str) -> Iterator[ConfigError]:
    if spec.backend.path is not None:
        rule = "a checkout's own program reads and writes only Megatron's checkpoints"
        yield ConfigError(path, value, rule, [without, "backend.path=null"])
    elif not _models.computed(spec):
        rule = "no class of transformers computes this model, so it cannot be converted"
        yield ConfigError(path, value, rule, [without])
    elif _is_deepseeks(spec):
        rule = "this version does not convert latent attention, shared experts, first dense layers or expert biases"
        yield ConfigError(path, value, rule, [without])


def _is_deepseeks(spec: RunSpec) -> bool:
    """True if the model has DeepSeek parts that ``launcher.worker.megatron.layout`` has no names for."""
    model = spec.model
    parts = model.kv_lora_rank or model.shared_width or model.first_dense_layers
    return bool(parts) or families.of(model).traits.balances_experts


def unreadable(before: RunSpec, after: RunSpec) -> Iterator[ConfigError]:
    """Errors for settings that must stay as they were when the checkpoint was written."""
    pairs: dict[str, tuple[object, object]] = {
        "zero.stage": (before.zero.stage, after.zero.stage),
        "precision.compute": (before.precision.compute, after.precision.compute),
        "train.global_batch_size": (before.global_batch_size, after.global_batch_size),
    }
    if before.zero.stage == 1 and not reshardable(before):
        pairs |= {path: (edit.value_at(before, path), edit.value_at(after, path)) for path in _DEGREES}
    if 1 in (experts := (before.parallel.expert, after.parallel.expert)):
        pairs["parallel.expert"] = experts
    for path, (was, now) in pairs.items():
        if was != now:
            why = _OF_EXPERTS if path == "parallel.expert" and 1 in experts else _KEPT[path]
            rule = f"the checkpoint is from a run with {was}, and Megatron-LM cannot change it: {why}"
            yield ConfigError(path, now, rule, [edit.override(path, was)])
