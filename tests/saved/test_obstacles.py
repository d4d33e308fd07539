"""Reasons why a run cannot go on from a checkpoint, by the state that the checkpoint keeps."""

from __future__ import annotations

import json

import pytest

from launcher.saved.checkpoints import obstacles, state_content
from tests.support.helpers import make_spec

TINY = ("model=tiny", "train.global_batch_size=8")
LORA = (*TINY, "adapter=lora")


def refused(before: tuple[str, ...], after: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Ways out by path, of a run with ``after`` from a checkpoint of a run with ``before``."""
    state = json.loads(json.dumps(state_content(make_spec(*before), 3)))
    return {error.path: error.way_out for error in obstacles(make_spec(*after), state)}


@pytest.mark.parametrize("words", [(), ("adapter.dropout=0.1",), ("adapter.lora_plus=8",)])
def test_an_adapter_goes_on_with_the_same_tensors_and_scale(words: tuple[str, ...]) -> None:
    assert refused(LORA, (*LORA, *words)) == {}


def test_another_adapter_is_one_reason_whose_way_out_is_a_name() -> None:
    assert refused(TINY, LORA) == {"adapter.name": ("adapter.name=none",)}
    assert refused(LORA, TINY) == {"adapter.name": ("adapter.name=lora",)}
    assert refused((*TINY, "adapter=qlora"), LORA) == {"adapter.name": ("adapter.name=qlora",)}


@pytest.mark.parametrize(
    ("word", "before"),
    [
        ("adapter.alpha=64", "adapter.alpha=32"),
        ("adapter.rslora=true", "adapter.rslora=false"),
        ("adapter.rank=8", "adapter.rank=16"),
        ("adapter.targets=[q_proj]", ""),
        ("adapter.dora=true", "adapter.dora=false"),
    ],
)
def test_what_an_adapter_learned_is_not_scaled_or_shaped_otherwise(word: str, before: str) -> None:
    found = refused(LORA, (*LORA, word))
    assert [*found] == [word.partition("=")[0]]
    assert all(before in way for ways in found.values() for way in ways)


def test_the_stored_base_weights_under_an_adapter_stay() -> None:
    qlora = (*TINY, "adapter=qlora")
    assert refused(qlora, (*qlora, "adapter.quant_type=fp4")) == {"adapter.quant_type": ("adapter.quant_type=nf4",)}
