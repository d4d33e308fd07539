"""The provenance of a run besides its configuration: software, code, machine, data.

It is collected on every launch, so nothing here imports a framework, opens every distribution or reads terabytes. The
environment is filtered by an allow-list of prefixes, without anything that looks like a secret; of changed files only
the names and a hash are recorded.
"""

import hashlib
import os
import re
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from launcher.base import files, machine, registry, secret
from launcher.base.files import JsonObject
from launcher.base.package import __version__
from launcher.data import hub
from launcher.data.files import data_files
from launcher.job.run_script import FOLDER
from launcher.job.versions import PACKAGES, every
from launcher.rundir import repository
from launcher.spec import DataSpec, RunSpec

_NVIDIA = Path("/proc/driver/nvidia/version")
_ENVIRONMENT = re.compile(
    r"^(CUDA|NCCL|GLOO|TORCH|TORCHINDUCTOR|PYTORCH|OMP|MKL|CUBLAS|DS|UCX|HF_DATASETS|TRITON)_[A-Z0-9_]+\Z|^LD_PRELOAD\Z"
)
_WHOLE_BYTES = 1 << 26
_BLOCKS, _BLOCK_BYTES = 64, 1 << 16
_FILES_LISTED = 200


def versions(*, with_diff: bool = False) -> JsonObject:
    """Versions of Python and of the relevant packages, and the working folder's repository."""
    found, state = installed(), repository.state(Path.cwd())
    if state is not None and not with_diff:
        state = {**state, "diff": None}
    extensions = (owner for package in registry.KEYS for owner in registry.offered(package).values())
    names = (*PACKAGES, *(re.sub(r"[-_.]+", "-", owner).lower() for owner in extensions))
    return {
        "launcher": __version__,
        "python": sys.version.split()[0],
        "packages": {name: found[name] for name in dict.fromkeys(names) if name in found},
        "git": state,
    }


def installed() -> dict[str, str]:
    """Name and version of every installed distribution, like ``pip freeze``, sorted by name."""
    return dict(sorted(every().items()))


def software() -> dict[str, str | None]:
    """Versions of the CUDA and NCCL that torch was built with and of the GPU driver; None if unknown."""
    found = installed()
    nccl = next((version for name, version in found.items() if name.startswith("nvidia-nccl")), None)
    return {"cuda": _cuda(), "nccl": nccl, "driver": _driver()}


def _cuda() -> str | None:
    spec = find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(folder) / "version.py"
        match = re.search(r"^cuda[^=]*= *'([^']+)'", files.read_text(path), re.MULTILINE) if path.is_file() else None
        if match is not None:
            return match[1]
    return None


def _driver() -> str | None:
    try:
        match = re.search(r"Kernel Module\b.*?\s(\d+\.[\d.]+)", _NVIDIA.read_text())
    except OSError:
        return None
    return match[1] if match is not None else None


def environment() -> dict[str, str]:
    """Environment variables that frameworks read, by an allow-list of prefixes; never one that may be a secret."""
    names = (name for name in sorted(os.environ) if _ENVIRONMENT.match(name) and not secret.of_name(name))
    return {name: os.environ[name] for name in names if secret.find(os.environ[name]) is None}


def hardware(facts: machine.Machine) -> JsonObject:
    """The processor, GPUs and memory of this machine."""
    gpus, memory = [gpu.name for gpu in facts.gpus], facts.host_memory_bytes
    return {"processor": machine.processor(), "cpus": facts.cpus, "gpus": gpus, "host_memory_bytes": memory}


def data(data: DataSpec) -> JsonObject | None:
    """A run's data: each file with its size and hash, and the revision of a data set; None for synthetic data.

    If the files exceed 64 MiB in total, only 64 evenly spaced blocks of 64 KiB of each are hashed: a launch does not
    read terabytes.
    """
    named = [each.path for each in data.sets if each.path is not None]
    if data.source == "synthetic" or not named:
        return None
    paths = [path for name in named for path in data_files(name)]
    stats = [path.stat() for path in paths]
    total = sum(found.st_size for found in stats)
    whole = total <= _WHOLE_BYTES
    rows = [
        {"path": str(path), "bytes": found.st_size, "sha256": _hash(path, found.st_size, found.st_mtime_ns, whole)}
        for path, found in zip(paths, stats, strict=True)
    ]
    together = hashlib.sha256("".join(str(row["sha256"]) for row in rows).encode()).hexdigest()
    return {
        "source": data.source,
        "path": ", ".join(named),
        "revision": hub.commit("dataset", named[0], data.revision)
        if data.source == "huggingface" and not paths
        else None,
        "files": len(rows),
        "bytes": total,
        "sha256": together if rows else None,
        "hashed": "whole files" if whole else f"{_BLOCKS} blocks of {_BLOCK_BYTES} bytes of each file",
        "list": rows if len(rows) <= _FILES_LISTED else [],
    }


@lru_cache(maxsize=4096)  # The runs of a sweep read the same files.
def _hash(path: Path, size: int, changed_ns: int, whole: bool) -> str:
    digest = hashlib.sha256(str(size).encode())
    with files.opened(path) as file:
        if whole or size <= _BLOCKS * _BLOCK_BYTES:
            digest.update(file.read())
        else:
            for number in range(_BLOCKS):  # The first block is at the start of the file, the last at its end.
                file.seek(number * (size - _BLOCK_BYTES) // (_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()


def script_copy(run: Path, script: str) -> Path:
    """The path of a run's copy of its script."""
    return run / FOLDER / Path(script).name


def script_ingredient(script: str | None) -> JsonObject | None:
    """The script as recorded in a lock: its path and hash; None for a run without one."""
    return None if script is None else {"path": script, "sha256": _script_hash(Path(script))}


def kept_script(run: Path, script: str | None) -> JsonObject | None:
    """Like :func:`script_ingredient`, but with the hash of the run's copy, which a resumed run uses."""
    copy = None if script is None else _script_hash(script_copy(run, script))
    return script_ingredient(script) if copy is None else {"path": script, "sha256": copy}


def is_script_edited(run: Path, spec: RunSpec, folder: Path) -> bool:
    """True if the script, relative to the job's folder, was edited or removed since the run was recorded."""
    if spec.script is None:
        return False
    copy = _script_hash(script_copy(run, spec.script))
    return copy is not None and copy != _script_hash(folder / spec.script)


def _script_hash(path: Path) -> str | None:
    try:
        return hashlib.sha256(files.read_bytes(path, files.MOST_OF_A_RECORD)).hexdigest()
    except OSError:
        return None
