"""Training on a real Slurm when a rank hangs and when the disk is full."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from launcher.base import files
from launcher.rundir import attempts
from slurm.dev_cluster import Cluster
from tests.support.slurm_runs import ended, lines, processes, submit, wait
from tests.support.training import SMALL


def test_a_rank_that_hangs_is_named_and_does_not_hold_the_job(cluster: Cluster) -> None:
    words = (*SMALL, "cluster.gpus_per_node=2", "train.micro_batch_size=2", "train.steps=100000", "parallel=fsdp")
    run = submit("hangs", *words, "train.timeout_s=20", "cluster.requeues=0")
    wait("steps", lambda: lines(run), 240)
    [last] = [pid for pid in processes(run) if b"RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]
    os.kill(last, signal.SIGSTOP)
    ending = ended(run, 240)
    [node] = (files.read_json(run / attempts.FILE) or {})["failures"]
    expected = (
        f"timeout in a collective: rank 1 on {node} did not arrive while 1 waited (train.timeout_s); not requeued"
    )
    assert (ending.state, ending.reason) == ("failed", f"{expected}: cluster.requeues=0")
    assert not processes(run), "not even the one that was stopped"


def test_a_full_disk_pauses_saving_and_leaves_the_last_checkpoint(cluster: Cluster) -> None:
    run = Path.cwd() / "runs" / "full"
    small = f"cluster.setup=['mount -t tmpfs -o size=2m tmpfs {run}/checkpoints']"
    words = ("cluster.gpus_per_node=1", "train.micro_batch_size=4", "parallel=fsdp", "save.every=5", "save.keep=3")
    submit("full", *SMALL, *words, "save.last=true", "cluster.nodelist=node4", small)
    ending = ended(run, 240)
    assert ending.state == "failed"
    assert "the checkpoint of step 20 could not be written" in str(ending.reason)
    assert "no space left on the disk; step-00000005 is intact" in str(ending.reason)
    assert lines(run)[-1]["step"] == 20, "training went on while saving was paused"
    said = next((run / "logs" / "ranks").glob("*/attempt_0/0/stderr.log")).read_text()
    assert "the checkpoint of step 10 could not be written" in said
    assert said.count("; training continues\n") == 2
    [inside] = cluster.processes("node4", "slurmd")
    saved = Path(f"/proc/{inside}/root{run}/checkpoints/step-00000005/state.json")
    assert json.loads(saved.read_text())["step"] == 5
