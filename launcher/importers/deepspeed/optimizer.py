"""The blocks ``optimizer`` and ``scheduler``: what DeepSpeed 0.19.8 makes of them.

The sources are ``_configure_basic_optimizer`` and ``runtime/lr_schedules.py``.
"""

from collections.abc import Mapping

from launcher.importers._table import table
from launcher.importers.deepspeed.reading import Reading

BLOCK = "optimizer"
_TYPE = f"{BLOCK}.type"
_OPTIMIZERS = {**dict.fromkeys(("adam", "adamw", "fusedadam", "cpuadam", "deepspeedcpuadam"), "adamw"), "sgd": "sgd"}
"""Those that backend=deepspeed runs; ``Adam`` is AdamW unless ``adam_w_mode`` is false (``ops/adam/fused_adam.py``)."""

_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "adamw": {"lr": 1e-3, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "sgd": {"lr": 1e-3, "weight_decay": 0.0, "beta1": 0.0},
}
"""What the classes take for what the file does not say (``ops/adam``, ``torch.optim``)."""

_USUAL: Mapping[str, object] = table("deepspeed")["optimizer_usual"]
_EFFECTS: Mapping[str, str] = table("deepspeed")["optimizer_effects"]
_OF_KERNELS = ("set_grad_none", "capturable", "differentiable", "cuda_aware", "comm_backend_name")
"""Arguments that decide how the step is computed or sent, not what it is."""

SCHEDULER = "scheduler"
_KIND = f"{SCHEDULER}.type"
_PARAMS = f"{SCHEDULER}.params"
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_WARMUP_STEPS = 1000
_DECAYING_LR = 0.001
_COSINE_END = 0.0001  # Defaults of the classes' arguments.


def settings() -> dict[str, str]:
    """Keys of the block and the settings that decide in their place."""
    keys = {"lr": "lr", "weight_decay": "weight_decay", "eps": "epsilon", "betas": "beta1", "momentum": "beta1"}
    return {_TYPE: BLOCK} | {f"{BLOCK}.params.{key}": f"{BLOCK}.{name}" for key, name in keys.items()}


def read(reading: Reading) -> None:
    """Say the optimizer and its numbers, with its class's defaults for those that are not given."""
    reading.require_block(BLOCK, '"type": "AdamW"')
    reading.ledger.default(BLOCK)
    found = reading.value(_TYPE)
    name = _OPTIMIZERS.get(str(found).lower())
    if found is not None:
        reading.choose[BLOCK] = name or "adamw"
        _defaults(reading, name or "adamw")
        reading.ledger.say(_TYPE, BLOCK)
        if not reading.has("scheduler"):  # DeepSpeed then keeps the rate as it is.
            reading.say(_TYPE, {"optimizer.schedule": "constant"})
    if found is not None and name is None:
        reading.ledger.leave(_TYPE, f"optimizer=adamw trains here, and {found} takes other steps")
    _numbers(reading, name or "adamw")
    _variants(reading, str(found).lower())
    reading.idle("of how the step is computed", f"{BLOCK}.legacy_fusion")
    if found is not None and name is None:
        reading.idle(f"it belongs to {found}, which the run is without", BLOCK)
    reading.leave("only the class of an optimizer takes it, and nothing here does", BLOCK)


def _defaults(reading: Reading, name: str) -> None:
    keys = {"lr": "lr", "weight_decay": "weight_decay", "beta1": "betas", "beta2": "betas", "epsilon": "eps"}
    if name == "sgd":
        keys["beta1"] = "momentum"
    for setting, number in _DEFAULTS.get(name, {}).items():
        if reading.absent(f"{BLOCK}.params.{keys[setting]}"):
            reading.say(_TYPE, {f"{BLOCK}.{setting}": number})


def _numbers(reading: Reading, name: str) -> None:
    names = {"lr": "lr", "weight_decay": "weight_decay", "eps": "epsilon"}
    if name == "sgd":
        names["momentum"] = "beta1"
    for key, setting in names.items():
        reading.say_number(f"{BLOCK}.params.{key}", f"{BLOCK}.{setting}")
    path = f"{BLOCK}.params.betas"
    betas = reading.value(path)
    if betas is None:
        return
    if isinstance(betas, list) and len(betas) == 2 and all(type(beta) in (int, float) for beta in betas):
        reading.say(path, {f"{BLOCK}.beta1": betas[0], f"{BLOCK}.beta2": betas[1]})
    else:
        reading.wrong(path, "is a list of two numbers in ds_config.json", ['"betas": [0.9, 0.999]'])


def _variants(reading: Reading, found: str) -> None:
    params = f"{BLOCK}.params"
    _torch(reading, f"{params}.torch_adam")
    decays = bool(reading.settings.get("optimizer.weight_decay"))
    plain = not reading.absent(f"{params}.adam_w_mode") and not reading.flag(f"{params}.adam_w_mode")
    if plain and found != "adamw" and decays:
        reading.leave("weights decay apart from the gradients here, as in AdamW", f"{params}.adam_w_mode")
    elif reading.ledger.is_open(f"{params}.adam_w_mode"):
        reading.ledger.default(f"{params}.adam_w_mode")
    for key, usual in _USUAL.items():
        if reading.value(f"{params}.{key}") == usual:
            reading.ledger.default(f"{params}.{key}")
    for key, effect in _EFFECTS.items():
        reading.leave(effect, f"{params}.{key}")
    reading.idle("of how the step is computed", *(f"{params}.{key}" for key in _OF_KERNELS))
    for key in ("fused", "foreach"):
        reading.say_flag(f"{params}.{key}", f"{BLOCK}.{key}")


