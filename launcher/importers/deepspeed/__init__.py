"""DeepSpeed's ``ds_config.json``: keys and defaults of DeepSpeed 0.19.8 (``runtime/config.py``), and older spellings.

Where DeepSpeed repairs or ignores a setting, so does this, and the key is left out with that reason. What a block does
not say is what its class in DeepSpeed has by default. ``"auto"`` is filled in by the program that reads the file, so
that its value is not there, and the setting of the same meaning decides. ``gradient_clipping`` is 1.0 where it is
absent, as it is here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from launcher.config.ledger import OPEN, leaves, word_in
from launcher.importers import Imported, Ledger
from launcher.importers._reading import KeyReader
from launcher.importers._table import apply, choose, program, rows, under
from launcher.importers.deepspeed import optimizer
from launcher.importers.deepspeed.reading import content_of
from launcher.spec import bounds

_AUTO = "auto"  # The word for what the program that reads the file fills in.
_COUNTED = 1000  # From here on a whole number that is written as 1e3 is a count.
_TOTAL, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_BATCH = {_TOTAL: "train.global_batch_size", _MICRO: "train.micro_batch_size", _STEPS: "train.gradient_accumulation"}
_BLOCK = "zero_optimization"
_STAGE = f"{_BLOCK}.stage"
_PARAMETERS = (f"{_BLOCK}.offload_param", f"{_BLOCK}.cpu_offload_param", f"{_BLOCK}.cpu_offload_params")
_OFFLOAD = {"offload_optimizer": "zero.offload_optimizer", "offload_param": "zero.offload_parameters"}
_NVME = ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pipeline_read", "pipeline_write")
_FORMATS = {
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
}
_SCALE_POWER, _SCALE_WINDOW = 16, 1000  # DeepSpeed's defaults (``runtime/precision_config.py``).

_IDLE, _ABSENT = program("deepspeed", "idle absent")
"""Blocks without effect on a run here, and features that it does not have, each with the reason."""

_BY_PARTS = ("compression_training", "data_efficiency")  # Features whose parts have switches of their own.


def read(text: str, path: str) -> Imported:
    """Read a ``ds_config.json``; ``path`` is for messages; raises ConfigErrors where the text is none."""
    reading = read_keys(leaves(content_of(text, path)), path)
    return reading.ledger.imported(
        summary=f"DeepSpeed {reading.choose['parallel'].replace('zero', 'ZeRO-')}",
        source="a ds_config.json",
        choose=reading.choose,
        settings=reading.settings,
        not_understood=reading.notes,
        errors=reading.errors,
    )


def read_keys(values: Mapping[str, Any], path: str) -> KeyReader:
    """Read the keys of a ``ds_config.json``, by their dotted paths."""
    reading = KeyReader(path=path, file="ds_config.json", open_words=(_AUTO, OPEN), ledger=Ledger(values))
    heads = {key.partition(".")[0] for row in TABLE for key in row.keys} | _IDLE.keys() | _ABSENT.keys()
    content = dict.fromkeys(key.partition(".")[0] for key in values)
    if content and heads.isdisjoint(content):
        first = next(iter(content))
        reading.wrong(next(iter(values)), f"DeepSpeed reads no key of this file, the first is {first}")
    _open(reading)
    stage = _zero(reading)
    _precision(reading)
    if stage == 0 and reading.choose.get("precision") == "fp16":
        rule = "DeepSpeed 0.19.8 divides gradients by a loss scale that it never multiplied in"
        reading.notes.append(f"fp16 without ZeRO is refused here, since {rule}: add zero=1 or precision=bf16")
    _batch(reading)
    reading.require_block("optimizer", '"type": "AdamW"')
    reading.require_block("scheduler", '"type": "WarmupLR"')
    apply(TABLE, reading)
    for setting in ("zero.hpz", "parallel.tensor"):  # DeepSpeed takes 0 for 1.
        if reading.settings.get(setting) == 0:
            reading.settings[setting] = 1
    _features(reading)
    unread = (key for key in content if key not in heads)
    reading.idle("DeepSpeed reads no such key; a program of its own may", *unread)
    return reading


def _open(reading: KeyReader) -> None:
    deciding = {key: row.ours.partition(", ")[0] for row in TABLE for key in row.keys if row.ours}
    for key, value in reading.ledger.values.items():
        setting = deciding.get(key)
        if value == _AUTO:
            ends = f"; {setting} decides here" if setting else ""
            reading.idle(f"the file leaves it to the program that reads it{ends}", key)
        elif value == OPEN:
            reading.ledger.leave(key, "the file leaves it open" + (f": set {setting}" if setting else ""))
        elif value in (None, {}):
            reading.ledger.default(key)


def _batch(reading: KeyReader) -> None:
    """Say the batch as ``_set_batch_related_parameters`` derives it."""
    found = {key: reading.count(key, least=1) for key in _BATCH}
    for key, number in found.items():
        if number is not None:
            reading.say(key, {_BATCH[key]: number})
    left_open = {key for key in _BATCH if not reading.absent(key) and reading.value(key) is None}
    if found[_TOTAL] is None or found[_MICRO] is not None or _MICRO in left_open:
        return
    steps = found[_STEPS] or (1 if _STEPS not in left_open else None)
    if steps is not None:
        reading.say(_TOTAL, {_BATCH[_TOTAL]: found[_TOTAL], _BATCH[_MICRO]: None, _BATCH[_STEPS]: steps})


def _hand_on(reading: KeyReader, key: str) -> None:
    """Hand a key on to DeepSpeed."""
    value = reading.value(key)
    if isinstance(value, float) and value.is_integer() and value >= _COUNTED:
        value = int(value)  # JSON's 2e8 is a count of elements.
    reading.settings[f"backend.extra.{key}"] = value
    reading.ledger.keep(key)


# The block ``zero_optimization``.


def _zero(reading: KeyReader) -> int:
    """Choose the stage, and leave out what DeepSpeed does not read at it; the stage."""
    stage = _stage(reading)
    reading.choose["parallel"] = f"zero{stage}"
    if stage == 0:
        device = f"{_BLOCK}.offload_optimizer.device"
        if reading.value(device) not in (None, "none"):
            reading.leave("optimizer states stay on the GPU here without ZeRO: set zero.stage", device)
        reading.idle("without ZeRO DeepSpeed reads nothing else of the block", _BLOCK)
    elif stage < 3:
        reading.idle(f"DeepSpeed offloads parameters at stage 3 alone, not at {stage}", *_PARAMETERS)
        of_stage_3 = [key for row in _OF_STAGE_3 for key in row.keys]
        reading.idle(f"DeepSpeed reads it at stage 3 alone, and this is stage {stage}", *of_stage_3)
    return stage


def _stage(reading: KeyReader) -> int:
    """The stage; the block was a switch once (``read_zero_config_deprecated``)."""
    if isinstance(reading.value(_BLOCK), bool):
        stage = int(reading.value(_BLOCK))
        reading.ledger.say(_BLOCK, "parallel")
        if stage:
            reading.say_count("allgather_size", "zero.allgather_bucket_size")
        return stage
    reading.require_block(_BLOCK, '"stage": 2')
    reading.ledger.say(_BLOCK, "parallel")
    if reading.absent(_STAGE):
        return 0
    found = str(reading.value(_STAGE)).removesuffix(".0")
    if found not in ("0", "1", "2", "3"):
        reading.wrong(_STAGE, "is 0, 1, 2 or 3", ["zero=1", "zero=2", "zero=3"])
        return 0
    reading.ledger.say(_STAGE, "parallel")
    return int(found)


def _device(reading: KeyReader, key: str) -> None:
    path, device = _OFFLOAD[key.split(".")[1]], reading.value(key)
    if device not in ("none", "cpu", "nvme"):
        reading.wrong(key, "is none, cpu or nvme", [f"{path}=cpu"])
    elif device == "nvme" and reading.choose["parallel"] != "zero3":
        reading.settings[path] = "cpu"
        stage = reading.choose["parallel"].removeprefix("zero")
        reading.idle(f"DeepSpeed offloads to the CPU at stage {stage}, and so does this ({path}=cpu)", key)
    else:
        reading.say(key, {path: device})


def _beside_device(reading: KeyReader, key: str) -> None:
    """Leave out what DeepSpeed does not read beside such a device."""
    _, block, *names = key.split(".")
    device = reading.value(f"{_BLOCK}.{block}.device")
    if device not in ("cpu", "nvme"):
        reading.idle("nothing is offloaded by this block", key)
    elif names and names[0] in _NVME and (device != "nvme" or reading.choose["parallel"] != "zero3"):
        reading.idle("DeepSpeed reads it where it offloads to NVMe", key)


def _nvme_path(reading: KeyReader, key: str) -> None:
    path, before = str(reading.value(key)), reading.settings.get("zero.nvme_path")
    if before not in (None, path):
        reading.idle(f"zero.nvme_path is one folder for both kinds of offload, and {before} is taken", key)
    else:
        reading.say(key, {"zero.nvme_path": path})


# Number formats.


def _precision(reading: KeyReader) -> None:
    """Choose the format of the computation, and leave out the blocks of others."""
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
    whose = "the file leaves open" if open_ else "is not the run's"
    used = [keys[word].partition(".")[0] for word in on]
    off = [block for block in ("fp16", "bf16", "bfloat16") if block not in used]
    reading.idle(f"it belongs to a number format that {whose}", *off)


def _scales(reading: KeyReader, key: str) -> None:
    """Say of the loss scale what differs from DeepSpeed's defaults; a scale of 0 adapts."""
    name = key.rpartition(".")[2]
    if name == "loss_scale":
        if scale := reading.number(key):
            reading.say(key, {"precision.loss_scale": scale})
    elif reading.number("fp16.loss_scale"):
        reading.idle("a constant scale has neither", key)
    elif name == "initial_scale_power":
        power = reading.count(key)
        if power not in (None, _SCALE_POWER) and power <= bounds.LARGEST_SCALE_POWER:
            reading.say(key, {"precision.initial_loss_scale": 2**power})
    elif reading.count(key, 1) not in (None, _SCALE_WINDOW):
        reading.say_count(key, "precision.loss_scale_window")


