"""The error band: from the residuals of measured runs, written by a tool, and said aloud where they are another's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.memory import residuals
from benchmarks.memory.frameworks.torchtitan import Torchtitan
from benchmarks.memory.row import Row
from benchmarks.memory.scoring import judged
from launcher.estimate.memory import result as module
from launcher.estimate.memory.result import LEAST_ROWS, RESIDUALS, band
from launcher.preflight import assess, explain
from launcher.views.check.detail import explanation_text
from tests.support.helpers import make_spec

WORDS = ("model=1b", "hardware=h100_80g", "cluster.gpus_per_node=8")


def explained(word: str) -> str:
    """The text of ``check --explain``, which says where the band is from."""
    found = explain.explained(make_spec(word, *WORDS), "activations")
    return " ".join(explanation_text(found, 100).split())


def test_the_committed_residuals_are_quantiles_in_order_with_their_origin() -> None:
    content = json.loads(RESIDUALS.read_text())
    assert {"what", "command", "date", "commit"} <= set(content)
    rows = [*content["measured"].values(), *content["own_runs"].values()]
    assert len(rows) > 3
    assert all(0 < row["low"] <= row["median"] <= row["high"] for row in rows)


def test_a_measured_framework_has_the_band_of_its_own_runs() -> None:
    measured = json.loads(RESIDUALS.read_text())["measured"]["megatron"]
    found = band("megatron", cuda=True)
    assert (found.own, found.rows, found.low, found.high) == (True, measured["rows"], measured["low"], measured["high"])


def test_one_that_is_not_measured_has_the_widest_and_the_answer_says_so() -> None:
    found = band("deepspeed", cuda=True)
    enough = [row for row in json.loads(RESIDUALS.read_text())["measured"].values() if row["rows"] >= LEAST_ROWS]
    assert found.high - found.low == max(row["high"] - row["low"] for row in enough)
    wide = f"runs of {found.whose}, the widest known band: too few runs of this kind were measured"
    assert wide in explained("parallel=zero1")


def test_fsdp2_has_that_of_torchtitan_which_is_fsdp2_too_and_ddp_has_not() -> None:
    measured = json.loads(RESIDUALS.read_text())["measured"]["Torchtitan"]
    found = band("fsdp", cuda=True, runs_on="FSDP2")
    assert (found.own, found.low, found.high) == (False, measured["low"], measured["high"])
    assert f"{measured['rows']} runs of Torchtitan, also on FSDP2" in explained("parallel=fsdp")
    assert "too few runs of this kind were measured" in explained("parallel=ddp")


def test_on_the_cpu_it_is_that_of_the_workers_own_runs() -> None:
    assert [band(name, cuda=False).own for name in ("fsdp", "deepspeed")] == [True, True]


def test_the_chance_to_fit_is_a_tenth_and_nine_tenths_at_the_ends_of_the_band() -> None:
    found = band("Nanotron", cuda=True)
    chances = [found.chance(room, 0.05) for room in (found.low, found.median, found.high)]
    assert chances == pytest.approx([0.1, 0.5, 0.9], abs=0.03)
    assert [found.chance(0.0, 0.05), found.chance(4.0, 0.05)] == pytest.approx([0.0, 1.0])


def test_what_the_allocator_loses_makes_a_band_of_allocated_bytes_less_certain_and_no_other() -> None:
    megatron, reserved = band("megatron", cuda=True), band("Nanotron", cuda=True)
    assert megatron.allocated
    assert 0.5 < megatron.chance(1.05, 0.05) < megatron.chance(1.05, 0.0)
    assert reserved.chance(1.05, 0.05) == reserved.chance(1.05, 0.0)


def test_where_nothing_was_measured_less_is_certain_than_by_the_widest_band() -> None:
    unknown = band("deepspeed", cuda=True)
    assert unknown.chance(1.1, 0.0) < band(unknown.whose, cuda=True).chance(1.1, 0.0)


def test_the_residuals_are_measured_over_predicted_by_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec("parallel=tp", *WORDS)
    predicted = assess.estimated(spec).peak.allocated_bytes
    items = [
        judged(Row(name=str(share), spec=spec, measured={"allocated": predicted * share // 100}))
        for share in range(90, 111)
    ]
    target = tmp_path / "residuals.json"
    monkeypatch.setattr(residuals, "RESIDUALS", target)
    residuals.write({"runs.csv": items})
    row = json.loads(target.read_text())["measured"]["megatron"]
    spread = row.pop("quantiles")
    assert (len(spread), spread[0], spread[-1]) == (50, 0.9, 1.1)
    assert spread == sorted(spread)
    quantiles = {"low": 0.92, "median": 1.0, "high": 1.08}
    assert row == {"rows": 21, **quantiles, "counter": "allocated", "files": ["runs.csv"], "engine": None}
    assert module.RESIDUALS.parent == Path(module.__file__).parent


def test_a_band_that_a_worker_of_ours_shares_is_of_the_estimate_and_not_of_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titan = Torchtitan(compiled_loss=False, repeats_keys=True)
    spec = make_spec("parallel=fsdp", *WORDS)
    item = judged(Row(name="one", spec=spec, backend=titan, measured={"reserved": 10**10}, reserved=lambda: 1))
    target = tmp_path / "residuals.json"
    monkeypatch.setattr(residuals, "RESIDUALS", target)
    residuals.write({"runs.csv": [item]})
    row = json.loads(target.read_text())["measured"]["Torchtitan"]
    assert row["median"] == round(10**10 / item.estimate.peak.reserved_bytes, 4)
