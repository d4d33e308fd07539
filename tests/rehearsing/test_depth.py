"""Models of fewer layers keep what the memory of a rank depends on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base.errors import ConfigErrors
from launcher.estimate import families
from launcher.estimate.rank.counts import kinds_of
from launcher.estimate.rank.stages import cut_of, flow_of, in_flight, rank_layers
from launcher.preflight import findings
from launcher.rehearsing import choice
from launcher.spec import RunSpec
from launcher.spec.edit import changed
from tests.support.helpers import composed_once

GPUS = ("hardware=h100_80g", "cluster.nodes=8", "cluster.gpus_per_node=8")
DENSE = (*GPUS, "model=llama3_70b")
MOE = (*GPUS, "model=deepseek_v3", "parallel=ep", "parallel.expert=8")
RUNS = {
    "fsdp": (*DENSE, "parallel=fsdp"),
    "pipeline": (*DENSE, "parallel=pp", "parallel.pipeline=8", "train.global_batch_size=64"),
    "interleaved": (
        *(*DENSE, "parallel=pp", "parallel.pipeline=4", "parallel.virtual_pipeline=2"),
        "train.global_batch_size=128",
    ),
    "uniform": (*DENSE, "parallel=tp", "checkpointing=full", "checkpointing.layers=5"),
    "block": (*DENSE, "parallel=tp", "checkpointing=full", "checkpointing.method=block", "checkpointing.layers=3"),
    "experts": MOE,
}


@pytest.mark.parametrize("name", RUNS)
def test_every_depth_is_a_valid_run_with_the_same_stages(name: str) -> None:
    spec = composed_once(*RUNS[name])
    assert not findings.errors(spec)
    whole, *cuts = choice.candidates(spec, 0)
    assert whole == (spec.model.num_hidden_layers,)
    assert len(cuts) >= 3
    for layers in (number for cut in cuts for number in cut):
        built = choice.at(spec, layers)
        assert not findings.errors(built), f"{layers} layers"
        assert 0 < choice.layers_of(built, 0) < choice.layers_of(spec, 0)
        assert in_flight(flow_of(built), 0) == in_flight(flow_of(spec), 0)
    assert all(first < second for first, second in cuts)


def test_both_depths_have_all_dense_layers_of_a_model_with_experts() -> None:
    spec = composed_once(*MOE)
    kinds = [_kinds(choice.at(spec, layers)) for layers in list(choice.candidates(spec, 0))[-1]]
    assert [kind["dense"] for kind in kinds] == [3, 3], "the slope is that of a layer with experts"
    assert kinds[1]["moe"] == kinds[0]["moe"] + 1


def _kinds(spec: RunSpec) -> dict[str, int]:
    found = {"dense": 0, "moe": 0}
    for layers in rank_layers(cut_of(spec), 0):
        found["dense" if layers < spec.model.first_dense_layers else "moe"] += 1
    assert len(kinds_of(families.of(spec.model), spec.model, rank_layers(cut_of(spec), 0), first_apart=False)) == 2
    return found


def test_groups_that_are_recomputed_together_stay_whole() -> None:
    spec = composed_once(*RUNS["uniform"])
    assert list(choice.candidates(spec, 0))[1:] == [(5, 10), (10, 15), (20, 25), (35, 40)]
    assert [layers for cut in list(choice.candidates(composed_once(*RUNS["block"]), 0))[1:2] for layers in cut] == [
        7,
        9,
    ]


@settings(deadline=None)  # The first one composes the run.
@given(micro_batches=st.integers(min_value=1, max_value=12), stage=st.integers(min_value=0, max_value=3))
def test_fewer_micro_batches_leave_a_stage_as_many_in_flight(micro_batches: int, stage: int) -> None:
    words = (*GPUS, "model=llama3_8b", "parallel=fsdp_pp", "parallel.pipeline=4", "train.micro_batch_size=1")
    spec = changed(composed_once(*words), "train.global_batch_size", micro_batches * 16)
    assert spec.gradient_accumulation == micro_batches
    fewer = choice.fewer_micro_batches(spec, stage)
    assert fewer.gradient_accumulation <= spec.gradient_accumulation
    assert in_flight(flow_of(fewer), stage) == in_flight(flow_of(spec), stage)
    assert fewer.micro_batch_size == spec.micro_batch_size


def test_without_a_pipeline_two_micro_batches_are_left() -> None:
    spec = composed_once(*RUNS["fsdp"], "train.micro_batch_size=1", "train.global_batch_size=1024")
    assert (spec.gradient_accumulation, choice.fewer_micro_batches(spec, 0).gradient_accumulation) == (16, 2)


def test_layers_that_the_run_cannot_have_are_refused_with_those_that_it_can() -> None:
    spec = composed_once(*RUNS["pipeline"])
    assert choice.asked(spec, (16, 8)) == (8, 16)
    for layers in ((81,), (0,), (1, 2, 3), (4,)):
        with pytest.raises(ConfigErrors) as refused:
            choice.asked(spec, layers)
        [error] = refused.value.errors
        assert error.path == "--layers"
        [way] = error.way_out
        assert choice.asked(spec, tuple(map(int, way.removeprefix("--layers ").split(","))))


def test_the_work_of_a_step_is_shared_out_evenly_and_grows_with_recomputation() -> None:
    spec = composed_once(*RUNS["fsdp"])
    full = composed_once(*RUNS["fsdp"], "checkpointing=full")
    assert choice.flops(full) == pytest.approx(choice.flops(spec) * 4 / 3)
    assert choice.flops(spec) == pytest.approx(6 * 70e9 * 64 * 4096 / 64, rel=0.15), "6 N D of a rank's tokens"
