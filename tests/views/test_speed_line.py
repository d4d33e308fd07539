"""The speed of a run as sentences, and as the part ``speed`` of the document."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from launcher.estimate.speed.calibration import UNCALIBRATED
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight import assess, findings
from launcher.preflight.assess import as_json
from launcher.spec import RunSpec, edit
from launcher.views.check import sentences as view
from tests.support.helpers import composed_once
from tests.support.rule_cases import NODE
from tests.support.speeds import speed_of

SEVEN = ("model=7b", "parallel=fsdp", *NODE)
KEYS = (
    "tokens_per_second tokens_per_second_per_gpu low high step_seconds mfu model_flops bubble hfu gpu_hours price"
    " constant crowded parts communication"
)


def sentences(spec: RunSpec, speed: SpeedEstimate | None, unknown: str | None = None) -> list[str]:
    assessment = assess.assess(spec, search=None)
    return view.speed(replace(assessment, speed=speed, speed_unknown=unknown))


def test_the_line_says_speed_band_share_of_the_peak_and_what_a_step_goes_to() -> None:
    first, second = sentences(composed_once(*SEVEN), speed_of())
    assert first == (
        "about 10,900 tokens/s a GPU (7,430 to 13,100), 47% of the card's bf16 peak; 3.0 s a step: matrix products 61%,"
        " attention 9%, memory-bound 12%, exposed communication 10% (tensor parallel 8%, data 2%), bubble 6%,"
        " optimizer 2%"
    )
    assert second == "100 steps, 26.21 M tokens: 5 min, 0.667 GPU-hours"


def test_a_price_turns_the_steps_that_tokens_make_into_money() -> None:
    spec = edit.changed_at(
        composed_once(*SEVEN), {"cluster.price_per_gpu_hour": 2.5, "train.tokens": 10**9, "train.steps": None}
    )
    assert spec.steps == 30_518
    hours = 30_518 * 3.0 * 8 / 3600
    assert sentences(spec, speed_of())[1].endswith(": 25 h 26 min, 203 GPU-hours, cost 509 at 2.5 a GPU-hour")
    document = speed_of().as_dict(spec)
    assert (document["gpu_hours"], document["price"]) == (pytest.approx(hours), pytest.approx(2.5 * hours))


def test_evaluations_add_their_forward_passes_and_are_counted_by_set() -> None:
    spec = edit.changed_at(composed_once(*SEVEN), {"train.eval_every": 30, "train.eval_steps": 4})
    assert spec.evaluation_batches == 3 * 4
    speed = speed_of()
    assert speed.evaluation_seconds == pytest.approx((3.0 - 0.06) * 0.5 / 1.6)  # No optimizer; the slowest stage.
    assert speed.run_seconds(spec) == pytest.approx(100 * 3.0 + 12 * speed.evaluation_seconds)
    assert sentences(spec, speed)[1].startswith("100 steps, 26.21 M tokens, 12 batches evaluated: ")
    sets = [{"name": name, "path": f"{name}.jsonl"} for name in ("code", "prose")]
    assert edit.changed(spec, "data.eval_sets", sets).evaluation_batches == 2 * 12


def test_a_script_of_the_users_own_decides_itself_when_it_ends() -> None:
    spec = edit.changed(composed_once(*SEVEN), "script", "train.py")
    assert len(sentences(spec, speed_of())) == 1
    document = speed_of().as_dict(spec)
    assert (document["gpu_hours"], document["price"]) == (None, None)


def test_a_run_that_does_not_fit_has_the_speed_that_it_had_if_it_did() -> None:
    spec = composed_once("model=70b", "parallel=ddp", *NODE)
    assert sentences(spec, speed_of())[0].startswith("if it fit: about 10,900 tokens/s a GPU")


def test_without_a_measured_run_there_is_no_band() -> None:
    first = sentences(composed_once(*SEVEN), speed_of(constant=UNCALIBRATED))[0]
    assert first.startswith("about 10,900 tokens/s a GPU, 47% of")


def test_unknown_is_said_with_its_reason_and_of_a_cpu_in_a_word_elsewhere() -> None:
    spec = composed_once(*SEVEN)
    unknown = assess.assess(edit.changed(spec, "hardware.memory_bandwidth", None), search=None)
    assert unknown.speed is None
    assert unknown.speed_unknown is not None
    assert "hardware" in unknown.speed_unknown
    assert view.speed(unknown) == [f"speed unknown: {unknown.speed_unknown}"]
    assert as_json(unknown)["speed"] is None
    cpu = assess.assess(composed_once("model=tiny"))
    assert (cpu.speed, view.speed(cpu)) == (None, [])
    assert as_json(cpu)["speed"] is None


def test_the_document_has_the_keys_of_the_contract_and_its_parts_sum_to_the_step() -> None:
    document = as_json(assess.assess(composed_once(*SEVEN)))["speed"]
    assert list(document) == KEYS.split()
    assert json.loads(json.dumps(document)) == document
    assert document["low"] <= document["tokens_per_second_per_gpu"] <= document["high"]
    assert document["tokens_per_second"] == pytest.approx(8 * document["tokens_per_second_per_gpu"])
    assert sum(part["exposed_seconds"] for part in document["parts"]) == pytest.approx(document["step_seconds"])
    assert all(list(part) == ["part", "seconds", "exposed_seconds", "formula", "source"] for part in document["parts"])
    assert document["communication"]
    for traffic in document["communication"]:
        assert list(traffic) == ["group", "bytes", "seconds", "exposed_seconds"]
        assert traffic["group"]


def test_an_error_of_the_data_takes_the_speed_away() -> None:
    found = assess.assess(composed_once(*SEVEN), search=None)
    assert found.speed is not None
    refused = found.refused(findings.errors(composed_once(*SEVEN, "parallel.tensor=3")))
    assert (refused.speed, refused.speed_unknown) == (None, None)
