"""`launch resume RUN KEY=VALUE` of a script of one's own, from another folder, and of a group chosen anew."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import submitit  # noqa: F401  # It closes the handlers that logging has when it is imported, and absl's closes stderr.

from launcher.actions import resume_changed
from launcher.base import machine
from launcher.base.errors import ConfigErrors
from launcher.rundir import changes, lock, results
from launcher.spec import edit
from tests.support import resuming, training
from tests.support.helpers import CPU_HOST, make_spec
from tests.support.slurm_runs import launch

BASE = (*training.SMALL, "model.num_hidden_layers=1", "train.global_batch_size=12", "hardware=cpu")
OF_64_TOKENS = (*(word for word in BASE if not word.startswith("train.steps")), "train.sequence_length=64")
SCRIPT = "print('as it was')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the runs are made."""
    made = tmp_path / "made"
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)
    resuming.by_nobody(monkeypatch, steps=(2, 4))
    return made


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture
def scripted(folder: Path) -> Path:
    """A run of a script that was edited since."""
    Path("train.py").write_text(SCRIPT)
    answer = launch("script=train.py", "hardware=cpu", "cluster.gpus_per_node=2", "run.name=a")
    assert answer.status == 0, answer.err
    Path("train.py").write_text("print('edited')\n")
    return folder / "runs" / "a"


def test_a_run_of_a_script_goes_on_with_other_settings_and_its_own_copy(scripted: Path) -> None:
    answer = launch("resume", "a", "cluster.gpus_per_node=1")
    assert answer.status == 0, answer.err
    assert "  cluster.gpus_per_node: 2 -> 1" in answer.err
    assert (scripted / "script" / "train.py").read_text() == SCRIPT
    digest = hashlib.sha256(SCRIPT.encode()).hexdigest()
    assert lock.read(scripted).content["script"] == {"path": "train.py", "sha256": digest}
    assert [entry["before"] for entry in changes.read(scripted)] == ["settings/1"]


def test_a_run_stays_with_its_script(scripted: Path) -> None:
    Path("other.py").touch()
    answer = launch("resume", "a", "script=other.py")
    assert answer.status == 2
    said = " ".join(answer.err.split())
    assert (
        "script=other.py: a resumed run uses its own copy of the script: `launch run --from RUN` starts a run with"
        " another try script=train.py"
    ) in said
    assert not (scripted / "changes.json").exists()


def test_a_changed_run_keeps_its_jobs_folder_wherever_it_is_typed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "corpus.txt").write_text("some words to train on\n" * 200)
    words = ("data=text", "data.path=corpus.txt", "model.vocab_size=300", "train.steps=4")
    answer = launch(*BASE, *words, "cluster.gpus_per_node=2", "run.name=a")
    assert answer.status == 0, answer.err
    monkeypatch.chdir(tmp_path)
    answer = launch("resume", "a", "train.steps=8")
    assert answer.status == 0, answer.err
    assert Path.cwd() == tmp_path
    run = folder / "runs" / "a"
    assert _json(run / "job.json")["working_directory"] == str(folder)
    assert lock.read(run).content["job"]["working_directory"] == str(folder)


def test_a_resumed_run_whose_data_are_gone_is_offered_no_other_data(folder: Path) -> None:
    corpus = folder / "corpus.txt"
    corpus.write_text("some words to train on\n" * 200)
    words = ("data=text", "data.path=corpus.txt", "model.vocab_size=300", "train.steps=4")
    assert launch(*BASE, *words, "cluster.gpus_per_node=2", "run.name=a").status == 0
    corpus.rename(folder / "corpus2.txt")
    said = launch("resume", "a", "train.steps=8").err
    assert "data.path=corpus2.txt" in said
    assert "data=synthetic" not in said


def test_ways_out_of_a_resumed_run_are_those_that_it_takes_or_that_undo_a_change() -> None:
    spec = make_spec("model=tiny", "data=text", "data.mix=[{path: a b, weight: 1.0},{path: c, weight: 2.0}]")
    taken = ("parallel.tensor=1 train.micro_batch_size=2", "data.path=b", "data.workers=0", "launch data verify")
    undone = ("model.hidden_size=256", edit.override("data.mix", spec.data.mix))
    assert all(changes.allows(spec, way) for way in (*taken, *undone))
    refused = ("data=synthetic data.path=null", "model.hidden_size=512", "data.shuffle=false", "model=7b")
    assert not any(changes.allows(spec, way) for way in refused)


def test_a_run_whose_folder_is_gone_is_not_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "a"
    words = ("cluster.gpus_per_node=2", "train.steps=4", f"run.directory={run}")
    assert launch(*BASE, *words).status == 0
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(folder)
    answer = launch("resume", "a", "train.steps=8")
    assert answer.status == 4
    assert " ".join(answer.err.split()) == (
        f"launch: the run's working folder {folder}, in which its job starts, does not exist: create it again, "
        f"or continue in this folder with a new run: `launch run --from {run} save.load={run} train.steps=8`"
    )
    assert not (run / "changes.json").exists()


