"""Megatron-LM of 2021 as the scoreboard models it; the lines are written by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.memory.adapters import bigscience_logs
from benchmarks.memory.row import Row
from benchmarks.memory.scoring import judged, predicted, scores
from tests.support.measured_lines import BIGSCIENCE

PARAMETERS = 4 * 12 * 1024**2 // 4 + 4 * (4 * 1024 + (3 + 4) * 1024 // 4 + 2 * 1024) + 2 * 1024 + 50688 // 4 * 1024
"""A quarter of four layers' matrices, their norms, biases split and whole, the last norm, a quarter of the table."""

BESIDE = 2 * (2 * 4 * 2**20 + 8 * 16 * 1024) + 2 * 2 * 1024 * 512
"""Two workspaces of cuBLAS, and the last input of the stage with its gradient."""


def rows_of(folder: Path, **changes: str) -> list[Row]:
    """The rows of a file of one line."""
    path = folder / "bigscience_logs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, BIGSCIENCE)
        writer.writeheader()
        writer.writerow(BIGSCIENCE | changes)
    return list(bigscience_logs.rows(path))


def test_twenty_bytes_a_parameter_are_held_after_a_step(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path)
    assert row.measured == {"allocated": round(1.5 * 2**30), "static": round(1.25 * 2**30)}
    assert predicted(judged(row), "static") == 20 * PARAMETERS + BESIDE


def test_the_peak_is_a_backward_pass_beside_twenty_two_bytes_a_parameter(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, mem_rank="pp stage 0")
    parameters = PARAMETERS - 2 * 1024 + 512 * 1024
    unit = 1024 * 512
    inputs_and_outputs = 2 * (4 + 1) * 2 * unit
    block = (10 + 24 / 4 + 5 * 16 * 512 / 1024 / 4) * unit
    gradients = 2 * (4 + 4) * unit / 4 + 2 * unit + 2 * 4 * 1024**2 / 4
    masks = 2 * unit
    expected = 22 * parameters + 17_039_360 + inputs_and_outputs + block + gradients + masks
    assert predicted(judged(row), "allocated") == pytest.approx(expected, rel=0.01)


def test_the_first_step_ends_with_the_states_that_it_began_without(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, soft="True")
    answer = judged(row)
    assert predicted(answer, "allocated") == predicted(answer, "static")
    assert not row.soft


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"framework": "Megatron-DeepSpeed", "zero_stage": "3"}, "Megatron-DeepSpeed with ZeRO 3"),
        ({"mem_rank": "pp stage unspecified rank"}, "the stage is not stated"),
        ({"heads": "zero"}, "does not parse: model.num_attention_heads"),
    ],
)
def test_a_line_that_cannot_be_expressed_is_counted(tmp_path: Path, changes: dict[str, str], reason: str) -> None:
    rows = rows_of(tmp_path, **changes)
    assert [row.left_out for row in rows] == [reason]
    assert list(scores("bigscience_logs.csv", rows)) == []
