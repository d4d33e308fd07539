"""Keys of Hugging Face's Trainer (transformers 5.23, ``training_args.py``), which axolotl, LLaMA-Factory and TRL share.

An evaluation, a save or a warm-up that is a share of the run is one here where the length of the run says so.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.config.ledger import leaves
from launcher.importers import _fine_tuning, _table
from launcher.importers._reading import KeyReader
from launcher.importers._table import OFF, choose, rows, under
from launcher.importers.deepspeed import read_keys
from launcher.importers.deepspeed.reading import content_of

_STAGE = re.compile(r"(?:zero|stage|ds_?z|_z)[_-]?([0-3])", re.IGNORECASE)
_OFFLOAD = re.compile(r"offload", re.IGNORECASE)
_PARAMS = re.compile(r"offload_params?\b|offload_parameters", re.IGNORECASE)
_DECAYS = {"linear": "linear", "cosine": "cosine", "1-sqrt": "minus_sqrt"}

DEFAULTS, _LESS, _AS_HERE, _OFFLOADED = _table.program("trainer", "defaults less as_here offloaded")
"""Tables of Hugging Face's Trainer: its defaults, settings that an optimizer ignores, our name of each schedule, and
DeepSpeed files that offload and do not say so in their names."""


def finish(reading: KeyReader, defaults: Mapping[str, Any]) -> None:
    """Settings for what the file does not say, less those that its optimizer does not read."""
    if "train.steps" in reading.settings:
        reading.settings.pop("train.epochs", None)
        defaults = {key: value for key, value in defaults.items() if key != "train.epochs"}
    if reading.choose.get("parallel") == "zero3" and reading.settings.get("train.loss") == "fused":
        reading.settings["train.loss"] = "chunked"  # ZeRO 3 gathers the head for its own call alone.
    if "task" in reading.choose and reading.settings.get("train.loss") == "fused":
        del reading.settings["train.loss"]  # TRL's own loss never has all logits at once, either.
    if reading.settings.get("train.compile"):
        reading.settings.pop("train.kernels", None)  # The compiler fuses norms, rotation and activations by itself.
    _table.defaults(reading, defaults)
    _one_row(reading)
    for setting in _LESS.get(reading.choose.get("optimizer", ""), ()):
        reading.settings.pop(setting, None)


def _one_row(reading: KeyReader) -> None:
    """Packed rows one at a time where documents are found in one row alone: the same batch by accumulation."""
    settings, size = reading.settings, reading.settings.get("train.micro_batch_size", 1)
    packed = settings.get("data.packing") == "documents"
    packed = packed and (settings.get("model.attention") == "flash" or "task" in reading.choose)
    if not packed or not isinstance(size, int) or size < 2:
        return
    steps = settings.get("train.gradient_accumulation") or 1
    said = {"train.micro_batch_size": 1, "train.gradient_accumulation": size * steps}
    for setting in said:
        for key in reading.ledger.saying(setting):
            reading.ledger.say(key, *said)
    settings |= said
    reading.notes.append(
        f"{size} rows are packed into one; launch makes each a micro-batch, which the memory estimate counts"
    )


def _warmup(reading: KeyReader, key: str) -> None:
    found = reading.number(key)
    if found is None:
        return
    if key.endswith("warmup_ratio") and reading.number(key.replace("_ratio", "_steps")):
        reading.idle("warmup_steps comes before it", key)
    elif found < 1 and found:
        reading.say(key, {"optimizer.warmup_ratio": found})
    elif found:
        reading.say_count(key, "optimizer.warmup_steps")
    else:
        reading.ledger.default(key)


def say_interval(row: JsonObject, reading: KeyReader, key: str) -> None:
    """Say how often something is done: every so many steps, or, below 1, after that share of the run."""
    found, steps = reading.number(key), row["says"]
    if found is None:
        return
    if found >= 1:
        reading.say_count(key, steps)
        return
    epochs = reading.number("num_train_epochs") or reading.number("num_epochs") or 0
    times = 1 / (found * epochs) if found > 0 and epochs else 0
    if times and abs(times - round(times)) < 1e-6:
        reading.say(key, {row["per_epoch"]: round(times)})
    else:
        effect = f"a share of the run; launch counts steps: {steps} says them"
        reading.ledger.leave(key, effect, matters=False)


def _evaluates(reading: KeyReader, key: str) -> None:
    word = str(reading.value(key)).lower()
    if word in ("no", "false"):
        reading.ledger.default(key)
    elif word == "epoch":
        reading.say(key, {"train.evals_per_epoch": 1})
    elif word == "steps":
        if reading.value("eval_steps") is None:
            reading.say(key, {"train.eval_every": int(reading.number("logging_steps") or 500)})
        else:
            reading.ledger.default(key)
    else:
        reading.wrong(key, "is no, steps or epoch")


def times(share: float | None, rate: Any) -> float:
    """A share of a rate, in as many digits as one would write."""
    return float(f"{(share or 0.0) * float(rate or 0.0):.12g}")


def tracks(reading: KeyReader, key: str) -> None:
    """``report_to``: the first tracker that there is here."""
    names = [str(each).lower() for each in reading.listed(key)]
    known = [name for name in names if name in ("wandb", "tensorboard", "mlflow")]
    if known:
        choose(reading, key, {"tracking": known[0]})
    elif set(names) <= {"none", "all", "[]", ""} or not names:
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, "launch has no such tracker: tracking=wandb, tensorboard or mlflow", matters=False)


def schedule_arguments(reading: KeyReader, key: str) -> None:
    """``lr_scheduler_kwargs``: the lowest rate, and the shape of a decay at the end."""
    name = key.rpartition(".")[2]
    schedule = reading.settings.get("optimizer.schedule")
    if name == "min_lr":
        reading.say_number(key, "optimizer.min_lr")
    elif name in ("min_lr_rate", "min_lr_ratio"):
        rate = reading.number(key) or 0.0
        reading.say(key, {"optimizer.min_lr": times(rate, reading.settings.get("optimizer.lr", 5e-5))})
    elif name == "num_decay_steps" and schedule == "wsd":
        reading.say_count(key, "optimizer.wsd_decay_steps", 1)
    elif name == "decay_type" and schedule == "wsd" and str(reading.value(key)) in _DECAYS:
        reading.say(key, {"optimizer.wsd_decay": _DECAYS[str(reading.value(key))]})
    elif [name, reading.value(key)] in _AS_HERE or (name == "num_stable_steps" and _fills(reading, key)):
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, "launch has no schedule of that form: set optimizer.schedule and optimizer.min_lr")


def _fills(reading: KeyReader, key: str) -> bool:
    others = [f"{key.rpartition('.')[0]}.num_decay_steps", "warmup_steps", key]
    return reading.number("max_steps") == sum(reading.number(each) or 0 for each in others)


# What shards the model.


def deepspeed(reading: KeyReader, key: str) -> None:
    """A DeepSpeed file: what it says where it is here or stands in place of its name, else what its name says."""
    value, block = reading.value(key), key.partition(".")[0]
    for text, path in _named_here(reading, value):
        _as_in_deepspeed(reading, key, leaves(content_of(text, path)), path)
        reading.ledger.say(key, "parallel")
        return
    name = str(value).rpartition("/")[2]
    found = _STAGE.search(name)
    if block != key and block != "deepspeed_config":  # The file's own keys.
        own = {each[len(block) + 1 :]: reading.ledger.values[each] for each in reading.inside(block)}
        _as_in_deepspeed(reading, block, own, reading.path)
    elif not isinstance(value, str) or found is None:
        effect = f"launch import deepspeed {value} reads it: set zero.stage (with parallel=zero3)"
        reading.ledger.leave(key, effect)
    else:
        stage = int(found[1])
        said: dict[str, object] = {"parallel": f"zero{stage}"}
        if (_OFFLOAD.search(name) or value in _OFFLOADED) and stage:
            if not _PARAMS.search(name):
                said["zero.offload_optimizer"] = "cpu"
            if stage == 3:
                said["zero.offload_parameters"] = "cpu"
        choose(reading, key, said)
        reading.notes.append(
            f"{value} does not exist here, so it is recognized by its name; next to this file it is read"
        )


def _named_here(reading: KeyReader, value: object) -> Iterator[tuple[str, str]]:
    """The JSON that a file names, where it can be read: beside the command, or in a folder that the file lies in."""
    if not isinstance(value, str) or not value.endswith(".json"):
        return
    for folder in (Path.cwd(), *list(Path(reading.path).absolute().parents)[:5]):
        with contextlib.suppress(OSError, ValueError):
            yield files.read_text(folder / value, handed=True), str(folder / value)


def _as_in_deepspeed(reading: KeyReader, key: str, values: JsonObject, path: str) -> None:
    """Say the keys of a ``ds_config.json`` behind the one that names it; what the file around it says comes before."""
    inner = read_keys(values, path)
    reading.ledger.values = {**reading.ledger.values, **{f"{key}.{name}": value for name, value in values.items()}}
    reading.ledger.adopt(f"{key}.", inner.ledger)
    if "task" in reading.choose:
        for setting in [each for each in inner.settings if each.startswith("backend.extra.")]:
            name, effect = setting.removeprefix("backend.extra."), "TRL's DeepSpeed file is written here, without it"
            reading.ledger.leave(f"{key}.{name}", effect, matters=not name.endswith("round_robin_gradients"))
            del inner.settings[setting]
    inner.settings.pop("train.log_every", None)  # The Trainer logs by itself.
    reading.choose = {**inner.choose, **reading.choose, "parallel": inner.choose["parallel"]}
    reading.settings = {**inner.settings, **reading.settings}
    reading.notes += inner.notes
    reading.errors += inner.errors


def fsdp(reading: KeyReader, key: str) -> None:
    """``fsdp``: a list or a line of words."""
    value = reading.value(key)
    words_ = [str(each) for each in value] if isinstance(value, list) else re.split(r"[\s,]+", str(value))
    found = {word for word in words_ if word}
    if found <= {"", "False", "false"}:
        reading.ledger.default(key)
        return
    shard = {"shard_grad_op": {"parallel": "fsdp", "zero": "2"}, "hybrid_shard": {"parallel": "hsdp"},
             "hybrid_shard_zero2": {"parallel": "hsdp", "zero": "2"}, "no_shard": {"parallel": "ddp"}}  # fmt: skip
    if unknown := sorted(found - {*shard, "full_shard", "auto_wrap", "offload", "True", "true"}):
        reading.ledger.leave(key, f"{', '.join(unknown)}: launch does not know this FSDP option: set parallel")
        return
    said: dict[str, object] = {"parallel": "fsdp"}
    for word in found:
        said |= shard.get(word, {})
    if "offload" in found:
        said |= {"zero.offload_optimizer": "cpu", "zero.offload_parameters": "cpu"}
    choose(reading, key, said)


def shard(reading: KeyReader) -> None:
    """Choose what shards the model, where the keys so far did not: FSDP beside a block of it, else whole copies."""
    beside = any(key.startswith("fsdp_config.") for key in reading.ledger.values)
    reading.choose.setdefault("parallel", "fsdp" if beside else "ddp")


FSDP = under(rows("fsdp"), "fsdp_config.", "fsdp_config.fsdp_", "fsdp_")
SHARDING = rows("sharding", deepspeed, fsdp, fsdp=FSDP)
ROWS = rows(
    "trainer", say_interval, schedule_arguments, tracks, _evaluates,
    _warmup,
)  # fmt: skip


def precision(reading: KeyReader, *, pure: bool, otherwise: str = "fp32") -> None:
    """Say ``bf16`` and ``fp16``, or ``otherwise`` where the file has none of them."""
    chosen = "fp8" if reading.choose.get("precision") == "fp8" else None
    for key, name in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"), ("float16", "fp16")):
        if not reading.ledger.is_open(key):
            continue
        on = str(reading.value(key)).lower() in ("auto", "full", "true")
        if chosen == "fp8" and name == "bf16" and on:
            reading.ledger.say(key, "precision")  # What is not computed in fp8 is in bf16.
        elif on and chosen in (None, name):
            chosen = name
            choose(reading, key, {"precision": name})
        elif on and chosen == "bf16":
            reading.idle("bf16 is chosen before it", key)
        elif on or chosen == "fp8" or reading.value(key) not in OFF:
            reading.ledger.leave(key, f"the run computes in {chosen or otherwise} here: set precision")
        else:
            reading.ledger.default(key)
    said = any(reading.value(key) is not None for key in ("bf16", "fp16"))
    if chosen is None and not said:
        chosen = otherwise
    reading.choose.setdefault("precision", chosen or "fp32")
    if "task" in reading.choose:  # TRL keeps what it trains in fp32.
        return
    if pure and chosen == "bf16" and reading.choose.get("parallel") in ("fsdp", "ddp", "hsdp"):
        _fine_tuning.say_pure(reading, *(key for key in ("bf16", "bfloat16") if reading.value(key)))
