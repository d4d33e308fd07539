"""Rules about adapter, optimizer, schedule, evaluation, checkpoints and the length of the run."""

from collections.abc import Iterator

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

_ROLES, _ADDED = ("bos_token", "eos_token", "unk_token", "pad_token"), "additional_special_tokens"
_OF_THE_ROW = ("messages", "tools", "documents", "add_generation_prompt")  # Arguments of ``apply_chat_template``.
_MOST_RECORDED = 100  # Steps of a profile: Perfetto opens some gigabytes, and a step of a small model takes 10 MB.


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of training settings that contradict each other."""
    optimizer = spec.optimizer
    yield from _adapter(spec)
    if optimizer.min_lr > optimizer.lr:
        rule = f"the schedule ends at this rate, so it is at most optimizer.lr={optimizer.lr:g}"
        way_out = [f"optimizer.min_lr={optimizer.lr:g}", f"optimizer.lr={optimizer.min_lr:g}"]
        yield ConfigError("optimizer.min_lr", optimizer.min_lr, rule, way_out)
    if optimizer.warmup_lr > optimizer.lr:
        rule = f"warm-up starts at this rate, so it is at most optimizer.lr={optimizer.lr:g}"
        way_out = ["optimizer.warmup_lr=0.0", f"optimizer.lr={optimizer.warmup_lr:g}"]
        yield ConfigError("optimizer.warmup_lr", optimizer.warmup_lr, rule, way_out)
    yield from _schedule(spec)
    if optimizer.fused and optimizer.foreach:
        rule = "torch.optim takes fused or foreach, not both"
        yield ConfigError("optimizer.foreach", True, rule, ["optimizer.foreach=null", "optimizer.fused=null"])
    if spec.train.allocator == "expandable" and spec.hardware.device == "cpu":
        rule = "expandable segments belong to the CUDA allocator, and this run is on CPU ranks (hardware.device)"
        yield ConfigError("train.allocator", "expandable", rule, ["train.allocator=default", "hardware=h100_80g"])
    depth, layers = spec.model.num_hidden_layers + spec.model.mtp_layers, spec.checkpointing.layers
    if layers is not None and layers > depth:
        path, rule = "checkpointing.layers", f"the model has {depth} layers"
        yield ConfigError(path, layers, rule, [edit.override(path, depth), f"{path}=null"])
    yield from _special_tokens(spec)
    yield from _template_values(spec)
    yield from _spikes(spec)
    yield from _enforced(spec)
    yield from _profiled(spec)
    yield from _tasks(spec)


def _special_tokens(spec: RunSpec) -> Iterator[ConfigError]:
    for role, value in (spec.data.special_tokens or {}).items():
        texts = value if role == _ADDED and isinstance(value, list | tuple) else [value] if role in _ROLES else []
        if not texts or not all(isinstance(text, str) and text for text in texts):
            rule = f"{', '.join(_ROLES)} are one token each, and {_ADDED} is a list of tokens"
            yield ConfigError(f"data.special_tokens.{role}", value, rule, ["data.special_tokens=null"])


def _template_values(spec: RunSpec) -> Iterator[ConfigError]:
    for name, value in (spec.data.template_values or {}).items():
        if name in _OF_THE_ROW or not isinstance(value, str | int | float | None):
            rule = f"{', '.join(_OF_THE_ROW)} come from the row, and other values are text, numbers, true or false"
            yield ConfigError(f"data.template_values.{name}", value, rule, ["data.template_values=null"])


def _schedule(spec: RunSpec) -> Iterator[ConfigError]:
    optimizer = spec.optimizer
    if optimizer.warmup_ratio is not None and optimizer.warmup_steps:
        rule = f"it replaces optimizer.warmup_steps, which is set to {optimizer.warmup_steps}"
        way_out = ["optimizer.warmup_steps=0", "optimizer.warmup_ratio=null"]
        yield ConfigError("optimizer.warmup_ratio", optimizer.warmup_ratio, rule, way_out)
    end, warmup, decay = optimizer.schedule_steps(spec.steps), spec.warmup_steps, optimizer.wsd_decay_steps
    if optimizer.schedule == "wsd" and decay is not None and decay > end - warmup:
        rule = f"the schedule has {end} steps and warm-up takes {warmup} of them: the decay would start during warm-up"
        way_out = ["optimizer.wsd_decay_steps=null", f"optimizer.decay_steps={warmup + decay}"]
        yield ConfigError("optimizer.wsd_decay_steps", decay, rule, way_out)


def _spikes(spec: RunSpec) -> Iterator[ConfigError]:
    """A rollback needs a checkpoint from before the spike, and a worker of launch that sees both."""
    train, save = spec.train, spec.save
    if spec.script is not None and train.patience is not None:
        rule = "your script runs its own training loop, and launch does not see its evaluations"
        yield ConfigError("train.patience", train.patience, rule, ["train.patience=null"])
    if spec.script is not None and train.on_spike != "report":
        rule = "your script runs its own training loop, and launch does not watch its loss"
        yield ConfigError("train.on_spike", train.on_spike, rule, ["train.on_spike=report"])
    elif train.on_spike == "rollback" and spec.save_every is None:
        rule = "there would be no checkpoint to go back to"
        way_out = [edit.override("save.every", max(1, spec.steps // 10)), "train.on_spike=stop"]
        yield ConfigError("save.every", None, rule, way_out)
    elif train.on_spike == "rollback" and save.every is not None and save.every % train.log_every:
        rule = (
            f"the loss is checked every train.log_every={train.log_every} steps, and a checkpoint in between may "
            "already contain a spike"
        )
        up = -(-save.every // train.log_every) * train.log_every
        yield ConfigError("save.every", save.every, rule, [edit.override("save.every", up), "train.log_every=1"])


def _enforced(spec: RunSpec) -> Iterator[ConfigError]:
    if not spec.train.enforce_memory:
        return
    if spec.script is not None:
        rule = "your script runs its own training loop, and launch does not follow its memory"
        yield ConfigError("train.enforce_memory", True, rule, ["train.enforce_memory=false"])
    elif spec.rank_memory_bytes is None:
        rule = "the memory that a rank may use is not known, so there is no limit to enforce"
        way_out = ["train.enforce_memory=false", "hardware.memory_bytes=80000000000"]
        yield ConfigError("train.enforce_memory", True, rule, way_out)
    zero, on_cpu = spec.zero, spec.hardware.device == "cpu"
    if on_cpu and "cpu" in (zero.offload_parameters, zero.offload_optimizer):
        rule = "on the CPU, offloaded tensors stay in the same memory: in the budget, but not in the prediction"
        yield ConfigError("train.enforce_memory", True, rule, ["train.enforce_memory=false"])


def _profiled(spec: RunSpec) -> Iterator[ConfigError]:
    profile = spec.train.profile
    if profile is None:
        return
    asked = {"start": profile.start, "steps": profile.steps, "ranks": list(profile.ranks)}
    there = [rank for rank in profile.ranks if rank < spec.gpus] or [0]
    if spec.script is not None or spec.backend.path:
        whose = "your script" if spec.script is not None else "pretrain_gpt.py of a checkout (backend.path)"
        rule, way_out = f"{whose} runs its own training loop, and launch starts no profiler in it", "null"
    elif profile.start > spec.steps:
        rule = f"the run ends after {edit.length_text(spec)}: nothing would be recorded"
        way_out = _in_words({**asked, "start": max(1, spec.steps - profile.steps)})
    elif profile.steps > _MOST_RECORDED:
        rule = f"a trace holds every kernel of every step: record at most {_MOST_RECORDED} steps"
        way_out = _in_words({**asked, "steps": _MOST_RECORDED})
    elif there != list(profile.ranks):
        rule = f"its ranks must be ranks of the run, 0 to {spec.gpus - 1}"
        way_out = _in_words({**asked, "ranks": there})
    else:
        return
    yield ConfigError("train.profile", asked, rule, [f"train.profile={way_out}"])


def _in_words(profile: dict[str, object]) -> str:
    return "{" + ",".join(f"{key}:{value}".replace(" ", "") for key, value in profile.items()) + "}"


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield warnings about settings that never take effect in a run this short, and about work that is never saved."""
    if spec.adapter.name != "none" and spec.model.weights is None and spec.save.load is None:
        rule = f"adapter={spec.adapter.name} keeps the weights frozen, and these are random: name a checkpoint"
        yield ConfigError("model.weights", None, rule, ["model.weights=path/to/model", "adapter=none"])
    train, save, warmup = spec.train, spec.save, spec.warmup_steps
    if warmup >= spec.steps and warmup:
        rule = f"the learning rate is still rising when the run ends after {edit.length_text(spec)}"
        longer = edit.length_override(spec, warmup * 10)
        way_out = [edit.warm_up_override(spec, spec.steps // 10), *([longer] if spec.optimizer.warmup_steps else [])]
        yield ConfigError(*edit.warm_up(spec), rule, way_out)
    decay = spec.optimizer.decay_steps
    if decay is not None and spec.optimizer.schedule != "constant" and warmup >= decay:
        rule = f"the schedule ends before warm-up of {warmup} steps does: the rate falls at once"
        way_out = ["optimizer.decay_steps=null", edit.warm_up_override(spec, decay // 10)]
        yield ConfigError("optimizer.decay_steps", decay, rule, way_out)
    save_every = spec.save_every
    if train.eval_every is not None and train.eval_every > spec.steps:
        rule = f"the run ends after {edit.length_text(spec)}: it never evaluates"
        yield ConfigError("train.eval_every", train.eval_every, rule, [edit.override("train.eval_every", spec.steps)])
    if save.every is not None and save.every > spec.steps and not save.last:
        rule = f"the run ends after {edit.length_text(spec)}: it never saves"
        yield ConfigError("save.every", save.every, rule, [edit.override("save.every", spec.steps), "save.last=true"])
    if train.on_hang == "restart" and save_every is None and spec.script is None:
        rule = "nothing is saved during the run (save.every): after a hang it would start over from the beginning"
        way_out = [edit.override("save.every", max(1, spec.steps // 10)), "train.on_hang=report"]
        yield ConfigError("train.on_hang", "restart", rule, way_out)
    if save_every is None and not save.last:
        rule = "nothing is saved, neither during the run (save.every) nor at the end"
        yield ConfigError("save.last", False, rule, ["save.last=true", edit.override("save.every", spec.steps)])


def _tasks(spec: RunSpec) -> Iterator[ConfigError]:
    """Tasks of lm-evaluation-harness are evaluated on the exported model, which must generate text."""
    if not spec.eval.tasks:
        return
    if spec.script is not None:
        rule, ways = "your script exports no model to evaluate tasks on", ["eval.tasks=[]"]
    elif spec.task.name == "reward":
        rule, ways = "a reward model scores answers, but tasks need one that writes them", ["eval.tasks=[]"]
    elif spec.save.export == "none":
        rule = "tasks are evaluated on the exported model, and nothing is exported"
        ways = ["save.export=safetensors", "eval.tasks=[]"]
    elif spec.data.source == "tokens" and spec.data.tokenizer == "bytes":
        rule = "tasks ask questions as text, and the tokenizer of the token ids is not named (data.tokenizer)"
        ways = ["data.tokenizer=path/to/tokenizer", "eval.tasks=[]"]
    else:
        return
    yield ConfigError("eval.tasks", list(spec.eval.tasks), rule, ways)


def _adapter(spec: RunSpec) -> Iterator[ConfigError]:
    adapter = spec.adapter
    if adapter.name == "none":
        return
    if not adapter.targets and not adapter.parameters:
        rule = f"{adapter.name} needs at least one module to adapt"
        yield ConfigError("adapter.targets", [], rule, ["adapter.targets=[all-linear]"])
    if spec.task.name == "pretrain" and (adapter.rotates or adapter.pissa is not None):
        path = "adapter.name" if adapter.rotates else "adapter.pissa"
        ways = ["task=sft parallel=ddp", "adapter=lora adapter.pissa=null"]
        yield ConfigError(path, edit.value_at(spec, path), "peft computes it from whole weights, only under TRL", ways)
    rule = "this version trains no adapter with expert parallelism"
    yield from edit.refused(spec, "parallel.expert", rule, "adapter=none")
