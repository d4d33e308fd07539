"""The measurement of our workers on one GPU, as far as it can be tried on the CPU: up to the first CUDA call."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import benchmarks.gpu.__main__ as command
from benchmarks.gpu import flops, matrix, start, tasks, training
from benchmarks.gpu.compared import predicted, ratios
from benchmarks.gpu.counters import PhaseCounters
from benchmarks.gpu.document import Document, DocumentError
from benchmarks.gpu.matrix import Point
from benchmarks.gpu.process import RankProcess, prepared
from benchmarks.gpu.rank import MEGATRON_MODULES
from benchmarks.gpu.rank import main as measure
from benchmarks.gpu.rehearsal import rehearsed
from benchmarks.gpu.session import Session
from benchmarks.gpu.steps import STEPS, WARM_UP
from benchmarks.plain import alone
from benchmarks.reporting import RESULTS
from launcher.base.machine import Gpu, Machine, facts
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.preflight import assess, findings
from launcher.worker.loop import MEASURED_STEPS
from tests.support import ranks, train_many
from tests.support import training as trained
from tests.support.helpers import CPU_HOST, ROOT

H100 = Gpu(
    name="NVIDIA H100 80GB HBM3", memory_bytes=85_520_809_984, reserved_bytes=667_942_912, compute_capability=9.0
)
GPU_HOST = Machine(gpus=(H100,), host_memory_bytes=2**37, disk_free_bytes=2**36, cpus=16)
TINY = ("model=tiny", "precision=bf16", "hardware=cpu", "train.sequence_length=32")
POINTS = (*matrix.first(), *matrix.rest())
MOST_BYTES = 75_000_000_000
"""Of 80 GB, so that an estimate that is a little too low costs no row."""

type Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(name="gpu")
def _gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """``python -m benchmarks.gpu`` with these words: its status and what it prints."""

    def called(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["benchmarks.gpu", *words])
        status = command.main()
        return status, *capsys.readouterr()

    return called


def test_every_run_of_the_matrix_is_valid_and_fits_on_an_h100() -> None:
    assert len(POINTS) > 40
    assert max(Counter(point.name for point in POINTS).values()) == 1
    for point in POINTS:
        spec = request(point.words, facts=GPU_HOST, catalog=Catalog(folder=Path.cwd())).require()
        assert (spec.gpus, spec.hardware.device, spec.train.steps) == (point.world, "cuda", STEPS), point
        assert findings.errors(spec) == (), point
        assert assess.estimated(spec).peak.needed_bytes < MOST_BYTES, point


def test_the_matrix_has_every_engine_and_both_kinds_of_world() -> None:
    asked = [request(point.words, facts=GPU_HOST, catalog=Catalog(folder=Path.cwd())).require() for point in POINTS]
    seen = {(spec.backend.name, spec.gpus > 1) for spec in asked}
    assert seen == {(name, many) for name in ("fsdp", "deepspeed") for many in (False, True)} | {("megatron", False)}
    assert {spec.zero.stage for spec in asked if spec.backend.name == "deepspeed"} == {0, 1, 2, 3}
    assert {spec.checkpointing.mode for spec in asked} == {"none", "selective", "full"}
    assert {spec.adapter.name for spec in asked} == {"none", "lora", "qlora"}
    assert {spec.precision.compute for spec in asked} == {"bf16", "fp32", "fp16", "fp8"}


def test_the_whole_matrix_and_all_runs_take_less_than_half_an_hour_by_their_own_estimate() -> None:
    seconds = sum(point.seconds for point in POINTS) + training.SECONDS * (len(training.ENGINES) + 1)
    assert 300 < seconds + tasks.SECONDS * len(tasks.TASKS) < 30 * 60


def test_a_task_has_rows_of_data_that_are_as_long_as_its_own(tmp_path: Path) -> None:
    for name, own in tasks.TASKS.items():
        (folder := tmp_path / name).mkdir()
        words = tasks.data(folder, [*training.REHEARSED, *own])
        assert len(words) == ("data=rows" in own)
        for row in map(json.loads, (folder / "rows.jsonl").read_text().splitlines() if words else ()):
            answers = [row[column] for column in ("completion", "chosen", "rejected") if column in row]
            assert {len(row["prompt"] + answer) for answer in answers} == {60}


@pytest.mark.parametrize("name", MEGATRON_MODULES)
def test_what_megatrons_worker_imports_ahead_of_its_turn_is_there(name: str) -> None:
    assert find_spec(f"launcher.worker.megatron.{name}") is not None


def test_a_rehearsal_differs_from_its_run_in_size_and_device_alone() -> None:
    point = next(point for point in POINTS if point.name == "mixtral of 4 layers, fsdp over 8")
    spec = request(rehearsed(point).words, facts=CPU_HOST, catalog=Catalog(folder=Path.cwd())).require()
    assert (spec.model.family, spec.model.num_experts, spec.model.hidden_size) == ("moe", 8, 64)
    assert (spec.gpus, spec.parallel.shard, spec.hardware.device) == (8, True, "cpu")


def test_communicators_are_not_predicted_where_no_peers_exist() -> None:
    words = ("model=1b", "parallel=fsdp", "cluster.gpus_per_node=8")
    estimate = assess.estimated(request(words, facts=GPU_HOST, catalog=Catalog(folder=Path.cwd())).require())
    communicators = sum(pile.bytes for pile in estimate.piles if pile.pile == "communicators")
    assert communicators > 0
    assert predicted(estimate, 8)["device_bytes"] == estimate.peak.device_bytes - communicators
    assert predicted(estimate, 1)["device_bytes"] == estimate.peak.device_bytes


def test_ratios_are_of_the_counters_that_were_measured() -> None:
    said = {"static_bytes": 90, "peak_reserved_bytes": 10, "phases": {"load": 50, "checkpoint_save": 7}}
    seen = {"static_bytes": 100, "peak_reserved_bytes": None, "phases": {"load": 40, "checkpoint_save": None}}
    assert ratios(said, seen) == {"static_bytes": 0.9, "load": 1.25}


def test_utilisation_counts_the_operations_of_palm_and_is_unknown_where_they_do_not_hold() -> None:
    words = ("model=1b", "parallel=ddp", "precision=bf16", "train.sequence_length=2048", "train.micro_batch_size=2")
    asked = {
        name: request((*words, *more), facts=GPU_HOST, catalog=Catalog(folder=Path.cwd())).require()
        for name, more in {"bf16": (), "fp32": ("precision=fp32",), "lora": ("adapter=lora",)}.items()
    }
    counted = assess.estimated(asked["bf16"]).parameters
    assert flops.of_step(asked["bf16"], counted) == (6 * 1_235_814_400 + 12 * 16 * 2048 * 2048) * 4096
    share = flops.utilisation(asked["bf16"], counted, 0.1, H100.name)
    assert share == round(flops.of_step(asked["bf16"], counted) / 0.1 / 989.4e12, 4)
    assert flops.utilisation(asked["bf16"], counted, 0.1, "NVIDIA RTX 4090") is None
    assert [flops.utilisation(asked[name], counted, 0.1, H100.name) for name in ("fp32", "lora")] == [None, None]


def test_reserved_and_device_bytes_are_booked_on_the_phase_in_which_they_were_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    readings = {"max_memory_allocated": 1, "max_memory_reserved": 2, "memory_allocated": 1}
    for name in readings:
        monkeypatch.setattr(torch.cuda, name, lambda device, name=name: readings[name])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 - 5 * readings["max_memory_reserved"], 100))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    tracker = PhaseCounters(torch.device("cuda", 0))
    with tracker.measuring("forward"):
        readings |= {"max_memory_reserved": 7}
        tracker.enter("backward")
        readings |= {"max_memory_reserved": 9}
    found = tracker.summary()
    assert found["reserved_by_phase"] == {"forward": 7, "backward": 9}
    assert found["device_by_phase"] == {"forward": 35, "backward": 45}
    assert found["peak_reserved_bytes"] == 9


def is_as_predicted(said: dict[str, Any], seen: dict[str, Any], *, above: float = 0.0) -> None:
    """As predicted within 2%, or lower by ``above``, which the run lacks."""
    assert seen["phases"].keys() == said["phases"].keys()
    assert seen["device_bytes"] is None
    assert 1 <= len(seen["step_seconds"]) <= STEPS - WARM_UP, "a slow machine times fewer"
    found = ratios(said, seen)
    assert found["static_bytes"] == pytest.approx(1, abs=0.02)
    assert -0.02 <= found["peak_allocated_bytes"] - 1 <= 0.02 + above


@pytest.mark.parametrize("preset", ["ddp", "fsdp", "zero3"])
def test_rank_0_of_a_world_without_peers_holds_what_is_predicted(preset: str, tmp_path: Path) -> None:
    small = ("model=tiny", "precision=bf16", "train.sequence_length=128")
    words = Point(name=preset, world=4, overrides=(*small, f"parallel={preset}")).words
    spec = request(words, facts=CPU_HOST, catalog=Catalog(folder=Path.cwd())).require()
    variables = prepared(spec, tmp_path)
    imports = train_many.IMPORTS[spec.backend.name]
    ranks.run(measure, [str(tmp_path)], imports=imports, count=1, environment=variables, log=tmp_path / "log")
    measured = json.loads((tmp_path / "measured.json").read_text())
    above = 0.01 if preset == "fsdp" else 0.0  # Gloo's copies of what it reduces, which nobody makes without peers.
    is_as_predicted(predicted(assess.estimated(spec), 4), measured, above=above)


def test_a_row_of_megatron_is_measured_through_its_own_loop(tmp_path: Path) -> None:
    words = Point(name="megatron", overrides=(*TINY, "backend=megatron", "+backend.extra.transformer-impl=local")).words
    spec = request(words, facts=CPU_HOST, catalog=Catalog(folder=Path.cwd())).require()
    variables, imports = prepared(spec, tmp_path), train_many.IMPORTS["megatron"]
    ranks.run(measure, [str(tmp_path)], imports=imports, count=1, environment=variables, log=tmp_path / "log")
    measured = json.loads((tmp_path / "measured.json").read_text())
    assert measured["phases"]["backward"] > measured["static_bytes"] > 0
    assert len(measured["step_seconds"]) == STEPS - WARM_UP


def test_the_plain_loop_has_the_losses_of_our_worker(tmp_path: Path) -> None:
    words = ["parallel=ddp", "precision=bf16", "train.micro_batch_size=8", "train.steps=6"]
    ours = trained.train_all(tmp_path, {"ours": words}, ranks=1)["ours"]
    imports, log = train_many.IMPORTS["fsdp"], tmp_path / "log"
    arguments = [str(tmp_path / "ours")]
    ranks.run(alone.main, arguments, imports=imports, count=1, environment=trained.environment(), log=log)
    plain = json.loads(log.read_text().splitlines()[-1])
    assert len(ours) == len(plain["step_seconds"]) == 6
    assert training.difference(ours, plain["losses"]) < 1e-3


def session(tmp_path: Path, *, minutes: float = 5, resume: bool = False) -> tuple[Session, Document]:
    document = Document(tmp_path / "gpu.json", CPU_HOST, rehearsal=True, resume=resume)
    return Session(document, CPU_HOST, tmp_path, minutes=minutes), document


def test_a_run_is_measured_or_its_row_says_why_not_and_a_resumed_call_keeps_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone_ = Point(name="alone", overrides=(*TINY, "parallel=ddp"))
    missing = Point(name="missing", overrides=(*TINY, "parallel=ddp", f"model.weights={tmp_path}/none"))
    wrong = Point(name="wrong", overrides=(*TINY, "parallel=ddp", "parallel.tensor=3"))
    needs = Point(name="needs", overrides=TINY, needs=("no_such_module",))
    first, _ = session(tmp_path)
    first.measure([alone_, missing, wrong, needs])
    rows = json.loads((tmp_path / "gpu.json").read_text())["runs"]
    assert rows[0]["error"] is None
    is_as_predicted(rows[0]["predicted"], rows[0]["measured"])
    assert rows[0]["measured"]["tokens_per_second"] > 0
    assert [row["measured"] for row in rows[1:]] == [None, None, None]
    assert f"{tmp_path}/none" in rows[1]["error"]
    assert rows[1]["last_words"][-1] == rows[1]["error"]
    assert "parallel.tensor" in rows[2]["error"]
    assert rows[3]["error"] == "not measured: no_such_module is not installed here"
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [row["name"] for row in rows]
    again, document = session(tmp_path, minutes=0, resume=True)
    again.measure([alone_, missing])
    kept, late = document.rows("runs")
    assert kept == rows[0]
    assert late["error"] == "not started: the 0 minutes were used (go on with --resume, or give more by --minutes)"


def test_a_row_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    point = Point(name="alone", overrides=(*TINY, "parallel=ddp"))
    spec = request(point.words, facts=CPU_HOST, catalog=Catalog(folder=tmp_path)).require()
    process = RankProcess(spec, tmp_path)
    assert process.measured(0.01) == {"error": "not done after 0 s", "last_words": []}


def test_the_training_is_not_started_where_no_time_is_left(tmp_path: Path) -> None:
    short, document = session(tmp_path, minutes=0.1)
    training.compare(short, document, tmp_path, training.REHEARSED)
    rows = document.rows("training")
    assert [row["name"] for row in rows] == ["plain loop", *training.ENGINES]
    assert {row["error"].partition(":")[0] for row in rows} == {"not started"}


def test_the_file_says_where_and_with_what_it_was_measured(tmp_path: Path) -> None:
    Document(tmp_path / "new" / "gpu.json", GPU_HOST, rehearsal=False, resume=False)
    content = json.loads((tmp_path / "new" / "gpu.json").read_text())
    assert {"schema", "command", "date", "machine", "versions", "method", "runs", "training"} <= content.keys()
    assert content["machine"]["gpus"][0]["name"] == H100.name
    assert content["versions"]["git"]["commit"]
    assert content["rehearsal"] is False


def test_a_file_of_another_device_is_not_gone_on_with(tmp_path: Path) -> None:
    Document(tmp_path / "gpu.json", GPU_HOST, rehearsal=False, resume=False)
    with pytest.raises(DocumentError, match="was measured on other devices: name another file by --out"):
        session(tmp_path, resume=True)
    (tmp_path / "gpu.json").write_text("{}")
    with pytest.raises(DocumentError, match="is no file of this benchmark: leave --resume out"):
        session(tmp_path, resume=True)


def test_a_file_with_measured_rows_is_gone_on_with_or_left_alone(tmp_path: Path) -> None:
    document = Document(tmp_path / "gpu.json", GPU_HOST, rehearsal=False, resume=False)
    row = {"name": "one", "overrides": ["model=1b"], "measured": {"static_bytes": 1}, "error": None}
    late = {"name": "two", "overrides": ["model=7b"], "measured": None, "error": "not started"}
    for each in (row, late):
        document.add("runs", each)
    with pytest.raises(DocumentError, match="has measured rows: --resume keeps them, and --out names another file"):
        Document(tmp_path / "gpu.json", GPU_HOST, rehearsal=False, resume=False)
    again = Document(tmp_path / "gpu.json", GPU_HOST, rehearsal=False, resume=True)
    assert json.loads((tmp_path / "gpu.json").read_text())["runs"] == again.rows("runs") == [row]
    assert again.earlier("runs", "one", ["model=1b"]) == row
    assert again.earlier("runs", "one", ["model=3b"]) is None
    again.add("runs", {**row, "overrides": ["model=3b"]})
    assert [each["overrides"] for each in again.rows("runs")] == [["model=3b"]]


def test_an_interrupted_call_names_the_file_with_the_rows_until_then(
    gpu: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "measure", interrupted)
    status, out, err = gpu("--rehearse", "--out", str(tmp_path / "gpu.json"))
    assert (status, out) == (130, "")
    assert err == f"benchmarks.gpu: interrupted; {tmp_path / 'gpu.json'} holds the rows until here\n"


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_measured(gpu: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, out, err = gpu("--rehearse", "--out", str(tmp_path / "file" / "gpu.json"))
    assert (status, out) == (2, "")
    assert "cannot be written" in err
    assert err.endswith("name another file by --out\n")


def test_nothing_but_the_standard_library_is_needed_to_begin() -> None:
    words = [sys.executable, "-S", "-m", "benchmarks.gpu"]  # Without site-packages.
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    own = "start it by a Python with them\n"
    assert done.returncode == 2
    assert done.stderr.startswith("benchmarks.gpu: torch and transformers cannot be imported by ")
    assert done.stderr.endswith(own)


def test_an_older_python_is_refused(gpu: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_PYTHON", (9, 0))
    status, _, err = gpu()
    assert status == 2
    assert err.startswith("benchmarks.gpu: it needs Python 3.12 or later, and this is 3.")


def test_without_the_launchers_packages_the_folder_of_wheels_is_asked_for(
    gpu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "hydra" else name)
    status, _, err = gpu()
    assert status == 2
    assert "hydra-core is not installed here: give --wheels DIR, the folder that `make gpu-wheels` fills" in err


def test_a_folder_without_wheels_is_refused(gpu: Command, tmp_path: Path) -> None:
    status, _, err = gpu("--wheels", str(tmp_path))
    assert status == 2
    assert err == (
        f"benchmarks.gpu: --wheels {tmp_path}: there is no wheel in it; `make gpu-wheels` fills build/gpu-wheels\n"
    )


@pytest.mark.skipif(bool(facts().gpus), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_one_line_and_writes_nothing(gpu: Command, tmp_path: Path) -> None:
    assert gpu("--out", str(tmp_path / "gpu.json")) == (2, "", f"{start.NO_GPU}\n")
    assert not (tmp_path / "gpu.json").exists()


def test_the_readme_says_whether_there_is_a_result() -> None:
    text = (RESULTS.parent / "gpu" / "README.md").read_text()
    assert ("No result has been committed yet" in text) == (not (RESULTS / "gpu.json").exists())


def test_the_second_measured_step_begins_with_optimizer_states() -> None:
    assert STEPS > WARM_UP >= MEASURED_STEPS >= 2
