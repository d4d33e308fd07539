"""A run that loses its nodes to a job of higher priority has the losses of one that does not."""

from __future__ import annotations

import json
from pathlib import Path

from launcher.job import events
from launcher.rundir import status
from slurm.dev_cluster import Cluster
from tests.support.slurm_runs import lines, losses, restarts, submit, succeeds, wait
from tests.support.training import SMALL

CLUSTER = "preemption"


def test_a_preempted_run_has_the_losses_of_an_undisturbed_one(cluster: Cluster) -> None:
    world = ("cluster.nodes=2", "cluster.gpus_per_node=1", "train.micro_batch_size=4")
    place = ("cluster.partition=low", "cluster.nodelist='node[3-4]'")  # The cluster's own tests have the others.
    words = (*SMALL, *world, "train.steps=150", "data.workers=1", *place)
    disturbed = submit("disturbed", *words, "parallel=fsdp")
    wait("steps", lambda: len(lines(disturbed)) > 3, 240)
    preempt(cluster, disturbed)
    wait("the requeue", lambda: status.read(disturbed).state == "requeued", 120)
    reason = str(status.read(disturbed).reason)
    # Slurm may put the job back before its first node has said why it left.
    assert reason.startswith(("preempted after step ", "stopped by Slurm")), reason
    saved = [json.loads((path / "state.json").read_text())["step"] for path in disturbed.glob("checkpoints/step-*")]
    whole = submit("whole", *words, "parallel=fsdp")  # It trains beside the other, which has its nodes again.
    succeeds(disturbed, 300)
    # Slurm 24.11 requeues it once more as it finishes, and that attempt has nothing to do.
    job = str(status.read(disturbed).job_id)
    wait("Slurm's own end", lambda: cluster.ask("squeue", "-h", "--states=all", "-j", job, "-o", "%T") == "COMPLETED")
    assert restarts(cluster, disturbed) in (1, 2)
    assert [each["kind"] for each in events.read(disturbed)].count("start") == 2
    assert 0 < saved[0] < 150
    succeeds(whole, 300)
    assert [step for step, _ in losses(whole)] == list(range(1, 151))
    assert losses(disturbed) == losses(whole), f"it was stopped after step {saved[0]}"


def preempt(cluster: Cluster, run: Path) -> str:
    """Take a run's nodes for a job of higher priority."""
    nodes = cluster.ask("squeue", "-h", "-j", str(status.read(run).job_id), "-o", "%N")
    words = ("--partition=high", f"--nodelist={nodes}", "--nodes=2", "--gpus-per-node=8", "--output=/dev/null")
    return cluster.ask("sbatch", "--parsable", *words, "--wrap", "sleep 1")
