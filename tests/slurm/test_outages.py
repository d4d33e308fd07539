"""Runs on a real Slurm that outlast the controller, a step that could not start, or the launcher."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from launcher.rundir import state, status
from slurm.dev_cluster import Cluster
from tests.support.slurm_runs import SLURM, ended, launch, restarts, submit, submitted, succeeds, wait

CLUSTER = "outages"


@pytest.mark.usefixtures("torchrun_without_torch")
def test_a_controller_that_restarts_is_waited_for_under_a_torchrun_without_torch(cluster: Cluster) -> None:
    # Slurm 22.05 miscounts the GPUs of a node whose job was completing, and creates no step on it any more.
    wait("the end of earlier jobs", lambda: not cluster.ask("squeue", "-h", "-t", "completing"))
    cluster.kill("slurmctld", "slurmctld", signal.SIGTERM)
    assert "Slurm does not answer" in str(status.read(submitted(Path.cwd() / "runs" / "old")).reason)
    cluster.revive("slurmctld", "sh", "-c", "sleep 3; exec slurmctld -D")
    run = submit("patient", "cluster.gpus_per_node=1")
    succeeds(run)
    wait(
        "all nodes", lambda: "node[1-4]" in cluster.ask("sinfo", "-h", "-p", "main", "-t", "idle,mix,alloc", "-o", "%N")
    )


@pytest.mark.usefixtures("torchrun_without_torch")
def test_a_job_whose_step_slurm_could_not_start_goes_back_into_the_queue_under_a_torchrun_without_torch(
    cluster: Cluster,
) -> None:
    Path("setup.sh").write_text(
        'srun() { test $SLURM_RESTART_COUNT && command srun "$@" || ! echo "srun: error: Unable to create step" >&2; }'
    )
    words = ("cluster.gpus_per_node=1", f"cluster.setup=['source {Path.cwd()}/setup.sh']")
    again, once = submit("again", *words), submit("once", *words, "cluster.requeues=0")
    assert ended(once).reason == "Slurm could not start it on its nodes: Unable to create step"
    succeeds(again)
    assert restarts(cluster, again) >= 1, "Slurm 22.05 itself may fail to create a step on nodes that were completing"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.usefixtures("torchrun_without_torch")
def test_a_launcher_killed_around_its_submission_neither_loses_nor_doubles_the_run_under_a_torchrun_without_torch(
    cluster: Cluster, when: str
) -> None:
    real = cluster.ask("sh", "-c", "command -v sbatch")
    Path("bin").mkdir()
    submits = f'{real} "$@"' if when == "after" else "true"
    Path("bin/sbatch").write_text(
        f'#!/bin/sh\ncase $1 in --test-only) exec {real} "$@";; esac\n{submits}\nkill -9 $PPID\n'
    )
    Path("bin/sbatch").chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{Path.cwd()}/bin:{path}"
    pid = os.fork()
    if not pid:
        launch(*SLURM, "script=train.py", "run.name=killed", "cluster.gpus_per_node=1")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    os.environ["PATH"] = path
    run = Path.cwd() / "runs" / "killed"
    assert json.loads((run / state.SUBMISSION).read_text())["job_id"] is None
    if when == "before":
        assert status.read(run).state == "prepared"
        assert launch("status").out.endswith("recorded, but not submitted: `launch resume killed` submits it\n")
        assert launch("resume", "killed").status == 0
    assert status.read(run).job_id is not None
    succeeds(run)
    jobs = cluster.ask("squeue", "-h", "--states=all", "-o", "%i %k").splitlines()
    assert len([line for line in jobs if line.endswith(f" {run}/logs/submitit")]) == 1
