"""A rank of a run rehearsed on a real Slurm: a short job of one device, whose answer is read back and is evidence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.rundir import status
from slurm.dev_cluster import Cluster
from tests.support.slurm_runs import SLURM, launch, succeeds
from tests.support.training import SMALL

WORDS = (*SLURM, *SMALL, "parallel=fsdp", "cluster.nodes=2", "cluster.gpus_per_node=4", "cluster.time_limit_min=600")


def test_a_rehearsal_is_a_short_job_of_one_device_and_its_answer_is_shown_and_kept(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    answer = launch("rehearse", *WORDS, "--json")
    assert answer.status == 0, answer.err
    assert answer.json["rehearse"] is None
    run = Path(answer.json["run"]["directory"])
    job = cluster.ask("scontrol", "-o", "show", "job", answer.json["run"]["job_id"])
    assert "TimeLimit=00:20:00" in job
    assert re.search(r"gres[:/]gpu:1\b", job), job  # With a slash from Slurm 23.11 on.
    assert "NumNodes=1" in job
    assert "Requeue=0" in job
    again = launch("rehearse", *WORDS, "--json")
    assert again.status == 0, again.err
    if again.json["rehearse"] is None:  # It is on its way, unless it has ended meanwhile.
        assert again.json["run"]["directory"] == str(run)
    succeeds(run, 300)
    assert [row.directory for row in status.read_all([run])] == [str(run)]
    found = launch("rehearse", "--results", run.name, "--json")
    assert found.status == 0, found.err
    rehearsed = found.json["rehearse"]
    assert (rehearsed["world"], rehearsed["rank"], rehearsed["verdict"]) == (8, 0, "fits")
    assert rehearsed["phases"][2]["measured_bytes"] > 0
    same = launch("rehearse", *WORDS, "--json")
    assert same.json["rehearse"] == rehearsed
    assert f"this is the answer of {run}" in same.err
    assert launch("check", *WORDS, "--json").json["rehearsed"]["measured_bytes"] == max(
        phase["measured_bytes"] or 0 for phase in rehearsed["phases"]
    )
