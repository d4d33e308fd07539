"""Whether a run fits: the estimate against the device, the host and the disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.estimate.memory.result import DiskSpace, HostMemory
from launcher.preflight import verdict
from launcher.preflight.verdict import Shortage
from launcher.spec import RunSpec, edit
from launcher.views.check import sentences
from tests.support.estimates import GIB, estimate_of
from tests.support.helpers import make_spec
from tests.support.rule_cases import NODE


def _spec(capacity: int | None) -> RunSpec:
    return edit.changed_at(make_spec(*NODE), {"hardware.memory_bytes": capacity, "hardware.reserved_bytes": 0})


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


def test_a_memory_that_is_unknown_still_holds_no_more_than_any_device() -> None:
    needs = estimate_of(low=1025 * GIB, needed=1100 * GIB, high=1200 * GIB)
    judged = verdict.judge(_spec(None), needs)
    assert (judged.name, judged.capacity_bytes) == ("does_not_fit", 1024 * GIB)
    assert judged.headroom_bytes == -judged.excess_bytes == -77 * GIB
    assert "; its capacity is unknown, and no known device has more" in sentences.answer(_spec(None), judged, needs)
    on_the_host = edit.changed_at(make_spec("hardware=cpu"), {"hardware.host_memory_bytes": None})
    assert verdict.judge(on_the_host, needs).name == "fits"


@pytest.mark.parametrize(("name", "measured"), [("a100_80g", 79.15), ("gh200", 94.50)])
def test_the_capacity_is_what_torch_was_seen_to_have_of_a_card(name: str, measured: float) -> None:
    spec = make_spec(f"hardware={name}")
    judged = verdict.judge(spec, estimate_of(low=GIB, needed=GIB, high=GIB))
    assert judged.capacity_bytes == pytest.approx(measured * GIB, abs=0.005 * GIB)
    assert judged.capacity_bytes != spec.hardware.memory_bytes


def test_what_nobody_measured_is_kept_of_a_card_is_assumed_to_be_the_largest_share_that_was() -> None:
    cards = {name: make_spec(f"hardware={name}").hardware for name in ("a100_80g", "gh200", "h100_80g", "rtx4090")}
    kept = {name: 1 - (card.usable_bytes or 0) / (card.memory_bytes or 1) for name, card in cards.items()}
    assert cards["h100_80g"].reserved_bytes is None
    assert kept["h100_80g"] == pytest.approx(kept["gh200"], rel=1e-6)
    assert kept["rtx4090"] == pytest.approx(max(kept["gh200"], kept["a100_80g"]), rel=1e-6)


def test_a_memory_that_is_set_by_hand_is_the_capacity() -> None:
    words = ("hardware=a100_80g", f"hardware.memory_bytes={40 * GIB}")
    assert make_spec(*words).rank_memory_bytes == 40 * GIB
    assert make_spec(*words, f"hardware.reserved_bytes={GIB}").rank_memory_bytes == 39 * GIB
    assert make_spec("hardware=a100_80g", f"hardware.reserved_bytes={GIB}").rank_memory_bytes == 79 * GIB


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
    set_by_hand = make_spec("hardware=cpu", f"hardware.memory_bytes={3 * GIB}", f"hardware.host_memory_bytes={8 * GIB}")
    assert set_by_hand.rank_memory_bytes == 3 * GIB
    assert make_spec("hardware=h100_80g", "hardware.device=cpu").rank_memory_bytes is None


@pytest.mark.parametrize(("preset", "way"), [("ddp", "parallel=fsdp"), ("zero0", "zero.stage=1")])
def test_whole_copies_on_a_crowded_device_are_a_warning(preset: str, way: str) -> None:
    spec = make_spec(*NODE, f"parallel={preset}", f"hardware.memory_bytes={32 * GIB}")
    estimate = estimate_of(low=20 * GIB, needed=20 * GIB, high=20 * GIB, static=24 * GIB)
    (remark,) = verdict.remarks(spec, estimate)
    assert str(remark) == (
        "zero.stage=0: every data rank holds all model states, 24.00 GiB or 75% of the device;"
        " sharded over 8 ranks, each would hold a fraction of them"
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
