"""Records that another has made or changed: all of what they would start is shown before a word starts it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.base import files
from launcher.base.process import Process
from launcher.cli import main
from launcher.rundir import run_names, signature
from tests.support import resuming
from tests.support.helpers import make_spec
from tests.support.training import SMALL

SLURM = ("cluster=slurm", "hardware=h100_80g", "cluster.setup=[source /opt/env.sh]", "cluster.modules=[cuda/12]")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    resuming.by_nobody(monkeypatch, steps=[])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('theirs')")
    assert main([*SMALL, "script=train.py", "hardware=cpu", "cluster.gpus_per_node=1", "run.name=a"]) == 0
    return unstarted(tmp_path / "runs" / "a")


def unstarted(run: Path) -> Path:
    """The run as it was before anybody submitted it."""
    for name in ("state.json", "submission.json"):
        (run / name).unlink()
    return run


def edited(run: Path, **changes: Any) -> None:
    """Change the job of a run as somebody else would."""
    job = files.read_json(run / "job.json") or {}
    (run / "job.json").write_text(json.dumps({**job, **changes}))


def test_a_run_whose_job_was_changed_after_its_recording_is_shown_whole_and_needs_a_word(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", "a"]) == 0
    unstarted(run)
    environment = {"LD_PRELOAD": "/tmp/evil.so", "PS1": "\x1b[2J\u202e\n"}
    edited(
        run,
        environment=environment,
        argv=["sh", "-c", "ls | sh"],
        working_directory=str(run.parent),
        pass_environment=["T"],
    )
    capsys.readouterr()
    assert main(["resume", "a"]) == 2
    said = capsys.readouterr().err
    assert "\n  command            sh -c 'ls | sh'\n" in said
    assert f"\n  working folder     {run.parent}\n" in said
    assert "\n  variable           LD_PRELOAD=/tmp/evil.so\n" in said
    assert "\n  variable           PS1=\\x1b[2J\\u202e\\n\n" in said
    assert "\n  variable of yours  T\n" in said
    assert re.search(r"\n  file               run_script\.py  sha256=[0-9a-f]{64}\n", said)
    assert re.search(r"\n  file               script/train\.py  sha256=[0-9a-f]{64}\n", said)
    assert "\n  setting            script=train.py\n" in said
    assert "you did not record this run, or it was moved or changed, and continuing it runs sh -c" in " ".join(
        said.split()
    )
    assert not (run / "state.json").exists(), "nothing was started"
    task = run / "logs" / "submitit" / "7_submitted.pkl"
    task.parent.mkdir(exist_ok=True)
    task.touch()
    (run / "kept").symlink_to("/usr")
    assert main(["resume", "a", "--trust"]) == 0
    said = capsys.readouterr().err
    assert "\n  variable           LD_PRELOAD=/tmp/evil.so\n" in said
    assert "\n  link               kept -> /usr\n" in said
    assert not task.exists(), "what was pickled for an earlier job is no part of what was shown"


@pytest.mark.parametrize(
    "name", ["home.json", "job.json", "plan.json", "spec.json", "script/train.py", "run_script.py"]
)
def test_each_file_that_says_what_is_started_counts(run: Path, name: str) -> None:
    assert signature.is_own(run)
    (run / name).write_text((run / name).read_text() + " ")
    assert not signature.is_own(run)


def test_what_a_word_starts_is_what_was_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited(run, argv=["true"])
    assert main(["resume", "a"]) == 2
    edited(run, argv=["false"])
    capsys.readouterr()
    assert main(["resume", "a", "--trust"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "command false" in said
    assert (
        "it is from elsewhere and differs from what was shown before: what it would start now is printed above" in said
    )
    assert not (run / "state.json").exists()
    assert main(["resume", "a", "--trust"]) == 0


def test_of_a_slurm_run_the_script_is_shown_with_all_of_its_lines(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = json.loads((run / "spec.json").read_text())
    spec["backend"]["name"] = "deepspeed"
    resuming.checkpoint(run, make_spec(*SMALL), 5)
    spec["cluster"] |= {"kind": "slurm", "setup": ["source /opt/env.sh"], "modules": ["cuda/12"]}
    (run / "spec.json").write_text(json.dumps(spec))
    assert main(["resume", "a"]) == 2
    said = capsys.readouterr().err
    assert "\n  sbatch script      module load cuda/12\n" in said
    assert "\n  sbatch script      source /opt/env.sh\n" in said
    assert "\n  needs permission   cluster.setup=['source /opt/env.sh'] runs these shell lines on every node\n" in said
    assert "\n  checkpoints        deepspeed unpickles them, which can run any code in them\n" in said


def test_a_record_that_was_never_noted_is_nobodys_own_though_its_place_is_known(run: Path, tmp_path: Path) -> None:
    (tmp_path / "state" / "launch" / "records.txt").unlink()
    assert run_names.remembered() == [run]
    assert not signature.is_own(run)


def test_a_place_is_known_by_the_whole_of_its_line(run: Path, tmp_path: Path) -> None:
    assert signature.is_own(run)
    other = tmp_path / f"other {run.name}"
    other.mkdir()
    for place in (other, tmp_path / "two\nlines", tmp_path / os.fsdecode(b"no utf-8 \xff")):
        shutil.copytree(run, place, dirs_exist_ok=True)
        assert not signature.is_own(place)
        run_names.remember(place)
        assert signature.is_own(place)
        (place / "job.json").write_text("{}")
        assert not signature.is_own(place)
    assert signature.is_own(run)


def test_a_point_of_a_sweep_that_was_changed_is_shown_and_those_that_are_alike_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "hardware=cpu", "cluster.gpus_per_node=1", "train.seed=1,2,3", "run.name=s"]
    assert main(["-m", *words]) == 0
    sweep = tmp_path / "runs" / "s"
    assert main(["resume", "s"]) == 0
    edited(sweep / "001", argv=["true"])
    capsys.readouterr()
    assert main(["resume", "s"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"\n001  \(.*\)\n  command            true\n", said)
    assert said.count("  command  ") == 4 - 1, "spec.json of each differs by its seed"
    assert main(["resume", "s", "--trust"]) == 0
    assert main(["resume", "s"]) == 0
    assert signature.is_own(sweep / "001")


def test_a_long_list_loses_the_records_that_are_gone(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    signature.note(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr(signature, "_LIST_BYTES", 10)
    signature.note(run)
    text = (tmp_path / "state" / "launch" / "records.txt").read_text()
    assert f" {run}\n" in text
    assert "gone" not in text


def test_no_task_is_read_or_removed_through_a_link(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "elsewhere" / "data.pkl"
    kept.parent.mkdir()
    kept.touch()
    (run / "logs" / "submitit").symlink_to(kept.parent)
    assert main(["resume", "a"]) == 4
    assert f"leads to {kept.parent} by a link: a job's task is pickled" in " ".join(capsys.readouterr().err.split())
    assert kept.exists()


def test_tasks_that_lie_in_a_run_of_ones_own_are_gone_before_it_is_submitted(run: Path) -> None:
    task = run / "logs" / "submitit" / "7_submitted.pkl"
    task.parent.mkdir()
    task.touch()
    assert main(["resume", "a"]) == 0
    assert not task.exists()


@pytest.mark.parametrize("verb", ["resume", "cancel"])
@pytest.mark.parametrize("name", ["submission.lock", "cancel_requested", "events.jsonl", "logs/node.out"])
def test_nothing_is_written_through_a_link(
    run: Path, tmp_path: Path, name: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile").write_text("theirs")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "profile")
    if verb == "cancel":
        here = Process.here().as_dict()
        files.write_atomically(run / "submission.json", {"kind": "local", "job_id": "7", "process": here})
    assert main([verb, "a"]) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert f"{run / name} leads to {tmp_path / 'profile'} by a link, and a run's files are written in its own" in said
    assert (tmp_path / "profile").read_text() == "theirs"


@pytest.mark.parametrize(
    ("name", "content", "answer"),
    [
        ("job.json", "{}", 2),
        ("job.json", '{"argv": 1, "environment": [], "pass_environment": 2}', 2),
        ("spec.json", "[", 4),
    ],
)
def test_a_damaged_record_of_another_is_an_error_and_no_traceback(
    run: Path, name: str, content: str, answer: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).write_text(content)
    assert main(["resume", "a"]) == answer
    assert ("error:" if answer == 2 else f"launch: {run / name}: it is not JSON") in capsys.readouterr().err
