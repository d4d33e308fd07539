"""Checkpoints of real runs: resumed on other ranks, killed while they are written, exported, of another model."""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.base.process import Process
from launcher.job import events
from launcher.preflight import assess, stored
from launcher.rundir import contents, state
from launcher.saved import headers
from launcher.saved.checkpoints import STATE, pause_text, worker_checkpoints
from launcher.spec import edit
from launcher.spec.parse import parse
from launcher.worker import CheckpointError, memory, saving
from tests.support import hostile, memory_lines, training
from tests.support.checkpoints import exported, held_out_loss
from tests.support.slurm_runs import launch

STEPS = 20
SAVED = 8
"""The step that the resumed runs start from."""

BASE = ("parallel=fsdp", f"save.every={SAVED}", "save.keep=3", "save.last=true", f"train.eval_every={STEPS}")
REORDERED = 1e-5
"""Relative: fp32 sums in another order."""


@dataclass(frozen=True)
class Runs:
    folder: Path
    losses: dict[str, list[float]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs on two ranks: a whole one with its export, one with background saves, one of LoRA on the first's export."""
    folder = tmp_path_factory.mktemp("runs")
    lora = ("adapter=lora", "adapter.rank=4", "checkpointing=full", f"model.weights={folder}/whole/export")
    wanted = {
        "whole": (*BASE, "save.export=safetensors"),
        "background": ("parallel=ddp", "save.every=3", "save.async=true", "save.last=true", "train.steps=8"),
        "lora": (*BASE, *lora, "save.export=safetensors"),
    }
    return Runs(folder, training.train_all(folder, wanted, ranks=2))


@pytest.fixture(scope="module")
def resumed(runs: Runs) -> Runs:
    """The whole run and the one of LoRA, cut back to a checkpoint on the way, then finished by one rank."""
    wanted: dict[str, tuple[str, ...]] = {"whole": BASE, "whole_ddp": ("parallel=ddp", *BASE[1:])}
    for name in ("whole", "whole_ddp"):
        shutil.copytree(runs.folder / "whole", runs.folder / "resumed" / name)
        for path in (runs.folder / "resumed" / name / "checkpoints").glob("step-*"):
            if path.name != f"step-{SAVED:08d}":
                shutil.rmtree(path)
    load = f"save.load={runs.folder}/resumed/whole/checkpoints/step-{SAVED:08d}"
    wanted["elsewhere"] = (*BASE, load)
    return Runs(runs.folder / "resumed", training.train_all(runs.folder / "resumed", wanted, ranks=1))


@pytest.mark.parametrize("name", ["whole", "whole_ddp"])
def test_a_run_goes_on_with_other_ranks_as_if_it_had_not_stopped(runs: Runs, resumed: Runs, name: str) -> None:
    assert resumed.losses[name] == pytest.approx(runs.losses["whole"], rel=REORDERED)


def test_no_step_has_two_lines_after_a_resumption(resumed: Runs) -> None:
    steps = [line["step"] for line in training.lines(resumed.folder / "whole")]
    assert steps == list(range(1, STEPS + 1))


def test_a_run_starts_from_a_checkpoint_of_another_run(runs: Runs, resumed: Runs) -> None:
    assert resumed.losses["elsewhere"] == pytest.approx(runs.losses["whole"][SAVED:], rel=REORDERED)


def test_the_newest_checkpoints_are_kept(runs: Runs) -> None:
    kept = [each.path.name for each in worker_checkpoints(runs.folder / "whole" / "checkpoints")]
    assert kept == ["step-00000008", "step-00000016", "step-00000020"]
    kept = [each.path.name for each in worker_checkpoints(runs.folder / "background" / "checkpoints")]
    assert kept == ["step-00000006", "step-00000008"]
    assert not list((runs.folder / "background" / "checkpoints").glob("*.partial"))


def test_the_load_of_a_checkpoint_takes_what_is_predicted_of_it(resumed: Runs) -> None:
    run = resumed.folder / "whole"
    content = json.loads((run / "memory.json").read_text())
    predicted = assess.estimated(assess.going_on(contents.spec_of(run))).phases["load"]
    assert content["restored"] == SAVED
    assert predicted == pytest.approx(max(rank["phases"]["load"] for rank in content["ranks"]), rel=0.01)


def test_a_background_save_tells_how_long_training_waited_for_it(runs: Runs) -> None:
    def saves(name: str) -> list[dict[str, Any]]:
        return [line for line in events.read(runs.folder / name) if line["kind"] == "save"]

    assert all(line["bytes"] > 0 and "blocking_seconds" not in line for line in saves("whole"))
    background = saves("background")
    assert [line["step"] for line in background] == [3, 6, 8]
    assert all(0 <= line["blocking_seconds"] <= line["seconds"] for line in background)


def test_memory_is_measured_by_phase_on_every_rank(runs: Runs) -> None:
    content = json.loads((runs.folder / "whole" / "memory.json").read_text())
    assert content["device"] == "cpu"
    assert content["method"] == memory.CPU_METHOD
    assert [rank["rank"] for rank in content["ranks"]] == [0, 1]
    parameters = sum(value.numel() for value in exported(runs.folder / "whole" / "export").parameters())
    memory_lines.whole(runs.folder / "whole", ranks=2)
    for rank in content["ranks"]:
        assert rank["static_bytes"] == pytest.approx(3 * 4 * parameters / 2, rel=0.01), "fp32 weights and two moments"
        phases = rank["phases"]
        assert set(phases) == {"load", "forward", "backward", "optimizer", "checkpoint_save"}
        assert rank["static_bytes"] <= phases["forward"] <= phases["backward"] == rank["peak_allocated_bytes"]
        assert rank["peak_rss_bytes"] > rank["peak_allocated_bytes"]
        assert rank["peak_reserved_bytes"] is None


def test_the_export_computes_in_transformers_what_the_worker_did(runs: Runs) -> None:
    directory = runs.folder / "whole"
    assert len(list((directory / "export").glob("model-*-of-00002.safetensors"))) == 2, "each rank writes its share"
    evaluation = training.lines(directory)[-1]["eval_loss"]
    assert held_out_loss(exported(directory / "export"), directory) == pytest.approx(evaluation, rel=1e-5)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft 0.21.2 reads it.
def test_lora_starts_from_the_weights_and_its_export_computes_in_peft_what_the_worker_did(runs: Runs) -> None:
    peft = pytest.importorskip("peft")
    directory = runs.folder / "lora"
    assert runs.losses["lora"][0] == pytest.approx(runs.losses["whole"][-1], rel=0.1)
    base = exported(runs.folder / "whole" / "export")
    model = peft.PeftModel.from_pretrained(base, directory / "export")
    evaluation = training.lines(directory)[-1]["eval_loss"]
    assert held_out_loss(model, directory) == pytest.approx(evaluation, rel=1e-5)
    assert evaluation < training.lines(runs.folder / "whole")[-1]["eval_loss"]


def test_a_checkpoint_of_lora_holds_the_adapter_alone(runs: Runs) -> None:
    def size(name: str) -> int:
        folder = runs.folder / name / "checkpoints" / f"step-{SAVED:08d}"
        return sum(path.stat().st_size for path in folder.glob("*.distcp"))

    assert 0 < size("lora") < size("whole") / 2


def test_planning_reads_a_checkpoint_by_its_headers_alone(runs: Runs, tmp_path: Path) -> None:
    spec = parse(json.loads((runs.folder / "whole" / "spec.json").read_text()))
    source = runs.folder / "whole" / "checkpoints" / f"step-{SAVED:08d}"
    found = headers.distributed(source)
    assert found is not None
    assert found.files == {"__0_0.distcp", "__1_0.distcp"}
    network = {name: shape for name, shape in found.shapes.items() if name.startswith("model.network.")}
    assert network == {f"model.network.{name}": shape for name, shape in (stored.expected(spec.model) or {}).items()}
    assert list(stored.checkpoint(spec, source)) == []
    shutil.copytree(source, tmp_path / "cut")
    (tmp_path / "cut" / "__1_0.distcp").unlink()
    (error,) = stored.checkpoint(spec, tmp_path / "cut")
    assert error.rule == "1 of the checkpoint's 2 files are missing: __1_0.distcp"
    deeper = edit.changed(spec, "model.num_hidden_layers", spec.model.num_hidden_layers + 1)
    (error,) = stored.checkpoint(deeper, source)
    assert error.rule.startswith("lacks 9 tensors of this model (model.layers.2.input_layernorm.weight, ")


def test_the_export_has_the_names_and_shapes_that_planning_expects(runs: Runs) -> None:
    spec = parse(json.loads((runs.folder / "whole" / "spec.json").read_text()))
    assert headers.safetensors(runs.folder / "whole" / "export") == stored.expected(spec.model)


def test_other_data_are_refused_also_where_planning_did_not_see_the_checkpoint(runs: Runs) -> None:
    spec = parse(json.loads((runs.folder / "whole" / "spec.json").read_text()))
    source = runs.folder / "whole" / "checkpoints" / f"step-{SAVED:08d}"
    content = json.loads((source / STATE).read_text())
    assert content["samples"] == SAVED * spec.global_batch_size
    saving.fits(spec, content, source, content["corpus"])
    with pytest.raises(
        CheckpointError, match=r"was trained on other data \(\d+ samples there and 7 here\): data.path="
    ):
        saving.fits(spec, content, source, {"samples": 7, "sha256": ""})
    with pytest.raises(CheckpointError, match=r"was trained on other data \(\d+ samples here too, but others\)"):
        saving.fits(spec, content, source, {**content["corpus"], "sha256": ""})
    halved = edit.changed_at(spec, {"train.global_batch_size": None, "cluster.gpus_per_node": 1})
    with pytest.raises(CheckpointError, match=r"run had 8 sequences per step, .* \(train\.global_batch_size=8\)"):
        saving.fits(halved, content, source, content["corpus"])


def begin(directory: Path, *overrides: str, limit: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
    """Start a run's one rank, which can be signalled and limited as no rank of an agent's can."""
    spec = training.prepare(directory, *overrides, ranks=1)
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(training.free_ports(1)[0])}
    return subprocess.Popen(
        [sys.executable, "-m", f"launcher.worker.{spec.backend.name}", "--run", str(directory)],
        env={**training.environment(), **place},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=limit,
    )


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, f"ended with {process.returncode} before {what}"
        assert time.monotonic() < deadline, f"no {what} in two minutes"
        time.sleep(0.001)


def test_a_kill_during_a_save_costs_nothing_and_a_signal_ends_with_a_checkpoint(runs: Runs, tmp_path: Path) -> None:
    run, long = tmp_path / "run", (*BASE[:1], BASE[-1], "train.steps=5000", "save.last=true")
    shutil.copytree(runs.folder / "whole", run)
    folder = run / "checkpoints"
    process = begin(run, *long, "save.every=1", "save.keep=2")
    until(lambda: bool(list(folder.glob("step-0000002[2-9].partial"))), process, "save")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    newest = saving.newest(folder)
    assert newest is not None
    assert int(newest.name[-8:]) > STEPS

    process = begin(run, *long)
    steps = len(training.lines(run))
    until(lambda: len(training.lines(run)) > steps + 3, process, "steps after the resumption")
    os.kill(process.pid, signal.SIGUSR2)
    assert process.wait(300) == 0
    outcome = json.loads((run / "logs" / "outcome.json").read_text())
    assert outcome["state"] == "interrupted"
    saved = saving.newest(folder)
    assert saved is not None
    assert saved.name == f"step-{outcome['step']:08d}"
    assert [line["step"] for line in training.lines(run)] == list(range(1, outcome["step"] + 1))


def small_files() -> None:
    """Let no file of the process grow beyond 100 KiB, as a disk that is nearly full would."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 * 2**10, 100 * 2**10))


def test_a_full_disk_pauses_saving_and_the_last_save_says_so_and_leaves_the_checkpoint_before(
    runs: Runs, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs.folder / "whole", run)
    process = begin(run, *BASE[:1], *BASE[-2:], "train.steps=23", "save.every=1", "save.last=true", limit=small_files)
    assert process.wait(300) != 0
    message = training.error(run)
    assert message == (
        f"the checkpoint of step 23 could not be written to {run}/checkpoints: a write to a file was cut short: "
        "the disk is full, or a quota or a limit is reached; step-00000020 is intact"
    )
    assert [line["step"] for line in training.lines(run)] == list(range(1, 24)), "training went on"
    assert [path.name for path in (run / "checkpoints").glob("step-0000002[1-9]*")] == []
    said = pause_text(run)
    assert said == (
        "saving has been paused since step 21, and is tried again when the next is due: a write to a file was cut short"
        f": the disk is full, or a quota or a limit is reached ({run}/checkpoints); step-00000020 is the newest "
        "checkpoint"
    )
    state.put(run, "running", keeper=Process.here().as_dict())
    assert f"  {said}\n" in launch("status", str(run)).out


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system of four megabytes is mounted, which needs root")
def test_saving_goes_on_once_the_disk_has_room_again(runs: Runs, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    try:
        (folder / "of another").write_bytes(b"0" * 2**22)
        cleaner = threading.Thread(target=make_room, args=(tmp_path / "run", folder / "of another"))
        cleaner.start()
        words = ("parallel=fsdp", "save.every=4", "save.keep=1", "save.last=true", "train.steps=80")
        training.train_all(tmp_path, {"run": words}, ranks=2)
        cleaner.join()
        assert [path.name for path in folder.iterdir()] == ["step-00000080"]
        assert "there was none before it; training continues" in (tmp_path / "ranks.log").read_text()
        assert pause_text(tmp_path / "run") is None
    finally:
        subprocess.run(["umount", folder], check=True)


def make_room(run: Path, what: Path) -> None:
    """Remove a file once saving is paused."""
    deadline = time.monotonic() + 300
    while pause_text(run) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    what.unlink()


def test_a_checkpoint_of_another_model_is_refused_with_what_differs(runs: Runs, tmp_path: Path) -> None:
    load = f"save.load={runs.folder / 'whole'}"
    spec = training.prepare(tmp_path / "run", "parallel=fsdp", load, "model.hidden_size=128", ranks=2)
    source = saving.find(spec.save.load or "")
    with pytest.raises(CheckpointError) as caught:
        saving.fits(spec, json.loads((source / STATE).read_text()), source, {})
    assert str(caught.value) == (
        f"{source} is a checkpoint of another model: model.hidden_size is 64 in it and 128 in this run"
    )


def test_a_hostile_checkpoint_runs_nothing_in_the_worker(runs: Runs, tmp_path: Path) -> None:
    source = tmp_path / "elsewhere" / f"step-{SAVED:08d}"
    shutil.copytree(runs.folder / "whole" / "checkpoints" / source.name, source)
    (source / headers.METADATA).write_bytes(pickle.dumps(hostile.Pickle(tmp_path / "harmed")))
    said = "global metadata read failed: it names posix.system, which describes no tensor"
    with pytest.raises(AssertionError, match=re.escape(said)):
        training.train_all(tmp_path / "runs", {"a": (*BASE, f"save.load={source}")}, ranks=1)
    assert not (tmp_path / "harmed").exists()


def test_of_a_damaged_checkpoint_the_run_is_told_where_it_continues_without_it(runs: Runs, tmp_path: Path) -> None:
    shutil.copytree(runs.folder / "whole", tmp_path / "whole")
    before, newest = worker_checkpoints(tmp_path / "whole" / "checkpoints")[-2:]
    for part in newest.path.glob("*.distcp"):
        os.truncate(part, 100)
    said = f"{newest.path} cannot be read (without it the run continues from {before.path.name}): RuntimeError: Pytorch"
    with pytest.raises(AssertionError, match=re.escape(said)):
        training.train_all(tmp_path, {"whole": BASE}, ranks=1)


def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"has no complete checkpoint, neither in .* nor in its folder checkpoints"
    ):
        saving.find(str(tmp_path))


def test_what_a_kill_left_behind_is_no_checkpoint(tmp_path: Path) -> None:
    for name in ("step-00000001", "step-00000002.partial", "step-00000003"):
        (tmp_path / name).mkdir()
    for name in ("step-00000001", "step-00000002.partial"):
        (tmp_path / name / STATE).write_text("{}")
    assert [each.path.name for each in worker_checkpoints(tmp_path)] == ["step-00000001"]
