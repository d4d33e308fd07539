"""The table of docs/engines.md is that of the kept results, and both sets of versions train alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import versions
from benchmarks.reporting import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"
OLDEST, PINNED = (
    json.loads((RESULTS / f"versions_{torch}.json").read_text())["figures"] for torch in ("2.8.0", "2.15.0")
)


def test_the_page_s_table_is_that_of_the_kept_results() -> None:
    assert versions.table() in PAGE.read_text()


@pytest.mark.parametrize("engine", versions.ENGINES)
def test_every_engine_works_with_both_sets_and_trains_alike(engine: str) -> None:
    old, new = OLDEST["engines"][engine], PINNED["engines"][engine]
    steps = ("check", "train", "resume", "export")
    assert [old[step] for step in steps] == [new[step] for step in steps] == ["works"] * 4
    assert len(old["losses"]) == 2
    assert list(old["losses"].values()) == pytest.approx(list(new["losses"].values()), rel=1e-3)
