from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.estimate.speed import gemm
from launcher.estimate.speed.card import Card
from launcher.spec.values import Dtype
from tests.speed.cards import A100, B200, H100, MI300X, RTX4090, V100

CONTENT = json.loads(gemm.CONSTANTS.path.read_text())
FORMATS = [(card, name, found) for card, entry in CONTENT["cards"].items() for name, found in entry["formats"].items()]

sizes = st.integers(min_value=1, max_value=100_000)
cards = st.sampled_from([A100, H100, B200, MI300X])
dtypes: st.SearchStrategy[Dtype] = st.sampled_from(["fp32", "fp16", "bf16", "fp8"])


@pytest.mark.parametrize(
    ("card", "m", "n", "k", "milliseconds"),
    [
        (A100, 8192, 4096, 4096, 1.13918),
        (A100, 32768, 8192, 8192, 17.1846),
        (H100, 8192, 4096, 4096, 0.3470),
        (H100, 32768, 4096, 16384, 5.7416),
        (B200, 8192, 4096, 4096, 0.1634),
        (B200, 32768, 16384, 4096, 3.0646),
    ],
)
def test_a_product_takes_about_what_aiconfigurators_table_has(
    card: Card, m: int, n: int, k: int, milliseconds: float
) -> None:
    assert gemm.seconds(m, n, k, "bf16", card) == pytest.approx(milliseconds / 1e3, rel=0.13)


def test_a_small_depth_costs_what_the_table_says_of_h100() -> None:
    """Medians of the table at m, n >= 4096: .47 of the peak at k = 256, .60 at 512, .70 at 1024, .76 at 2048."""
    shares = [
        2 * 8192 * 8192 * k / gemm.seconds(8192, 8192, k, "bf16", H100) / H100.bf16 for k in (256, 512, 1024, 2048)
    ]
    assert shares == pytest.approx([0.47, 0.60, 0.70, 0.76], rel=0.06)


def test_fp8_loses_on_small_products_and_wins_on_large_ones() -> None:
    """Of the table, quantising included: 0.48 below 8 GFLOP, 1.45 from 512 to 4,096 on H100."""
    small = gemm.seconds(1024, 1024, 1024, "bf16", H100) / gemm.seconds(1024, 1024, 1024, "fp8", H100)
    large = gemm.seconds(16384, 8192, 8192, "bf16", H100) / gemm.seconds(16384, 8192, 8192, "fp8", H100)
    assert small < 0.7
    assert 1.45 < large < 1.9


@pytest.mark.parametrize(("m", "n", "k", "microseconds"), [(8192, 1536, 7168, 129.853), (4096, 24576, 1536, 243.915)])
def test_fp8_is_about_as_fast_as_infersims_block_scaled_products(m: int, n: int, k: int, microseconds: float) -> None:
    """DeepGEMM on H800, a table that no constant was fitted to; its operands are in fp8 already."""
    kernel = gemm.kernel_of("fp8", H100)._replace(cast=0)
    assert gemm.kernel_seconds(m, n, k, kernel) == pytest.approx(microseconds / 1e6, rel=0.10)


@given(m=sizes, n=sizes, k=sizes, more=st.integers(min_value=1, max_value=5000), dtype=dtypes, card=cards)
def test_a_larger_product_is_never_faster(m: int, n: int, k: int, more: int, dtype: Dtype, card: Card) -> None:
    least = gemm.seconds(m, n, k, dtype, card) * (1 - 1e-12)
    assert gemm.seconds(m + more, n, k, dtype, card) >= least
    assert gemm.seconds(m, n + more, k, dtype, card) >= least
    assert gemm.seconds(m, n, k + more, dtype, card) >= least


@given(m=sizes, n=sizes, k=sizes, dtype=dtypes, card=cards)
def test_no_product_beats_the_peak_or_the_memory(m: int, n: int, k: int, dtype: Dtype, card: Card) -> None:
    found = gemm.seconds(m, n, k, dtype, card)
    width = 1 if dtype == "fp8" and card.fp8 else 4 if dtype == "fp32" else 2
    assert found >= 2 * m * n * k / card.peak(dtype)
    assert found >= width * (m * k + k * n) / card.memory_bandwidth


def test_an_empty_product_takes_no_time() -> None:
    assert gemm.seconds(0, 128, 128, "bf16", H100) == 0


def test_a_card_without_fp8_multiplies_in_bf16() -> None:
    assert gemm.seconds(4096, 4096, 4096, "fp8", A100) == gemm.seconds(4096, 4096, 4096, "bf16", A100)


def test_a_card_without_a_table_says_whose_kernels_stand_in() -> None:
    assert gemm.CONSTANTS.stand_in(H100) is None
    assert gemm.CONSTANTS.stand_in(MI300X) == "H100-SXM-80GB"
    assert gemm.CONSTANTS.source(H100) == "launcher/estimate/speed/gemm.json"
    assert gemm.CONSTANTS.source(MI300X) == "launcher/estimate/speed/gemm.json (kernels of H100-SXM-80GB stand in)"
    assert gemm.CONSTANTS.stand_in(V100) == "A100-SXM-80GB"
    assert gemm.CONSTANTS.stand_in(RTX4090) == "L40S"


@pytest.mark.parametrize(("card", "name", "found"), FORMATS)
def test_every_fit_holds_on_shapes_that_it_has_not_seen(
    card: str, name: str, found: dict[str, dict[str, float]]
) -> None:
    """The bar of 5% and 17% for bf16; L40S, whose table was measured at falling clocks, and fp8 have their own."""
    median, p90 = (0.115, 0.26) if card == "L40S" or name == "fp8" else (0.07, 0.17)
    assert found["residual"]["rows"] > 1900
    assert found["held_out"]["median"] < median
    assert found["held_out"]["p90"] < p90
