from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.estimate.speed import gemm, grouped
from launcher.estimate.speed.card import Card
from launcher.spec.values import Dtype
from tests.speed.cards import A100, B200, H100, MI300X

CONTENT = json.loads(grouped.CONSTANTS.read_text())

cards = st.sampled_from([A100, H100, B200, MI300X])
dtypes: st.SearchStrategy[Dtype] = st.sampled_from(["bf16", "fp8"])
sizes = st.integers(min_value=1, max_value=20_000)
loads = st.floats(min_value=0.01, max_value=20_000)
counts = st.integers(min_value=1, max_value=256)


@pytest.mark.parametrize(
    ("experts", "tokens", "microseconds"), [(256, 128, 3533), (64, 1024, 3236), (32, 2048, 3075), (8, 8192, 3166)]
)
def test_experts_in_fp8_take_about_what_infersims_table_has(experts: int, tokens: int, microseconds: float) -> None:
    """The first product of DeepSeek-V3's experts (7168 to 2 x 2048) on H800, whose tokens are quantised before."""
    assert grouped.kernel_seconds(tokens, experts, 4096, 7168, grouped.kernel_of("fp8", H100)) == pytest.approx(
        microseconds / 1e6, rel=0.15
    )


@pytest.mark.parametrize(
    ("tokens", "hidden", "size", "top", "experts", "milliseconds"),
    [(16384, 4096, 14336, 2, 8, 22.561), (16384, 2048, 768, 8, 128, 2.912), (1024, 6144, 2048, 8, 256, 6.98844)],
)
def test_experts_in_bf16_take_about_what_aiconfigurators_table_has(
    tokens: int, hidden: int, size: int, top: int, experts: int, milliseconds: float
) -> None:
    """Both products; the table's rows hold the sorting and adding up of the routed tokens besides, a fifth at most."""
    each = tokens * top / experts
    both = grouped.seconds(each, experts, 2 * size, hidden, "bf16", H100)
    both += grouped.seconds(each, experts, hidden, size, "bf16", H100)
    assert 0.75 < both * 1e3 / milliseconds < 1.05


def test_few_tokens_an_expert_wait_for_the_weights() -> None:
    """Every weight is read: 256 experts take as long for 8 tokens each as for 16."""
    few, more = (grouped.seconds(tokens, 256, 4096, 7168, "bf16", H100) for tokens in (8, 16))
    assert few == pytest.approx(more, rel=0.02)
    assert few > 2 * 256 * 4096 * 7168 / H100.memory_bandwidth


@given(tokens=loads, experts=counts, n=sizes, k=sizes, dtype=dtypes, card=cards)
def test_more_tokens_experts_or_columns_are_never_faster(
    tokens: float, experts: int, n: int, k: int, dtype: Dtype, card: Card
) -> None:
    least = grouped.seconds(tokens, experts, n, k, dtype, card) * (1 - 1e-9)
    assert grouped.seconds(tokens * 1.3, experts, n, k, dtype, card) >= least
    assert grouped.seconds(tokens, experts + 1, n, k, dtype, card) >= least
    assert grouped.seconds(tokens, experts, n + 64, k, dtype, card) >= least
    assert grouped.seconds(tokens, experts, n, k + 64, dtype, card) >= least


@given(tokens=sizes, experts=counts, n=sizes, k=sizes, dtype=dtypes, card=cards)
def test_no_group_beats_the_peak(tokens: int, experts: int, n: int, k: int, dtype: Dtype, card: Card) -> None:
    assert grouped.seconds(tokens, experts, n, k, dtype, card) >= 2 * tokens * experts * n * k / card.peak(dtype)


def test_one_expert_is_no_faster_than_the_same_product_alone() -> None:
    assert grouped.seconds(8192, 1, 4096, 4096, "bf16", H100) > gemm.seconds(8192, 4096, 4096, "bf16", H100)


def test_no_tokens_take_no_time() -> None:
    assert grouped.seconds(0, 8, 4096, 4096, "bf16", H100) == 0


@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_the_fits_hold_on_models_that_they_have_not_seen(name: str) -> None:
    held_out = CONTENT["formats"][name]["held_out"]
    assert held_out["rows"] >= 48
    assert held_out["median"] < 0.08
    assert held_out["p90"] < 0.27
