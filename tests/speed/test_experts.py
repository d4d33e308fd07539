"""Experts: how far a token travels, how it is sorted, and what uneven routing costs."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.estimate.rank.engine import UNEVEN, Dispatcher, Execution
from launcher.estimate.speed import collectives, experts
from launcher.estimate.speed.calibration import constant
from launcher.estimate.speed.card import MEMORY_SHARE, card_of
from launcher.estimate.speed.estimate import estimate
from launcher.estimate.speed.network import Group, Network
from launcher.estimate.speed.result import SpeedEstimate
from launcher.estimate.speed.shape import Shape
from launcher.preflight.assess import parts
from launcher.spec import ModelSpec
from tests.speed.cards import H100
from tests.support.helpers import make_spec

NETWORK = Network(links="nvlink4", link_bandwidth=450e9, link_gpus=8, gpus_per_node=8, network_bandwidth=50e9)
MODEL = make_spec("model=qwen3_30b_a3b").model
DISPATCHERS: tuple[Dispatcher, ...] = ("all_to_all", "deepep", "hybridep")
degrees = st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128])


def shape(tokens: int = 4096, expert: int = 16, tensor: int = 1, **features: object) -> Shape:
    execution = replace(Execution(framework="F"), **features)  # type: ignore[arg-type]
    return Shape(
        sequences=1, queries=tokens, keys=tokens, tensor=tensor, split_sequence=False, context=1, ulysses=1,
        expert=expert, expert_tensor=1, dtype="bf16", size=2, residual_size=2, megatron=True, autocast=False,
        fused_adapters=False, adapter_size=2, scores=False, execution=execution, card=H100, network=NETWORK,
    )  # fmt: skip


def estimated(*words: str) -> SpeedEstimate:
    spec = make_spec("model=qwen3_30b_a3b", "parallel=3d", "hardware=h100_80g", "cluster=slurm", *words)
    found = estimate(spec, **parts(spec))
    assert found is not None
    return found


def test_deepeps_nics_reach_what_its_readme_prints_of_two_and_of_four_nodes() -> None:
    """DeepEP V2, H100: 90 GB/s with EP16 and 61 GB/s with EP32, of which a half and three quarters leave the node."""
    leaves = [90e9 * 1 / 2, 61e9 * 3 / 4]
    for rate, domains in zip(leaves, (2, 4), strict=True):
        seconds = collectives.forwarded(rate, domains, experts.USABLE, NETWORK)
        assert seconds == pytest.approx(1.0, rel=0.03)


def test_overlap_gains_about_what_megatron_bridge_prints_of_qwen3_on_sixteen_h100() -> None:
    """Skill ``nemo-mbridge-perf-expert-parallel-overlap``: +17.7%, from 10,607 tokens a second and GPU."""
    without = experts.exchange(MODEL, shape(dispatcher="hybridep")).expert
    left = experts.exchange(MODEL, shape(dispatcher="hybridep", expert_overlap=0.75)).expert
    step = 4096 / 10607.19
    saved = 2 * MODEL.num_hidden_layers * (without - left)
    assert step / (step - saved) == pytest.approx(1.177, abs=0.02)


def test_a_token_meets_every_group_if_it_has_all_experts_and_one_if_there_is_one() -> None:
    everything = replace(MODEL, num_experts_per_tok=MODEL.num_experts)
    assert experts.met(everything, 8) == 8
    assert experts.met(MODEL, 1) == 1


def test_groups_met_are_counted_without_putting_experts_back() -> None:
    """Two of four experts on two ranks: 2 of 6 pairs lie on one rank, 4 on both."""
    four = replace(MODEL, num_experts=4, num_experts_per_tok=2)
    assert experts.met(four, 2) == pytest.approx((2 * 1 + 4 * 2) / comb(4, 2))


@given(degrees, st.integers(min_value=1, max_value=16))
def test_no_more_groups_are_met_than_there_are_or_than_a_token_has_experts(groups: int, top: int) -> None:
    found = experts.met(replace(MODEL, num_experts_per_tok=top), groups)
    assert 1 - 1e-9 <= found <= min(groups, top) + 1e-9


def test_routing_limited_to_groups_reaches_no_more_of_them() -> None:
    limited: ModelSpec = replace(MODEL, n_group=8, topk_group=4)
    assert experts.met(limited, 8) == 4


@pytest.mark.parametrize("dispatcher", DISPATCHERS)
def test_one_rank_with_all_experts_sends_nothing(dispatcher: Dispatcher) -> None:
    found = experts.exchange(MODEL, shape(expert=1, dispatcher=dispatcher))
    assert (found.expert, found.expert_bytes) == (0, 0)


@given(st.sampled_from(DISPATCHERS), degrees, st.integers(min_value=128, max_value=32768))
def test_more_tokens_are_never_faster(dispatcher: Dispatcher, degree: int, tokens: int) -> None:
    fewer, more = (shape(count, degree, dispatcher=dispatcher) for count in (tokens, tokens + 128))
    assert experts.exchange(MODEL, fewer).expert <= experts.exchange(MODEL, more).expert
    assert experts.sorting(MODEL, fewer).memory < experts.sorting(MODEL, more).memory


@given(degrees)
def test_one_copy_for_a_rank_moves_no_more_than_one_for_an_expert(degree: int) -> None:
    copied, forwarded = (experts.exchange(MODEL, shape(expert=degree, dispatcher=one)) for one in DISPATCHERS[:2])
    assert forwarded.expert_bytes <= copied.expert_bytes
    assert forwarded.expert <= copied.expert or Group(degree, min(8, degree)).domains > 8


def test_fused_sorting_reads_as_many_bytes_in_less_time() -> None:
    plain, fused = (experts.sorting(MODEL, shape(fused_permutation=one)) for one in (False, True))
    assert plain.moved == fused.moved
    assert plain.memory == pytest.approx(fused.memory * MEMORY_SHARE / experts.SCATTERED)


def test_even_routing_is_faster_and_the_term_says_what_uneven_routing_costs() -> None:
    layout = ("parallel.tensor=1", "parallel.pipeline=1", "parallel.expert=8")
    uneven = estimated(*layout)
    even = estimated(*layout, "backend.extra.moe-router-force-load-balancing=true")
    (words,) = (term.what for term in uneven.terms if term.part == "matrix_products")
    assert f"experts times {UNEVEN:g} for uneven routing" in words
    assert even.step_seconds < uneven.step_seconds


def test_a_model_with_experts_takes_the_constant_of_runs_with_experts_and_else_that_of_dense_ones() -> None:
    h100, a800 = (card_of(make_spec(f"hardware={name}").hardware) for name in ("h100_80g", "a800"))
    assert h100 is not None
    assert a800 is not None
    assert constant("Megatron-Bridge", h100, experts=True).whose == ("Megatron-Bridge on h100_80g, models with experts")
    assert constant("Megatron-Bridge", h100).whose == "Megatron-Bridge on h100_80g"
    dense, found = constant("InternEvo", a800), constant("InternEvo", a800, experts=True)
    assert found.value == dense.value
    assert found.whose == f"{dense.whose}, models without experts"


def test_a_window_makes_attention_faster_and_is_no_window_beyond_the_sequence() -> None:
    words = (
        "model=llama3_8b", "model.family=transformers", "model.model_type=mistral", "model.attention=flash",
        "parallel=fsdp", "hardware=h100_80g", "cluster=slurm", "train.sequence_length=8192",
    )  # fmt: skip
    seconds = []
    for window in (1024, 8192, 16384):
        spec = make_spec(*words, f"model.extra.sliding_window={window}")
        found = estimate(spec, **parts(spec))
        assert found is not None
        seconds.append(sum(term.seconds for term in found.terms if term.part == "attention"))
    assert seconds[0] < 0.5 * seconds[1]
    assert seconds[1] == seconds[2]
