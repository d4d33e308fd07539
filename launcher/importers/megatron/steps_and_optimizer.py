"""Batches, steps, optimizer and schedule of a Megatron-LM argument list.

Megatron-LM counts in steps or in samples, and Megatron-DeepSpeed in tokens as well: here all are optimizer steps.
"""

from launcher.config.ledger import Settings
from launcher.importers.megatron.reader import ArgumentReader, first

_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "lion": "lion", "muon": "muon", "dist_muon": "muon", "sgd": "sgd"}
_SCHEDULES = {
    **{name: name for name in ("constant", "linear", "cosine")},
    "inverse-square-root": "inverse_sqrt",
    "WSD": "wsd",
}
"""Megatron-LM's names of schedules, and ours."""
_DECAYS = ("exponential", "linear", "cosine", "minus_sqrt")  # Shapes of WSD's decay; the first is the default.
_LENGTHS = ("seq-length", "encoder-seq-length")


def batches(reader: ArgumentReader) -> Settings:
    """Return the sizes of batches, and the steps between logs and evaluations."""
    old = reader.count("batch-size", "train.micro_batch_size")
    micro = reader.count("micro-batch-size", "train.micro_batch_size", default=old)
    if old is not None:
        reader.note("--batch-size is of an earlier Megatron-LM, the micro-batch of a rank")
    return {
        "train.sequence_length": first([reader.count(name, "train.sequence_length") for name in _LENGTHS]),
        "train.micro_batch_size": micro,
        "train.global_batch_size": reader.count("global-batch-size", "train.global_batch_size"),
        "train.seed": reader.count("seed", "train.seed", default=1234),
        "train.log_every": reader.count("log-interval", "train.log_every"),
        **_evaluation(reader),
        **_loss(reader),
        "train.timeout_s": 60 * reader.count("distributed-timeout-minutes", "train.timeout_s", default=10),
    }


def _evaluation(reader: ArgumentReader) -> Settings:
    """Megatron-LM wants an interval even where, with ``--eval-iters 0``, nothing is evaluated."""
    every = reader.count("eval-interval", "train.eval_every")
    steps = reader.count("eval-iters", "train.eval_steps")
    if steps == 0 or every is None:
        reader.idle("on training; nothing is evaluated, there or here", "eval-interval", "eval-iters")
        return {}
    return {"train.eval_every": every, "train.eval_steps": 100 if steps is None else steps}


def _loss(reader: ArgumentReader) -> Settings:
    """Return the kernel of the loss; ``validate_args`` refuses Transformer Engine's."""
    fused = reader.switch("cross-entropy-loss-fusion", "train.loss")
    if reader.word("cross-entropy-fusion-impl", "train.loss") == "te" and fused:
        reader.leave("cross-entropy-fusion-impl", "memory: the fused loss is Megatron-LM's own kernel here")
    return {"train.loss": "fused"} if fused else {}


def steps(reader: ArgumentReader, found: Settings) -> Settings:
    """Return the steps of the run, of the schedule and of warm-up, from the batches that were found."""
    whole = _counted(reader, "train", "iters", found, "train.steps")
    done = _left_early(reader, whole)
    decay = _counted(reader, "lr-decay", "iters", found, "optimizer.decay_steps") or whole
    if done is None:
        reader.note("neither --train-iters nor --train-samples: set train.steps")
    return {
        "train.steps": done,
        "optimizer.decay_steps": decay if decay != done else None,
        "optimizer.warmup_steps": _warmup(reader, found, decay),
    }


