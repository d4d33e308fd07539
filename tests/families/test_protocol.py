"""The protocol of a family: the shipped ones have all of it, and nobody outside asks which one a model is of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.base import registry
from launcher.base.package import FOLDER
from launcher.estimate.families import (
    Family,
    deepseek,
    deepseek_sparse,
    deepseek_v2,
    glm,
    gpt,
    hybrid,
    llama,
    moe,
    observed,
    transformers,
)
from launcher.estimate.rank.engine import EngineTraits
from tests.support.helpers import make_spec

SHIPPED: dict[str, Family] = {
    "deepseek": deepseek,
    "deepseek_sparse": deepseek_sparse,
    "deepseek_v2": deepseek_v2,
    "glm": glm,
    "gpt": gpt,
    "hybrid": hybrid,
    "llama": llama,
    "moe": moe,
    "observed": observed,
    "transformers": transformers,
}
"""mypy compares each module with the protocol here."""

MODELS = {
    "llama": "llama3_8b",
    "moe": "mixtral_8x7b",
    "gpt": "gpt2",
    "deepseek": "deepseek_v3",
    "glm": "glm4_5_air",
    "transformers": "gemma2_2b",
}


def test_every_shipped_family_is_a_module_with_all_members_of_the_protocol() -> None:
    assert set(SHIPPED) == set(registry.shipped("families"))
    assert {name: registry.load("families", name) for name in SHIPPED} == SHIPPED


def test_a_model_type_is_read_by_one_family() -> None:
    kinds = [kind for family in SHIPPED.values() for kind in family.traits.model_types]
    assert len(kinds) == len(set(kinds)) == len(SHIPPED["transformers"].traits.model_types) + 17


@pytest.mark.parametrize("name", MODELS)
def test_the_traits_of_a_family_name_weights_that_its_blocks_have(name: str) -> None:
    family, model = SHIPPED[name], make_spec(f"model={MODELS[name]}").model
    assert model.family == name
    weights = {weight.name for weight in family.block(model, model.num_hidden_layers - 1)}
    assert family.traits.attention_output in {*weights, ""}
    modules = {weight.removesuffix(".weight").rpartition(".")[2] for weight in weights}
    assert set(family.traits.adapter_targets) <= modules


@pytest.mark.parametrize("name", MODELS)
def test_a_family_saves_the_input_of_its_blocks_where_its_norm_is_one_kernel(name: str) -> None:
    family, model = SHIPPED[name], make_spec(f"model={MODELS[name]}").model
    found = {
        fused: family.saves_input(
            model,
            EngineTraits(library="transformers", size=2, residual_size=2, sequence_length=1024, fused_norm=fused),
        )
        for fused in (False, True)
    }
    assert found == {False: name == "gpt", True: name != "transformers"}


def test_nobody_outside_of_the_families_asks_which_family_a_model_is_of() -> None:
    files = [
        path for path in sorted(FOLDER.rglob("*.py")) if path.relative_to(FOLDER).parts[:2] != ("estimate", "families")
    ]
    assert len(files) > 200
    asking = [f"{path.relative_to(FOLDER)}:{line}" for path in files for line in _comparisons(path)]
    assert asking == []


def _comparisons(path: Path) -> Iterator[int]:
    """Lines that compare an attribute ``family`` with anything, or ask whether positions are learned."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            left = node.left
            if isinstance(left, ast.Attribute) and left.attr == "family":
                yield node.lineno
            learned = any(isinstance(part, ast.Constant) and part.value == "learned" for part in node.comparators)
            if learned and isinstance(left, ast.Attribute) and left.attr == "position_embedding":
                yield node.lineno
