"""The table of benchmarks/README.md is that of the kept results, and all sets of versions train alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import versions
from benchmarks.reporting import RESULTS

PAGE = Path(__file__).parents[2] / "benchmarks" / "README.md"
KEPT = [json.loads(path.read_text())["figures"] for path in sorted(RESULTS.glob("versions_*.json"))]


def test_the_page_s_table_is_that_of_the_kept_results() -> None:
    assert versions.table() in PAGE.read_text()


@pytest.mark.parametrize("engine", versions.ENGINES)
def test_every_engine_works_with_each_set_and_trains_alike(engine: str) -> None:
    assert KEPT
    losses = [list(each["engines"][engine]["losses"].values()) for each in KEPT]
    for each, found in zip(KEPT, losses, strict=True):
        assert [each["engines"][engine][step] for step in ("check", "train", "resume", "export")] == ["works"] * 4
        assert len(found) == 2
        assert found == pytest.approx(losses[0], rel=1e-3)
