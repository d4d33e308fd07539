"""Configurations that start from a function of torchtitan's whose file is not at hand."""

from __future__ import annotations

import pytest

from launcher.base import registry
from launcher.config.ledger import Imported

TEXT = """
from torchtitan.models.FAMILY.config_registry import NAME

def one() -> Trainer.Config:
    config = MADE
    BODY
    return config
"""


def read(name: str, body: str = "pass", made: str = "") -> Imported:
    family = next(each for each in ("llama3", "qwen3", "deepseek_v3", "gpt_oss") if name.startswith(each))
    text = TEXT.replace("FAMILY", family).replace("MADE", made or f"{name}()").replace("NAME", name)
    found = registry.load("importers", "torchtitan").read(text.replace("BODY", body), "own.py")
    assert isinstance(found, Imported)
    return found


@pytest.mark.parametrize(
    ("name", "words"),  # The numbers are those of models/*/config_registry.py in torchtitan 0.3.0.
    [
        ("llama3_debugmodel", "train.steps=10 optimizer.warmup_steps=2 checkpointing=selective"),
        ("llama3_8b", "model=llama3_8b train.micro_batch_size=1 train.sequence_length=8192 optimizer.lr=0.0003"),
        ("llama3_70b", "model=llama3_70b parallel.tensor=8 train.micro_batch_size=8 checkpointing=full"),
        ("qwen3_0_6b", "model=Qwen/Qwen3-0.6B optimizer.lr=0.0003 train.micro_batch_size=4"),
        ("qwen3_14b", "model=Qwen/Qwen3-14B train.steps=3000 train.sequence_length=4096 checkpointing=full"),
        ("qwen3_30b_a3b", "model=qwen3_30b_a3b train.micro_batch_size=2"),
        ("deepseek_v3_16b", "model=deepseek_v3 parallel.expert=8 optimizer.lr=0.00022 train.steps=1000"),
        ("deepseek_v3_671b", "model=deepseek_v3 parallel.expert=2 train.steps=10000 optimizer.warmup_steps=2000"),
        ("gpt_oss_20b", "model=openai/gpt-oss-20b train.sequence_length=8192 checkpointing=full"),
    ],
)  # fmt: skip
def test_a_function_whose_file_is_not_beside_it_is_taken_as_a_named_release_has_it(name: str, words: str) -> None:
    found = read(name)
    assert set(words.split()) <= set(found.overrides)
    assert [each.key for each in found.left_out if each.matters] == []
    assert [each.effect for each in found.left_out if each.key == "base"] == [
        "its file is not beside this one, and torchtitan 0.3.0's version is used"
    ]


def test_what_a_configuration_changes_of_one_it_knows_holds_and_the_next_file_knows_nothing_of_it() -> None:
    body = (
        "config.training.steps = 7; config.checkpoint.enable = True; config.optimizer = default_adamw(lr=1e-5); "
        "config.model_spec = model_registry('3B')"
    )
    for made in ("", "to_graph_trainer_config(llama3_8b(), model_registry)"):
        found = read("llama3_8b", body, made)
        words = "train.steps=7 save.every=500 optimizer.lr=1e-05 train.micro_batch_size=1 model=meta-llama/Llama-3.2-3B"
        assert set(words.split()) <= set(found.overrides)
        assert [each.key for each in found.left_out if each.matters] == []
        assert {"model=llama3_8b", "train.steps=1000", "save.last=false"} <= set(read("llama3_8b").overrides)


def test_a_function_of_a_release_that_is_not_known_is_refused_with_the_way_out() -> None:
    found = read("llama3_9b")
    effects = [each.effect for each in found.left_out if each.matters]
    assert effects == ["its file is not beside this one, and what it sets is unknown: set model, data, train"]


@pytest.mark.parametrize(
    ("flavor", "words"),  # Those of experiments/transformers_modeling_backend/__init__.py in torchtitan 0.3.0.
    [
        ("full", "model=Qwen/Qwen3-30B-A3B model.weights=null"),
        ("full_moe", "model=Qwen/Qwen3-30B-A3B model.head_dim=64"),
        (
            "sft_debugmodel",
            "model.hidden_size=256 model.intermediate_size=768 model.head_dim=16 data.packing=documents",
        ),
        ("debugmodel_moe", "model.num_experts=8 model.num_experts_per_tok=2 model.moe_intermediate_size=128"),
    ],
)
def test_a_model_of_transformers_in_torchtitan_is_that_of_the_hub_with_the_sizes_of_its_flavor(
    flavor: str, words: str
) -> None:
    made = f"Backend.Config(hf_model='Qwen/Qwen3-30B-A3B', model_spec=model_registry('{flavor}'))"
    found = registry.load("importers", "torchtitan").read(f"def one():\n    return {made}\n", "own.py")
    assert set(words.split()) <= set(found.overrides)
    assert ("data.packing=documents" in found.overrides) is flavor.startswith("sft_")
    assert "torchtitan starts embeddings at a deviation of 1" in str(found.not_understood)
    assert [each.key for each in found.left_out if each.matters] == []


def test_a_flavor_that_torchtitan_does_not_make_of_a_model_of_the_hub_is_refused() -> None:
    made = "Backend.Config(hf_model='Qwen/Qwen3-30B-A3B', model_spec=model_registry('own'))"
    found = registry.load("importers", "torchtitan").read(f"def one():\n    return {made}\n", "own.py")
    assert "model.flavor" in [each.key for each in found.left_out if each.matters]


def test_the_chat_rows_of_that_model_stay_refused_for_the_empty_turn_that_their_tokenizer_adds() -> None:
    made = "Backend.Config(hf_model='Qwen/Qwen3-0.6B', tokenizer=HFBackendTokenizer.Config())"
    found = registry.load("importers", "torchtitan").read(f"def one():\n    return {made}\n", "own.py")
    assert "tokenizer.class" in [each.key for each in found.left_out if each.matters]


@pytest.mark.parametrize(
    ("arguments", "recipe", "whole", "left"),
    [
        ("model_compile_enabled=True", "rowwise", True, []),  # The default of torchtitan 0.3's class.
        ("filter_fqns=['lm_head']", "rowwise", False, []),
        ("recipe_name='rowwise_with_gw_hp'", "rowwise_with_gw_hp", True, []),
        ("emulate=True", "rowwise", True, ["float8.emulate"]),
    ],
)
def test_fp8_of_torchtitans_python_has_a_scale_a_row_unless_another_recipe_is_named(
    arguments: str, recipe: str, whole: bool, left: list[str]
) -> None:
    made = f"Trainer.Config(model_spec=model_registry('8B', converters=[Float8LinearConverter.Config({arguments})]))"
    found = registry.load("importers", "torchtitan").read(f"def llama3_one():\n    return {made}\n", "own.py")
    assert {"model=llama3_8b", "precision=fp8", f"precision.recipe={recipe}"} <= set(found.overrides)
    assert ("the output projection computes in fp8 there" in str(found.not_understood)) is whole
    assert [each.key for each in found.left_out if each.matters] == left
