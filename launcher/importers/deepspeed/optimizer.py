"""The block ``optimizer``: what DeepSpeed makes of it (``_configure_basic_optimizer`` of 0.19.8)."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.importers.deepspeed.reading import Reading

BLOCK = "optimizer"
_TYPE = f"{BLOCK}.type"

_OPTIMIZERS = {
    "adam": "adamw",
    "adamw": "adamw",
    "fusedadam": "adamw",
    "cpuadam": "adamw",
    "deepspeedcpuadam": "adamw",
    "sgd": "sgd",
}
"""Those that backend=deepspeed runs; ``Adam`` is AdamW unless ``adam_w_mode`` is false (``ops/adam/fused_adam.py``)."""

_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "adamw": {"lr": 1e-3, "weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "sgd": {"lr": 1e-3, "weight_decay": 0.0, "beta1": 0.0},
}
"""What the classes take for what the file does not say (``ops/adam``, ``torch.optim``)."""

_USUAL: Mapping[str, object] = {
    "bias_correction": True,
    "amsgrad": False,
    "nesterov": False,
    "dampening": 0,
    "maximize": False,
    "eps_inside_sqrt": False,
    "fp32_optimizer_states": True,
}
_EFFECTS: Mapping[str, str] = {
    "bias_correction": "the moments are corrected for their start at 0 here",
    "amsgrad": "the step divides by the second moment here, not by its largest value so far",
    "nesterov": "the momentum is the plain one here, not Nesterov's",
    "dampening": "gradients enter the momentum whole here",
    "maximize": "the loss is minimised here",
    "eps_inside_sqrt": "epsilon is added to the root here, not below it",
    "fp32_optimizer_states": "optimizer states that are offloaded are fp32 here",
    "max_grad_norm": "DeepSpeed refuses it here and clips by gradient_clipping, which is optimizer.clip",
}
_OF_KERNELS = ("set_grad_none", "capturable", "differentiable", "cuda_aware", "comm_backend_name")
"""Arguments that decide how the step is computed or sent, not what it is."""


def settings() -> dict[str, str]:
    """Keys of the block and the settings that decide in their place."""
    keys = {"lr": "lr", "weight_decay": "weight_decay", "eps": "epsilon", "betas": "beta1", "momentum": "beta1"}
    return {_TYPE: BLOCK} | {f"{BLOCK}.params.{key}": f"{BLOCK}.{name}" for key, name in keys.items()}


def read(reading: Reading) -> None:
    """Say the optimizer, its numbers, and those that its class has for what is not said."""
    if reading.value(BLOCK) not in (None, {}):
        reading.wrong(BLOCK, "is a block of keys in ds_config.json", [f'"{BLOCK}": {{"type": "AdamW"}}'])
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
    reading.idle(reading.inside(f"{BLOCK}.legacy_fusion"), "of how the step is computed")
    if found is not None and name is None:
        reading.idle(reading.inside(BLOCK), f"it belongs to {found}, which the run is without")
    reading.leave(reading.inside(BLOCK), "only the class of an optimizer takes it, and nothing here does")


def _defaults(reading: Reading, name: str) -> None:
    """Numbers that the file leaves to the optimizer's class; ``auto`` leaves them to the program."""
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
        path = f"{BLOCK}.params.{key}"
        if (number := reading.number(path)) is not None:
            reading.say(path, {f"{BLOCK}.{setting}": number})
    path = f"{BLOCK}.params.betas"
    betas = reading.value(path)
    if betas is None:
        return
    if isinstance(betas, list) and len(betas) == 2 and all(type(beta) in (int, float) for beta in betas):
        reading.say(path, {f"{BLOCK}.beta1": betas[0], f"{BLOCK}.beta2": betas[1]})
    else:
        reading.wrong(path, "is a list of two numbers in ds_config.json", ['"betas": [0.9, 0.999]'])


def _variants(reading: Reading, found: str) -> None:
    """Switches of the kernels and of the maths."""
    params = f"{BLOCK}.params"
    _torch(reading, f"{params}.torch_adam")
    decays = bool(reading.settings.get("optimizer.weight_decay"))
    plain = not reading.absent(f"{params}.adam_w_mode") and not reading.flag(f"{params}.adam_w_mode")
    if plain and found != "adamw" and decays:
        reading.leave([f"{params}.adam_w_mode"], "weights decay apart from the gradients here, as in AdamW")
    elif reading.ledger.is_open(f"{params}.adam_w_mode"):
        reading.ledger.default(f"{params}.adam_w_mode")
    for key, usual in _USUAL.items():
        if reading.value(f"{params}.{key}") == usual:
            reading.ledger.default(f"{params}.{key}")
    for key, effect in _EFFECTS.items():
        reading.leave(reading.inside(f"{params}.{key}"), effect)
    reading.idle(reading.inside(*(f"{params}.{key}" for key in _OF_KERNELS)), "of how the step is computed")
    for key in ("fused", "foreach"):
        if reading.value(f"{params}.{key}") is not None:
            reading.say(f"{params}.{key}", {f"{BLOCK}.{key}": reading.flag(f"{params}.{key}")})


def _torch(reading: Reading, key: str) -> None:
    """Torch's own AdamW: lists of tensors on a GPU, unless it is to be fused; offloaded it is DeepSpeed's here."""
    fused = f"{BLOCK}.params.fused"
    if not reading.flag(key):
        if reading.ledger.is_open(key):
            reading.ledger.default(key)
    elif reading.settings.get("zero.offload_optimizer") == "nvme":
        reading.idle([key], "what is offloaded to NVMe steps by DeepSpeed's own kernel")
    elif not reading.absent(fused) and reading.flag(fused):
        reading.ledger.say(key, "optimizer.fused")
    else:
        reading.say(key, {"optimizer.foreach": True})
