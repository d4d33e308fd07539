"""Training on two nodes of a real Slurm: the same losses with a preemption as without, and both engines."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import runs
from slurm.dev_cluster import Cluster
from tests.slurm_runs import at, ended, lines, processes, restarts, submit, succeeds, wait
from tests.training import SMALL

WORLD = ("cluster.nodes=2", "cluster.gpus_per_node=2", "train.micro_batch_size=2")


@pytest.fixture
def cluster(slurm_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with at(tmp_path, slurm_cluster):
        yield slurm_cluster


def losses(run: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["loss"]) for line in lines(run)]


def preempt(cluster: Cluster, run: Path) -> str:
    """Take a run's nodes for a job of higher priority."""
    nodes = cluster.ask("squeue", "-h", "-j", str(runs.read(run).job_id), "-o", "%N")
    words = ("--partition=high", f"--nodelist={nodes}", "--nodes=2", "--gpus-per-node=8", "--output=/dev/null")
    return cluster.ask("sbatch", "--parsable", *words, "--wrap", "sleep 1")


def test_a_preempted_run_has_the_losses_of_an_undisturbed_one(cluster: Cluster) -> None:
    words = (*SMALL, *WORLD, "train.steps=300", "data.workers=1", "cluster.partition=low")
    disturbed = submit("disturbed", *words, "parallel=fsdp")
    wait("steps", lambda: len(lines(disturbed)) > 3, 240)
    preempt(cluster, disturbed)
    wait("the requeue", lambda: runs.read(disturbed).state == "requeued", 120)
    reason = str(runs.read(disturbed).reason)
    # Slurm may put the job back before its first node has said why it left.
    assert reason.startswith(("preempted after step ", "stopped by Slurm")), reason
    saved = [json.loads((path / "state.json").read_text())["step"] for path in disturbed.glob("checkpoints/step-*")]
    succeeds(disturbed, 300)
    assert restarts(cluster, disturbed) == 1
    assert 0 < saved[0] < 300
    whole = submit("whole", *words, "parallel=fsdp")
    succeeds(whole, 300)
    assert [step for step, _ in losses(whole)] == list(range(1, 301))
    assert losses(disturbed) == losses(whole), f"it was stopped after step {saved[0]}"


def test_a_rank_that_hangs_is_named_and_does_not_hold_the_job(cluster: Cluster) -> None:
    words = (*SMALL, "cluster.gpus_per_node=2", "train.micro_batch_size=2", "train.steps=100000", "parallel=fsdp")
    run = submit("hangs", *words, "train.timeout_s=20", "cluster.requeues=0")
    wait("steps", lambda: lines(run), 240)
    [last] = [pid for pid in processes(run) if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
    os.kill(last, signal.SIGSTOP)
    ending = ended(run, 240)
    expected = "timeout in a collective: rank 1 did not arrive while 1 waited (train.timeout_s); not requeued: "
    assert (ending.state, ending.reason) == ("failed", f"{expected}cluster.requeues=0")
    assert not processes(run), "not even the one that was stopped"


def test_a_full_disk_is_said_and_leaves_the_last_checkpoint(cluster: Cluster) -> None:
    run = Path.cwd() / "runs" / "full"
    small = f"cluster.setup=['mount -t tmpfs -o size=2m tmpfs {run}/checkpoints']"
    words = ("cluster.gpus_per_node=1", "train.micro_batch_size=4", "parallel=fsdp", "save.every=5", "save.keep=3")
    submit("full", *SMALL, *words, "cluster.extra.nodelist=node4", small)
    ending = ended(run, 240)
    assert ending.state == "failed"
    assert "no space left on the disk; step-00000005 is intact" in str(ending.reason)
    [inside] = cluster.processes("node4", "slurmd")
    saved = Path(f"/proc/{inside}/root{run}/checkpoints/step-00000005/state.json")
    assert json.loads(saved.read_text())["step"] == 5


def test_two_jobs_on_one_node_do_not_meet(cluster: Cluster) -> None:
    words = (*SMALL, "cluster.gpus_per_node=1", "train.micro_batch_size=4", "parallel=fsdp", "train.steps=5")
    both = [submit(name, *words, "cluster.extra.nodelist=node3") for name in ("one", "other")]
    for run in both:
        succeeds(run, 300)
    assert losses(both[0]) == losses(both[1])
    assert len(losses(both[0])) == 5


@pytest.mark.parametrize(
    "engine", [("parallel=zero3",), ("parallel=tp", "parallel.tensor=2")], ids=["zero3", "megatron"]
)
def test_the_other_engines_train_on_two_nodes(cluster: Cluster, engine: tuple[str, ...]) -> None:
    run = submit("other", *SMALL, *WORLD, "train.steps=5", *engine)
    succeeds(run, 400)
    found: list[dict[str, Any]] = lines(run)
    assert [line["step"] for line in found] == [1, 2, 3, 4, 5]
    assert found[-1]["loss"] < found[0]["loss"]
