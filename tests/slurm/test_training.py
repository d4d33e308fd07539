"""Training on a real Slurm: two jobs on one node, and the other engines on two nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.job import RUN
from launcher.preflight.measured import file
from slurm.dev_cluster import Cluster
from tests.support.measured_rows import users_own
from tests.support.slurm_runs import lines, losses, submit, succeeds, wait
from tests.support.training import SMALL


def test_two_jobs_on_one_node_do_not_meet(cluster: Cluster) -> None:
    words = (*SMALL, "cluster.gpus_per_node=1", "train.micro_batch_size=4", "parallel=fsdp", "train.steps=5")
    both = [submit(name, *words, "cluster.nodelist=node3") for name in ("one", "other")]
    for run in both:
        succeeds(run, 300)
    assert losses(both[0]) == losses(both[1])
    assert len(losses(both[0])) == 5
    wait("measured runs", lambda: {str(run) for run in both} <= {row.directory for row in file.load(users_own()).rows})


@pytest.mark.parametrize(
    "engine",
    [("parallel=zero3",), ("parallel=tp", "parallel.tensor=1", "parallel.sequence=false")],
    ids=["zero3", "megatron"],
)
def test_the_other_engines_train_on_two_nodes(cluster: Cluster, engine: tuple[str, ...]) -> None:
    world = ("cluster.nodes=2", "cluster.gpus_per_node=1", "train.micro_batch_size=2")
    run = submit("other", *SMALL, *world, "data=text", 'data.path="{stdlib}/json/*.py"', "train.steps=5", *engine)
    succeeds(run, 400)
    assert "launch: token ids: " in (run / "logs" / "node.out").read_text(), "the first node made them"
    folder = json.loads((run / "tokens.json").read_text())["folder"]
    assert Path(folder.replace(RUN, str(run))).parent == run / "cache"
    found: list[dict[str, Any]] = lines(run)
    assert [line["step"] for line in found] == [1, 2, 3, 4, 5]
    assert found[-1]["loss"] < found[0]["loss"]
