"""``check --speed``: the parts of a step, printed so that one can compute them again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from launcher.cli import main
from launcher.estimate.speed.calibration import UNCALIBRATED
from launcher.preflight import assess
from launcher.views.check import detail
from tests.support.helpers import assert_golden, composed_once
from tests.support.rule_cases import NODE
from tests.support.speeds import CONSTANT, speed_of

SEVEN = ("model=7b", "parallel=fsdp", *NODE)


def test_the_table_reads_as_pinned() -> None:
    found = replace(assess.assess(composed_once(*SEVEN), search=None), speed=speed_of())
    assert_golden("check_speed.txt", detail.speed_text(found) + "\n")
    for width in (60, 100):
        assert max(map(len, detail.speed_text(found, width).splitlines())) <= width


def test_a_prediction_that_no_measured_run_corrects_says_so() -> None:
    found = replace(assess.assess(composed_once(*SEVEN), search=None), speed=speed_of(constant=UNCALIBRATED))
    assert detail.speed_text(found).endswith("no measured run corrects this prediction, and its error band is unknown")


def test_a_card_that_is_nearly_full_is_told_beside_the_band_of_speed() -> None:
    speed = replace(speed_of(constant=CONSTANT), crowded=True)
    found = replace(assess.assess(composed_once(*SEVEN), search=None), speed=speed)
    text = " ".join(detail.speed_text(found).split())
    assert "about 10,900 tokens/s a GPU (7,430 to 13,100)" in text
    assert "the card is nearly full: " in text


@pytest.mark.parametrize(
    ("whose", "frameworks", "why"),
    [
        ("LitGPT on h100_80g", ("LitGPT",), "(closest relatives of PyTorch FSDP)"),
        ("all frameworks", (), "(too few runs of PyTorch FSDP)"),
    ],
)
def test_runs_of_another_framework_are_said_to_stand_in(whose: str, frameworks: tuple[str, ...], why: str) -> None:
    speed = speed_of(constant=replace(CONSTANT, whose=whose, frameworks=frameworks))
    found = replace(assess.assess(composed_once(*SEVEN), search=None), speed=speed)
    text = " ".join(detail.speed_text(found).split())
    assert f"34 runs of {whose} {why}; error band 0.68 to 1.20" in text


def test_frameworks_have_one_vote_each_and_a_model_with_experts_the_band_of_such_models() -> None:
    whose = "A on other GPUs, PyTorch FSDP on h100_80g"
    voted = replace(CONSTANT, whose=whose, votes=2, band_of="others")
    plain, experts = speed_of(constant=voted), speed_of(constant=replace(voted, band_of="experts"))
    found = assess.assess(composed_once(*SEVEN), search=None)
    text = " ".join(detail.speed_text(replace(found, speed=plain)).split())
    assert f"the median of the constants of {whose}, 34 runs, each framework with one vote; error band" in text
    assert "times the prediction, from the errors of runs on other stacks" in text
    text = " ".join(detail.speed_text(replace(found, speed=experts)).split())
    assert "times the prediction, from runs of models with experts" in text


def test_the_table_stands_in_place_of_the_answer_and_behind_a_pile_that_is_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", *SEVEN, "--speed"]) == 0
    alone = capsys.readouterr().out
    assert alone.startswith("about ")
    assert "the parts of a step:" in alone
    assert "FITS" not in alone
    assert main(["check", *SEVEN, "--speed", "--explain", "logits"]) == 0
    both = capsys.readouterr().out
    assert both.startswith("logits of the worst rank")
    assert both.endswith(alone)


def test_the_document_has_the_terms_stages_and_symbols_where_they_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", *SEVEN, "--speed", "--json"]) == 0
    speed = json.loads(capsys.readouterr().out)["speed"]
    assert {term["part"] for term in speed["terms"]} == {part["part"] for part in speed["parts"]}
    assert [list(term) for term in speed["terms"]] == [
        ["part", "what", "symbols", "numbers", "seconds", "exposed_seconds", "source"]
    ] * len(speed["terms"])
    assert [stage["stage"] for stage in speed["stages"]] == [0]
    assert speed["symbols"]["m"] == "micro-batches of an optimizer step"
    assert main(["check", *SEVEN, "--json"]) == 0
    assert "terms" not in json.loads(capsys.readouterr().out)["speed"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("model=tiny",), 0, "speed unknown: the speed of a CPU is not modelled"),
        ((*SEVEN, "hardware.flops_bf16=null"), 0, "hardware.flops_bf16"),
        ((*SEVEN, "parallel.tensor=3"), 2, "parallel.tensor"),
    ],
)
def test_where_there_is_no_speed_the_verdict_and_the_reason_are_printed(
    words: tuple[str, ...], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *words, "--speed"]) == status
    out = capsys.readouterr().out
    assert out.startswith("INVALID" if status else "FITS")
    assert said in out
    assert out.count("speed unknown") == (status == 0)


@pytest.mark.parametrize("several", [("-m", "model=1b,7b"), ("--points", "points.jsonl")])
def test_a_table_of_many_runs_is_refused(several: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *several, "--speed"]) == 2
    assert f"--speed: {several[0]} does not use it: it applies to a single run" in capsys.readouterr().err
