"""Submissions that Slurm refuses: the run's name stays free, the record says why, and `launch resume` submits it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.base import machine
from launcher.base.errors import ConfigError, ConfigErrors
from tests.support.helpers import CPU_HOST
from tests.support.slurm_runs import SLURM, launch


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)
    return tmp_path


def test_what_the_cluster_would_refuse_leaves_its_name_to_the_corrected_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise ConfigErrors([ConfigError("cluster.partition", None, "Slurm has no such partition")])

    monkeypatch.setattr("launcher.slurm.precheck.check", refuse)
    Path("train.py").touch()
    for words in (("run.name=a",), (), ("-m", "train.seed=1,2", "run.name=s")):
        assert launch(*SLURM, "script=train.py", *words).status == 2
    assert list((folder / "runs").iterdir()) == []


def test_a_run_whose_submission_failed_makes_place_for_the_corrected_one_and_never_one_that_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    Path("train.py").touch()
    words = (*SLURM, "script=train.py")
    for name in ("run.name=a", "run.name=a", "train.seed=1", "train.seed=1"):
        assert launch(*words, name).status == 4
    assert len(list((folder / "runs").iterdir())) == 2, "the same run again takes the place of the first try"
    run = folder / "runs" / "a"
    answer = launch("status", "a")
    assert "failed" in answer.out.split()
    assert "prepared" not in answer.out
    assert "its submission failed: scontrol is not found: this machine has no Slurm" in answer.out
    assert launch(*words, "run.name=a", "train.seed=7").status == 4
    assert json.loads((run / "spec.json").read_text())["train"]["seed"] == 7
    (run / "metrics.jsonl").touch()
    answer = launch(*words, "run.name=a")
    assert (answer.status, "exists and is never overwritten" in answer.err) == (4, True)


_COMMANDS = {
    "scontrol": "echo PartitionName=main Default=YES MaxTime=UNLIMITED State=UP TotalNodes=4",
    "sinfo": "echo 'main|4|64|500000|gpu:8|(null)'",
    "squeue": "true",
    "srun": "true",
    "sbatch": """case $1 in --test-only) exit 0;; esac
echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2
exit 1""",
}
"""A Slurm that takes every script and then refuses the job, as by a limit on jobs."""


def test_a_run_that_sbatch_refuses_has_failed_with_the_words_of_sbatch_and_is_submitted_by_resume(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "bin").mkdir()
    for name, text in _COMMANDS.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
    monkeypatch.setattr("launcher.slurm.precheck.check_folder", lambda directory: None)
    Path("train.py").touch()
    assert launch(*SLURM, "script=train.py", "run.name=a").status == 4
    [row] = launch("status", "a", "--json").json["runs"]
    assert (row["state"], row["job_id"]) == ("failed", None)
    assert "its submission failed: " in row["reason"]
    assert "QOSMaxSubmitJobPerUserLimit" in row["reason"]
    assert launch("why", "a", "--json").json["why"]["cause"] == "error"
    assert launch("resume", "a").status == 4
    assert launch("status", "a", "--json").json["runs"][0]["state"] == "failed"
    (folder / "bin" / "sbatch").write_text(
        "#!/bin/sh\ncase $1 in --test-only) ;; *) echo Submitted batch job 7;; esac\n"
    )
    (folder / "bin" / "squeue").write_text("#!/bin/sh\ncase $* in *jobs=7*) echo '7|PENDING|Priority||N/A';; esac\n")
    assert launch("resume", "a").status == 0
    [row] = launch("status", "a", "--json").json["runs"]
    assert (row["state"], row["job_id"]) == ("queued", "7")
    assert not (folder / "runs" / "a" / "not_submitted.json").exists()
