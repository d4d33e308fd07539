"""A run on a real Slurm that leaves a node which fails again and again."""

from __future__ import annotations

from launcher.rundir import status
from launcher.slurm import jobs
from slurm.dev_cluster import Cluster
from tests.support.slurm_runs import ended, restarts, submit, wait

CLUSTER = "loop"


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
