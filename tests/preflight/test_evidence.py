"""What a rehearsal is evidence for, and what of it a check and a run take."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launcher import cli
from launcher.base.errors import ConfigErrors
from launcher.base.units import GIB
from launcher.preflight import assess, evidence
from launcher.preflight.assess_here import judge_by_rehearsal
from launcher.preflight.evidence import Evidence, key
from launcher.rehearsing import result
from tests.support.helpers import composed_once
from tests.support.rehearsed_ranks import FOUND

TINY = ("model=tiny", "parallel=fsdp", "cluster.gpus_per_node=2")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _keep(found: Evidence, *words: str, folder: Path | None = None) -> Path:
    place = evidence.place(composed_once(*words)) if folder is None else folder
    place.mkdir(parents=True, exist_ok=True)
    (place / evidence.RESULT).write_text(json.dumps({"schema": 1, "evidence": asdict(found)}))
    return place


@pytest.mark.parametrize(
    "word",
    [
        *("run.name=a", "train.steps=7", "train.tokens=1e6", "train.seed=3", "optimizer.lr=1e-5", "data=text"),
        *("train.log_every=3", "save.every=2", "tracking=tensorboard", "cluster.price_per_gpu_hour=2"),
        *("hardware.host_memory_bytes=1e9", "hardware.memory_bytes=1e9", "train.gradient_accumulation=1"),
    ],
)
def test_what_the_memory_of_a_rank_does_not_depend_on_is_no_other_run(word: str) -> None:
    assert key(composed_once(*TINY, word)) == key(composed_once(*TINY))


@pytest.mark.parametrize(
    "word",
    [
        *("train.micro_batch_size=2", "train.sequence_length=64", "precision=bf16", "checkpointing=full"),
        *(
            "cluster.gpus_per_node=4",
            "parallel=ddp",
            "model.num_hidden_layers=3",
            "optimizer=sgd",
            "train.loss=chunked",
        ),
        *("+cluster.environment.PYTORCH_ALLOC_CONF=x:1", "train.gradient_accumulation=4", "hardware=h100_80g"),
    ],
)
def test_what_it_depends_on_is_another_run(word: str) -> None:
    assert key(composed_once(*TINY, word)) != key(composed_once(*TINY))


def test_where_a_run_is_submitted_does_not_count() -> None:
    gpus = ("model=tiny", "hardware=h100_80g", "cluster.gpus_per_node=8")
    assert key(composed_once(*gpus)) == key(composed_once(*gpus, "cluster=slurm", "cluster.partition=a"))


@pytest.mark.parametrize(
    ("found", "capacity", "verdict"),
    [
        (FOUND, 80 * GIB, "fits"),
        (FOUND, None, "fits"),
        (FOUND, 74 * GIB, "tight"),
        (FOUND, 70 * GIB, "does_not_fit"),
        (replace(FOUND, partial=True), 80 * GIB, "unknown"),
        (replace(FOUND, ran_out=True), 78 * GIB, "does_not_fit"),
        (replace(FOUND, ran_out=True), 80 * GIB, "unknown"),
    ],
)
def test_the_verdict_is_for_the_capacity_of_the_run(found: Evidence, capacity: int | None, verdict: str) -> None:
    assert found.verdict(capacity) == verdict


def test_a_check_names_the_rehearsal_of_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    small = replace(FOUND, device="cpu", measured_bytes=21 * 2**20, predicted_bytes=20 * 2**20, device_name="a CPU")
    _keep(replace(small, least_bytes=21 * 2**20, used_bytes=21 * 2**20), *TINY)
    assert cli.main(["check", *TINY, "train.steps=9"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "rehearsed 2027-01-15 on a CPU (rank 0 of 2): 21.0 MiB measured, 20.0 MiB predicted (-4.8%)" in said
    assert cli.main(["check", *TINY, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["rehearsed"]["verdict"], document["rehearsed"]["measured_bytes"]) == ("fits", 21 * 2**20)
    assert cli.main(["check", *TINY, "model.num_hidden_layers=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rehearsed"] is None


def test_the_answer_of_a_job_is_found_where_it_was_submitted(tmp_path: Path) -> None:
    spec = composed_once(*TINY)
    result.note_submitted(spec, tmp_path / "runs" / "a")
    assert evidence.read(spec) is None
    _keep(replace(FOUND, rank=1), folder=tmp_path / "runs" / "a")
    found = evidence.read(spec)
    assert found is not None
    assert found == replace(FOUND, rank=1)
    _keep(replace(FOUND, time=FOUND.time + 1), *TINY)
    newer = evidence.read(spec)
    assert newer is not None
    assert newer.rank == 0
    (evidence.place(spec) / evidence.RESULT).write_text('{"evidence": {"time": 3}}')
    assert evidence.read(spec) == found, "a file of another version is none"


def test_a_measured_verdict_takes_the_place_of_the_estimate() -> None:
    spec = composed_once(*TINY)
    judged = assess.assess(spec)
    assert judged.verdict.name == "fits"
    out = judge_by_rehearsal(replace(judged, rehearsed=replace(FOUND, ran_out=True, device_bytes=2**50)), "")
    assert out.verdict.name == "does_not_fit"
    assert [short.place for short in out.verdict.shortages] == ["device"]
    refused = assess.assess(composed_once(*TINY, "hardware.memory_bytes=1e6"))
    assert refused.verdict.name == "does_not_fit"
    small = replace(FOUND, least_bytes=9 * 10**5, used_bytes=9 * 10**5)
    assert judge_by_rehearsal(replace(refused, rehearsed=small), "").verdict.name == "fits"
    disk = assess.assess(composed_once(*TINY, "hardware.disk_bytes=1000", "save.every=1"))
    assert {short.place for short in disk.verdict.shortages} == {"disk"}
    assert judge_by_rehearsal(replace(disk, rehearsed=small), "").verdict.name == "does_not_fit", (
        "the disk is still too small"
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "you have not rehearsed this run"),
        (replace(FOUND, partial=True), "too little was measured"),
        (replace(FOUND, versions={"torch": "1.0"}), "it was rehearsed with other package versions: torch 1.0, now "),
    ],
)
def test_what_is_demanded_and_not_there_is_refused_with_the_words_to_type(found: Evidence | None, said: str) -> None:
    judged = replace(assess.assess(composed_once(*TINY)), rehearsed=found)
    with pytest.raises(ConfigErrors) as refused:
        judge_by_rehearsal(judged, "model=tiny")
    [error] = refused.value.errors
    assert said in error.rule
    assert error.way_out == ("launch rehearse model=tiny",)
