"""Growth from step to step: which pile, how fast, when the device is full; and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.job import events
from launcher.why import growth
from tests.support.ended_runs import GIB, write_records


def test_a_leak_has_its_pile_its_rate_and_the_step_at_which_the_device_is_full(tmp_path: Path) -> None:
    write_records(tmp_path, [GIB, 2 * GIB, 3 * GIB, 4 * GIB, 5 * GIB, 6 * GIB])
    found = growth.fastest(growth.this_attempt(tmp_path))
    assert found is not None
    assert (found.rank, found.pile, found.first, found.last) == (3, "temporary", 10, 60)
    assert found.bytes_a_step == GIB / 10
    assert found.full_at == 60 + 10 * (80 - 11)
    assert not found.longer


def test_longer_and_longer_batches_are_no_leak(tmp_path: Path) -> None:
    lengths = [1000, 2000, 3000, 4000, 5000, 6000]
    write_records(tmp_path, [length * 2**20 for length in lengths], tokens=lengths)
    found = growth.fastest(growth.this_attempt(tmp_path))
    assert found is not None
    assert found.longer


@pytest.mark.parametrize(
    "sizes",
    [
        [GIB],
        [GIB, 2 * GIB],
        [GIB, 2 * GIB, 3 * GIB, 4 * GIB, 5 * GIB],
        [GIB] * 8,
        [GIB, 2 * GIB, GIB, 2 * GIB, GIB, 2 * GIB],
        [GIB + number * 2**20 for number in range(8)],
        [number * GIB for number in range(8, 0, -1)],
    ],
)
def test_too_few_records_and_sizes_that_do_not_rise_are_no_growth(tmp_path: Path, sizes: list[int]) -> None:
    write_records(tmp_path, sizes)
    assert growth.fastest(growth.this_attempt(tmp_path)) is None


def test_an_attempt_is_judged_by_its_own_records(tmp_path: Path) -> None:
    write_records(tmp_path, [GIB, 2 * GIB, 3 * GIB, 4 * GIB])
    assert len(growth.this_attempt(tmp_path)) == 4
    events.add(tmp_path, "start", "the ranks are started", step=None)
    assert growth.this_attempt(tmp_path) == []
    assert growth.fastest([]) is None
