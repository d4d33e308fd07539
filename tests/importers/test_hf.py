from __future__ import annotations

import json
from typing import Any

import pytest

from launcher import registry
from launcher.config.recipes import Recipe
from launcher.errors import ConfigErrors
from launcher.importers.hf import read
from tests.support.foreign_files import DEEPSEEK_V3, GPT2, LLAMA3_8B, MIXTRAL_8X7B
from tests.support.helpers import make_spec

LLAMA32_1B = LLAMA3_8B | {
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_hidden_layers": 16,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"},
    "tie_word_embeddings": True,
}

QWEN3_32B = {
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "max_position_embeddings": 40960,
    "max_window_layers": 64,
    "model_type": "qwen3",
    "num_attention_heads": 64,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


@pytest.mark.parametrize(
    ("config", "option"),
    [
        (LLAMA3_8B, "llama3_8b"),
        (LLAMA32_1B, "llama3_1b"),
        (QWEN3_32B, "qwen3_32b"),
        (MIXTRAL_8X7B, "mixtral_8x7b"),
        (DEEPSEEK_V3, "deepseek_v3"),
        (GPT2, "gpt2"),
    ],
)
def test_a_published_config_gives_the_same_model_as_the_option_of_its_name(config: dict[str, Any], option: str) -> None:
    found = make_spec(*read(json.dumps(config), "config.json").overrides).model
    shipped = make_spec(f"model={option}").model
    same = {"name": shipped.name, "source": shipped.source, "head_dim": found.head_dim}
    assert _values(found) | same == _values(shipped) | {"head_dim": found.head_dim}
    assert (found.head_size, found.key_value_heads) == (shipped.head_size, shipped.key_value_heads)


def _values(model: object) -> dict[str, Any]:
    return {name: getattr(model, name) for name in type(model).__dataclass_fields__}  # type: ignore[attr-defined]


def test_everything_of_a_plain_config_is_understood() -> None:
    for config in (LLAMA3_8B, QWEN3_32B, MIXTRAL_8X7B, GPT2):
        assert read(json.dumps(config), "config.json").not_understood == ()


def test_what_changes_the_model_and_has_no_setting_is_named() -> None:
    assert read(json.dumps(DEEPSEEK_V3), "config.json").not_understood == (
        "num_nextn_predict_layers=1",
        'quantization_config={"quant_method": "fp8"}',
        'rope_scaling={"factor": 40, "type": "yarn"}',
    )
    odd = LLAMA3_8B | {"mystery_projection": 3, "sliding_window": 4096, "layer_types": ["full_attention"]}
    assert read(json.dumps(odd), "config.json").not_understood == ("mystery_projection=3", "sliding_window=4096")


def test_the_rotary_base_is_read_from_the_place_that_transformers_5_writes_it_to() -> None:
    new = {key: value for key, value in LLAMA3_8B.items() if key not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {"rope_theta": 500000.0, "rope_type": "default"}
    assert read(json.dumps(new), "config.json").overrides == read(json.dumps(LLAMA3_8B), "config.json").overrides


def test_qwen2_has_biases_that_its_config_does_not_mention() -> None:
    config = {key: value for key, value in LLAMA3_8B.items() if key != "attention_bias"} | {"model_type": "qwen2"}
    assert "model.attention_bias=true" in read(json.dumps(config), "config.json").overrides


def test_a_qwen3_moe_config_is_a_mixture_with_head_norms() -> None:
    config = QWEN3_32B | {"model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8}
    model = make_spec(*read(json.dumps(config | {"moe_intermediate_size": 768}), "config.json").overrides).model
    assert (model.family, model.num_experts, model.moe_intermediate_size, model.qk_norm) == ("moe", 128, 768, True)


def test_the_recipe_says_what_the_overrides_say() -> None:
    found = read(json.dumps(LLAMA3_8B | {"_name_or_path": "meta-llama/Meta-Llama-3-8B"}), "config.json")
    recipe = {key: value for key, value in found.recipe.items() if key != "schema"}
    assert tuple(Recipe(name="imported", sweep={}, **recipe).overrides()) == found.overrides
    assert found.recipe["source"] == "config.json of Meta-Llama-3-8B"
    assert "model.name=Meta-Llama-3-8B" in found.overrides


def _message(text: str) -> list[dict[str, object]]:
    with pytest.raises(ConfigErrors) as caught:
        read(text, "models/config.json")
    return [error.as_dict() for error in caught.value.errors]


def test_a_file_that_is_not_json_is_an_error_with_its_path() -> None:
    [error] = _message("hidden_size: 4096")
    assert error["path"] == "models/config.json"
    assert error["rule"] == "a config.json is JSON, and this is not: Expecting value: line 1 column 1 (char 0)"
    [error] = _message("[1, 2]")
    assert (error["found"], error["rule"]) == ("[1, 2]", "a config.json is one JSON object: {...}")


@pytest.mark.parametrize("kind", [["llama"], {"llama": 1}, 3, None])
def test_a_model_type_that_is_no_word_is_an_error(kind: object) -> None:
    [error] = _message(json.dumps(LLAMA3_8B | {"model_type": kind}))
    assert error["path"] == "models/config.json: model_type"


def _known() -> list[str]:
    families = [registry.load("families", name) for name in registry.shipped("families")]
    return sorted(kind for family in families for kind in family.traits.model_types)


def test_an_unknown_model_type_is_an_error_with_those_that_are_known() -> None:
    [error] = _message(json.dumps(LLAMA3_8B | {"model_type": "lama"}))
    assert error == {
        "path": "models/config.json: model_type",
        "found": "lama",
        "rule": f"config.json names its model by model_type; understood are {', '.join(_known())}",
        "way_out": ["model_type: llama"],
    }


def test_all_missing_and_wrong_sizes_come_at_once() -> None:
    config = {key: value for key, value in LLAMA3_8B.items() if key != "hidden_size"}
    errors = _message(json.dumps(config | {"vocab_size": "32000", "hidden_act": "tanh"}))
    assert [error["path"] for error in errors] == [
        "models/config.json: hidden_size",
        "models/config.json: vocab_size",
        "models/config.json: hidden_act",
    ]
    assert errors[1]["found"] == "32000"
    assert errors[1]["rule"] == "a llama config.json holds it as an integer of at least 1"
    assert errors[2]["rule"] == (
        "no model family here has it; they have silu, swish, gelu, gelu_new, gelu_pytorch_tanh, relu, relu2"
    )


def test_values_of_the_wrong_kind_are_errors() -> None:
    errors = _message(json.dumps(LLAMA3_8B | {"tie_word_embeddings": "no", "rms_norm_eps": [1], "head_dim": 0}))
    assert [(error["path"], error["found"], error["rule"]) for error in errors] == [
        ("models/config.json: head_dim", 0, "a llama config.json holds it as an integer of at least 1"),
        ("models/config.json: tie_word_embeddings", "no", "is true or false"),
        ("models/config.json: rms_norm_eps", [1], "is a number"),
    ]


def test_a_long_value_is_cut_in_the_message() -> None:
    [named] = read(json.dumps(LLAMA3_8B | {"mystery": "x" * 200}), "config.json").not_understood
    assert named == f"mystery={'x' * 97}..."
