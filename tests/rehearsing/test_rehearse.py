"""A rehearsal from its question to its answer, with a worker that measures the estimate a share off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base import typed
from launcher.base.errors import ConfigErrors
from launcher.base.units import GIB
from launcher.job.memory import OUT_OF_MEMORY, OutOfMemory
from launcher.preflight import assess
from launcher.preflight.assess import Assessment
from launcher.rehearsing import comparison
from launcher.rehearsing.choice import Request
from launcher.rehearsing.device import Device
from launcher.rehearsing.rehearse import rehearse
from launcher.rehearsing.result import Rehearsal
from launcher.views.rehearsal import Rehearsed
from tests.support.helpers import composed_once
from tests.support.rehearsed_ranks import CPU, H100, Worker, stage

TINY = ("model=tiny", "parallel=fsdp", "cluster.gpus_per_node=4")
LARGE = ("model=llama3_70b", "parallel=fsdp", "hardware=h100_80g", "cluster.nodes=8", "cluster.gpus_per_node=8")
FULL = (*LARGE, "checkpointing=full", "train.micro_batch_size=1")
PIPELINE = (*LARGE, "parallel=pp", "parallel.pipeline=8", "train.global_batch_size=64", "checkpointing=full")


def _rehearse(
    tmp_path: Path, words: tuple[str, ...], worker: Worker, device: Device = CPU, request: Request | None = None
) -> tuple[Assessment, Rehearsal, list[str]]:
    assessment = assess.assess(composed_once(*words))
    assert assessment.estimate is not None
    place, said = stage(tmp_path, worker, device)
    found = rehearse(assessment.spec, assessment.estimate, request or Request(), place)
    return assessment, found, said


def _text(assessment: Assessment, rehearsal: Rehearsal) -> str:
    return " ".join(str(Rehearsed(rehearsal=rehearsal, assessment=assessment)).split())


def test_a_rank_that_the_device_can_hold_is_built_whole(tmp_path: Path) -> None:
    worker = Worker(1.25)
    assessment, found, said = _rehearse(tmp_path, TINY, worker)
    assert worker.asked == [(0, 4)]
    assert said[0].startswith("launch: rank 0 of 4, 4 layers, on a processor: ")
    worst = found.worst
    assert (worst.whole, worst.extrapolated, worst.verdict) == (True, False, "fits")
    assert [phase.phase for phase in worst.phases][-1] == "checkpoint_save"
    assert worst.phases[-1].measured.allocated_bytes is None
    assert worst.phases[1].error == pytest.approx(1 / 1.25 - 1, abs=1e-6)
    measured = [phase.measured for phase in worst.phases[:-1]]
    assert all(each.needed_bytes == each.allocated_bytes for each in measured), "the CPU caches nothing"
    assert worst.evidence.measured_bytes == max(each.allocated_bytes or 0 for each in measured)
    assert worst.step_seconds == 2.0
    text = _text(assessment, found)
    assert text.startswith("MEASURED, it fits: ")
    assert "-20.0%" in text
    assert "at most 512 tokens/s" in text


def test_the_rest_of_a_model_that_is_too_much_follows_from_two_depths(tmp_path: Path) -> None:
    small = replace(H100, memory_bytes=60 * GIB)
    worker = Worker(cuda=True)
    assessment, found, _ = _rehearse(tmp_path, LARGE, worker, small)
    assert worker.asked == [(0, 4), (0, 6)]
    worst = found.worst
    assert (worst.extrapolated, worst.rank_layers) == (True, 80)
    for phase in worst.phases[:-1]:
        assert phase.error == pytest.approx(0, abs=0.02), "the estimate is linear in the depth, and so was the worker"
    assert worst.bent == pytest.approx(0, abs=0.02)
    assert worst.verdict == "does_not_fit"
    assert worst.step_seconds == pytest.approx(40.0), "half a second a layer"
    text = _text(assessment, found)
    assert "Built: llama3_70b with 4 and 6 of 80 layers" in text
    assert "linearly in depth: m(80) = m(4) + (m(6) - m(4)) / 2 x 76" in text
    assert "4 layers, predicted/measured:" in text
    assert "all layers (80 on this rank), predicted/extrapolated:" in text


def test_the_verdict_counts_what_the_allocator_has_reserved_and_what_a_rank_alone_lacks(tmp_path: Path) -> None:
    verdicts = {}
    for share in (1.0, 2.0, 2.5, 3.0):
        assessment, found, _ = _rehearse(tmp_path / str(share), FULL, Worker(share, cuda=True), H100)
        evidence = found.worst.evidence
        peak = round(share * max(phase.predicted.allocated_bytes or 0 for phase in found.worst.phases[:-1]))
        assert evidence.least_bytes == pytest.approx(peak + GIB / 2 + 600 * 2**20, rel=1e-3), (
            "context, one communicator"
        )
        assert evidence.used_bytes == pytest.approx(1.1 * peak + GIB / 2 + 600 * 2**20, rel=1e-3)
        verdicts[share] = (found.worst.verdict, evidence.used_bytes, assessment.spec.rank_memory_bytes)
    for verdict, used, capacity in verdicts.values():
        assert used is not None
        assert capacity is not None
        assert (verdict == "fits") == (used <= capacity)
    assert verdicts[1.0][0] == "fits"
    assert verdicts[3.0][0] == "does_not_fit"


def test_depths_are_deep_enough_that_the_estimate_is_linear_between_them_and_the_whole(tmp_path: Path) -> None:
    words = (*LARGE, "model=llama2_7b", "parallel=zero3")
    worker, place = Worker(cuda=True), replace(H100, memory_bytes=25 * GIB)
    found = _rehearse(tmp_path, words, worker, place)[1]
    assert worker.asked == [(0, 4), (0, 6)], "DeepSpeed keeps a billion parameters gathered"
    assert abs(found.worst.bent or 0) < 0.02
    assessment, bent, _ = _rehearse(tmp_path / "2", words, worker, place, Request(layers=(2, 4)))
    assert bent.worst.bent == pytest.approx(-0.26, abs=0.02)
    assert bent.worst.verdict == "unknown"
    assert "The estimate is not linear in depth between" in _text(assessment, bent)


def test_every_stage_has_its_line_and_the_worst_the_verdict(tmp_path: Path) -> None:
    worker = Worker(cuda=True)
    assessment, found, _ = _rehearse(tmp_path, PIPELINE, worker, H100, Request(all_stages=True))
    assert len(found.ranks) == len({one.stage for one in found.ranks}) > 2
    assert found.covers
    assert found.worst.evidence.measured_bytes == max(one.evidence.measured_bytes or 0 for one in found.ranks)
    assert "every stage, allocated, predicted/measured: stage " in _text(assessment, found)
    only = _rehearse(tmp_path / "one", PIPELINE, worker, H100, Request(stage=7))[1]
    assert only.worst.stage == 7
    assert not only.covers
    assert only.evidence.verdict(None) == "unknown", "another stage needs more"


def test_a_processor_in_the_place_of_a_gpu_gives_no_verdict(tmp_path: Path) -> None:
    words = (*LARGE, "model=tiny", "model.max_position_embeddings=512", "train.micro_batch_size=1")
    worker = Worker()
    assessment, found, _ = _rehearse(tmp_path, (*words, "train.global_batch_size=512"), worker)
    [built] = worker.specs
    assert (built.hardware.device, built.gpus, built.gradient_accumulation) == ("cpu", 64, 2)
    assert built.model.attention == "sdpa"
    assert (found.stands_in, found.worst.verdict, found.worst.step_seconds) == (True, "unknown", None)
    text = _text(assessment, found)
    assert text.startswith("NO VERDICT: measuring rank 0 of 64 does not decide whether the run fits.")
    assert "A CPU stood in for NVIDIA H100" in text


def test_what_the_processor_cannot_do_is_refused(tmp_path: Path) -> None:
    words = (*LARGE, "parallel=tp", "precision=fp8")
    with pytest.raises(ConfigErrors) as refused:
        _rehearse(tmp_path, words, Worker())
    [error] = refused.value.errors
    assert "this machine's processor cannot stand in for it: precision.compute=fp8" in error.rule
    with pytest.raises(ConfigErrors, match="uses CPU ranks: hide the GPU"):
        _rehearse(tmp_path, TINY, Worker(), H100)
    with pytest.raises(ConfigErrors, match="even 2 layers of the model need"):
        _rehearse(tmp_path, LARGE, Worker(cuda=True), replace(H100, memory_bytes=GIB))


def test_one_depth_of_several_compares_and_decides_nothing(tmp_path: Path) -> None:
    worker = Worker(1.5)
    assessment, found, _ = _rehearse(tmp_path, TINY, worker, request=Request(layers=(2,)))
    assert worker.asked == [(0, 2)]
    assert (found.worst.verdict, found.worst.whole, found.worst.step_seconds) == ("unknown", False, None)
    assert found.worst.phases[1].error == pytest.approx(1 / 1.5 - 1, abs=1e-6)
    assert "Only one depth was built, 2 layers, which is not the whole model." in _text(assessment, found)


def test_a_rank_that_ran_out_does_not_fit_on_a_device_of_that_size(tmp_path: Path) -> None:
    large = replace(H100, memory_bytes=200 * GIB)
    assessment, found, _ = _rehearse(tmp_path, LARGE, Worker(ran_out=True, cuda=True), large)
    assert (found.worst.ran_out, found.worst.verdict) == (True, "does_not_fit")
    assert "MEASURED, it does not fit: rank 0 of 64 ran out of the 200.00 GiB of NVIDIA H100." in _text(
        assessment, found
    )
    (tmp_path / "rank0-layers80").mkdir()
    end = OutOfMemory(kind="device", place="device", time=1.0, rank=0, node="n1", step=1, phase="backward", layer=17)
    end = replace(end, requested_bytes=3 * GIB, free_bytes=GIB)
    (tmp_path / "rank0-layers80" / OUT_OF_MEMORY).write_text(json.dumps(end.as_dict()))
    said = "Memory ended in the backward phase of layer 17 of step 1: 3.00 GiB requested, 1.00 GiB were left."
    assert said in _text(assessment, found)
    smaller = _rehearse(tmp_path / "2", FULL, Worker(ran_out=True, cuda=True), replace(H100, memory_bytes=70 * GIB))[1]
    assert smaller.worst.verdict == "unknown", "the run's GPU has more than the one on which memory ended"


def test_the_document_is_read_back_as_it_was(tmp_path: Path) -> None:
    _, found, _ = _rehearse(tmp_path, PIPELINE, Worker(cuda=True), H100, Request(all_stages=True))
    content = json.loads(json.dumps(found.as_dict()))
    assert typed.read(Rehearsal, content) == found
    phase = content["phases"][1]
    assert set(phase) == {"phase", "predicted", "measured", "predicted_bytes", "measured_bytes"}
    assert set(phase["predicted"]) == {"allocated_bytes", "needed_bytes", "reserved_bytes", "device_bytes"}


def test_a_line_through_two_depths_passes_through_both() -> None:
    assert comparison.at(4, (4, 6), (10.0, 14.0)) == 10
    assert comparison.at(6, (4, 6), (10.0, 14.0)) == 14
    assert comparison.at(80, (4, 6), (10.0, 14.0)) == 162