def _counted(reader: ArgumentReader, start: str, unit: str, found: Settings, key: str) -> int | None:
    given = reader.count(f"{start}-{unit}", key)
    batch, length = found["train.global_batch_size"], found["train.sequence_length"]
    for name, size in ((f"{start}-samples", batch), (f"{start}-tokens", batch and length and batch * length)):
        total = reader.number(name, key)
        if not total or given is not None:
            continue
        if not size:
            reader.leave(name, f"it is no number of steps without --global-batch-size: set {key}")
            continue
        given = max(1, int(total // size))
    return None if given is None else int(given)


def _left_early(reader: ArgumentReader, whole: int | None) -> int | None:
    """``--exit-interval`` ends the program at its first multiple, while the schedule is of the whole run."""
    early = reader.count("exit-interval", "train.steps")
    if not early or early < 1 or (whole is not None and early >= whole):
        reader.ledger.default(reader.key("exit-interval"))
        return whole
    reader.note(f"--exit-interval {early} ends the run there; the schedule is of the whole of it")
    return int(early)


def _warmup(reader: ArgumentReader, found: Settings, decay: int | None) -> int | None:
    key = "optimizer.warmup_steps"
    old = reader.number("warmup", key)  # Its name before it could be a number of steps.
    fraction = reader.number("lr-warmup-fraction", key, default=old)
    given = _counted(reader, "lr-warmup", "iters", found, key)
    return int(fraction * decay) if not given and fraction and decay else given


def optimizer(reader: ArgumentReader, sizes: Settings) -> tuple[dict[str, str], Settings]:
    """The optimizer and its schedule: the group that is chosen, and settings."""
    name = reader.word("optimizer", "optimizer", default="adam")
    if name not in _OPTIMIZERS:
        reader.leave("optimizer", "memory and maths: adamw here")
    elif name == "dist_muon":
        reader.note("--optimizer dist_muon: muon with the distributed optimizer, as in Megatron-LM")
    weight_decay = reader.number("weight-decay", "optimizer.weight_decay", default=0.01)
    found = {
        "optimizer.lr": reader.number("lr", "optimizer.lr"),
        "optimizer.min_lr": reader.number("min-lr", "optimizer.min_lr"),
        "optimizer.weight_decay": weight_decay,
        **_momenta(reader, name),
        "optimizer.clip": reader.number("clip-grad", "optimizer.clip", default=1.0),
        "optimizer.warmup_lr": reader.number("lr-warmup-init", "optimizer.warmup_lr") or None,
        **_schedule(reader, sizes),
    }
    if reader.switches(
        ("optimizer-cpu-offload", "cpu-optimizer"), "zero.offload_optimizer"
    ):  # Or Megatron-DeepSpeed's.
        found["zero.offload_optimizer"] = "cpu"
    return {"optimizer": _OPTIMIZERS.get(name, "adamw")}, found


def _momenta(reader: ArgumentReader, name: str) -> Settings:
    first, second, epsilon = "optimizer.beta1", "optimizer.beta2", "optimizer.epsilon"
    of = {"sgd": (("sgd-momentum", first, 0.9),), "lion": (("lion-beta1", first, 0.95), ("lion-beta2", second, 0.98))}
    adam = (("adam-beta1", first, 0.9), ("adam-beta2", second, 0.999), ("adam-eps", epsilon, 1e-8))
    chosen = of.get(name, adam)
    found = {key: reader.number(argument, key, default=default) for argument, key, default in chosen}
    idle = [argument for others in (*of.values(), adam) if others != chosen for argument, _, _ in others]
    reader.idle(f"the optimizer is {name}", *idle)
    return found


def _schedule(reader: ArgumentReader, found: Settings) -> Settings:
    style = reader.word("lr-decay-style", "optimizer.schedule", default="linear")
    if style not in _SCHEDULES:
        reader.wrong("lr-decay-style", style, f"is one of {', '.join(_SCHEDULES)}")
    if style == "WSD":
        return {"optimizer.schedule": "wsd", **_decay(reader, found)}
    reader.idle("it is of --lr-decay-style WSD", "lr-wsd-decay-style", "lr-wsd-decay-iters", "lr-wsd-decay-samples")
    return {"optimizer.schedule": _SCHEDULES.get(style)}


def _decay(reader: ArgumentReader, found: Settings) -> Settings:
    shape = reader.word("lr-wsd-decay-style", "optimizer.wsd_decay", default=_DECAYS[0])
    if shape not in _DECAYS:
        reader.wrong("lr-wsd-decay-style", shape, f"is one of {', '.join(_DECAYS)}")
    key = "optimizer.wsd_decay_steps"
    return {"optimizer.wsd_decay": shape, key: _counted(reader, "lr-wsd-decay", "iters", found, key)}
