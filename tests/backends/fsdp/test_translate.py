"""The job of an FSDP run: torchrun, its arguments and its environment."""

from __future__ import annotations

import pytest

from launcher.backends.fsdp import translate
from tests.support.fsdp_specs import GPU
from tests.support.helpers import assert_golden, make_spec


@pytest.mark.parametrize("name", ["local", "slurm"])
def test_the_job_is_torchrun_and_one_module(name: str) -> None:
    world = ("cluster=slurm", "cluster.nodes=2", "train.allocator=expandable") if name == "slurm" else ()
    job = translate(make_spec(*GPU, *world), "python")
    lines = [*job.argv, "", *job.worker_argv, "", *(f"{key}={value}" for key, value in job.environment.items())]
    assert_golden(f"fsdp_{name}.txt", "\n".join([*lines, "", f"{job.nodes} x {job.gpus_per_node}", ""]))
