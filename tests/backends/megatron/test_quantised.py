"""What Transformer Engine holds in 8 and in 4 bits, against the shapes of its own tensors."""

from __future__ import annotations

from fractions import Fraction

import pytest

from launcher.backends.megatron.check import check
from launcher.estimate.rank.model import RankModel
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec
from tests.support.megatron_terms import EXPERTS, MIB, MODEL, megabytes, terms_of

WEIGHTS = 12 * (4 * 512 * 512 + 3 * 512 * 2048)
"""Elements of the linears of twelve layers: four of attention, and gate, up and down."""


def rank_of(*overrides: str) -> RankModel:
    """The last stage, counted."""
    return ranks_of(make_spec(*MODEL, *overrides))[-1].model


@pytest.mark.parametrize(
    ("hardware", "precision", "bytes_of_one"),
    [
        ("h100_80g", "precision=fp8", Fraction(2)),
        ("b200", "precision=fp8", Fraction(1)),
        ("b200", "precision=mxfp8", 2 * Fraction(33, 32)),
        ("b200", "precision=nvfp4", 2 * Fraction(9, 16)),
    ],
)
def test_a_weight_is_copied_by_rows_and_by_columns_with_its_scales_but_where_rows_serve_both(
    hardware: str, precision: str, bytes_of_one: Fraction
) -> None:
    """Of ``(128, 16)`` values in nvfp4 the sizes of ``NVFP4Quantizer.make_empty`` are 1,024 and 512, here 128 used."""
    terms = terms_of(f"hardware={hardware}", precision)
    assert megabytes(terms, "copies of weights", "idle") * MIB == WEIGHTS * bytes_of_one


def test_routers_have_no_copies() -> None:
    layer = 4 * 512 * 512 + 8 * 3 * 512 * 512
    assert rank_of(*EXPERTS, "hardware=h100_80g", "precision=fp8").linears == 12 * layer


def test_parameters_in_fp8_are_in_place_of_those_in_bf16() -> None:
    plain = megabytes(terms_of("hardware=b200", "precision=bf16", "zero=1"), "parameters", "idle")
    words = ("hardware=b200", "precision=fp8", "zero=1", "+backend.extra.fp8-param-gather=true")
    assert plain - megabytes(terms_of(*words), "parameters", "idle") == WEIGHTS / MIB


def test_layers_in_bf16_have_neither_copies_nor_quantised_inputs() -> None:
    words = ("hardware=b200", "precision=nvfp4", "+backend.extra.first-last-layers-bf16=true")
    rank = rank_of(*words, "+backend.extra.num-layers-at-end-in-bf16=3")
    assert rank.linears * 12 == WEIGHTS * 8
    assert [(kind.count, kind.linears > 0) for kind in rank.blocks] == [(1, False), (8, True), (3, False)]
    assert rank.layers == 12


def test_a_linear_keeps_its_input_in_8_bits_and_attentions_output_as_it_is_but_with_delayed_scaling() -> None:
    """Both norms' outputs and the activation are a byte an element; with delayed scaling the output is there twice."""
    kept = {}
    for word in ("precision=bf16", "precision.recipe=tensorwise", "precision.recipe=delayed"):
        words = ("precision=fp8", word) if "recipe" in word else (word,)
        rank = rank_of("hardware=h100_80g", *words)
        kept[word.partition("=")[2]] = rank.token_bytes(rank.blocks[0].saved)
    assert kept["bf16"] - kept["tensorwise"] == 2 * 512 + 2048
    assert kept["delayed"] - kept["tensorwise"] == 512


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("precision=bf16 zero=1 +backend.extra.fp8-param-gather=true", "parameters are in fp8 only if products are"),
        ("precision=nvfp4 zero=1 +backend.extra.fp8-param-gather=true", "parameters are in fp8 only if products are"),
        (
            "precision=nvfp4 zero=0 +backend.extra.fp4-param-gather=true",
            "only the distributed optimizer (zero.stage=1)",
        ),
        ("precision=nvfp4 precision.recipe=mxfp8", "for fp4 Transformer Engine has the recipes nvfp4"),
        ("precision=mxfp8 hardware=rtx5090", "below 12.0"),
    ],
)
def test_what_megatron_or_transformer_engine_refuses_is_refused(words: str, rule: str) -> None:
    spec = make_spec(*MODEL, "hardware=b200", *words.split())
    assert rule in " ".join(error.rule for error in check(spec))
