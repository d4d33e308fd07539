"""The layers of each stage of a pipeline, and which stages are alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.base import registry
from launcher.estimate import families
from launcher.estimate.rank import stages
from launcher.estimate.rank.view import view_of
from tests.support.helpers import make_spec

SIZES = ("parallel.first_stage_layers=6", "parallel.last_stage_layers=4")


def test_named_sizes_of_the_outer_stages_leave_the_rest_to_the_others() -> None:
    spec = make_spec("model=7b", "parallel=pp", "parallel.pipeline=4", *SIZES)
    assert stages.chunk_sizes(spec) == (6, 11, 11, 4)


def test_layers_that_do_not_divide_go_to_the_earliest_stages() -> None:
    spec = make_spec("model=7b", "parallel=pp", "parallel.pipeline=4")
    spec = replace(spec, model=replace(spec.model, num_hidden_layers=30))
    assert stages.chunk_sizes(spec) == (8, 8, 7, 7)


def test_a_first_stage_of_its_own_size_shares_it_among_its_chunks() -> None:
    changes = ("model.num_hidden_layers=12", "parallel.virtual_pipeline=2", "parallel.first_stage_layers=4")
    spec = make_spec("parallel=pp", *changes)
    assert stages.chunk_sizes(spec) == (2, 4, 2, 4)
    assert [len(stages.rank_layers(stages.cut_of(spec), stage)) for stage in (0, 1)] == [4, 8]


def test_a_folded_stage_has_a_chunk_from_either_end_and_the_first_both_ends_of_the_model() -> None:
    layout = ("parallel.pipeline=2", "parallel.schedule=zbv", "parallel.virtual_pipeline=2")
    spec = make_spec("model.num_hidden_layers=8", "parallel=fsdp_pp", *layout)
    assert [stages.rank_layers(stages.cut_of(spec), stage) for stage in (0, 1)] == [(0, 1, 6, 7), (2, 3, 4, 5)]
    assert [stages.cut_of(spec).ends(stage) for stage in (0, 1)] == [(True, True), (False, False)]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zero_bubble", "zbv"])
@pytest.mark.parametrize("ends", [(), SIZES])
def test_alike_stages_hold_the_same_kinds_of_layers(schedule: str, ends: tuple[str, ...]) -> None:
    chunks = 2 if schedule in ("interleaved", "zbv") else 1
    layout = ("parallel.pipeline=8", f"parallel.schedule={schedule}", f"parallel.virtual_pipeline={chunks}")
    spec = make_spec("model=deepseek_v3", "model.num_hidden_layers=64", "parallel=pp", *layout)
    family, modules = (
        families.of(spec.model),
        [registry.load("strategies", name) for name in registry.names("strategies")],
    )
    found = stages.alike(family, spec.model, stages.cut_of(spec), first_apart=False)
    for stage, first in enumerate(found):
        one, other = view_of(spec, modules, stage), view_of(spec, modules, first)
        kinds = [[family.kind(spec.model, layer) for layer in view.layers] for view in (one, other)]
        assert kinds[0] == kinds[1]
        assert (one.embedding, one.head) == (other.embedding, other.head)
    assert len(set(found)) < len(found)
