"""The figures of a card: what is unknown is said, and no format stands in for another."""

from __future__ import annotations

import pytest

from launcher.estimate.speed.card import card_of, lacking
from launcher.preflight import assess
from tests.support.helpers import make_spec


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ("", ()),
        ("hardware.flops_bf16=null", ("hardware.flops_bf16",)),
        ("hardware.flops_fp8=null hardware.cores=null", ("hardware.cores", "hardware.flops_fp8")),
        ("hardware.flops_fp8=null hardware.dtypes=[fp32,fp16,bf16]", ()),
    ],
)
def test_a_format_of_the_card_without_a_figure_is_unknown_and_not_another_one(
    words: str, keys: tuple[str, ...]
) -> None:
    spec = make_spec("model=1b", "hardware=h100_80g", *words.split())
    assert lacking(spec.hardware) == keys
    assert (card_of(spec.hardware) is None) == bool(keys)
    said = assess.assess(spec, search=None).speed_unknown
    assert said == (f"NVIDIA H100 80GB HBM3 has unknown figures: {', '.join(keys)}" if keys else None)


def test_a_card_without_bf16_has_fp32_s_speed_in_it() -> None:
    card = card_of(make_spec("hardware=v100_32g").hardware)
    assert card is not None
    assert (card.bf16, card.fp8) == (card.fp32, None)
