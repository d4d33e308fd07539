"""The measurement of our workers on one GPU, as far as it can be tried on the CPU."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.__main__ import NO_GPU, document, main, measured, prepared
from benchmarks.gpu.matrix import Point, points, predicted, ratios
from benchmarks.gpu.rank import STEPS
from benchmarks.gpu.rank import main as measure
from benchmarks.reporting import RESULTS
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.machine import Gpu, Machine, facts
from launcher.preflight import assess
from launcher.worker.loop import MEASURED_STEPS
from tests.support import ranks, train_many
from tests.support.helpers import CPU_HOST

GPU_HOST = Machine(
    gpus=(Gpu(name="NVIDIA H200", memory_bytes=150_754_820_096, reserved_bytes=None, compute_capability=9.0),),
    host_memory_bytes=2**37,
    disk_free_bytes=2**40,
    cpus=16,
)
TINY = ("model=tiny", "precision=bf16")


def test_every_run_of_the_matrix_is_valid_on_a_machine_with_one_gpu() -> None:
    made = points()
    assert len(made) > 20
    assert max(Counter(point.name for point in made).values()) == 1
    for point in made:
        asked = request(point.words, facts=GPU_HOST, catalog=Catalog(folder=Path.cwd()))
        spec = asked.require()
        assert spec.gpus == point.world, point
        assert spec.hardware.device == "cuda"
        assert assess.errors(spec) == (), point


def test_the_matrix_has_both_workers_alone_and_in_larger_worlds() -> None:
    asked = [request(point.words, facts=GPU_HOST, catalog=Catalog(folder=Path.cwd())).require() for point in points()]
    seen = {(spec.backend.name, spec.gpus > 1) for spec in asked}
    assert seen == {("fsdp", False), ("fsdp", True), ("deepspeed", False), ("deepspeed", True)}
    assert {spec.zero.stage for spec in asked if spec.backend.name == "deepspeed"} == {0, 1, 2, 3}
    assert {spec.checkpointing.mode for spec in asked} == {"none", "selective", "full"}


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


def is_as_predicted(said: dict[str, Any], seen: dict[str, Any]) -> None:
    assert seen["phases"].keys() == said["phases"].keys()
    assert seen["device_bytes"] is None
    found = ratios(said, seen)
    assert found["static_bytes"] == pytest.approx(1, abs=0.02)
    assert found["peak_allocated_bytes"] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("preset", ["ddp", "fsdp", "zero3"])
def test_rank_0_of_a_world_without_peers_holds_what_is_predicted(preset: str, tmp_path: Path) -> None:
    words = Point(name=preset, world=4, overrides=(*TINY, f"parallel={preset}")).words
    spec = request(words, facts=CPU_HOST, catalog=Catalog(folder=Path.cwd())).require()
    variables = prepared(spec, tmp_path)
    imports = train_many.IMPORTS[spec.backend.name]
    ranks.run(measure, [str(tmp_path)], imports=imports, count=1, environment=variables, log=tmp_path / "log")
    measured = json.loads((tmp_path / "measured.json").read_text())
    is_as_predicted(predicted(assess.estimated(spec), 4), measured)


def test_a_run_is_measured_or_its_row_says_why_not(tmp_path: Path) -> None:
    alone = Point(name="alone", world=1, overrides=(*TINY, "parallel=ddp"))
    wrong = Point(
        name="wrong", world=1, overrides=("model=tiny", "parallel=ddp", "data=synthetic", "parallel.tensor=3")
    )
    missing = Point(name="missing", world=1, overrides=("model=tiny", "parallel=ddp", f"model.weights={tmp_path}/none"))
    rows = measured([alone, wrong, missing], CPU_HOST)
    assert rows[0]["error"] is None
    is_as_predicted(rows[0]["predicted"], rows[0]["measured"])
    assert [row["measured"] for row in rows[1:]] == [None, None]
    assert "parallel.tensor" in rows[1]["error"]
    assert rows[2]["error"]


def test_the_file_says_where_and_with_what_it_was_measured() -> None:
    text = json.dumps(document([], GPU_HOST))
    content = json.loads(text)
    assert list(content) == ["schema", "command", "date", "machine", "versions", "method", "runs"]
    assert content["machine"]["gpus"] == [{"name": "NVIDIA H200", "memory_bytes": 150_754_820_096}]
    assert content["versions"]["git"]["commit"]


@pytest.mark.skipif(bool(facts().gpus), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_one_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks.gpu", "--out", str(tmp_path / "gpu.json")])
    assert main() == 2
    assert capsys.readouterr() == ("", f"{NO_GPU}\n")
    assert not (tmp_path / "gpu.json").exists()


def test_the_readme_says_whether_there_is_a_result() -> None:
    text = (RESULTS.parent / "gpu" / "README.md").read_text()
    assert ("No result has been committed yet" in text) == (not (RESULTS / "gpu.json").exists())


def test_the_second_measured_step_begins_with_optimizer_states() -> None:
    assert STEPS > MEASURED_STEPS >= 2
