"""Obstacles between a valid run and this machine: its GPUs, missing packages, missing data.

They are no part of the rules: ``check`` judges a run for any machine, ``run`` also asks whether this one can start it.
Packages are looked for without being imported, and of data only names, sizes and the start of a text are read. A Slurm
job runs elsewhere, so for it missing files are warnings (:func:`not_seen_here`), never errors.
"""

from __future__ import annotations

import codecs
import glob
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from launcher import backends, extras
from launcher.data.files import STDLIB, data_files
from launcher.errors import ConfigError
from launcher.machine import Machine
from launcher.spec import RunSpec

_LOOKED_AT = 1 << 16
_ADAPTERS = {"lora": ("peft",), "qlora": ("peft", "bitsandbytes")}


def obstacles(spec: RunSpec, machine: Machine) -> list[ConfigError]:
    """Errors of a run that this machine cannot start, all at once. A Slurm job runs elsewhere and has none here."""
    if spec.cluster.kind != "local":
        return []
    return [
        *_hardware(spec, machine),
        *_packages(spec),
        *_data(spec),
        *_folders(spec),
        *backends.of(spec).obstacles(spec),
    ]


def _hardware(spec: RunSpec, machine: Machine) -> Iterator[ConfigError]:
    cluster, here = spec.cluster, len(machine.gpus)
    if cluster.nodes > 1:
        yield ConfigError(
            "cluster.nodes", cluster.nodes, "cluster=local is this one machine", ["cluster.nodes=1", "cluster=slurm"]
        )
    if spec.hardware.device == "cpu":
        return
    if not here:
        rule = "this machine has no GPU; `launch check` judges any hardware, `run` needs it"
        yield ConfigError("hardware.name", spec.hardware.name, rule, ["hardware=auto", "cluster=slurm"])
        return
    if cluster.gpus_per_node > here:
        rule = f"this machine has {here} GPUs"
        yield ConfigError("cluster.gpus_per_node", cluster.gpus_per_node, rule, [f"cluster.gpus_per_node={here}"])
    smallest = min(gpu.memory_bytes for gpu in machine.gpus)
    if spec.hardware.memory_bytes is not None and spec.hardware.memory_bytes > smallest:
        rule = f"the check was for more memory than the {machine.gpus[0].name} of this machine has, {smallest} bytes"
        yield ConfigError("hardware.name", spec.hardware.name, rule, ["hardware=auto"])


def _packages(spec: RunSpec) -> Iterator[ConfigError]:
    profile = backends.of(spec).profile
    needed = [*profile.packages, *_ADAPTERS.get(spec.adapter.name, ())]
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        rule = f"needs {', '.join(missing)}, not installed for this Python"
        yield ConfigError("backend.name", spec.backend.name, rule, [profile.install])
    if spec.script is not None:
        return
    kind, source = spec.tracking.kind, spec.data.source
    if kind != "none" and find_spec(kind) is None:  # Each kind is the name of its package.
        rule = "its package is not installed for this Python"
        yield ConfigError("tracking.kind", kind, rule, [extras.install("tracking"), "tracking=none"])
    if source == "huggingface" and find_spec("datasets") is None:
        rule = "needs datasets, not installed for this Python"
        yield ConfigError("data.source", source, rule, [extras.install(extras.TRAINING), "data=synthetic"])


def _data(spec: RunSpec) -> Iterator[ConfigError]:
    if spec.script is not None:
        if not Path(spec.script).is_file():
            yield ConfigError("script", spec.script, "there is no such file", ["script=path/to/train.py"])
        return
    if spec.data.source not in ("text", "tokens") or spec.data.path is None:
        return
    files = data_files(spec.data.path)
    size = sum(path.stat().st_size for path in files)
    if not files:
        yield ConfigError("data.path", spec.data.path, "no file matches", ["data=text", "data=synthetic"])
    elif not size:
        yield ConfigError("data.path", spec.data.path, "every file that matches is empty", ["data=text"])
    elif spec.data.source == "text" and (binary := next(filter(_is_binary, files), None)) is not None:
        rule = f"{binary} is not UTF-8 text: name text files, or token ids as data=tokens"
        yield ConfigError("data.path", spec.data.path, rule, ["data=text", f"data=tokens data.path={binary}"])
    elif spec.data.source == "text" and spec.data.tokenizer == "bytes" and size <= spec.sequence_length:
        rule = f"{size} bytes are too few: a sample is {spec.sequence_length} tokens and one more, a byte each"
        yield ConfigError("data.path", spec.data.path, rule, ["data=text"])


def _is_binary(path: Path) -> bool:
    """True if the start of a file cannot be UTF-8; the worker reads, and judges, all of it."""
    with path.open("rb") as file:
        start = file.read(_LOOKED_AT)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return True
    return b"\0" in start


def _folders(spec: RunSpec) -> Iterator[ConfigError]:
    """Folders that the run starts from."""
    for path, value in (("model.weights", spec.model.weights), ("save.load", spec.save.load)):
        if value is not None and not Path(value).is_dir():
            yield ConfigError(path, value, "there is no such folder", [f"{path}=null"])
    tokenizer = spec.data.tokenizer
    if tokenizer != "bytes" and spec.data.source != "synthetic" and not Path(tokenizer).is_dir():
        rule = "must be bytes or the folder of a Hugging Face tokenizer"
        yield ConfigError("data.tokenizer", tokenizer, rule, ["data.tokenizer=bytes"])


def not_seen_here(spec: RunSpec) -> Iterator[ConfigError]:
    """Files that the run names and this machine lacks: a warning, since the nodes of a queue may have their own disks.

    Only names are looked up, no pattern is followed and nothing is read: a check answers at once, whatever it is given.
    """
    named = {"script": spec.script, "model.weights": spec.model.weights, "save.load": spec.save.load}
    if spec.data.source in ("text", "tokens") and (spec.script, spec.backend.path) == (None, None):
        named["data.path"] = spec.data.path
    for path, value in named.items():
        if value is not None and STDLIB not in value and not glob.has_magic(value) and not Path(value).exists():
            rule = "there is no such file or folder on this machine; the nodes of the job must have it"
            yield ConfigError(path, value, rule, ["data=synthetic" if path == "data.path" else f"{path}=null"])


def without_template(spec: RunSpec) -> Iterator[ConfigError]:
    """A tokenizer that has no chat template, so that conversations are written by a shipped one."""
    data = spec.data
    if not data.marked or spec.script is not None or not (data.tokenizer == "bytes" or Path(data.tokenizer).is_dir()):
        return
    from launcher.data.template import PLAIN, lacks_own, shipped

    if lacks_own(data):
        rule = f"data.tokenizer={data.tokenizer} has no chat template, so the shipped template {PLAIN} is used"
        yield ConfigError("data.template", None, rule, [f"data.template={name}" for name in (PLAIN, *shipped()[:1])])
