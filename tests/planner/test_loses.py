"""Why a layout is slower than the first: shares of the loss by cause."""

from __future__ import annotations

import itertools
import re

import pytest

from launcher.planner import slower_because
from launcher.planner.layouts import Layout
from tests.support.layouts import MEGATRON, layout

FIRST = layout("parallel=fsdp", "train.micro_batch_size=2")
WIDE = layout(*MEGATRON, "parallel.tensor=8", "parallel.sequence=true", "train.micro_batch_size=2")
PLAIN = layout(*MEGATRON, "train.micro_batch_size=2")
STAGES = layout(*MEGATRON, "parallel.pipeline=4", "train.micro_batch_size=2")
ALL = (
    FIRST,
    WIDE,
    PLAIN,
    STAGES,
    layout("parallel=fsdp", "train.micro_batch_size=2", "checkpointing=full"),
    layout("parallel=zero3", "zero.offload_optimizer=cpu"),
    layout("parallel=zero2", "parallel.ulysses=2"),
    layout(*MEGATRON, "parallel.context=2", "parallel.pipeline=2", "train.loss=fused"),
)


def test_the_shares_of_all_causes_add_up_to_the_loss_in_tokens_a_second() -> None:
    for one, other in itertools.permutations(ALL, 2):
        lost = slower_because.loss(one, other)
        assert lost is not None
        assert sum(slower_because.causes(one, other).values()) == pytest.approx(lost, abs=1e-9)


def test_the_percentages_that_are_told_add_up_to_the_loss() -> None:
    told = 0
    for one, other in itertools.permutations(ALL, 2):
        lost = slower_because.loss(one, other) or 0.0
        found = [float(each) for each in re.findall(r": ([+-][\d.]+)%", slower_because.loss_text(one, other))]
        digits = 0 if abs(lost) >= 0.1 else 1
        if found:
            told += 1
            assert sum(found) == pytest.approx(-round(100 * lost, digits), abs=1e-6)
    assert told > 50


@pytest.mark.parametrize(
    ("slower", "first", "cause"),
    [
        (WIDE, PLAIN, "collectives of tensor 8"),
        (STAGES, PLAIN, "the bubble of 4 stages with 16 micro-batches"),
        (ALL[4], FIRST, "full recomputation"),
        (ALL[5], FIRST, "optimizer on the host"),
        (FIRST, PLAIN, "the measured constant of FSDP"),
    ],
)
def test_the_change_that_costs_most_is_named(slower: Layout, first: Layout, cause: str) -> None:
    assert cause in slower_because.loss_text(slower, first)


def test_narrow_products_are_a_cause_beside_the_traffic_of_tensor_ranks() -> None:
    found = slower_because.causes(WIDE, PLAIN)
    assert 0 < found["tensor 8 leaves 512-wide matrix products"] < found["collectives of tensor 8"]


def test_a_constant_counts_by_itself_and_not_in_every_part() -> None:
    found = slower_because.causes(FIRST, PLAIN)
    assert FIRST.speed is not None
    assert PLAIN.speed is not None
    assert found["the measured constant of FSDP"] == 1 - FIRST.speed.constant.value / PLAIN.speed.constant.value


def test_traffic_beyond_a_node_is_said_to_go_over_the_network() -> None:
    near = layout("parallel=hsdp", "parallel.replicate=2", "train.micro_batch_size=2", "zero.stage=3")
    assert any(cause == "all-gathers of FSDP over the network" for cause in slower_because.causes(FIRST, near))
    assert any(cause == "all-gathers of HSDP" for cause in slower_because.causes(near, FIRST))


def test_what_only_the_first_pays_is_a_gain_without_it() -> None:
    found = slower_because.causes(PLAIN, WIDE)
    assert found["without collectives of tensor 8"] < 0
    assert not any("tensor 1" in cause for cause in found)


def test_a_layout_that_is_as_fast_has_no_cause() -> None:
    again = layout("parallel=fsdp", "train.micro_batch_size=2", "train.allocator=expandable")
    assert slower_because.loss_text(again, FIRST) == "as fast as the first"


def test_without_a_speed_nothing_loses() -> None:
    words = ("model=tiny", "train.global_batch_size=8")
    unknown = layout("parallel=fsdp", words=words), layout("parallel=ddp", words=words)
    assert [each.loses for each in slower_because.explained(unknown)] == ["", ""]


def test_all_but_the_first_are_explained_by_it() -> None:
    told = slower_because.explained((PLAIN, FIRST, WIDE))
    assert told[0] is PLAIN
    assert [each.loses for each in told[1:]] == [
        slower_because.loss_text(FIRST, PLAIN),
        slower_because.loss_text(WIDE, PLAIN),
    ]
    assert slower_because.explained((WIDE,), PLAIN)[0].loses == told[2].loses
    assert slower_because.explained(()) == ()
