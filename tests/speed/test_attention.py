from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.estimate.rank.engine import AttentionKernel
from launcher.estimate.speed import attention
from launcher.estimate.speed.attention import Sizes
from launcher.estimate.speed.card import Card
from tests.speed.cards import A100, B200, H100, MI300X, RTX4090, V100

CONTENT = json.loads(attention.CONSTANTS.path.read_text())
HEADS = [(card, size, found) for card, entry in CONTENT["cards"].items() for size, found in entry["heads"].items()]

cards = st.sampled_from([A100, H100, B200, MI300X, RTX4090, V100])
kernels: st.SearchStrategy[AttentionKernel] = st.sampled_from(["flash", "flash_2", "sdpa", "fused_softmax", "unfused"])
counts = st.integers(min_value=1, max_value=64)
lengths = st.integers(min_value=1, max_value=32768)
dims = st.sampled_from([32, 64, 80, 96, 128, 192, 256])


def _forward(
    batch: int, heads: int, length: int, card: Card, kernel: AttentionKernel = "flash", size: int = 128
) -> float:
    return attention.forward_seconds(Sizes(batch, heads, heads, length, length, size, size, True), kernel, "bf16", card)


@pytest.mark.parametrize(
    ("card", "batch", "length", "milliseconds"),
    [
        (A100, 1, 2048, 0.272923),
        (A100, 4, 4096, 3.39585),
        (A100, 4, 16384, 50.6239),
        (H100, 1, 2048, 0.0890027),
        (H100, 4, 4096, 1.01102),
        (H100, 4, 16384, 14.4296),
        (B200, 1, 2048, 0.0642667),
        (B200, 4, 4096, 0.548832),
        (B200, 4, 16384, 7.12235),
    ],
)
def test_attention_takes_about_what_aiconfigurators_table_has(
    card: Card, batch: int, length: int, milliseconds: float
) -> None:
    """32 heads of size 128 with 8 of keys, as Llama 3 8B has."""
    found = attention.forward_seconds(Sizes(batch, 32, 8, length, length, 128, 128, True), "flash", "bf16", card)
    assert found == pytest.approx(milliseconds / 1e3, rel=0.16)


@pytest.mark.parametrize(("card", "milliseconds"), [(A100, 0.208288), (H100, 0.0763307), (B200, 0.0704907)])
def test_few_heads_starve_the_card(card: Card, milliseconds: float) -> None:
    """Of the table: one sequence of 4,096 with 4 heads reaches 82, 225 and 244 TFLOPS, a half to a quarter of many."""
    assert _forward(1, 4, 4096, card) == pytest.approx(milliseconds / 1e3, rel=0.19)
    assert _forward(1, 4, 4096, card) > 1.7 * _forward(8, 32, 4096, card) / 64


def test_grouped_keys_save_bytes_and_no_work() -> None:
    many = attention.forward_seconds(Sizes(4, 32, 32, 4096, 4096, 128, 128, True), "flash", "bf16", H100)
    few = attention.forward_seconds(Sizes(4, 32, 8, 4096, 4096, 128, 128, True), "flash", "bf16", H100)
    assert 0.85 * many < few < many


def test_the_backward_pass_has_two_and_a_half_times_the_products_at_less_throughput() -> None:
    """SimuMax's a100_pcie.json: factors 1.13 forward and 0.98 backward."""
    forward = _forward(4, 32, 4096, H100)
    backward = attention.backward_seconds(Sizes(4, 32, 32, 4096, 4096, 128, 128, True), "flash", "bf16", H100)
    assert backward / forward == pytest.approx(2.5 * 1.13 / 0.98)


def test_the_second_flash_attention_is_slower_from_hopper_on() -> None:
    """FlashAttention-3, section 4.1: 1.5 to 2.0 times as fast forward."""
    assert _forward(4, 32, 8192, A100, "flash_2") == _forward(4, 32, 8192, A100)
    assert 1.4 < _forward(4, 32, 8192, H100, "flash_2") / _forward(4, 32, 8192, H100) < 2.0
    assert _forward(4, 32, 8192, B200, "flash_2") > 1.5 * _forward(4, 32, 8192, B200, "sdpa")


def test_scores_in_memory_cost_more_than_any_fused_kernel() -> None:
    for length in (1024, 2048, 8192):
        fused, half, none = (_forward(4, 32, length, A100, kernel) for kernel in ("flash", "fused_softmax", "unfused"))
        assert fused < half < none


def test_a_window_is_priced_by_its_keys() -> None:
    windowed = attention.forward_seconds(Sizes(1, 32, 8, 32768, 4096, 128, 128, False), "flash", "bf16", H100)
    assert windowed < 0.3 * _forward(1, 32, 32768, H100)


@given(batch=counts, heads=counts, length=lengths, size=dims, card=cards, kernel=kernels)
def test_more_work_is_never_faster(
    batch: int, heads: int, length: int, size: int, card: Card, kernel: AttentionKernel
) -> None:
    least = _forward(batch, heads, length, card, kernel, size) * (1 - 1e-12)
    assert _forward(batch + 1, heads, length, card, kernel, size) >= least
    assert _forward(batch, heads + 1, length, card, kernel, size) >= least
    assert _forward(batch, heads, length + 100, card, kernel, size) >= least


@given(batch=counts, heads=counts, length=lengths, size=dims, card=cards, kernel=kernels)
def test_no_kernel_beats_the_peak_or_the_memory(
    batch: int, heads: int, length: int, size: int, card: Card, kernel: AttentionKernel
) -> None:
    found = _forward(batch, heads, length, card, kernel, size)
    assert found >= 2 * batch * heads * length**2 * size / card.bf16
    assert found >= 8 * batch * heads * length * size / card.memory_bandwidth


def test_nothing_to_attend_takes_no_time() -> None:
    assert _forward(0, 32, 4096, H100) == 0
    assert attention.backward_seconds(Sizes(1, 32, 32, 0, 0, 128, 128, True), "unfused", "bf16", H100) == 0


def test_a_card_without_a_table_says_whose_kernels_stand_in() -> None:
    assert attention.CONSTANTS.stand_in(A100) is None
    assert attention.CONSTANTS.stand_in(MI300X) == "H100-SXM-80GB"
    assert attention.CONSTANTS.source(A100) == "launcher/estimate/speed/attention.json"
    assert (
        attention.CONSTANTS.source(MI300X)
        == "launcher/estimate/speed/attention.json (kernels of H100-SXM-80GB stand in)"
    )
    assert attention.CONSTANTS.stand_in(V100) == "A100-SXM-80GB"


@pytest.mark.parametrize(("card", "size", "found"), HEADS)
def test_every_fit_holds_on_shapes_that_it_has_not_seen(
    card: str, size: str, found: dict[str, dict[str, float]]
) -> None:
    assert found["residual"]["rows"] > 300
    assert found["held_out"]["median"] < 0.12
    assert found["held_out"]["p90"] < 0.28
    assert found["training"]["median"] < 0.08
