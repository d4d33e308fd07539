"""The ranks that are rehearsed."""

from __future__ import annotations

import pytest

from launcher.base.errors import ConfigErrors
from launcher.preflight.assess import estimated
from launcher.rehearsing import choice
from launcher.rehearsing.choice import Request
from launcher.spec import RunSpec
from tests.support.helpers import composed_once

PIPELINE = (
    *("model=llama3_8b", "parallel=pp", "parallel.pipeline=4", "hardware=h100_80g", "cluster.gpus_per_node=8"),
    "train.global_batch_size=16",
)


def _ranks(spec: RunSpec, **asked: int | bool) -> tuple[int, ...]:
    return choice.ranks(spec, estimated(spec), Request(**asked))  # type: ignore[arg-type]


def test_the_rank_is_of_the_stage_that_needs_the_most_by_the_estimate() -> None:
    spec = composed_once(*PIPELINE)
    [rank] = _ranks(spec)
    assert spec.stage_of(rank) == estimated(spec).peak.stage
    assert _ranks(spec, stage=3) == (6,)
    assert _ranks(spec, rank=5) == (5,)
    zero2 = composed_once("model=tiny", "parallel=zero2", "cluster.gpus_per_node=4")
    assert _ranks(zero2) == (3,), "the partition of the model's end is the last rank's"


def test_the_distinct_stages_are_rehearsed_in_turn_the_fullest_first() -> None:
    spec = composed_once(*PIPELINE)
    ranks, estimate = _ranks(spec, all_stages=True), estimated(spec)
    stages = [spec.stage_of(rank) for rank in ranks]
    assert stages[0] == estimate.peak.stage
    held = {peak.stage: (peak.allocated_bytes, peak.static_bytes) for peak in estimate.ranks}
    assert {held[stage] for stage in stages} == set(held.values())
    assert len(stages) == len({held[stage] for stage in stages}) > 2


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rank": 8}, "--rank=8: the run has 8 ranks, counted from 0"),
        ({"rank": -1}, "--rank=-1: the run has 8 ranks"),
        ({"stage": 4}, "--stage=4: the run has 4 pipeline stages"),
        ({"stage": 1, "all_stages": True}, "--stage: it chooses the rank, but so does --all-stages"),
    ],
)
def test_a_rank_that_is_not_there_is_refused(asked: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigErrors) as refused:
        _ranks(composed_once(*PIPELINE), **asked)
    [error] = refused.value.errors
    assert f"{error.where}: {error.rule}".startswith(said)
    assert error.way_out
