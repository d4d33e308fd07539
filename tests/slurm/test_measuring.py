"""Layouts that are measured on a real Slurm: one array, short runs, the fastest as a recipe."""

from __future__ import annotations

from pathlib import Path

from launcher.rundir import status
from slurm.dev_cluster import Cluster
from tests.support.slurm_runs import SLURM, launch, succeeds
from tests.support.training import SMALL

LAID_OUT = (
    *("train.micro_batch_size=4", "checkpointing=none", "zero.offload_optimizer=none", "train.loss=full"),
    *("parallel=ddp,fsdp", "parallel.tensor=1", "parallel.pipeline=1", "parallel.context=1", "parallel.ulysses=1"),
)


def test_the_best_layouts_are_one_array_of_short_runs_and_are_ranked_as_they_end(cluster: Cluster) -> None:
    words = (*SLURM, *SMALL, *LAID_OUT, "cluster.gpus_per_node=1", "run.name=m", "sweep.parallelism=1")
    answer = launch("plan", *words, "--measure", "2", "--steps", "4", "--yes", "--json")
    assert answer.status == 0, answer.err
    found = answer.json["measurement"]
    runs = [Path(point["run"]["directory"]) for point in found["points"]]
    [first, second] = [str(status.read(run).job_id) for run in runs]
    assert (first.endswith("_0"), second) == (True, first.replace("_0", "_1"))
    job = cluster.ask("scontrol", "-o", "show", "job", first)
    assert f"TimeLimit=00:{found['time_limit_min']}:00" in job
    assert "Requeue=0" in job
    early = launch("plan", "--results", "m").out.splitlines()
    assert early[-1] == "2 of 2 runs have not ended"
    for run in runs:
        succeeds(run, 300)
    ranked = launch("plan", "--results", "m", "--json").json["measurement"]
    assert [row["rank"] for row in ranked["points"]] == [1, 2]
    assert ranked["recipe"] == {"path": str(Path.cwd() / "recipes" / "m.yaml"), "use": "launch recipe=m"}
    assert not list((Path.cwd() / "runs" / "m").glob("*/checkpoints/step-*"))
