"""The kept comparison of ``checkpointing=auto`` with torch's ``sac_ilp``, and the figures that the program is given."""

from __future__ import annotations

import json

import pytest

from benchmarks.recomputation import _NODE, CASES, units
from benchmarks.reporting import RESULTS
from tests.support.helpers import make_spec

NEAR = 0.3  # Per cent of a step; docs/planning.md says so.


def test_the_choice_costs_hardly_more_than_the_bound_and_much_less_than_whole_blocks() -> None:
    rows = json.loads((RESULTS / "recomputation.json").read_text())["figures"]["cases"]
    assert [row["run"] for row in rows] == [" ".join(words) for words in CASES]
    for row in rows:
        assert row["recomputation_percent"] <= row["sac_ilp_bound_percent"] + NEAR
        assert row["recomputation_percent"] < row["checkpointing_full_percent"] / 2


def test_a_module_drops_what_it_saves_and_keeps_its_input() -> None:
    spec = make_spec(*CASES[0], *_NODE)
    sizes = {unit.name: unit.size / (3 * 4096) for unit in units(spec)}
    assert sizes["mlp"] == 4 * 2 * 11008, "gate, up, activation and product in bf16; the input is kept in any case"
    assert sizes["norm"] == pytest.approx(2 * (4 + 2 - 2) * 4096 + 2 * 4)
