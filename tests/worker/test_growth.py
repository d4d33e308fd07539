"""Memory that grows: leaks, longer sequences and the host are found, noise and levels are not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

from launcher.base.units import GIB, MIB
from launcher.job.memory import HostMemory, MemoryRecord, PhaseMemory
from launcher.worker.watch.growth import Growth, GrowthDetector, trend

STEPS = 10_000


def record(
    step: int,
    *,
    temporary: int = 0,
    activations: int = GIB,
    rank_bytes: int = GIB,
    node: int = 20 * GIB,
    tokens: int = 4096,
) -> MemoryRecord:
    static = {"parameters": GIB, "temporary": temporary}
    peak = {**static, "activations": activations}
    return MemoryRecord(
        step=step,
        rank=3,
        node="n1",
        time=0.0,
        tokens=tokens,
        phases={"forward": PhaseMemory(allocated_bytes=sum(peak.values()), piles=peak)},
        static=static,
        device_bytes=10 * GIB,
        host=HostMemory(rank_bytes=rank_bytes, node_used_bytes=node, node_bytes=100 * GIB),
    )


def watched(records: Sequence[MemoryRecord]) -> list[Growth]:
    watch, found = GrowthDetector(), []
    for each in records:
        found = watch.add(each)
    return found


def at(count: int) -> range:
    return range(100, 100 * count + 1, 100)


def test_a_leak_is_named_with_its_rate_and_the_step_at_which_the_device_is_full() -> None:
    (found,) = watched([record(step, temporary=step * MIB // 4) for step in at(40)])
    assert found.sentence(STEPS * 10) == (
        "the temporary pile of rank 3 on n1 grows by 0.2 MiB a step: at step 32,768 of 100,000 its memory is full"
    )
    assert "full" not in found.sentence(STEPS), "the run ends before"
    assert found.bytes_per_step == MIB // 4


def test_longer_sequences_are_named_as_the_reason_of_a_peak() -> None:
    records = [record(step, activations=GIB + step * MIB, tokens=4096 + step) for step in at(30)]
    (found,) = watched(records)
    assert (found.pile, found.peak, found.bytes_per_step) == ("activations", True, MIB)
    assert "at its peak (micro-batches went from 4,396 to 7,096 tokens)" in found.sentence(STEPS)


def test_a_leak_on_the_host_is_of_the_rank_and_of_the_node() -> None:
    records = [record(step, rank_bytes=GIB + step * MIB, node=20 * GIB + 8 * step * MIB) for step in at(30)]
    found = watched(records)
    assert [(each.where, each.bytes_per_step) for each in found] == [("node", 8 * MIB), ("rank", MIB)]
    assert [each.matters(STEPS) for each in found] == [False, True], "others may use the node, and the run ends before"
    assert found[0].matters(2 * STEPS)
    assert found[0].sentence(2 * STEPS) == (
        "the host memory in use on n1 grows by 8.0 MiB a step: at step 10,240 of 20,000 the node's memory is full"
    )


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=60), st.integers(0, 10**9))
def test_what_rises_by_the_rule_does_not_when_reversed_and_a_constant_changes_nothing(
    values: list[int], constant: int
) -> None:
    steps = list(range(len(values)))
    found = trend(steps, values, 0.0)
    assert trend(steps, [value + constant for value in values], 0.0) == found
    if found is not None:
        assert found > 0
        assert trend(steps, values[::-1], 0.0) is None


@given(st.integers(18, 60), st.integers(1, 59), st.integers(0, 10**9), st.integers(1, 10**10))
def test_a_level_that_is_reached_and_kept_is_no_growth(count: int, jump: int, low: int, rise: int) -> None:
    values = [low + (rise if index >= jump else 0) for index in range(count)]
    assert trend(range(count), values, 0.0) is None


@given(st.integers(18, 60), st.integers(0, 10**10), st.integers(1, 10**8), st.integers(1, 1000))
def test_a_steady_leak_is_found_with_its_rate(count: int, start: int, rate: int, every: int) -> None:
    steps = [every * (index + 1) for index in range(count)]
    assert trend(steps, [start + rate * step for step in steps], 0.0) == pytest.approx(rate)
    assert trend(steps, [start + rate * step for step in steps], rate * steps[-1]) is None, "too little to matter"


def test_noise_raises_no_false_alarm() -> None:
    draw = random.Random(7)
    for _ in range(40):
        sizes = [round(draw.gauss(4 * GIB, GIB / 2)) for _ in range(60)]
        watch, alarms = GrowthDetector(), 0
        for step, size in zip(at(60), sizes, strict=True):
            alarms += len(watch.add(record(step, activations=size, temporary=draw.randrange(GIB), rank_bytes=size)))
        assert not alarms


def test_what_was_before_a_way_back_is_no_part_of_a_trend() -> None:
    watch = GrowthDetector()
    for step in at(30):
        watch.add(record(step, temporary=step * MIB))
    watch.rewind()
    assert watch.add(record(100, temporary=GIB)) == []
