"""The estimate of today beside the runs that one H100 measured (``benchmarks/results/gpu.json``)."""

from __future__ import annotations

import json
import statistics
from functools import cache
from pathlib import Path

import pytest

from benchmarks.gpu import tasks
from benchmarks.gpu.compared import predicted, ratios
from launcher.base.package import IMPORT_FOLDER
from launcher.config.request import request
from launcher.preflight import assess

MORE = {"nemotron3_nano": 1.007, "megatron, checkpointing sel": 1.003, "7b, lora, zero 3 over 8": 1.008}
"""Rows that took less than they are promised, and at most how much less: not yet explained."""

LESS = {"1b alone, megatron, checkpointing none": 0.997}
"""Rows that took more, and at most how much more: not yet explained."""

RESERVED = {
    "7b, lora, zero 3 over 8": (-0.14, 0),
    "7b alone, qlora, paged 8-bit AdamW, checkpointing full": (-0.1, 0),
    "mixtral of 2 layers alone, lora on experts": (-0.12, 0),
    "deepseek_v3_2 of 2 layers with 16 experts alone": (0, 0.16),
}
"""Rows whose reserved bytes lie further off than the others' do, and how far: not yet explained."""


@cache
def rows() -> dict[str, dict[str, float]]:
    """Predicted over measured of each run that was measured, by name."""
    content = json.loads((IMPORT_FOLDER / "benchmarks" / "results" / "gpu.json").read_text())
    found = {}
    for run in content["runs"]:
        if (run["measured"] or {}).get("phases"):
            spec = request([*run["overrides"], "hardware=h100_80g"]).require()
            found[run["name"]] = ratios(predicted(assess.estimated(spec), run["world"]), run["measured"])
    return found


def test_runs_on_the_h100_allocated_what_the_estimate_says_to_two_parts_in_a_thousand() -> None:
    found = {name: row["peak_allocated_bytes"] for name, row in rows().items()}
    assert len(found) > 30
    limits = {name: next((most for word, most in MORE.items() if word in name), 1.002) for name in found}
    assert {name: ratio for name, ratio in found.items() if not LESS.get(name, 0.998) < ratio < limits[name]} == {}


def test_runs_on_the_h100_reserved_what_the_estimate_plays_by_the_median_within_three_percent() -> None:
    errors = {name: row["peak_reserved_bytes"] - 1 for name, row in rows().items()}
    assert statistics.median(map(abs, errors.values())) < 0.03
    limits = {name: RESERVED.get(name, (-0.08, 0.12)) for name in errors}
    assert {name: error for name, error in errors.items() if not limits[name][0] < error < limits[name][1]} == {}


def test_runs_of_trl_on_the_h100_held_what_the_estimate_says(tmp_path: Path) -> None:
    """The load of an adapter's base takes twice its bytes there and its forward 1% more: not yet explained."""
    content = json.loads((IMPORT_FOLDER / "benchmarks" / "results" / "gpu.json").read_text())
    runs = {run["name"]: run for run in content["tasks"]}
    assert {"dpo by TRL", "kto by TRL", "dpo of an adapter by TRL"} <= runs.keys()
    for name, run in runs.items():
        words = [*run["overrides"], *tasks.data(tmp_path, run["overrides"]), "hardware=h100_80g"]
        said = assess.estimated(request(words).require()).phases
        seen = {phase: said[phase] / measured for phase, measured in run["measured"]["phases"].items() if measured}
        assert seen["load"] == pytest.approx(1, abs=0.4 if "adapter" in name else 0.001), name
        assert seen["forward"] == pytest.approx(1, abs=0.013 if "adapter" in name else 0.001), name
        assert seen["backward"] == pytest.approx(1, abs=0.004 if "adapter" in name else 0.001), name
        assert seen["optimizer"] == pytest.approx(1, abs=0.001), name
