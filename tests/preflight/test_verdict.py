"""Whether a run fits: the estimate against the device, the host and the disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.memory.result import DiskSpace, HostMemory
from launcher.preflight import verdict
from launcher.preflight.verdict import Shortage
from launcher.spec import RunSpec, edit
from tests.support.estimates import GIB, estimate_of
from tests.support.helpers import make_spec
from tests.support.rule_cases import NODE


def _spec(capacity: int | None) -> RunSpec:
    return edit.changed(make_spec(*NODE), "hardware.memory_bytes", capacity)


@pytest.mark.parametrize(
    ("capacity", "name"),
    [
        (23 * GIB, "fits"),  # The whole band and the context are within.
        (23 * GIB - 1, "tight"),
        (21 * GIB, "tight"),
        (19 * GIB, "tight"),
        (19 * GIB - 1, "does_not_fit"),  # Even the lower end is above.
        (None, "fits"),
    ],
)
def test_the_band_around_needed_with_context_decides(capacity: int | None, name: str) -> None:
    judged = verdict.judge(_spec(capacity), estimate_of(low=18 * GIB, needed=20 * GIB, high=22 * GIB))
    assert judged.name == name
    assert judged.fits == (name != "does_not_fit")
    assert judged.used_bytes == 21 * GIB
    assert judged.capacity_bytes == capacity
    assert judged.headroom_bytes == (None if capacity is None else capacity - 21 * GIB)


def test_what_does_not_fit_names_the_place_and_the_bytes() -> None:
    judged = verdict.judge(_spec(16 * GIB), estimate_of(low=18 * GIB, needed=20 * GIB, high=22 * GIB))
    assert judged.shortages == (Shortage(place="device", used_bytes=21 * GIB, capacity_bytes=16 * GIB),)


def test_host_memory_and_disk_refuse_without_a_band() -> None:
    estimate = replace(
        estimate_of(low=GIB, needed=GIB, high=GIB),
        host=HostMemory(bytes_per_node=9 * GIB, capacity_bytes=8 * GIB),
        disk=DiskSpace(checkpoint_bytes=2 * GIB, kept_bytes=6 * GIB, capacity_bytes=5 * GIB),
    )
    judged = verdict.judge(_spec(80 * GIB), estimate)
    assert judged.name == "does_not_fit"
    assert judged.shortages == (
        Shortage(place="host", used_bytes=9 * GIB, capacity_bytes=8 * GIB),
        Shortage(place="disk", used_bytes=6 * GIB, capacity_bytes=5 * GIB),
    )


def test_on_the_cpu_a_rank_has_its_share_of_the_host() -> None:
    spec = make_spec("hardware=cpu", "cluster.gpus_per_node=4", f"hardware.host_memory_bytes={8 * GIB}")
    assert verdict.judge(spec, estimate_of(low=0, needed=0, high=0)).capacity_bytes == 2 * GIB


@pytest.mark.parametrize(("preset", "way"), [("ddp", "parallel=fsdp"), ("zero0", "zero.stage=1")])
def test_whole_copies_on_a_crowded_device_are_a_warning(preset: str, way: str) -> None:
    spec = edit.changed(make_spec(*NODE, f"parallel={preset}"), "hardware.memory_bytes", 32 * GIB)
    estimate = estimate_of(low=20 * GIB, needed=20 * GIB, high=20 * GIB, static=24 * GIB)
    (remark,) = verdict.remarks(spec, estimate)
    assert str(remark) == (
        "zero.stage=0: every data rank holds all model states, 24.00 GiB or 75% of the device:"
        " sharded over 8 ranks they would take a fraction of it"
    )
    assert remark.way_out[0] == way


def test_whole_copies_on_a_device_with_room_are_no_warning() -> None:
    estimate = estimate_of(low=GIB, needed=GIB, high=GIB, static=GIB)
    assert list(verdict.remarks(make_spec(*NODE, "parallel=ddp"), estimate)) == []
    assert list(verdict.remarks(make_spec(*NODE, "parallel=fsdp"), estimate)) == []


def test_the_excess_counts_every_place_that_is_too_small() -> None:
    estimate = replace(
        estimate_of(low=18 * GIB, needed=20 * GIB, high=22 * GIB),
        disk=DiskSpace(checkpoint_bytes=2 * GIB, kept_bytes=6 * GIB, capacity_bytes=5 * GIB),
    )
    assert verdict.judge(_spec(20 * GIB), estimate).excess_bytes == 2 * GIB
    assert verdict.judge(_spec(80 * GIB), estimate).excess_bytes == GIB
    assert verdict.judge(_spec(None), estimate).excess_bytes == GIB
