"""Rules about names and places: the run's folder, and the server that its metrics go to."""

import os
import re
from collections.abc import Iterator
from pathlib import PurePath
from urllib.parse import urlsplit

from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, bounds, edit

_SERVERS = ("http", "https")
_STORES = (*_SERVERS, "file", "sqlite", "postgresql", "mysql", "mssql", "databricks", "databricks-uc", "uc", "s3")
"""Schemes of a tracking address that MLflow takes (mlflow.org, "Backend Stores"; a driver may follow a plus sign)."""

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?\Z")
_OF_THE_SYSTEM = ("proc", "sys", "dev")
"""Trees that the Linux kernel provides (hier(7)); of them only ``/dev/shm``, which is memory, takes folders."""

_NOT_BLANK: dict[str, str | None] = {
    "backend.path": None,
    "cluster.constraint": None,
    "cluster.container_image": None,
    "cluster.interface": None,
    "cluster.python": None,
    "cluster.shared_folder": None,
    "data.column": "text",
    "data.config": None,
    "data.eval_config": None,
    "data.eval_path": None,
    "data.eval_split": None,
    "data.revision": None,
    "data.split": "train",
    "data.template": None,
    "data.tokenizer": "bytes",
    "model.weights": None,
    "save.load": None,
    "script": None,
    "tracking.project": None,
    "zero.nvme_path": None,
}
"""Keys whose text must not be blank, each with its default (``conf/<group>/_base.yaml``), or None if it takes null."""

_TEXTS = edit.reader(_NOT_BLANK)
_SUBMITIT = re.compile(r"%[jtaA]")
"""Patterns that submitit replaces in every path with the ids of job, task and array (``submitit/core/utils.py``)."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of blank names, of a run's name or directory that cannot be one, and of a tracker's address."""
    for rule in (_blank, _name, _directory, _of_slurm, _tracker):
        yield from rule(spec)


def _blank(spec: RunSpec) -> Iterator[ConfigError]:
    for (path, instead), value in zip(_NOT_BLANK.items(), _TEXTS(spec), strict=True):
        if value is not None and not str(value).strip():
            rule = "must not be blank; null means none" if instead is None else "must not be blank"
            yield ConfigError(path, value, rule, [edit.override(path, instead)])


def _name(spec: RunSpec) -> Iterator[ConfigError]:
    name = spec.run.name
    if name is not None and (not name or PurePath(name).is_absolute() or {".", ".."} & set(name.split("/"))):
        rule = "a name is a folder below runs/; to put a run elsewhere, set run.directory"
        yield ConfigError("run.name", name, rule, ["run.name=null"])


def _directory(spec: RunSpec) -> Iterator[ConfigError]:
    directory = spec.run.directory
    if directory is None:
        return
    ways, parts = ["run.directory=null", "run.directory=runs/mine"], PurePath(os.path.normpath(directory)).parts
    if set(PurePath(directory).parts) <= {"/", "//", ".", ".."}:
        rule = "a run needs its own folder, which must not exist yet"
        yield ConfigError("run.directory", directory, rule, ways)
    elif parts[0][:1] == "/" and parts[1] in _OF_THE_SYSTEM and parts[1:3] != ("dev", "shm"):
        rule = "/proc, /sys and /dev belong to the kernel: no folder can be created there"
        yield ConfigError("run.directory", directory, rule, ways)
    elif (longest := max(len(os.fsencode(part)) for part in parts)) > bounds.LONGEST_NAME:
        rule = f"a folder name in it has {longest} bytes: the limit for a run is {bounds.LONGEST_NAME}"
        yield ConfigError("run.directory", directory, rule, ways)
    elif directory.startswith("~"):
        rule = "~ is not expanded here, since the shell does so only at the start of a word: write out the path"
        yield ConfigError("run.directory", directory, rule, ways)


def _of_slurm(spec: RunSpec) -> Iterator[ConfigError]:
    """Slurm's other patterns are escaped in the batch script (``launcher.slurm.script.escape_percent``)."""
    if spec.cluster.kind != "slurm":
        return
    named = {
        "run.name": spec.run.name,
        "run.directory": spec.run.directory,
        "cluster.shared_folder": spec.cluster.shared_folder,
    }
    for path, value in named.items():
        if value is not None and _SUBMITIT.search(value):
            rule = "submitit replaces %j, %t, %a and %A in paths with job ids, so a folder's name cannot contain them"
            yield ConfigError(path, value, rule, [f"{path}=null"])


def _tracker(spec: RunSpec) -> Iterator[ConfigError]:
    uri, kind = spec.tracking.uri, spec.tracking.kind
    if uri is None or kind not in ("wandb", "mlflow"):
        return
    if (wrong := _wrong(uri, _SERVERS if kind == "wandb" else _STORES)) is None:
        return
    example = "https://wandb.example.org" if kind == "wandb" else "https://mlflow.example.org:5000"
    host = [f"tracking.uri=http://{uri}"] if _HOST.match(uri) and _wrong(f"http://{uri}", _SERVERS) is None else []
    yield ConfigError("tracking.uri", uri, f"{wrong}; an example is {example}", [*host, "tracking.uri=null"])


def _wrong(uri: str, schemes: tuple[str, ...]) -> str | None:
    """Return why this is no address of these schemes; None if it is one, or a path, which MLflow takes."""
    try:
        parts = urlsplit(uri)
        port_is_one = parts.port is None or parts.port > 0
    except ValueError:
        return "this is not an address"
    if not uri or re.search(r"\s", uri):
        return "an address is not empty and contains no spaces"
    is_path = "://" not in uri and "file" in schemes
    if is_path and not re.fullmatch(r"[\w.-]+:\d+.*", uri):
        return None
    if "://" not in uri or parts.scheme.partition("+")[0] not in schemes:
        return f"an address starts with {', '.join(f'{scheme}://' for scheme in schemes[:4])}"
    return "it has no host" if parts.scheme in _SERVERS and not (parts.hostname and port_is_one) else None