def _torch(reading: Reading, key: str) -> None:
    """Torch's own AdamW: lists of tensors on a GPU, unless it is to be fused; offloaded it is DeepSpeed's here."""
    fused = f"{BLOCK}.params.fused"
    if not reading.flag(key):
        if reading.ledger.is_open(key):
            reading.ledger.default(key)
    elif reading.settings.get("zero.offload_optimizer") == "nvme":
        reading.idle("what is offloaded to NVMe steps by DeepSpeed's own kernel", key)
    elif not reading.absent(fused) and reading.flag(fused):
        reading.ledger.say(key, "optimizer.fused")
    else:
        reading.say(key, {"optimizer.foreach": True})


def scheduler_settings() -> dict[str, str]:
    """Keys of the block and the settings that decide in their place."""
    keys = {
        "warmup_min_lr": "warmup_lr", "warmup_min_ratio": "warmup_lr", "warmup_max_lr": "lr",
        "warmup_num_steps": "warmup_steps", "warmup_type": "warmup", "total_num_steps": "decay_steps",
        "cos_min_ratio": "min_lr",
    }  # fmt: skip
    return {_KIND: "optimizer.schedule"} | {f"{_PARAMS}.{key}": f"optimizer.{name}" for key, name in keys.items()}


def read_scheduler(reading: Reading) -> None:
    """Say the schedule; the scheduler's learning rate comes after the optimizer's."""
    reading.require_block(SCHEDULER, '"type": "WarmupLR"')
    reading.ledger.default(SCHEDULER)
    found = reading.value(_KIND)
    schedule = _SCHEDULES.get(found) if isinstance(found, str) else None
    if schedule is not None:
        reading.say(_KIND, {"optimizer.schedule": schedule})
        _rates(reading, str(found))
        _warmup(reading)
        _length(reading)
        if reading.value(f"{_PARAMS}.last_batch_iteration") == -1:
            reading.ledger.default(f"{_PARAMS}.last_batch_iteration")
    if found is not None and schedule is None:
        reading.leave(f"{found} has learning rates of its own: set optimizer.schedule to take others", _KIND)
        reading.idle(f"it belongs to {found}, which the run is without", SCHEDULER)
    reading.leave(f"only DeepSpeed's {found or 'scheduler'} takes it, and nothing here does", SCHEDULER)


def _warmup(reading: Reading) -> None:
    """The way up: by default logarithmic over a thousand steps, and of two steps at least.

    Where the steps are left to the program that reads the file, the curve is DeepSpeed's all the same.
    """
    key, kind = f"{_PARAMS}.warmup_num_steps", f"{_PARAMS}.warmup_type"
    steps = _WARMUP_STEPS if reading.absent(key) else reading.count(key)
    if steps is not None:
        reading.say(_KIND if reading.absent(key) else key, {"optimizer.warmup_steps": max(2, steps) if steps else 0})
    if not reading.absent(kind) and reading.value(kind) is None:
        return
    by = "linear" if reading.value(kind) == "linear" else "log"
    reading.say(_KIND if reading.absent(kind) else kind, {} if steps == 0 else {"optimizer.warmup": by})
    if reading.value(kind) not in (None, "log", "linear"):
        effect = "no effect: DeepSpeed takes a logarithmic warm-up for any other word, and so does this"
        reading.ledger.leave(kind, effect, matters=False)


def _rates(reading: Reading, kind: str) -> None:
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
        reading.say(_KIND, {"optimizer.lr": _DECAYING_LR})
    start = _rate(reading, lowest)
    if start is not None:
        ends = {"optimizer.min_lr": start} if kind == "WarmupDecayLR" else {}
        reading.say(lowest, {"optimizer.warmup_lr": start, **ends})
    elif reading.absent(lowest) and kind == "WarmupDecayLR":
        reading.say(_KIND, {"optimizer.min_lr": 0.0})


def _overruled(reading: Reading, rate: float) -> None:
    """The optimizer's own learning rate, which the scheduler replaces before the first step."""
    key = "optimizer.params.lr"
    if reading.value(key) not in (None, rate):
        effect = f"no effect: the scheduler sets the rate to {rate:g}, in DeepSpeed too"
        reading.ledger.leave(key, effect, matters=False)


def _rate(reading: Reading, key: str) -> float | None:
    value = reading.value(key)
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]
    if isinstance(value, list):
        reading.leave("all parameters have one learning rate here", key)
        return None
    return float(value) if type(value) in (int, float) else reading.number(key)


def _shares(reading: Reading) -> None:
    rate = reading.settings.get("optimizer.lr")
    for key, setting, usual in (
        (f"{_PARAMS}.warmup_min_ratio", "optimizer.warmup_lr", 0.0),
        (f"{_PARAMS}.cos_min_ratio", "optimizer.min_lr", _COSINE_END),
    ):
        share = usual if reading.absent(key) else reading.number(key)
        if share is None:
            continue
        if rate is not None:
            reading.say(_KIND if reading.absent(key) else key, {setting: float(f"{share * rate:.12g}")})
        elif share == 0:
            reading.ledger.default(key)
        else:
            reading.leave(f"it is a share of a learning rate that the file leaves open: set {setting}", key)


def _length(reading: Reading) -> None:
    """Say the steps of the schedule, which stand for the training's; DeepSpeed itself goes on after them."""
    key = f"{_PARAMS}.total_num_steps"
    if (steps := reading.count(key, least=1)) is not None:
        reading.say(key, {"train.steps": steps, "optimizer.decay_steps": steps})