def _format(reading: KeyReader, key: str) -> None:
    leaf = key.rpartition(".")[2]
    setting = "precision.reduce" if leaf == "communication_data_type" else "precision.accumulate"
    if (known := word_in(_FORMATS, reading.value(key))) is not None:
        reading.say(key, {setting: known})
    else:
        reading.wrong(key, "is fp32, fp16 or bf16", [f'"{leaf}": "bf16"', f'"{leaf}": "fp32"'])


# Trackers, what is printed, and features.


def _prints_own(reading: KeyReader, key: str) -> None:
    block = key.partition(".")[0]
    if reading.flag(f"{block}.enabled") or (block == "timers" and reading.ledger.is_open(key)):
        _hand_on(reading, key)
    else:
        reading.default(key)


def _tracks(reading: KeyReader, key: str) -> None:
    """One tracker of the file."""
    kind, _, name = key.partition(".")
    if not reading.flag(f"{kind}.enabled"):
        reading.default(key)
    elif name == "enabled" and "tracking" not in reading.choose:
        choose(reading, key, {"tracking": kind})
    elif key == "wandb.project" and reading.choose.get("tracking") == "wandb":
        reading.say(key, {"tracking.project": str(reading.value(key))})
    elif kind == "wandb":
        reading.idle("of the tracker: its own variables (WANDB_ENTITY, WANDB_RUN_GROUP) say it", key)
    else:
        reading.idle("of the tracker: the run directory holds its files", key)


def _features(reading: KeyReader) -> None:
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


def _is_on(reading: KeyReader, block: str, keys: Iterable[str]) -> bool:
    top = f"{block}.enabled"
    if block in keys:
        return reading.value(block) not in (False, None, {})
    if reading.value(top) is not None and not reading.flag(top):
        return False
    parts = [key for key in keys if key != top and key.endswith("enabled")]
    if block in _BY_PARTS and parts:
        return any(reading.flag(key) for key in parts)
    return True


_OF_STAGE_3 = under(rows("deepspeed_zero_3", _hand_on), f"{_BLOCK}.")
_OF_ZERO = under(rows("deepspeed_zero", _beside_device, _device, _hand_on, _nvme_path), f"{_BLOCK}.")
TABLE = rows(
    "deepspeed", _format, _hand_on, _prints_own, _scales, _tracks,
    optimizer.adam_w_mode, optimizer.of_no_optimizer, optimizer.of_no_schedule, optimizer.optimizer,
    optimizer.schedule, optimizer.torch_adam,
    zero_3=_OF_STAGE_3, zero=_OF_ZERO,
)  # fmt: skip
