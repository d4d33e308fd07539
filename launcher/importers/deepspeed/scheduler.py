"""The block ``scheduler``: DeepSpeed's own learning rates (``runtime/lr_schedules.py`` of 0.19.8)."""

from __future__ import annotations

from launcher.importers.deepspeed.reading import Reading

BLOCK = "scheduler"
_TYPE = f"{BLOCK}.type"
_PARAMS = f"{BLOCK}.params"
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_WARMUP_STEPS = 1000
_DECAYING_LR = 0.001
_COSINE_END = 0.0001
"""Defaults of the classes' arguments."""


def settings() -> dict[str, str]:
    """Keys of the block and the settings that decide in their place."""
    keys = {
        "warmup_min_lr": "warmup_lr",
        "warmup_min_ratio": "warmup_lr",
        "warmup_max_lr": "lr",
        "warmup_num_steps": "warmup_steps",
        "warmup_type": "warmup",
        "total_num_steps": "decay_steps",
        "cos_min_ratio": "min_lr",
    }
    return {_TYPE: "optimizer.schedule"} | {f"{_PARAMS}.{key}": f"optimizer.{name}" for key, name in keys.items()}


def read(reading: Reading) -> None:
    """Say the schedule; the scheduler's learning rate comes after the optimizer's."""
    if reading.value(BLOCK) not in (None, {}):
        reading.wrong(BLOCK, "is a block of keys in ds_config.json", [f'"{BLOCK}": {{"type": "WarmupLR"}}'])
    reading.ledger.default(BLOCK)
    found = reading.value(_TYPE)
    schedule = _SCHEDULES.get(found) if isinstance(found, str) else None
    if schedule is not None:
        reading.say(_TYPE, {"optimizer.schedule": schedule})
        _rates(reading, str(found))
        _warmup(reading)
        _length(reading)
        if reading.value(f"{_PARAMS}.last_batch_iteration") == -1:
            reading.ledger.default(f"{_PARAMS}.last_batch_iteration")
    if found is not None and schedule is None:
        reading.leave([_TYPE], f"{found} has learning rates of its own: set optimizer.schedule to take others")
        reading.idle(reading.inside(BLOCK), f"it belongs to {found}, which the run is without")
    reading.leave(reading.inside(BLOCK), f"only DeepSpeed's {found or 'scheduler'} takes it, and nothing here does")


def _warmup(reading: Reading) -> None:
    """The way up: by default logarithmic over a thousand steps, and of two steps at least.

    Where the steps are left to the program that reads the file, the curve is DeepSpeed's all the same.
    """
    key, kind = f"{_PARAMS}.warmup_num_steps", f"{_PARAMS}.warmup_type"
    steps = _WARMUP_STEPS if reading.absent(key) else reading.count(key)
    if steps is not None:
        reading.say(_TYPE if reading.absent(key) else key, {"optimizer.warmup_steps": max(2, steps) if steps else 0})
    if not reading.absent(kind) and reading.value(kind) is None:
        return
    by = "linear" if reading.value(kind) == "linear" else "log"
    reading.say(_TYPE if reading.absent(kind) else kind, {} if steps == 0 else {"optimizer.warmup": by})
    if reading.value(kind) not in (None, "log", "linear"):
        effect = "no effect: DeepSpeed takes a logarithmic warm-up for any other word, and so does this"
        reading.ledger.leave(kind, effect, matters=False)


def _rates(reading: Reading, kind: str) -> None:
    """Where the warm-up starts and ends, and where the decay ends."""
    if kind == "WarmupCosineLR":
        _shares(reading)
        return
    highest, lowest = f"{_PARAMS}.warmup_max_lr", f"{_PARAMS}.warmup_min_lr"
    top = _rate(reading, highest)
    if top is not None:
        _overruled(reading, top)
        reading.say(highest, {"optimizer.lr": top})
    elif reading.absent(highest) and kind == "WarmupDecayLR":
        _overruled(reading, _DECAYING_LR)
        reading.say(_TYPE, {"optimizer.lr": _DECAYING_LR})
    start = _rate(reading, lowest)
    if start is not None:
        ends = {"optimizer.min_lr": start} if kind == "WarmupDecayLR" else {}
        reading.say(lowest, {"optimizer.warmup_lr": start, **ends})
    elif reading.absent(lowest) and kind == "WarmupDecayLR":
        reading.say(_TYPE, {"optimizer.min_lr": 0.0})


def _overruled(reading: Reading, rate: float) -> None:
    """The optimizer's own learning rate, which the scheduler replaces before the first step."""
    key = "optimizer.params.lr"
    if reading.value(key) not in (None, rate):
        reading.ledger.leave(
            key, f"no effect: the scheduler sets the rate to {rate:g}, in DeepSpeed too", matters=False
        )


def _rate(reading: Reading, key: str) -> float | None:
    """A learning rate, of which a list holds one for each group of parameters."""
    value = reading.value(key)
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]
    if isinstance(value, list):
        reading.leave([key], "all parameters have one learning rate here")
        return None
    return float(value) if type(value) in (int, float) else reading.number(key)


def _shares(reading: Reading) -> None:
    """The ends of WarmupCosineLR, which are shares of the optimizer's learning rate."""
    rate = reading.settings.get("optimizer.lr")
    for key, setting, usual in (
        (f"{_PARAMS}.warmup_min_ratio", "optimizer.warmup_lr", 0.0),
        (f"{_PARAMS}.cos_min_ratio", "optimizer.min_lr", _COSINE_END),
    ):
        share = usual if reading.absent(key) else reading.number(key)
        if share is None:
            continue
        if rate is not None:
            reading.say(_TYPE if reading.absent(key) else key, {setting: float(f"{share * rate:.12g}")})
        elif share == 0:
            reading.ledger.default(key)
        else:
            reading.leave([key], f"it is a share of a learning rate that the file leaves open: set {setting}")


def _length(reading: Reading) -> None:
    """The steps of the schedule, which their author meant to be those of the training; DeepSpeed itself goes on."""
    key = f"{_PARAMS}.total_num_steps"
    if (steps := reading.count(key, least=1)) is not None:
        reading.say(key, {"train.steps": steps, "optimizer.decay_steps": steps})
