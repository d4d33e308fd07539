"""The constant of measured runs: whose runs it is of, from how many on, how wide its band is. The rows are made up."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.estimate.speed.calibration import UNCALIBRATED, Constant, constant
from launcher.estimate.speed.card import card_of
from launcher.estimate.speed.estimate import estimate
from launcher.preflight import assess
from launcher.preflight.measured.constants import Own, banded, of_rows, why_not
from launcher.preflight.measured.file import MeasuredRun, PredictedRun, Row
from launcher.preflight.measured.known import Measured
from launcher.spec import edit
from tests.support.helpers import composed_once
from tests.support.measured_rows import RUN, row, written

CARD = card_of(composed_once("hardware=h100_80g").hardware)
RELATED = ("torchtitan", "LitGPT", "llm-foundry")
THREE = (row(0, 0.8), row(1, 0.9), row(2, 0.95))


def found(path: Path, rows: tuple[Row, ...], *changes: tuple[str, Any]) -> Constant | None:
    path.unlink(missing_ok=True)
    spec = edit.changed_at(composed_once(*RUN), {"cluster.measurements": str(written(path, *rows)), **dict(changes)})
    return Measured()(spec)


def test_from_three_made_up_layouts_on_their_median_takes_the_place_of_the_shipped_constant(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert found(path, THREE[:2]) is None
    own = found(path, THREE)
    assert own is not None
    assert own.value == pytest.approx(0.9)
    assert (own.rows, own.here) == (3, True)
    assert own.whose == "PyTorch FSDP on h100_80g, this cluster"
    assert own.low < 1 < own.high
    spec = composed_once(*RUN)
    raw = estimate(spec, **assess.parts(spec), measured=UNCALIBRATED)
    corrected = estimate(spec, **assess.parts(spec), measured=own)
    assert raw is not None
    assert corrected is not None
    assert corrected.constant == own
    assert corrected.tokens_per_second == pytest.approx(0.9 * raw.tokens_per_second)


def test_of_each_layout_the_newest_run_counts_with_one_vote(tmp_path: Path) -> None:
    again = [row(10 + number, 0.5, layout=THREE[0].layout) for number in range(5)]
    assert found(tmp_path / "a.jsonl", (*THREE[:2], *again)) is None
    own = found(tmp_path / "a.jsonl", (*THREE, *again, row(20, 0.92, layout=THREE[0].layout)))
    assert own is not None
    assert own.value == pytest.approx(0.92)
    assert own.rows == 3


@pytest.mark.parametrize(
    "change",
    [
        {"hardware": "a100_80g"},
        {"framework": "Megatron-Core"},
        {"experts": True},
        {"cluster": "slurm"},
        {"network_bandwidth": 12.5e9},
        {"network_latency": 1e-5},
        {"calibration": "2020-01-01 0000000"},
        {"calibration": None},
        {"left_out": "its card was nearly full"},
        {"predicted": PredictedRun()},
        {"measured": MeasuredRun(steps=50)},
    ],
)
def test_runs_of_another_card_framework_cluster_or_version_and_those_left_out_do_not_count(
    change: dict[str, Any], tmp_path: Path
) -> None:
    assert found(tmp_path / "a.jsonl", (*THREE[:2], replace(THREE[2], **change))) is None
    if not set(change) & {"hardware", "framework", "experts", "cluster", "network_bandwidth", "network_latency"}:
        assert why_not(replace(THREE[2], **change))


def test_another_run_of_the_cluster_is_corrected_and_one_of_another_network_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert found(path, THREE, ("train.micro_batch_size", 16)) == found(path, THREE)
    assert found(path, THREE, ("cluster.network_bandwidth", 1e9)) is None
    assert found(path, THREE, ("cluster.kind", "slurm")) is None
    assert found(path, THREE, ("hardware.device", "cpu")) is None


def test_on_more_nodes_than_were_measured_the_band_is_no_narrower_than_the_shipped_one(tmp_path: Path) -> None:
    here, beyond = (found(tmp_path / "a.jsonl", THREE, ("cluster.nodes", nodes)) for nodes in (1, 4))
    assert CARD is not None
    shipped = constant("PyTorch FSDP", CARD, RELATED)
    assert here is not None
    assert beyond is not None
    assert beyond.value == here.value
    assert (beyond.low, beyond.high) == (min(here.low, shipped.low), max(here.high, shipped.high))


SHIPPED = Constant(value=0.9, low=0.8, high=1.25, rows=100, whose="")


@given(runs=st.integers(3, 1000), deviation=st.floats(0, 2))
def test_the_band_lies_between_the_shipped_one_and_that_of_the_own_runs(runs: int, deviation: float) -> None:
    own = banded(Own(value=0.9, deviation=deviation, runs=runs, nodes=1), SHIPPED, "")
    spread = math.exp(1.645 * deviation)
    assert own.low <= 1 <= own.high
    assert min(SHIPPED.high, spread) * 0.999 <= own.high <= max(SHIPPED.high, spread) * 1.001
    more = banded(Own(value=0.9, deviation=0.0, runs=runs + 1, nodes=1), SHIPPED, "")
    assert 1 < more.high < SHIPPED.high, "runs that agree narrow the band, and never to nothing"


def test_three_runs_that_agree_keep_most_of_the_shipped_band() -> None:
    own = banded(Own(value=0.9, deviation=0.0, runs=3, nodes=1), SHIPPED, "")
    assert math.log(own.high) == pytest.approx(math.sqrt(5 / 8) * math.log(1.25))


def test_the_order_of_layouts_changes_no_constant() -> None:
    assert of_rows(THREE) == of_rows(reversed(THREE))


def test_lines_that_are_no_rows_and_a_file_that_cannot_be_read_are_said_once(tmp_path: Path) -> None:
    told = list[str]()
    path = written(tmp_path / "a.jsonl", *THREE)
    path.write_bytes(path.read_bytes() + b"no row\n")
    for place in (path, tmp_path):
        measured = Measured()
        spec = edit.changed(composed_once(*RUN), "cluster.measurements", str(place))
        assert (measured(spec) is not None) == (place == path)
        measured(spec)
        measured.tell(told.append)
        measured.tell(told.append)
    assert len(told) == 2
    assert told[0].startswith(f"launch: {path}: ignored 1 line that is not a measured run: ")
    assert told[1] == f"launch: the measured runs of {tmp_path} cannot be read: Is a directory"
