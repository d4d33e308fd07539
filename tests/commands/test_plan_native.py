"""``launch plan`` and the validators of the engines, asked in earnest about the layouts that are shown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from launcher.actions.plan import Answer, Search, clock
from launcher.actions.requests import MeasureRequest
from launcher.backends.megatron import installed
from launcher.base import machine
from launcher.base.errors import ConfigError
from launcher.cli import main
from launcher.planner.judge import Preflight
from launcher.planner.layouts import Kind
from launcher.planner.planning import plan
from launcher.planner.question import ask
from launcher.preflight.assess import judge_all
from tests.support.helpers import CPU_HOST

WORDS = (
    *("model=1b", "backend=megatron", "hardware=h100_80g", "cluster.gpus_per_node=2", "train.global_batch_size=4"),
    *("train.sequence_length=2048", "zero.stage=1", "parallel.context=1", "train.micro_batch_size=1"),
)


pytestmark = pytest.mark.skipif(installed.found_version() is None, reason="the validator is of the extra 'megatron'")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "facts", lambda: CPU_HOST)


@pytest.mark.thorough
def test_megatron_takes_what_the_planner_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *WORDS, "--json"]) == 0
    said = capsys.readouterr()
    assert len(json.loads(said.out)["plan"]["layouts"]) > 1
    assert said.err == ""


def test_arguments_that_megatron_refuses_are_an_error_of_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*WORDS, "parallel.tensor=1", "parallel.pipeline=1", "+backend.extra.overlap_grad_reduce=false")
    assert main(["plan", *words]) == 2
    assert "Must use --overlap-param-gather" in " ".join(capsys.readouterr().err.split())
    assert main(["plan", *words, "--no-native"]) == 0


@pytest.mark.thorough
def test_the_search_goes_on_behind_a_layout_that_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    question = ask((*WORDS, "parallel.pipeline=1"))
    found = plan(question)
    first, second, *_ = found.layouts
    wrong = replace(first.spec, backend=replace(first.spec.backend, extra={"no-such-argument": True}))
    assert [bool(each.errors) for each in judge_all([wrong, second.spec])] == [True, False]
    start = replace(found, layouts=(replace(first, spec=wrong), *found.layouts[1:]))
    search = Search(MeasureRequest(overrides=question.words), question, began=clock())
    answer = search.sound(Answer(question=question, plan=start))
    assert answer.plan.layouts == found.layouts
    assert "no-such-argument" in capsys.readouterr().err


def test_a_run_that_was_refused_is_in_no_later_answer() -> None:
    question, judge = ask((*WORDS, "parallel.pipeline=1")), Preflight()
    first, *others = plan(question, judge=judge).layouts
    judge.refuse(first.spec, ConfigError("backend.name", "megatron", "refused"))
    after = plan(question, judge=judge).layouts
    assert first.spec not in [each.spec for each in after]
    assert {Kind.of(each.spec) for each in others} <= {Kind.of(each.spec) for each in after}
