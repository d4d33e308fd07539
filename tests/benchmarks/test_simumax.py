"""The adapter of SimuMax's runs: each stage's fullest rank, and SimuMax's own figure beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.memory import scoreboard
from benchmarks.memory.adapters import simumax_b200
from benchmarks.memory.row import Row
from benchmarks.memory.scoring import judged_rows
from launcher.base.units import GIB

DENSE: dict[str, Any] = {
    "id": "a", "model": "Llama cut", "hidden": 1024, "layers": 4, "heads": 8, "kv_heads": 4, "ffn": 2048,
    "vocab": 4096, "experts": None, "topk": None, "moe_ffn": None, "seq": 1024, "micro_batch": 1, "global_batch": 16,
    "tp": 1, "pp": 2, "cp": 1, "ep": 1, "gpus": 8,
    "by_rank": {str(rank): {"max_allocated_bytes": rank, "max_reserved_bytes": 2 * rank} for rank in range(8)},
    "theirs": {"max_allocated_gib": 1.5, "max_reserved_gib": 2.0},
}  # fmt: skip


def rows(folder: Path, *lines: dict[str, Any]) -> list[Row]:
    path = folder / "simumax_b200.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return list(simumax_b200.rows(path))


def test_each_stage_is_a_row_of_its_fullest_rank_and_equal_bytes_are_scored_once(tmp_path: Path) -> None:
    first, last, again = rows(tmp_path, DENSE, DENSE | {"id": "b", "global_batch": 32})
    assert first.measured == {"allocated": 3, "reserved": 6}
    assert last.measured == {"allocated": 7, "reserved": 14}
    assert (first.theirs, again.left_out) == ({}, "the bytes of another row")
    assert last.theirs == {"SimuMax": {"allocated": round(1.5 * GIB), "reserved": 2 * GIB}}


def test_the_scoreboard_has_its_own_figures_beside_ours(tmp_path: Path) -> None:
    files = [judged_rows("simumax_b200.jsonl", rows(tmp_path, DENSE))]
    heads, _, line = scoreboard._short(files)
    assert heads.endswith("| SimuMax, its own |")
    assert line.endswith(" (50%) |")
    text = "\n".join(scoreboard._document(files, ""))
    assert "| simumax_b200.jsonl, reserved | 1 |" in text


def test_the_first_dense_layers_of_a_cut_model_are_those_of_simumaxs_prediction(tmp_path: Path) -> None:
    experts = {"model": "DeepSeek-V2 cut", "experts": 16, "topk": 2, "moe_ffn": 4096, "pp": 1, "ep": 8}
    found = []
    for gib in (0.0, 1000.0):
        (row,) = rows(tmp_path, DENSE | experts | {"theirs": {"max_allocated_gib": gib, "max_reserved_gib": 2.0}})
        assert row.spec is not None
        found.append((row.spec.model.first_dense_layers, row.spec.model.num_shared_experts))
    assert sorted(found) == [(0, 2), (3, 2)]
