"""The measured constants: whose runs stand in where a framework or a GPU was not measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from launcher.estimate.speed import calibration
from launcher.estimate.speed.calibration import constant
from launcher.estimate.speed.estimate import estimate
from launcher.preflight.assess import parts
from tests.support.helpers import make_spec

ENOUGH = {"low": 0.9, "high": 1.1, "rows": 10}


def pair(name: str, value: float, **others: object) -> dict[str, object]:
    return {**ENOUGH, "constant": value, "whose": name, **others}


TABLES = {
    "pairs": {
        name: pair(name, value)
        for name, value in {
            "A on old": 0.7,
            "B on old": 0.8,
            "B on new": 0.9,
            "C on other": 1.0,
            "D on new": 0.1,
        }.items()
    },
    "frameworks": {name: pair(f"{name} on any GPU", 0.5) for name in "ABCD"},
    "all": pair("all frameworks", 0.6),
    "experts": {
        "pairs": {"B on new": pair("B on new, models with experts", 0.4)},
        "frameworks": {"B": pair("B on any GPU, models with experts", 0.4, low=0.5, high=3.0)},
    },
}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_calibration", lambda: TABLES)
    calibration.constant.cache_clear()


@pytest.fixture(autouse=True)
def uncached() -> Iterator[None]:
    yield
    calibration.constant.cache_clear()


@pytest.mark.usefixtures("tables")
def test_a_gpu_that_nobody_measured_takes_the_median_of_all_pairs_of_the_framework_and_its_related_ones() -> None:
    found = constant("A", "unseen", ("B", "C"))
    assert found.value == pytest.approx(0.85)
    assert found.rows == 40
    assert found.whose == "4 pairs of A, B and C on other GPUs"
    # Their own band, and beside it how far their constants lie apart.
    assert found.low == pytest.approx(0.7 / 0.85 * 0.9)
    assert found.high == pytest.approx(1.0 / 0.85 * 1.1)


@pytest.mark.usefixtures("tables")
def test_pairs_on_the_gpu_come_before_those_on_others() -> None:
    assert constant("A", "old", ("B", "C")).whose == "2 pairs of A and B on old"
    assert constant("A", "old", ("B", "C")).value == pytest.approx(0.75)
    assert constant("A", "new", ("B", "C")).whose == "B on new"


@pytest.mark.usefixtures("tables")
def test_without_related_frameworks_it_is_the_pair_the_framework_and_then_the_median_of_all() -> None:
    found = [constant(name, gpu).whose for name, gpu in (("A", "old"), ("A", "new"), ("Z", "new"))]
    assert found == ["A on old", "A on any GPU", "all frameworks"]


@pytest.mark.usefixtures("tables")
def test_a_model_with_experts_whose_constant_is_of_others_says_so_and_has_the_wider_band() -> None:
    assert constant("B", "new", experts=True).whose == "B on new, models with experts"
    found = constant("A", "old", experts=True)
    assert found.whose == "A on old, models without experts"
    assert [found.low, found.high] == pytest.approx([0.4 * 0.5 / 0.7, 0.4 * 3.0 / 0.7])


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
