"""Data, checkpoints, trackers, nodes and variables of a Megatron-LM argument list."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.config.ledger import Settings
from launcher.importers.megatron.reader import ArgumentReader, split, started_by
from launcher.saved import checkpoints

_MOCK = "the data are made up here (data=synthetic)"
_ONE = "set data.path (with data=tokens) to the prefix of one"
_WIDE = 65500
"""Vocabularies up to here are written in 16 bits (``DType.optimal_dtype`` of ``core/datasets/indexed_dataset.py``)."""
_BLENDS = ("data-path", "train-data-path")
_LISTS = ("data-args-path", "per-split-data-args-path", "data-file-list")
_DEFAULT_SPLIT = "969,30,1"
_WEIGHT = re.compile(r"[0-9.eE+-]+")
_PART = re.compile(r"\d{1,18}(\.\d{0,18})?|\.\d{1,18}")
_ENGINE = re.compile(r"(CUBLAS|CUDA|CUDNN|NCCL|NVTE|TORCH|TRITON|UB|UCX|OMP|PYTORCH)_\w+\Z")
"""Variables of the libraries that train, among those of a functional test."""

_ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def data(reader: ArgumentReader, *, evaluates: bool, vocabulary: Any) -> tuple[dict[str, str], Settings]:
    """Choose the source of tokens: the data that the file names, or made-up ids alone.

    A part of the data is held out where the run ``evaluates``; the size of the vocabulary gives the type of the ids.
    """
    settings = {"data.workers": reader.count("num-workers", "data.workers")}
    named = _named(reader)
    if evaluates and named and "valid-data-path" in reader:
        held_out = [word for word in _words(reader, "valid-data-path") if not _WEIGHT.fullmatch(word)]
        if len(held_out) == 1:
            named["data.eval_path"] = reader.get("valid-data-path", "data.eval_path") and held_out[0]
        else:
            reader.leave("valid-data-path", "one set is evaluated on here: set data.eval_path")
    reader.idle("on training, and nothing is evaluated", "valid-data-path")
    reader.idle("on training; nothing is tested after it here", "test-data-path")
    if reader.switch("mock-data", "data") or not named:
        reader.idle(_MOCK, "split")
        return {"data": "synthetic"}, settings
    wide = isinstance(vocabulary, int) and vocabulary > _WIDE
    settings |= {**named, "data.token_dtype": "uint32" if wide else None}
    return {"data": "tokens"}, settings | _held_out(reader, evaluates)


def _named(reader: ArgumentReader) -> Settings:
    given = [name for name in (*_BLENDS, *_LISTS) if name in reader]
    for name in given:
        reader.leave(name, f"{_MOCK}; {_ONE}")
    if not given and "mock-data" not in reader:
        reader.note("no --data-path: Megatron-LM makes its data up then, and so does data=synthetic here")
    for name in given:
        if name in _LISTS or name in reader.parsed.unset:
            continue
        words = _words(reader, name)
        prefixes = [word for word in words if not _WEIGHT.fullmatch(word)]
        if prefixes and len(given) == 1:
            mix = mixed(words)
            reader.get(name, "data", "data.path" if len(mix) == 1 else "data.mix")
            return {"data.path": prefixes[0]} if len(mix) == 1 else {"data.mix": mix}
        reader.leave(name, f"it names no data set; {_MOCK}; {_ONE}")
    for name in given:
        if unset := reader.parsed.unset.get(name):
            ways = " ".join(f"--set {variable}=..." for variable in unset)
            reader.leave(name, f"{', '.join(f'${variable}' for variable in unset)} has no value; {_MOCK}; {ways}")
    return {}


def mixed(words: Sequence[str]) -> list[dict[str, Any]]:
    """The data sets of a blend: each prefix with the weight before it, where every one has a weight."""
    weights = [float(word) for word in words[::2] if _WEIGHT.fullmatch(word)]
    if 2 * len(weights) == len(words):
        return [{"path": path, "weight": weight} for weight, path in zip(weights, words[1::2], strict=True)]
    return [{"path": word} for word in words if not _WEIGHT.fullmatch(word)]


def _words(reader: ArgumentReader, name: str) -> list[str]:
    value = reader.get(name)
    return [str(word) for item in (value if isinstance(value, list) else [value]) for word in split(item)]


def _held_out(reader: ArgumentReader, evaluates: bool) -> Settings:
    if "train-data-path" in reader:
        reader.idle("--train-data-path is trained on as a whole", "split")
        return {}
    if "split" not in reader:
        reader.note(f"no --split: Megatron-LM takes {_DEFAULT_SPLIT}")
    value = reader.get("split", "data.eval_fraction", default=_DEFAULT_SPLIT)
    words = map(str, value if isinstance(value, list) else split(value))
    parts = [float(word) for word in words if _PART.fullmatch(word)]
    if not parts or sum(parts) <= 0 or min(parts) < 0:
        reader.wrong("split", value, "is the parts of training, validation and test: 969,30,1")
        return {}
    share = round(1 - parts[0] / sum(parts), 6)
    if evaluates and share < 1:
        return {"data.eval_fraction": share}
    if share:
        reader.leave("split", f"the data: all are trained on where nothing is evaluated, and {1 - share:.1%} there")
    else:
        reader.ledger.default(reader.key("split"))
    return {}


def saves(reader: ArgumentReader) -> Settings:
    """Return the steps between checkpoints, and the checkpoint that training starts from."""
    reader.idle("checkpoints lie in the run's own directory", "save")
    every = reader.count("persistent-save-interval", "save.every")
    every = reader.count("save-interval", "save.every", default=every)
    found = {"save.every": every, "save.async": reader.switch("async-save", "save.async") or None}
    if found["save.async"] and "use-persistent-ckpt-worker" not in reader:
        reader.note("--async-save without --use-persistent-ckpt-worker: Megatron-LM switches it off")
        found["save.async"] = False
    whole = "dist-ckpt-optim-fully-reshardable"
    if "use-distributed-optimizer" in reader:
        found["save.reshardable"] = reader.switch(whole, "save.reshardable") or None
    else:
        reader.idle("of a sharded optimizer", whole)
    return {**found, **_loaded(reader)}


def _loaded(reader: ArgumentReader) -> Settings:
    """``--load`` of the folder that ``--save`` fills is how a script resumes; another one holds the first weights."""
    reader.idle("of the checkpoint of --load", "finetune")
    weights = "the weights that training starts from: here they are new ones"
    reader.leave("pretrained-checkpoint", weights)
    argument, saved = reader.arguments.get("load"), reader.arguments.get("save")
    if argument is None:
        return {}
    if saved is not None and saved.value == argument.value and "pretrained-checkpoint" not in reader:
        reader.idle("it is where --save writes; launch resume continues from the run's own checkpoints", "load")
        return {}
    ways = "".join(f"; --set {name}=..." for name in reader.parsed.unset.get("load", ()))
    reader.leave("load", weights + ways)
    partly = {"finetune", "no-load-optim", "no-load-rng", "ckpt-step"} & set(reader.arguments)
    value = None if ways else reader.text("load")
    if value is None or partly or not _is_checkpoint(Path(value)):
        return {}
    reader.get("load", "save.load")
    return {"save.load": value}


def _is_checkpoint(path: Path) -> bool:
    try:
        return checkpoints.is_checkpoint(path) or (path.is_dir() and bool(checkpoints.whole_checkpoints(path)))
    except OSError:
        return False


def tracker(reader: ArgumentReader) -> tuple[dict[str, str], Settings]:
    """One tracker: Weights and Biases before TensorBoard, where both are asked for."""
    project = reader.text("wandb-project", "tracking", "tracking.project")
    folder = reader.text("tensorboard-dir", "tracking")
    if project:
        reader.idle("on training; there is one tracker here, and it is wandb", "tensorboard-dir")
        return {"tracking": "wandb"}, {"tracking.project": project}
    if folder or "tensorboard-dir" in reader:
        reader.get("tensorboard-dir", "tracking")
        reader.idle("it is empty or has no value", "wandb-project")
        if "tensorboard-dir" in reader.parsed.unset:
            reader.ledger.say(reader.key("tensorboard-dir"), "tracking")
        return {"tracking": "tensorboard"}, {}
    return {}, {}


def nodes(reader: ArgumentReader) -> Settings:
    """Return the nodes and GPUs that the program is started on; the cluster's settings decide about variables."""
    keys = {"nnodes": "cluster.nodes", "nproc-per-node": "cluster.gpus_per_node"}
    effect = "no effect: the launcher starts the processes; cluster.nodes and cluster.gpus_per_node say on what"
    for each in reader.parsed.launcher_arguments.values():
        if reader.ledger.is_open(f"--{each.spelling}"):
            reader.ledger.leave(f"--{each.spelling}", effect, matters=False)
    found: Settings = {}
    for name, key in keys.items():
        argument = started_by(reader.parsed, name)
        if argument is not None and isinstance(argument.value, int) and argument.value is not True:
            reader.ledger.say(f"--{argument.spelling}", key)
            found[key] = argument.value
    return found


def others(reader: ArgumentReader) -> Settings:
    """Keys beside the arguments: variables of the libraries that train, and what a test of Megatron-LM's asks for."""
    settings: Settings = {}
    for key, value in reader.parsed.other_keys.items():
        name = key.partition("ENV_VARS.")[2]
        if name == _CONNECTIONS:
            reader.ledger.default(key)
        elif name in _ALLOCATORS and "expandable_segments:True" in str(value):
            reader.ledger.say(key, "train.allocator")
            settings["train.allocator"] = "expandable"
        elif _ENGINE.match(name) and isinstance(value, str | int | float) and "$" not in str(value):
            reader.ledger.say(key, f"cluster.environment.{name}")
            settings[f"cluster.environment.{name}"] = str(value)
        elif reader.ledger.is_open(key):
            reader.ledger.leave(key, "no effect: it is no argument of the training program", matters=False)
    return settings
