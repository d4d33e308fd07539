"""The measured constants: whose runs stand in where a framework or a GPU was not measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from launcher.estimate.speed import calibration
from launcher.estimate.speed.calibration import constant
from launcher.estimate.speed.card import Card, card_of
from launcher.estimate.speed.estimate import estimate
from launcher.preflight.assess import parts
from tests.support.helpers import make_spec

ENOUGH = {"low": 0.9, "high": 1.1, "rows": 10}


def pair(name: str, value: float, **others: object) -> dict[str, object]:
    return {**ENOUGH, "constant": value, "whose": name, **others}


def card(name: str, generation: int | None = 9) -> Card:
    found = card_of(make_spec("hardware=h100_80g").hardware)
    assert found is not None
    return replace(found, name=name, generation=generation)


TABLES: dict[str, Any] = {
    "pairs": {
        name: pair(name, value, generation=generation)
        for name, value, generation in (
            ("A on old", 0.7, 8),
            ("B on old", 0.8, 8),
            ("B on new", 0.9, 9),
            ("C on other", 1.0, 10),
            ("D on new", 0.1, 9),
        )
    },
    "frameworks": {name: pair(f"{name} on any GPU", 0.5) for name in "ABCDE"},
    "elsewhere": {"low": 0.6, "high": 1.5},
    "all": pair("all frameworks", 0.6, low=0.3),
    "experts": {
        "of": ", models with experts",
        "pairs": {"B on new": pair("B on new, models with experts", 0.4)},
        "frameworks": {"B": pair("B on any GPU, models with experts", 0.4, low=0.5, high=3.0)},
    },
}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "shipped", lambda: TABLES)
    calibration.constant.cache_clear()


@pytest.fixture(autouse=True)
def uncached() -> Iterator[None]:
    yield
    calibration.constant.cache_clear()


@pytest.mark.usefixtures("tables")
def test_a_framework_with_runs_on_the_gpu_needs_no_other() -> None:
    assert constant("A", card("old"), ("B", "C")).whose == "A on old"


@pytest.mark.usefixtures("tables")
def test_runs_whose_layout_is_uncertain_have_no_more_than_a_vote_beside_those_of_related_frameworks() -> None:
    pairs = {**TABLES["pairs"], "A on old": pair("A on old", 0.7, generation=8, certain=False)}
    tables = {**TABLES, "pairs": pairs}
    assert calibration.chosen(tables, "A", card("old", 8), ("B",)).whose == "A on old, B on old"
    assert calibration.chosen(tables, "A", card("old", 8)).whose == "A on old"


@pytest.mark.usefixtures("tables")
def test_each_framework_votes_by_the_gpu_then_by_its_generation_then_by_others() -> None:
    assert constant("B", card("unseen"), ("A",)).whose == "B on GPUs of its generation"
    found = constant("A", card("unseen"), ("B", "C"))
    assert found.whose == "A on other GPUs, B on GPUs of its generation, C on other GPUs"
    assert (found.value, found.rows) == (0.5, 30)
    # As far as pairs lie from what others say of them.
    assert (found.low, found.high) == (0.6, 1.5)
    assert constant("A", card("new"), ("B",)).whose == "A on other GPUs, B on new"


@pytest.mark.usefixtures("tables")
def test_a_gpu_of_no_known_generation_has_votes_from_others_alone() -> None:
    assert constant("B", card("unseen", None), ("A",)).whose == "B on other GPUs, A on other GPUs"


@pytest.mark.usefixtures("tables")
def test_without_related_frameworks_it_is_the_pair_the_framework_and_then_the_median_of_all() -> None:
    found = [constant(name, card("old", 8)).whose for name in "AEZ"]
    assert found == ["A on old", "E on other GPUs", "all frameworks"]


@pytest.mark.usefixtures("tables")
def test_a_framework_that_nobody_has_measured_has_the_band_of_all() -> None:
    found = constant("Z", card("old"), ("B",))
    assert (found.whose, found.low, found.high) == ("B on old", 0.3, 1.1)
    assert constant("Z", card("old")).low == 0.3


@pytest.mark.usefixtures("tables")
def test_a_model_with_experts_whose_constant_is_of_others_says_so_and_has_the_wider_band() -> None:
    assert constant("B", card("new"), experts=True).whose == "B on new, models with experts"
    found = constant("A", card("old"), experts=True)
    assert found.whose == "A on old, models without experts"
    assert [found.low, found.high] == pytest.approx([0.4 * 0.5 / 0.7, 0.4 * 3.0 / 0.7])


def test_the_engine_of_megatron_takes_its_own_runs_on_a_b200() -> None:
    found = constant("Megatron-Core", card("b200", 10), ("NeMo", "Megatron-Bridge"))
    assert found.whose == "Megatron-Core on b200"
    assert found.value == pytest.approx(0.72, abs=0.02)


def test_the_engine_of_fsdp_counts_torchtitan_though_it_ran_on_another_h100() -> None:
    found = constant("PyTorch FSDP", card("h100_80g"), ("torchtitan", "LitGPT", "llm-foundry"))
    assert "torchtitan on GPUs of its generation" in found.whose


@pytest.mark.parametrize("parallel", ["fsdp", "zero3", "tp"])
@pytest.mark.parametrize(("better", "worse"), [("h200", "h100_80g"), ("a100_80g", "a100_40g")])
@pytest.mark.parametrize("model", ["llama3_8b", "qwen3_30b_a3b"])
def test_the_better_card_is_not_predicted_slower(parallel: str, better: str, worse: str, model: str) -> None:
    speeds = []
    for card in (better, worse):
        spec = make_spec(f"model={model}", f"parallel={parallel}", f"hardware={card}", "cluster.gpus_per_node=8")
        found = estimate(spec, **parts(spec))
        assert found is not None
        speeds.append(found.tokens_per_second)
    assert speeds[0] >= speeds[1]
