"""The blocks ``optimizer`` and ``scheduler``: what DeepSpeed 0.19.8 makes of them.

The sources are ``_configure_basic_optimizer`` and ``runtime/lr_schedules.py``.
"""

from launcher.importers._reading import KeyReader
from launcher.importers._table import program

_TYPE = "optimizer.type"
_OPTIMIZERS = {**dict.fromkeys(("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam"), "adamw"), "sgd": "sgd"}
"""Those that backend=deepspeed runs; ``Adam`` is AdamW unless ``adam_w_mode`` is false (``ops/adam/fused_adam.py``)."""

[_DEFAULTS] = program("deepspeed", "optimizers")

_KIND = "scheduler.type"
_PARAMS = "scheduler.params"
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_WARMUP_STEPS = 1000
_DECAYING_LR = 0.001
_COSINE_END = 0.0001  # Defaults of the classes' arguments.


def optimizer(reading: KeyReader, key: str) -> None:
    """Say the optimizer, with its class's defaults for numbers that are not given."""
    found = reading.value(key)
    name = _OPTIMIZERS.get(str(found).lower())
    reading.choose["optimizer"] = name or "adamw"
    for param, said in _DEFAULTS[name or "adamw"].items():
        if reading.absent(f"optimizer.params.{param}"):
            reading.say(key, said)
    reading.ledger.say(key, "optimizer")
    if not reading.has("scheduler"):  # DeepSpeed then keeps the rate as it is.
        reading.say(key, {"optimizer.schedule": "constant"})
    if name is None:
        reading.ledger.leave(key, f"optimizer=adamw trains here, and {found} takes other steps")


def torch_adam(reading: KeyReader, key: str) -> None:
    """Torch's own AdamW: lists of tensors on a GPU, unless it is to be fused; offloaded it is DeepSpeed's here."""
    fused = "optimizer.params.fused"
    if not reading.flag(key):
        if reading.ledger.is_open(key):
            reading.ledger.default(key)
    elif reading.settings.get("zero.offload_optimizer") == "nvme":
        reading.idle("what is offloaded to NVMe steps by DeepSpeed's own kernel", key)
    elif not reading.absent(fused) and reading.flag(fused):
        reading.ledger.say(key, "optimizer.fused")
    else:
        reading.say(key, {"optimizer.foreach": True})


def adam_w_mode(reading: KeyReader, key: str) -> None:
    """Adam in place of AdamW is another only where weights decay."""
    decays = bool(reading.settings.get("optimizer.weight_decay"))
    if not reading.flag(key) and str(reading.value(_TYPE)).lower() != "adamw" and decays:
        reading.leave("weights decay apart from the gradients here, as in AdamW", key)
    elif reading.ledger.is_open(key):
        reading.ledger.default(key)


def of_no_optimizer(reading: KeyReader, key: str) -> None:
    """Leave out keys of another optimizer, or of none."""
    found = reading.value(_TYPE)
    if found is not None and str(found).lower() not in _OPTIMIZERS:
        reading.idle(f"it belongs to {found}, which the run is without", key)
    else:
        reading.ledger.leave(key, "only the class of an optimizer takes it, and nothing here does")


def schedule(reading: KeyReader, key: str) -> None:
    """Say the schedule; the scheduler's learning rate comes after the optimizer's."""
    found = reading.value(key)
    name = _SCHEDULES.get(found) if isinstance(found, str) else None
    if name is None:
        reading.ledger.leave(key, f"{found} has learning rates of its own: set optimizer.schedule to take others")
        reading.idle(f"it belongs to {found}, which the run is without", "scheduler")
        return
    reading.say(key, {"optimizer.schedule": name})
    if name == "cosine":
        _shares(reading)
    else:
        _rates(reading, decays=name == "linear")
    _warmup(reading)
    length = f"{_PARAMS}.total_num_steps"  # It stands for the training's; DeepSpeed itself goes on after it.
    if (steps := reading.count(length, least=1)) is not None:
        reading.say(length, {"train.steps": steps, "optimizer.decay_steps": steps})
    if reading.value(f"{_PARAMS}.last_batch_iteration") == -1:
        reading.ledger.default(f"{_PARAMS}.last_batch_iteration")


def of_no_schedule(reading: KeyReader, key: str) -> None:
    """Leave out keys that the scheduler does not take."""
    found = reading.value(_KIND) or "scheduler"
    reading.ledger.leave(key, f"only DeepSpeed's {found} takes it, and nothing here does")


def _say(reading: KeyReader, key: str, setting: str, value: object) -> None:
    """Say a number by its key, or, where DeepSpeed's default stands for it, by the kind of the schedule."""
    reading.say(_KIND if reading.absent(key) else key, {setting: value})


def _warmup(reading: KeyReader) -> None:
    """The way up: by default logarithmic over a thousand steps, and of two steps at least.

    Where the steps are left to the program that reads the file, the curve is DeepSpeed's all the same.
    """
    key, kind = f"{_PARAMS}.warmup_num_steps", f"{_PARAMS}.warmup_type"
    steps = _WARMUP_STEPS if reading.absent(key) else reading.count(key)
    if steps is not None:
        _say(reading, key, "optimizer.warmup_steps", max(2, steps) if steps else 0)
    word = reading.value(kind)
    if word is None and not reading.absent(kind):
        return
    if steps == 0:
        reading.say(kind, {})
    else:
        _say(reading, kind, "optimizer.warmup", "linear" if word == "linear" else "log")
    if word not in (None, "log", "linear"):
        effect = "no effect: DeepSpeed takes a logarithmic warm-up for any other word, and so does this"
        reading.ledger.leave(kind, effect, matters=False)


def _rates(reading: KeyReader, *, decays: bool) -> None:
    highest, lowest = f"{_PARAMS}.warmup_max_lr", f"{_PARAMS}.warmup_min_lr"
    top = _DECAYING_LR if decays and reading.absent(highest) else _rate(reading, highest)
    if top is not None:
        if reading.value("optimizer.params.lr") not in (None, top):
            effect = f"no effect: the scheduler sets the rate to {top:g}, in DeepSpeed too"
            reading.ledger.leave("optimizer.params.lr", effect, matters=False)
        _say(reading, highest, "optimizer.lr", top)
    start = _rate(reading, lowest)
    if start is not None:
        reading.say(lowest, {"optimizer.warmup_lr": start} | ({"optimizer.min_lr": start} if decays else {}))
    elif decays and reading.absent(lowest):
        reading.say(_KIND, {"optimizer.min_lr": 0.0})


def _rate(reading: KeyReader, key: str) -> float | None:
    value = reading.value(key)
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]
    if isinstance(value, list):
        reading.leave("all parameters have one learning rate here", key)
        return None
    return float(value) if type(value) in (int, float) else reading.number(key)


def _shares(reading: KeyReader) -> None:
    rate = reading.settings.get("optimizer.lr")
    for key, setting, usual in (
        (f"{_PARAMS}.warmup_min_ratio", "optimizer.warmup_lr", 0.0),
        (f"{_PARAMS}.cos_min_ratio", "optimizer.min_lr", _COSINE_END),
    ):
        share = usual if reading.absent(key) else reading.number(key)
        if share is None:
            continue
        if rate is not None:
            _say(reading, key, setting, float(f"{share * rate:.12g}"))
        elif share == 0:
            reading.ledger.default(key)
        else:
            reading.leave(f"it is a share of a learning rate that the file leaves open: set {setting}", key)
