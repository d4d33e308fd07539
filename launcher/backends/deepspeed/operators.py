"""Lacks of this machine for a valid job: tools and headers from which DeepSpeed compiles its own operators."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from launcher.backends.deepspeed import optimizer
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec

_HEADER = "libaio.h"


def obstacles(spec: RunSpec) -> Iterator[ConfigError]:
    """No compiler, or no headers of libaio, where the run needs an operator that is compiled at its start."""
    nvme = [f"zero.{key}" for key in ("offload_optimizer", "offload_parameters") if getattr(spec.zero, key) == "nvme"]
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        if nvme:
            rule = f"DeepSpeed compiles its async_io for NVMe, and this machine has no C++ compiler ({compiler})"
            yield ConfigError(nvme[0], "nvme", rule, [f"{path}=cpu" for path in nvme])
        elif not optimizer.is_torch(spec):
            rule = f"DeepSpeed compiles its own Adam, and this machine has no C++ compiler ({compiler})"
            yield ConfigError("optimizer.fused", None, rule, ["optimizer.fused=true"])
    if nvme and not _has_header():
        rule = (
            "DeepSpeed compiles its async_io for NVMe with libaio's headers, which this machine lacks:"
            " install libaio-dev (Debian, Ubuntu) or libaio-devel (Red Hat)"
        )
        yield ConfigError(nvme[0], "nvme", rule, [f"{path}=cpu" for path in nvme])


def _has_header() -> bool:
    """True if a compiler would find libaio's header: in its own folders, or in those of ``CPATH``."""
    folders = [*os.environ.get("CPATH", "").split(os.pathsep), "/usr/include", "/usr/local/include"]
    return any((Path(folder) / _HEADER).is_file() for folder in folders if folder)
