"""A run as a DeepSpeed job: torchrun, our worker and a generated ``ds_config.json``."""

from __future__ import annotations

import json

from launcher.backends import _worker
from launcher.backends.deepspeed import ds_config
from launcher.job.job import RUN, Job
from launcher.spec import RunSpec

FILE = "ds_config.json"


def translate(spec: RunSpec, python: str) -> Job:
    """The job.

    The ``deepspeed`` command line is not used: on a login node it looks for GPUs or an ssh host (DeepSpeed
    launcher/runner.py), and bare on the CPU it starts one rank for each NUMA node. A script of the user's own finds
    the file by ``DEEPSPEED_CONFIG_FILE``.

    Args:
        spec: A run that ``check`` accepts.
        python: The interpreter of the job.
    """
    environment = {"DEEPSPEED_CONFIG_FILE": f"{RUN}/{FILE}"}
    if spec.hardware.device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
    files = {FILE: json.dumps(ds_config.build(spec), indent=2, sort_keys=True) + "\n"}
    return _worker.job(spec, python, "launcher.worker.deepspeed", environment, files)
