"""A run as a job of the FSDP2 and DDP worker: torchrun and one module, which reads ``spec.json``."""

from __future__ import annotations

from launcher.job import torchrun
from launcher.job.job import RUN, Job
from launcher.spec import RunSpec

PROGRAM = ("-m", "launcher.worker.fsdp")


def translate(spec: RunSpec, python: str) -> Job:
    """The job.

    Args:
        spec: A run that ``check`` accepts.
        python: The interpreter of the job.
    """
    arguments = ("--run", RUN)
    return Job(
        argv=torchrun.command(spec, python, PROGRAM, arguments),
        worker_argv=arguments,
        environment=_environment(spec),
        nodes=spec.cluster.nodes,
        gpus_per_node=spec.cluster.gpus_per_node,
    )


def _environment(spec: RunSpec) -> dict[str, str]:
    if spec.hardware.device == "cuda" and spec.train.allocator == "expandable":
        return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    return {}
