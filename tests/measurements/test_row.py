"""A row of the file of measured runs: read as it was written, and refused where anyone wrote something else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.preflight.measured import file
from tests.support.measured_rows import row


def test_a_row_is_read_as_it_was_written() -> None:
    assert file.read(row().as_line()) == row()
    cpu = row(network_bandwidth=None, calibration=None, left_out="2 steps were measured", experts=True)
    assert file.read(cpu.as_line()) == cpu
    assert cpu.as_line().count(b"\n") == 1


def changed(**values: Any) -> bytes:
    return json.dumps({**row().as_dict(), **values}).encode()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "Expecting"),
        (b"[1]", "it is not a row of schema 1"),
        (changed(schema=2), "it is not a row of schema 1"),
        (changed(id=None), "id must be a text"),
        (changed(id="\x1b[2J"), "id must be a text"),
        (changed(layout="x" * 2000), "layout must be a text"),
        (changed(gpus=-1), "gpus must be a whole number"),
        (changed(gpus=True), "gpus must be a whole number"),
        (changed(experts=1), "experts must be true or false"),
        (changed(network_bandwidth="fast"), "network_bandwidth must be a positive number or null"),
        (changed(versions={"torch": 2}), "versions must be an object of at most 20 texts"),
        (changed(versions=dict.fromkeys(map(str, range(99)), "1")), "versions must be an object of at most 20 texts"),
        (changed(predicted=None), "predicted must be an object"),
        (changed(measured={"steps": 3, "tokens_per_second_per_gpu": -5.0}), "tokens_per_second_per_gpu must be a pos"),
        (changed(measured={"steps": 3, "tokens_per_second_per_gpu": 1e300}), "tokens_per_second_per_gpu must be a pos"),
        (changed(measured={"steps": 3, "allocated_bytes": 1.5}), "allocated_bytes must be a positive number"),
        (changed(measured={"steps": 3, "tokens_per_second_per_gpu": float("nan")}), "nan is not a finite number"),
        (b" " * 9000 + row().as_line(), "it is longer than 8192 bytes"),
        (b"[" * 8000, "it is nested|Expecting value"),
        (b'{"schema": 1, "id": "\xff"}', "can't decode"),
    ],
)
def test_a_line_of_anyones_that_is_no_row_is_refused_with_the_reason(line: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("[", r"\[")):
        file.read(line)
