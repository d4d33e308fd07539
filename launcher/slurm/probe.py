"""``python -m launcher.slurm.probe FOLDER``: what one compute node sees, run there by ``launch doctor``."""

import platform
import socket
import sys
from importlib import metadata
from pathlib import Path

from launcher.base import files, machine
from launcher.base.files import JsonObject
from launcher.job import versions

PACKAGES = ("nvidia-nccl-cu12", "nvidia-nccl-cu13", *versions.PACKAGES)
ANSWER = "answer.json"


def facts() -> JsonObject:
    """This node's name, Python, packages, and the GPUs that the job got."""
    here = machine.facts()
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in here.gpus],
        "host_memory_bytes": here.host_memory_bytes,
        "cpus": here.cpus,
    }


def main() -> None:
    """Write the facts to a folder, which also shows that the node can write there."""
    files.write_atomically(Path(sys.argv[1]) / ANSWER, facts())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
