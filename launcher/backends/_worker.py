"""The workers of this project: the job that starts one, and settings that none honours yet, since they share code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.base.errors import ConfigError
from launcher.job import torchrun
from launcher.job.job import RUN, Job
from launcher.spec import RunSpec


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Settings that ``launcher.worker.model.network`` and ``launcher.worker.model`` would drop."""
    settings = spec.checkpointing
    if settings.mode == "full" and settings.method == "uniform" and (settings.layers or 1) > 1:
        rule = "each layer is a group of its own: transformers calls its layers one by one"
        way_out = ["checkpointing.layers=1", "checkpointing.method=block"]
        yield ConfigError("checkpointing.layers", settings.layers, rule, way_out)
    if settings.modules:
        rule = "what is kept is chosen by operation, not by module: every second matrix product, and attention"
        yield ConfigError("checkpointing.modules", list(settings.modules), rule, ["checkpointing.modules=[]"])
    if spec.train.loss == "fused":
        rule = "no fused cross entropy is installed; the chunked one also never holds all logits"
        yield ConfigError("train.loss", "fused", rule, ["train.loss=chunked", "train.loss=full"])


def job(
    spec: RunSpec, python: str, module: str, environment: Mapping[str, str], files: Mapping[str, str] | None = None
) -> Job:
    """The worker ``module`` under torchrun, which reads ``spec.json``.

    Args:
        spec: A run that ``check`` accepts.
        python: The interpreter of the job.
        module: The worker's name, as ``python -m`` takes it.
        environment: Variables that its engine needs.
        files: Files that it reads beside the specification.
    """
    arguments = ("--run", RUN)
    expandable = spec.hardware.device == "cuda" and spec.train.allocator == "expandable"
    allocator = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if expandable else {}
    return Job(
        argv=torchrun.command(spec, python, ("-m", module), arguments),
        worker_argv=arguments,
        environment={**environment, **allocator},
        files=files or {},
        nodes=spec.cluster.nodes,
        gpus_per_node=spec.cluster.gpus_per_node,
    )
