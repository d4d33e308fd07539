"""The optimizer that DeepSpeed runs: one of its own kernels, compiled at first use, or torch's."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from launcher.backends.deepspeed import optimizer
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec

OWN = ("adamw", "sgd")
"""Optimizers that DeepSpeed creates from ``ds_config.json``; the worker passes it those of bitsandbytes."""

SUPPORTED = (*OWN, "adamw_8bit", "paged_adamw_8bit", "lion")

REFUSED = {
    "adafactor": "ZeRO's optimizers step flat partitions, and Adafactor needs means over a matrix's rows and columns",
    "muon": "DeepSpeed 0.19.8 clips the updates of its Muon, not gradients: optimizer.clip would decide the"
    " size of each step (runtime/zero/stage3.py, stage_1_and_2.py)",
}
"""Why this backend does not run the other optimizers."""


def is_torch(spec: RunSpec) -> bool:
    """True if ``torch.optim`` makes the step, in place of DeepSpeed's FusedAdam or (offloaded) DeepSpeedCPUAdam.

    On the CPU it does, since DeepSpeed's own kernels need a compiler and minutes there. ``optimizer.fused`` and
    ``optimizer.foreach`` are arguments of ``torch.optim``, so setting one chooses torch. NVMe offload swaps the state
    of DeepSpeedCPUAdam on any device.
    """
    if spec.optimizer.name != "adamw":
        return True
    if spec.zero.offload_optimizer == "nvme":
        return False
    return spec.hardware.device == "cpu" or spec.optimizer.fused is not None or spec.optimizer.foreach is not None


def step(spec: RunSpec) -> Literal["fused", "foreach", "loop"]:
    """Kernel of the step; with neither option set, torch uses foreach on a GPU and a loop on the CPU.

    ``torch/optim/optimizer.py``, ``_default_to_fused_or_foreach``; DeepSpeed's own kernels make no temporaries.
    """
    optimizer = spec.optimizer
    if optimizer.fused or not is_torch(spec):
        return "fused"
    unset = optimizer.fused is None and optimizer.foreach is None
    return "foreach" if optimizer.foreach or (unset and spec.hardware.device == "cuda") else "loop"


_HEADER = "libaio.h"


def obstacles(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for a missing compiler or missing libaio headers when the run compiles an operator at its start."""
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
    folders = [*os.environ.get("CPATH", "").split(os.pathsep), "/usr/include", "/usr/local/include"]
    return any((Path(folder) / _HEADER).is_file() for folder in folders if folder)
