"""``launch why``: the answer on the terminal and as a document, of runs and sweeps, with lines that resume takes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import launcher
from launcher.rundir import state
from tests.support.ended_runs import failed, without_memory
from tests.support.recorded_runs import recorded, swept
from tests.support.slurm_runs import launch

TINY = ("model=tiny", "parallel=fsdp", "cluster.gpus_per_node=2", "hardware.memory_bytes=100000000")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_ways_out_are_lines_that_resume_takes(folder: Path) -> None:
    run = without_memory(
        folder / "runs" / "a", *TINY, grown={"activations": 2**27}, rank=1, layer=2, requested_bytes=2**20
    )
    job = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps({**job, "working_directory": str(folder)}))
    found = launch("why", "a", "--json").json["why"]
    assert (found["cause"], found["pile"]) == ("out_of_memory", "activations")
    assert found["fixes"]
    for fix in found["fixes"]:
        assert fix["command"] == shlex.join(["launch", "resume", "a", *fix["overrides"]])
        assert not any(word.startswith(("parallel=", "model=", "backend=")) for word in fix["overrides"])
    said = launch("why", "a").out
    assert said.startswith("a ran out of memory: backward of layer 2 on rank 1 (gpu07) in step 412 asked")
    assert launcher.Run("a").why().pile == "activations"


def test_words_that_resume_refuses_are_not_offered(folder: Path) -> None:
    from launcher.actions import diagnosis

    run = recorded(folder / "runs" / "a", now="failed")
    job = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps({**job, "working_directory": str(folder)}))
    assert diagnosis.takes(run, ["checkpointing=full"])
    assert not diagnosis.takes(run, ["parallel=ddp"]), "options of a layout are not chosen anew"
    assert not diagnosis.takes(run, ["parallel.tensor=3"])
    assert not diagnosis.takes(run, ["train.micro_batch_sise=1"])


def test_status_zero_whenever_there_was_an_answer(folder: Path) -> None:
    recorded(folder / "runs" / "a", now="finished")
    assert launch("why", "a").status == 0
    failed(folder / "runs" / "b")
    assert launch("why", "b").status == 0
    assert launch("why", "no_such_run").status == 2
    assert launch("why").status == 2
    assert launch("why", "a", "b").status == 2


def test_of_a_sweep_the_runs_that_failed_have_a_line_each(folder: Path) -> None:
    sweep = swept(folder / "runs" / "rates", {"1e-4": 3.0, "2e-4": 4.0, "3e-4": None})
    assert launch("why", "rates").out == "no run of rates has failed (2 runs)\n"
    state.put(sweep / "001", "failed", reason="rank 1 was ended by SIGSEGV", cause="rank_killed")
    lines = launch("why", "rates").out.splitlines()
    assert lines == [
        "rates/001: rank killed: rank 1 was ended by SIGSEGV",
        "details of one of them: launch why rates/001",
    ]
    assert [row["cause"] for row in launch("why", "rates", "--json").json["why"]] == ["rank_killed"]
    assert launch("why", "rates/001").out.startswith("rates/001 lost a rank: rank 1 was ended by SIGSEGV.")


def test_status_points_to_it(folder: Path) -> None:
    failed(folder / "runs" / "a", reason="rank 0: no")
    assert launch("status").out.splitlines()[-1] == "why: launch why a"
