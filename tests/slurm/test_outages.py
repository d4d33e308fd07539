"""Runs on a real Slurm that outlast a node, the controller or the launcher."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from launcher.rundir import state, status
from launcher.slurm import jobs
from slurm.dev_cluster import Cluster
from tests.support.slurm_runs import SLURM, ended, launch, lines, processes, restarts, submit, submitted, succeeds, wait

CLUSTER = "outages"


def test_a_node_that_goes_down_costs_no_more_than_its_attempt(cluster: Cluster) -> None:
    run = submit("node", "cluster.gpus_per_node=1", "--", "--steps", "30")
    wait("steps", lambda: lines(run))
    node = cluster.ask("squeue", "-h", "-j", str(status.read(run).job_id), "-o", "%N")
    cluster.ask("scontrol", "update", f"node={node}", "state=down", "reason=test")  # It returns when it next reports.
    wait("the requeue", lambda: status.read(run).state == "requeued")
    succeeds(run)
    assert restarts(cluster, run) == 1


def test_a_node_whose_slurmd_is_dead_goes_on_until_the_job_begins_elsewhere(cluster: Cluster) -> None:
    run = submit("orphan", "cluster.gpus_per_node=1", "--", "--steps", "3000", "--again", "10")
    wait("steps", lambda: lines(run))
    node = cluster.ask("squeue", "-h", "-j", str(status.read(run).job_id), "-o", "%N")
    first = processes(run)
    cluster.kill(node, "slurmd")
    before = len(lines(run))
    wait("steps without slurmd", lambda: len(lines(run)) > before + 5)
    succeeds(run)
    assert restarts(cluster, run) == 1
    wait("the end of the first attempt", lambda: not set(first) & set(processes(run)))
    assert status.read(run).state == "finished", "which it leaves as it is"
    cluster.revive(node, "slurmd", "-D", "-N", node)
    wait(
        "the node", lambda: node in cluster.ask("sinfo", "-h", "-N", "-p", "main", "-t", "idle,mix", "-o", "%N").split()
    )


def test_a_crash_loop_leaves_a_node_that_fails_twice_and_is_not_requeued_for_ever(cluster: Cluster) -> None:
    # Slurm takes the first of the two nodes as long as it may.
    words = ("cluster.gpus_per_node=2", "cluster.requeues=2", "cluster.extra.exclude='node[3-4]'")
    run = submit("loop", *words, "--", "--do", "die")
    job = str(status.read(run).job_id)
    wait("the second requeue", lambda: "failed 2 times" in str(status.read(run).reason))
    left = "rank 1 was ended by SIGKILL: the kernel may have been out of memory (on node1); node1 failed 2 times and "
    assert str(status.read(run).reason).startswith(f"{left}is excluded from the requeue")
    wait("Slurm's word for it", lambda: cluster.ask("squeue", "-h", "-j", job, "-o", "%x") == "node[1,3-4]")
    assert jobs.obstacle(job, ["node2"]) == "partition main has 0 other nodes that are up, and the run needs 1"
    ending = ended(run)
    assert ending.state == "failed"
    expected = (
        "rank 1 was ended by SIGKILL: the kernel may have been out of memory (on node2); not requeued: 3 attempts "
    )
    assert ending.reason == f"{expected}in a row left no new checkpoint (cluster.requeues=2)"
    assert restarts(cluster, run) == 2


def test_a_controller_that_restarts_is_waited_for(cluster: Cluster) -> None:
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


def test_a_job_whose_step_slurm_could_not_start_goes_back_into_the_queue(cluster: Cluster) -> None:
    Path("setup.sh").write_text(
        'srun() { test $SLURM_RESTART_COUNT && command srun "$@" || ! echo "srun: error: Unable to create step" >&2; }'
    )
    words = ("cluster.gpus_per_node=1", f"cluster.setup=['source {Path.cwd()}/setup.sh']")
    again, once = submit("again", *words), submit("once", *words, "cluster.requeues=0")
    assert ended(once).reason == "Slurm could not start it on its nodes: Unable to create step"
    succeeds(again)
    assert restarts(cluster, again) >= 1, "Slurm 22.05 itself may fail to create a step on nodes that were completing"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_launcher_killed_around_its_submission_neither_loses_nor_doubles_the_run(cluster: Cluster, when: str) -> None:
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