def test_earlier_words_of_a_group_that_is_chosen_anew_describe_the_run_no_more(folder: Path) -> None:
    made = ("optimizer.lr=1e-5", "optimizer.weight_decay=0.5", "cluster.gpus_per_node=1", "train.steps=4")
    assert launch(*BASE, *made, "run.name=a").status == 0
    answer = launch("resume", "a", "optimizer=adamw", "optimizer.epsilon=1e-7", "train.steps=8")
    assert answer.status == 0, answer.err
    run = folder / "runs" / "a"
    words = _json(run / "plan.json")["overrides"]
    assert [word for word in words if word.startswith(("optimizer", "train.steps"))] == [
        "optimizer=adamw",
        "optimizer.epsilon=1e-7",
        "train.steps=8",
    ]
    assert "cluster.gpus_per_node=1" in words
    assert lock.read(run).content["overrides"] == words
    assert make_spec(*words).optimizer == lock.read(run).spec.optimizer


def test_ways_to_share_out_a_batch_are_whole_ranks_of_each_node() -> None:
    """Of 12 sequences 1, 2, 3, 4, 6 or 12 ranks have as many each; 4 and 12 of these are whole ranks of four nodes."""
    before = make_spec(*BASE, "parallel=ddp", "cluster.gpus_per_node=2")
    four = edit.changed_at(before, {"cluster.nodes": 4, "cluster.kind": "slurm"})
    assert _ways(before, four) == ("cluster.gpus_per_node=3", "cluster.gpus_per_node=1")
    five = edit.changed_at(before, {"cluster.nodes": 5, "cluster.gpus_per_node": 1, "cluster.kind": "slurm"})
    assert _ways(before, five) == ()


def test_on_other_ranks_batch_and_micro_batch_stay_and_a_set_accumulation_follows() -> None:
    derived = "train.micro_batch_size=null"
    before = make_spec(*BASE, "parallel=ddp", "cluster.gpus_per_node=2", "train.gradient_accumulation=3", derived)
    assert before.micro_batch_size == 2
    six = edit.changed_at(before, {"cluster.gpus_per_node": 6})
    assert resume_changed._keep_batch(before, six, set()) == {
        "train.micro_batch_size": 2,
        "train.gradient_accumulation": 1,
    }
    four = edit.changed_at(before, {"cluster.gpus_per_node": 4})
    assert resume_changed._keep_batch(before, four, set()) == {
        "train.micro_batch_size": 1,
    }
    typed = edit.changed_at(before, {"cluster.gpus_per_node": 1, "train.gradient_accumulation": 4})
    assert resume_changed._keep_batch(before, typed, {"train.gradient_accumulation"}) == {}


def test_a_batch_that_followed_from_the_accumulation_stays_on_other_ranks() -> None:
    words = ("train.global_batch_size=null", "train.gradient_accumulation=3", "train.micro_batch_size=2")
    before = make_spec(*BASE, *words, "parallel=ddp", "cluster.gpus_per_node=2")
    one = edit.changed_at(before, {"cluster.gpus_per_node": 1})
    follows = resume_changed._keep_batch(before, one, set())
    assert follows == {"train.global_batch_size": 12, "train.gradient_accumulation": 6}
    assert edit.changed_at(one, follows).global_batch_size == before.global_batch_size == 12


def test_a_finished_run_is_extended_by_its_tokens_and_by_steps(folder: Path) -> None:
    """A step is 12 sequences of 64 tokens: 768 tokens; the two checkpoints are of steps 2 and 4."""
    assert launch(*OF_64_TOKENS, "cluster.gpus_per_node=1", "train.tokens=3000", "run.name=a").status == 0
    run = folder / "runs" / "a"
    assert (results.read_progress(run).steps, lock.read(run).spec.steps) == (4, 4)
    answer = launch("resume", "a")
    assert "launch resume a train.tokens=6144` continues it" in " ".join(answer.err.split())
    answer = launch("resume", "a", "train.tokens=2400")
    assert answer.status == 2
    assert "train.tokens=6144" in answer.err
    answer = launch("resume", "a", "train.tokens=6000")
    assert answer.status == 0, answer.err
    assert "  train.tokens: 3000 -> 6000" in answer.err
    assert results.read_progress(run).steps == 8
    answer = launch("resume", "a", "train.steps=20")
    assert answer.status == 0, answer.err
    words = _json(run / "plan.json")["overrides"]
    assert [word for word in words if word.startswith("train.")][-1] == "train.steps=20"
    assert not [word for word in words if word.startswith("train.tokens")]
    assert (make_spec(*words).steps, lock.read(run).spec.train.tokens) == (20, None)


def test_a_run_keeps_its_tokens_where_its_batch_changes(folder: Path) -> None:
    """Of 9,216 tokens four steps of 768 are done; the other 6,144 are 4 steps of 1,536."""
    assert launch(*OF_64_TOKENS, "cluster.gpus_per_node=1", "train.tokens=9216", "run.name=a").status == 0
    answer = launch("resume", "a", "train.global_batch_size=24")
    assert answer.status == 0, answer.err
    assert "  train.tokens: 9216 -> null" in answer.err
    assert "  train.steps: null -> 8" in answer.err
    assert lock.read(folder / "runs" / "a").spec.steps == 8


def _ways(before: Any, after: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigErrors) as caught:
        resume_changed._keep_batch(before, after, set())
    [error] = caught.value.errors
    return error.way_out
