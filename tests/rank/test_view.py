"""What the strategies give to a rank: shares that add up, in any order."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as draw

from launcher.base import registry
from launcher.estimate.rank.view import ONE, RankView, StateShares, view_of, views, whole
from launcher.spec import RunSpec
from tests.support.helpers import make_spec

NAMES = registry.names("strategies")
MODULES = tuple(registry.load("strategies", name) for name in NAMES)
ALONE = ("parallel=tp", "parallel.tensor=1", "parallel.sequence=false")
BASE = make_spec("model=7b", *ALONE, "hardware.device=cuda", "cluster.gpus_per_node=8")

degrees = draw.sampled_from((1, 2, 4))
layouts: draw.SearchStrategy[dict[str, object]] = draw.builds(
    dict,
    tensor=degrees,
    pipeline=degrees,
    virtual_pipeline=draw.sampled_from((1, 2)),
    context=degrees,
    expert=degrees,
    ulysses=draw.sampled_from((1, 2)),
    sequence=draw.booleans(),
    schedule=draw.sampled_from(("1f1b", "gpipe", "interleaved", "zero_bubble", "zbv")),
)


def laid_out(layout: dict[str, object], *, nodes: int = 16, stage: int = 1) -> RunSpec:
    """The base run with these degrees and one ZeRO stage."""
    return replace(
        BASE,
        parallel=replace(BASE.parallel, **layout),  # type: ignore[arg-type]
        cluster=replace(BASE.cluster, nodes=nodes),
        zero=replace(BASE.zero, stage=stage),
        train=replace(BASE.train, global_batch_size=256),
    )


def test_every_strategy_of_the_folder_narrows_a_view() -> None:
    assert set(NAMES) >= {"data", "tensor", "sequence", "pipeline", "context", "ulysses", "expert", "sharding"}
    for module in MODULES:
        assert isinstance(module.apply(whole(BASE), BASE), RankView)


@given(layout=layouts, stage=draw.sampled_from((0, 1, 2, 3)), shift=draw.integers(0, len(NAMES) - 1))
def test_the_order_of_the_fold_does_not_matter(layout: dict[str, object], stage: int, shift: int) -> None:
    spec = laid_out(layout, stage=stage)
    turned = MODULES[shift:] + MODULES[:shift]
    assert views(spec, MODULES) == views(spec, turned) == views(spec, reversed(MODULES))


def test_all_orders_of_three_strategies_agree() -> None:
    spec = laid_out({"tensor": 2, "pipeline": 2, "context": 2})
    seen = {view_of(spec, order, 1) for order in permutations(MODULES[:4])}
    assert len(seen) == 1


def test_degree_one_changes_nothing() -> None:
    spec = replace(BASE, cluster=replace(BASE.cluster, gpus_per_node=1))
    assert view_of(spec, MODULES, 0) == whole(spec)


@given(layout=layouts)
def test_the_layers_of_all_stages_are_the_model(layout: dict[str, object]) -> None:
    spec = laid_out(layout)
    stages = views(spec, MODULES)
    assert sorted(layer for view in stages for layer in view.layers) == list(range(spec.model.num_hidden_layers))
    assert [view.stage for view in stages if view.embedding] == [0]
    folded = spec.parallel.schedule == "zbv" and spec.parallel.virtual_pipeline == 2
    assert [view.stage for view in stages if view.head] == [0 if folded else len(stages) - 1]


@given(layout=layouts)
def test_the_shares_of_all_ranks_add_up_to_the_batch_and_the_sequence(layout: dict[str, object]) -> None:
    spec = laid_out(layout)
    view = views(spec, MODULES)[0]
    assert view.batch * spec.data_degree == 1
    assert view.tokens * spec.parallel.context * spec.parallel.ulysses == 1
    assert view.tensor * spec.parallel.tensor == 1
    assert view.experts * spec.parallel.expert == 1


@pytest.mark.parametrize(
    ("stage", "shares"),
    [
        (0, StateShares()),
        (1, StateShares(optimizer=Fraction(1, 8))),
        (2, StateShares(gradients=Fraction(1, 8), optimizer=Fraction(1, 8))),
        (3, StateShares(parameters=Fraction(1, 8), gradients=Fraction(1, 8), optimizer=Fraction(1, 8))),
    ],
)
def test_each_zero_stage_shards_one_more_state(stage: int, shares: StateShares) -> None:
    assert view_of(laid_out({}, nodes=1, stage=stage), MODULES, 0).states == shares


def test_replicas_of_hsdp_hold_the_shards_of_a_smaller_group() -> None:
    spec = make_spec("parallel=hsdp", "parallel.replicate=2", "cluster.nodes=2", "cluster.gpus_per_node=8")
    assert view_of(spec, MODULES, 0).states.parameters == Fraction(1, 8)


def test_experts_are_sharded_among_their_own_copies() -> None:
    spec = laid_out({"expert": 4}, nodes=1, stage=1)
    view = view_of(spec, MODULES, 0)
    assert (view.states.optimizer, view.expert_states.optimizer) == (Fraction(1, 8), Fraction(1, 2))


def test_one_forward_one_backward_holds_fewer_micro_batches_on_later_stages() -> None:
    spec = laid_out({"pipeline": 4})
    assert [view.in_flight for view in views(spec, MODULES)] == [4, 3, 2, 1]


def test_gpipe_holds_all_micro_batches() -> None:
    spec = laid_out({"pipeline": 4, "schedule": "gpipe"})
    assert view_of(spec, MODULES, 3).in_flight == spec.gradient_accumulation


def test_interleaving_holds_more_by_p_minus_1_over_p_v() -> None:
    # arXiv:2205.05198, section 4.2.3: L (1 + (p - 1) / (p m)) layers, m chunks a stage.
    spec = laid_out({"pipeline": 4, "virtual_pipeline": 2, "schedule": "interleaved"})
    assert view_of(spec, MODULES, 0).in_flight == 4 * (1 + Fraction(3, 8))


def test_dualpipe_v_runs_a_chunk_from_either_end_on_a_rank() -> None:
    spec = laid_out({"pipeline": 4, "virtual_pipeline": 2, "schedule": "dualpipe_v"})
    view = view_of(spec, MODULES, 0)
    assert view.layers == (*range(4), *range(28, 32))
    assert view.embedding
    assert view.head


def test_a_view_starts_as_the_whole_model() -> None:
    view = whole(BASE)
    assert len(view.layers) == 32
    assert {view.batch, view.tokens, view.residual, view.tensor, view.in_flight} == {ONE}
