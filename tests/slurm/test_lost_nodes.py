"""Runs on a real Slurm that lose a node."""

from __future__ import annotations

import pytest

from launcher.rundir import status
from slurm.dev_cluster import Cluster
from tests.support.slurm_runs import lines, processes, restarts, submit, succeeds, wait

CLUSTER = "nodes"


@pytest.mark.usefixtures("torchrun_without_torch")
def test_a_node_that_goes_down_costs_no_more_than_its_attempt_under_a_torchrun_without_torch(cluster: Cluster) -> None:
    run = submit("node", "cluster.gpus_per_node=1", "--", "--steps", "30")
    wait("steps", lambda: lines(run))
    node = cluster.ask("squeue", "-h", "-j", str(status.read(run).job_id), "-o", "%N")
    cluster.ask("scontrol", "update", f"node={node}", "state=down", "reason=test")  # It returns when it next reports.
    wait("the requeue", lambda: status.read(run).state == "requeued")
    succeeds(run)
    assert restarts(cluster, run) == 1


@pytest.mark.usefixtures("torchrun_without_torch")
def test_a_node_whose_slurmd_is_dead_goes_on_until_the_job_begins_elsewhere_under_a_torchrun_without_torch(
    cluster: Cluster,
) -> None:
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
