"""A term: bytes, symbols and numbers of one expression, and instants of which the fullest counts."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest

from launcher.base import registry
from launcher.base.formula import names_in
from launcher.estimate.memory.moments import ALWAYS, MOMENTS
from launcher.estimate.memory.terms import MemoryTerm, fullest, symbols, term
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec

PRESETS = (
    "ddp",
    "fsdp",
    "fsdp_cp",
    "fsdp_pp",
    "zero0",
    "zero1",
    "zero2",
    "zero3",
    "ulysses",
    "tp_pp",
    "3d",
    "ep",
    "cp",
)


def value_of(numbers: str) -> int:
    """The printed numbers, computed by Python itself."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", numbers).replace(" x ", " * ")
    exact = re.sub(r"\((\d+) / (\d+)\)", r"Fraction(\1, \2)", text)
    computed: int | Fraction = eval(exact, {"Fraction": Fraction, "max": max, "min": min, "ceil": math.ceil})
    return max(0, math.ceil(computed))


def assert_printed(terms: tuple[MemoryTerm, ...]) -> None:
    assert terms
    for each in terms:
        assert value_of(each.numbers) == each.bytes, each
        assert names_in(each.expression) == each.values.keys(), each
        assert names_in(each.expression) <= symbols().keys(), each


WORDS = (
    (),
    ("model=mixtral_8x7b",),
    ("model=deepseek_v3", "checkpointing=full"),
    ("model=llama3_8b", "checkpointing=selective", "train.loss=chunked", "train.global_batch_size=1024"),
    ("model=gpt2", "optimizer=muon", "precision=fp32"),
    ("model=7b", "adapter=qlora"),
)


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        *((preset, WORDS[(number + turn) % len(WORDS)]) for number, preset in enumerate(PRESETS) for turn in (0, 3)),
        ("fsdp", ("model=mixtral_8x7b", "parallel.expert=2")),
        ("fsdp", ("model=7b", "precision.qat=int8_int4")),
        ("ddp", ("model=7b", "precision.qat=int4", "checkpointing=full")),
        ("fsdp", ("model=7b", "precision.qat=mxfp4", "checkpointing=full")),
        ("fsdp", ("model=7b", "precision=mxfp8", "hardware=b200")),
        ("fsdp", ("model=7b", "precision=nvfp4", "hardware=b200", "checkpointing=full")),
        ("fsdp", ("model=7b", "precision=mxfp8", "hardware=cpu", "checkpointing=full")),
        ("fsdp", ("model=7b", "precision.qat=nvfp4", "precision.qat_group_size=16", "hardware=b200")),
    ],
)
def test_the_numbers_that_a_term_prints_give_its_bytes_and_each_symbol_is_in_the_legend(
    preset: str, words: tuple[str, ...]
) -> None:
    spec = make_spec(f"parallel={preset}", *words, "hardware=h100_80g", "cluster.nodes=2", "cluster.gpus_per_node=8")
    backend = registry.load("backends", spec.backend.name)
    for rank in ranks_of(spec):
        assert_printed((*backend.overheads(rank.model), *rank.terms))


def test_an_expression_is_printed_with_brackets_where_a_reader_needs_them() -> None:
    found = term(
        "temporary", ALWAYS, "x", "z * (root + 2 * block) - (w - n) // 3", "here", z=2, root=5, block=7, w=9, n=2
    )
    assert found.symbols == "z x (root + 2 x block) - (w - n) // 3"
    assert found.numbers == "2 x (5 + 2 x 7) - (9 - 2) // 3"
    assert found.bytes == 36
    shared = term("temporary", ALWAYS, "x", "n * (k / 3)", "here", n=3, k=Fraction(1, 2))
    assert (shared.numbers, shared.bytes) == ("3 x ((1 / 2) / 3)", 1)


def test_a_formula_says_numbers_as_people_do_and_is_never_negative() -> None:
    found = term("gradients", ("step",), "gradients", "z_acc * shard", "here", z_acc=4, shard=842_304_512)
    assert found.formula == "gradients: 4 x 842.30 M"
    assert term("temporary", ALWAYS, "rest", "w - n", "here", w=1, n=2).bytes == 0


@pytest.mark.parametrize("text", ["__import__('os')", "[1][0]", "z.real", "1.5 * z", "open(z)", "z if z else 1"])
def test_an_expression_is_arithmetic_alone(text: str) -> None:
    with pytest.raises(AssertionError):
        term("temporary", ALWAYS, "x", text, "here", z=1)


def test_a_name_too_many_or_too_few_is_our_own_mistake() -> None:
    with pytest.raises(TypeError):
        term("temporary", ALWAYS, "x", "z * w", "here", z=1)
    with pytest.raises(TypeError):
        term("temporary", ALWAYS, "x", "z", "here", z=1, w=1)
    with pytest.raises(TypeError):
        term("temporary", ALWAYS, "x", "z", "here", w=1)


def test_of_the_instants_of_a_moment_the_fullest_counts_and_the_rest_is_always_there() -> None:
    def of(name: str, *moments: str, size: int) -> MemoryTerm:
        return term("temporary", [moment for moment in MOMENTS if moment in moments], name, "size", "here", size=size)

    terms = [
        of("plain", "forward", "loss", size=1),
        of("first", "forward", "loss", size=5).at("a"),
        of("second", "forward", "loss", size=3).at("b"),
        of("third", "loss", size=4).at("b"),
    ]
    alive = {(each.what, moment) for each in fullest(terms) for moment in each.moments}
    plain = {("plain", "forward"), ("plain", "loss")}
    assert alive == {*plain, ("first", "forward"), ("second", "loss"), ("third", "loss")}
