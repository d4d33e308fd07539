"""Megatron-LM argument lists: shell scripts, the YAML of its functional tests, JSON.

Arguments without a setting of their own here that are Megatron's alone travel in ``backend.extra``; those of them that
may change memory are named as well.
"""

from __future__ import annotations

import re
from typing import Any

from launcher.config.foreign import name_from, shown
from launcher.errors import ConfigErrors
from launcher.importers import Imported, imported
from launcher.importers._megatron_settings import Reader, checkpointing, model, parallel, precision
from launcher.importers._megatron_tables import USUAL, is_carried, is_dropped
from launcher.importers._megatron_text import Arguments, parse

_OPTIMIZERS = {"adam": "adamw", "lion": "lion", "muon": "muon", "sgd": "sgd"}
_SHARDING = {"no_shard": "0", "optim": "1", "optim_grads": "2", "optim_grads_params": "3"}
_SCHEDULES = ("constant", "linear", "cosine")
_EXTRA_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")


def read(text: str, path: str) -> Imported:
    """Read an argument list.

    Args:
        text: The file's content.
        path: The file, for messages; its suffix tells YAML and JSON from shell text.

    Raises:
        ConfigErrors: It cannot be read, an argument has the wrong type, or the model's sizes are missing.
    """
    parsed = parse(text, path)
    reader = Reader(parsed.arguments, path, not_understood=list(parsed.not_understood))
    name = name_from(path.rpartition("/")[2].partition(".")[0])
    sizes = model(reader)
    choose, settings = _choices(reader, int(sizes["num_hidden_layers"]))
    settings = {"model.name": name, **{f"model.{key}": value for key, value in sizes.items()}, **settings}
    settings["model.source"] = "a Megatron-LM argument list"
    settings |= _training(reader) | _optimizer(reader, choose) | _cluster(parsed.launcher_arguments) | _rest(reader)
    if reader.errors:
        raise ConfigErrors(reader.errors)
    return imported(
        summary=f"The Megatron-LM run {name}",
        source="a Megatron-LM argument list",
        choose=choose,
        settings={key: value for key, value in settings.items() if value is not None or key.startswith("model.")},
        not_understood=dict.fromkeys(reader.not_understood),
    )


def _choices(reader: Reader, layers: int) -> tuple[dict[str, str], dict[str, Any]]:
    degrees = parallel(reader, layers)
    compute, formats = precision(reader)
    recompute, details = checkpointing(reader)
    choose = {"parallel": _preset(degrees), "zero": _zero(reader), "precision": compute, "checkpointing": recompute}
    if reader.switch("mock-data"):
        choose["data"] = "synthetic"
    settings = {f"parallel.{key}": value for key, value in degrees.items()}
    settings |= {f"precision.{key}": value for key, value in formats.items()}
    settings |= {f"checkpointing.{key}": value for key, value in details.items()}
    if reader.switch("optimizer-cpu-offload"):
        settings["zero.offload_optimizer"] = "cpu"
    return choose, settings


def _preset(degrees: dict[str, Any]) -> str:
    """The preset whose name says most about the degrees; they are all set besides."""
    if degrees["expert"] > 1:
        return "ep"
    if degrees["pipeline"] > 1:
        return "tp_pp" if degrees["tensor"] > 1 else "pp"
    return "cp" if degrees["context"] > 1 and degrees["tensor"] == 1 else "tp"


def _zero(reader: Reader) -> str:
    """The distributed optimizer is ZeRO-1; Megatron-FSDP shards what its strategy says."""
    strategy = reader.word("data-parallel-sharding-strategy", "optim_grads_params")
    distributed = reader.switch("use-distributed-optimizer")
    if reader.switch("use-megatron-fsdp"):
        return _SHARDING.get(strategy, "3")
    return "1" if distributed else "0"


def _training(reader: Reader) -> dict[str, Any]:
    batch = reader.count("global-batch-size")
    return {
        "train.sequence_length": reader.count("seq-length"),
        "train.micro_batch_size": reader.count("micro-batch-size"),
        "train.global_batch_size": batch,
        "train.steps": _steps(reader, batch),
        "train.seed": reader.count("seed", 1234),
        "train.log_every": reader.count("log-interval"),
        **_evaluation(reader),
        "train.loss": "fused" if reader.switch("cross-entropy-loss-fusion") else None,
        "train.timeout_s": 60 * reader.count("distributed-timeout-minutes", 10),
        "save.every": reader.count("save-interval"),
        "save.async": reader.switch("async-save") or None,
    }


def _evaluation(reader: Reader) -> dict[str, Any]:
    """Megatron-LM wants an interval even where, with ``--eval-iters 0``, nothing is evaluated."""
    every, steps = reader.count("eval-interval"), reader.count("eval-iters")
    return {"train.eval_every": every, "train.eval_steps": steps} if steps != 0 else {}


def _steps(reader: Reader, batch: int | None) -> int | None:
    samples = reader.count("train-samples")
    steps: int | None = reader.count("train-iters")
    return steps if steps is not None or not samples or not batch else max(1, samples // batch)


def _optimizer(reader: Reader, choose: dict[str, str]) -> dict[str, Any]:
    name = reader.word("optimizer", "adam")
    if name in _OPTIMIZERS:
        choose["optimizer"] = _OPTIMIZERS[name]
    else:
        reader.not_understood.append(shown("--optimizer", name))
    schedule = reader.word("lr-decay-style", "linear")
    if schedule not in _SCHEDULES:
        reader.not_understood.append(shown("--lr-decay-style", schedule))
    return {
        "optimizer.lr": reader.number("lr"),
        "optimizer.min_lr": reader.number("min-lr"),
        "optimizer.weight_decay": reader.number("weight-decay", 0.01),
        "optimizer.beta1": reader.number("sgd-momentum" if name == "sgd" else "adam-beta1", 0.9),
        "optimizer.beta2": reader.number("adam-beta2", 0.999),
        "optimizer.epsilon": reader.number("adam-eps", 1e-8),
        "optimizer.clip": reader.number("clip-grad", 1.0),
        "optimizer.schedule": schedule if schedule in _SCHEDULES else None,
        "optimizer.warmup_steps": _warmup(reader),
    }


def _warmup(reader: Reader) -> int | None:
    """Steps, or a fraction of the steps over which the learning rate decays."""
    steps, fraction = reader.count("lr-warmup-iters"), reader.number("lr-warmup-fraction")
    over = reader.count("lr-decay-iters") or reader.count("train-iters")
    return int(fraction * over) if steps is None and fraction and over else steps


def _cluster(arguments: Arguments) -> dict[str, Any]:
    """Settings from torchrun's arguments; a script that leaves them to variables leaves them open here too."""
    found = {"cluster.nodes": arguments.get("nnodes"), "cluster.gpus_per_node": arguments.get("nproc-per-node")}
    return {key: item.value for key, item in found.items() if item is not None and isinstance(item.value, int)}


def _rest(reader: Reader) -> dict[str, Any]:
    """Arguments without a setting: handed on, and named where they may change memory."""
    settings: dict[str, Any] = {}
    for name, argument in reader.arguments.items():
        if name in reader.read or is_dropped(name) or (name in USUAL and USUAL[name] == argument.value):
            continue
        open_variable = "$" in str(argument.value)
        if not is_carried(name) or open_variable:
            value = "" if argument.value is True else f" {shown('', argument.value)[1:]}"
            reader.not_understood.append(f"--{argument.spelling}{value}")
        if _EXTRA_KEY.match(argument.spelling) and not open_variable:
            settings[f"backend.extra.{argument.spelling}"] = argument.value
    return settings
