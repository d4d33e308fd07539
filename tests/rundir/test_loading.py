"""Checkpoints from elsewhere: nothing of them runs in the pre-flight, and engines that unpickle them need a word."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.rundir import run_names
from launcher.saved import headers
from launcher.spec import RunSpec
from tests.support import hostile, resuming
from tests.support.helpers import make_spec
from tests.support.training import SMALL

WORDS = (*SMALL, "hardware=cpu", "cluster.gpus_per_node=2", "train.micro_batch_size=4")
PICKLES = "reads a checkpoint's files as pickles, which can run any code, and this one is not in a run that"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def checkpoint(run: Path, *words: str) -> tuple[Path, RunSpec]:
    spec = make_spec(*WORDS, *words)
    return resuming.checkpoint(run, spec, 5), spec


@pytest.mark.parametrize("verb", [["check"], []])
def test_a_hostile_checkpoint_runs_nothing_where_a_run_is_judged_or_started(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, _ = checkpoint(tmp_path / "theirs", "parallel=fsdp")
    (source / headers.METADATA).write_bytes(pickle.dumps(hostile.Pickle(tmp_path / "harmed")))
    assert main([*verb, *WORDS, "parallel=fsdp", f"save.load={source}"]) == 2
    said = " ".join("".join(capsys.readouterr()).split())  # The pre-flight's answer goes to stdout.
    assert ".metadata cannot be read: it names posix.system, which describes no tensor" in said
    assert not (tmp_path / "harmed").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", [("parallel=zero1",), ("parallel=tp", "backend=megatron")])
def test_an_engine_that_unpickles_a_checkpoint_from_elsewhere_needs_a_word(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    resuming.by_nobody(monkeypatch, steps=[])
    source, spec = checkpoint(tmp_path / "theirs", *words)
    line = [*WORDS, *words, f"save.load={source}", "--no-native"]
    assert main(["check", *line]) == 0, capsys.readouterr().err
    assert main([*line, "run.name=a"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"{spec.backend.name} {PICKLES} you have recorded try --trust or save.load=null" in said
    assert not (tmp_path / "runs").exists()
    assert main(["-m", *line, "optimizer.lr=1e-3,2e-3", "run.name=s"]) == 2
    assert PICKLES in " ".join(capsys.readouterr().out.split())
    assert main([*line, "run.name=a", "--trust"]) == 0, capsys.readouterr().err
    run_names.remember(tmp_path / "theirs")
    assert main([*line, "run.name=b"]) == 0, "it lies in a run of the user's own"


def test_a_checkpoint_of_torchs_own_format_needs_none_as_it_is_read_as_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resuming.by_nobody(monkeypatch, steps=[])
    source, _ = checkpoint(tmp_path / "theirs", "parallel=fsdp")
    assert main([*WORDS, "parallel=fsdp", f"save.load={source}", "run.name=a"]) == 0, capsys.readouterr().err


def test_a_run_that_goes_on_with_another_checkpoint_needs_the_word_for_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resuming.by_nobody(monkeypatch, steps=[])
    source, _ = checkpoint(tmp_path / "theirs", "parallel=zero1")
    assert main([*WORDS, "parallel=zero1", "run.name=a"]) == 0
    capsys.readouterr()
    assert main(["resume", "a", f"save.load={source}"]) == 2
    assert PICKLES in " ".join(capsys.readouterr().err.split())
    assert main(["resume", "a", f"save.load={source}", "--trust"]) == 0, capsys.readouterr().err


def test_a_link_in_a_run_of_ones_own_does_not_make_a_checkpoint_ones_own(tmp_path: Path) -> None:
    from launcher.rundir import loading

    source, _ = checkpoint(tmp_path / "theirs")
    own = tmp_path / "own" / "checkpoints"
    own.mkdir(parents=True)
    run_names.remember(own.parent)
    (own / source.name).symlink_to(source)
    assert not loading.is_own(own / source.name)
    (own / "step-00000009").mkdir()
    assert loading.is_own(own / "step-00000009")
    assert loading.is_own(own.parent)
