from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.config.hub import reading as hugging_face
from launcher.config.ledger import leaves
from launcher.config.recipes import Recipe
from launcher.importers.hf import read
from tests.support.foreign_files import DEEPSEEK_V3, GPT2, LLAMA3_8B, MIXTRAL_8X7B
from tests.support.helpers import make_spec
from tests.support.model_files import errors_of, left_out, model_of, refused, that_matters

FILES = Path(__file__).parent / "files" / "hf"


LLAMA32_1B = LLAMA3_8B | {
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_hidden_layers": 16,
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


def test_nothing_of_a_plain_config_changes_the_run() -> None:
    for config in (LLAMA3_8B, QWEN3_32B, MIXTRAL_8X7B, GPT2):
        assert that_matters(config) == []


def test_what_changes_the_model_and_has_no_setting_is_left_out_and_matters() -> None:
    left = left_out(DEEPSEEK_V3)
    assert [key for key, (_, matters) in left.items() if matters] == []
    assert left["quantization_config.quant_method"][0].startswith(
        "no effect: it describes the stored weights; model.weights re"
    )
    assert left["num_nextn_predict_layers"][0].startswith("no effect: transformers' class trains without")
    odd = LLAMA3_8B | {"attention_dropout": 0.1, "layer_types": ["full_attention", "sliding_attention"]}
    assert that_matters(odd) == ["attention_dropout", "layer_types"]
    assert that_matters(LLAMA3_8B | {"layer_types": ["full_attention"]}) == []
    assert that_matters({"model_type": "deepseek_v32", "layer_types": ["indexed_attention"] * 61}) == []


def test_a_key_that_the_class_does_not_read_changes_nothing_unless_code_beside_it_may_read_it() -> None:
    odd = LLAMA3_8B | {"mystery_projection": 3}
    effect = "no effect: transformers' class of llama does not read it"
    assert left_out(odd)["mystery_projection"] == (effect, False)
    effect = "the folder's own code may read it, which launch does not run"
    assert left_out(odd | {"auto_map": {"AutoConfig": "mine.Config"}})["mystery_projection"] == (effect, True)
    assert that_matters(odd | {"auto_map": {"AutoModelForCausalLM": "mine.MyForCausalLM"}}) == ["mystery_projection"]
    assert that_matters(odd | {"auto_map": {"AutoModelForCausalLM": "modeling_llama.LLaMAForCausalLM"}}) == []


def test_dumped_keys_of_generation_and_history_have_no_effect() -> None:
    dumped = {"max_length": 20, "do_sample": False, "top_k": 50, "is_decoder": False, "id2label": {"0": "LABEL_0"}}
    assert that_matters(LLAMA3_8B | dumped | {"tie_encoder_decoder": False, "pruned_heads": {}}) == []


def test_another_head_than_a_language_models_matters() -> None:
    assert that_matters(LLAMA3_8B | {"architectures": ["LlamaForSequenceClassification"]}) == ["architectures"]


def _overrides(config: dict[str, Any]) -> list[str]:
    found = read(json.dumps(config), "config.json")
    assert found.errors == ()
    return list(found.overrides)


def test_absent_keys_are_what_the_class_takes_for_them_and_a_null_is_a_value() -> None:
    found = _overrides({"model_type": "deepseek_v3"})
    for word in ("num_shared_experts=1", "first_dense_layers=3", "q_lora_rank=1536", "n_group=8", "topk_group=4"):
        assert f"model.{word}" in found
    assert "model.q_lora_rank=0" in _overrides({"model_type": "deepseek_v3", "q_lora_rank": None})
    assert "model.num_key_value_heads=8" in _overrides({"model_type": "mistral"})
    assert "model.num_key_value_heads=32" in _overrides({"model_type": "mistral", "num_key_value_heads": None})
    assert "model.norm_topk_prob=false" in _overrides({"model_type": "qwen3_moe"})


def test_the_biases_of_attention_are_those_of_the_class() -> None:
    biased = LLAMA3_8B | {"attention_bias": True}
    assert {"model.attention_bias=true", "model.attention_output_bias=true"} <= {*_overrides(biased)}
    for kind in ("qwen2", "glm4_moe"):
        found = _overrides(biased | {"model_type": kind})
        assert "model.attention_bias=true" in found
        assert "model.attention_output_bias=true" not in found
    assert "model.attention_bias=false" in _overrides(biased | {"model_type": "mistral"})


def test_a_gated_activation_stays_gated() -> None:
    found = _overrides(LLAMA3_8B | {"hidden_act": "gelu"})
    assert {"model.hidden_act=gelu", "model.gated=true"} <= {*found}


def test_scaled_rotary_positions_are_the_classes_own() -> None:
    scaled = LLAMA3_8B | {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}}
    wanted = "model.rope_parameters={rope_type:yarn,factor:4.0,original_max_position_embeddings:2048}"
    assert wanted in _overrides(scaled)
    assert not [word for word in _overrides(LLAMA3_8B) if word.startswith("model.rope_parameters")]
    effect, matters = left_out(LLAMA3_8B | {"rope_scaling": {"type": "dynamic", "factor": 4.0}})["rope_scaling.factor"]
    assert (effect[:10], matters) == ("no effect:", False)


def test_a_sliding_window_is_a_setting_where_a_sequence_may_be_longer() -> None:
    mistral = {"model_type": "mistral", "max_position_embeddings": 8192}
    assert "model.sliding_window=4096" in _overrides(mistral)
    for window in (None, 8192):
        assert not [word for word in _overrides(mistral | {"sliding_window": window}) if "window" in word]


def test_first_dense_layers_of_qwen3_moe_are_a_setting_and_others_are_refused() -> None:
    config = {"model_type": "qwen3_moe", "mlp_only_layers": [0, 1]}
    assert "model.first_dense_layers=2" in _overrides(config)
    [error] = errors_of(json.dumps({"model_type": "qwen3_moe", "decoder_sparse_step": 2}))
    assert error["rule"] == "only the first layers may be dense: launch builds no dense layers after those with experts"


def test_an_auxiliary_loss_counts_where_the_routers_logits_are_an_output() -> None:
    config = {"model_type": "mixtral", "router_aux_loss_coef": 0.02}
    assert not [word for word in _overrides(config) if "aux" in word]
    assert "model.router_aux_loss_coef=0.02" in _overrides(config | {"output_router_logits": True})


@pytest.mark.parametrize("file", sorted(FILES.glob("*.json")), ids=lambda file: file.stem)
def test_every_key_of_a_file_is_in_one_list(file: Path) -> None:
    found = read(file.read_text(), file.name)
    keys = [*(said.key for said in found.said), *found.default, *found.kept, *(left.key for left in found.left_out)]
    assert sorted(keys) == sorted(leaves(json.loads(file.read_text())))
    if not found.errors:
        make_spec(*found.overrides)


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


def _kept(config: dict[str, Any]) -> dict[str, Any]:
    found = hugging_face.read(json.dumps(config), "config.json")
    assert found.errors == ()
    return dict(found.model)


@pytest.mark.parametrize("wrong", [{"max_position_embeddings": None}, {"max_position_embeddings": "x"},
                                   {"num_hidden_layers": None}])  # fmt: skip
def test_a_wrong_size_beside_a_window_is_an_error_of_its_own(wrong: dict[str, Any]) -> None:
    [key] = wrong
    [error] = errors_of(json.dumps({"model_type": "mistral", "sliding_window": 4096, **wrong}))
    assert error["path"] == f"models/config.json: {key}"


def test_a_key_of_another_class_is_not_taken_for_the_own_one() -> None:
    for config in ({"model_type": "starcoder2", "layer_norm_epsilon": 1e-3}, {"model_type": "stablelm", "norm_eps": 1}):
        assert _kept(config)["norm_epsilon"] == 1e-05
        assert that_matters(config) == []
    assert refused({"model_type": "falcon", "n_layer": 12}) == {"n_layer": "rename it to num_hidden_layers in the file"}
    assert _kept({"model_type": "gptj", "num_hidden_layers": 12})["num_hidden_layers"] == 12
    assert _kept({"model_type": "olmoe", "num_experts": 12})["num_experts"] == 12
    both = {"model_type": "gptj", "num_hidden_layers": 12, "n_layer": 12}
    assert that_matters(both) == []
    assert _kept(both | {"n_layer": 6})["num_hidden_layers"] == 12
    assert that_matters(both | {"n_layer": 6}) == ["n_layer"]


@pytest.mark.parametrize("kind", ["falcon", "persimmon", "gpt_neox"])
def test_a_head_of_the_usual_size_is_default_and_another_one_matters(kind: str) -> None:
    sizes = {"model_type": kind, "hidden_size": 512, "num_attention_heads": 8}
    assert "head_dim" in read(json.dumps(sizes | {"head_dim": 64}), "config.json").default
    assert that_matters(sizes | {"head_dim": 32}) == ["head_dim"]


@pytest.mark.parametrize("kind", ["cohere2", "exaone4", "phi3", "qwen2_moe", "granite"])
def test_a_head_of_a_size_that_attention_reads_though_its_class_names_none_is_taken(kind: str) -> None:
    sizes = {"model_type": kind, "hidden_size": 512, "num_attention_heads": 8, "head_dim": 32}
    assert model_of(sizes)["head_dim"] == 32
    assert that_matters(sizes) == []


def test_a_null_that_the_class_has_itself_is_default() -> None:
    for config in ({"model_type": "gptj", "n_inner": None}, {"model_type": "gpt_neo", "intermediate_size": None}):
        assert read(json.dumps(config), "config.json").default == tuple(config)[1:]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "phi3", "attention_bias": False},
        {"model_type": "falcon", "apply_residual_connection_post_layernorm": False},
        {"model_type": "mpt", "init_config": {"name": "x"}, "tokenizer_name": "x", "verbose": 0, "init_device": "cpu"},
    ],
)
def test_code_beside_a_file_reads_nothing_of_keys_that_ask_for_nothing(config: dict[str, Any]) -> None:
    assert that_matters(config | {"auto_map": {"AutoConfig": "mine.Config"}}) == []


@pytest.mark.parametrize(
    ("kind", "key", "value", "known"),
    [
        ("gpt_bigcode", "add_cross_attention", True, "false"),
        ("mpt", "attn_config", {"attn_type": "grouped_query_attention"}, '"multihead_attention"'),
        ("gemma3_text", "use_bidirectional_attention", True, "null or false"),
    ],
)
def test_what_a_description_does_not_cover_is_refused_on_import(kind: str, key: str, value: object, known: str) -> None:
    [error] = errors_of(json.dumps({"model_type": kind, key: value}))
    assert str(error["path"]).startswith(f"models/config.json: {key}")
    assert error["rule"] == f"launch supports only {known} for models of the type {kind}"


def test_the_loss_of_a_decoders_router_is_left_out_and_matters() -> None:
    config = {"model_type": "olmoe", "output_router_logits": True}
    assert that_matters(config) == ["output_router_logits"]
    assert "output_router_logits" not in _kept(config)["extra"]


def test_a_pattern_of_windows_in_letters_is_left_to_the_kinds_of_layers() -> None:
    config: dict[str, Any] = {"model_type": "exaone4", "num_hidden_layers": 4, "sliding_window_pattern": "LLLG"}
    [error] = errors_of(json.dumps(config))
    assert error["way_out"] == ['write "sliding_window_pattern": 4 into the file']
    config["layer_types"] = ["sliding_attention"] * 3 + ["full_attention"]
    assert _kept(config)["extra"] == {"layer_types": config["layer_types"]}
    assert read(json.dumps(config), "config.json").default == ("sliding_window_pattern",)


def test_an_error_says_an_before_a_vowel() -> None:
    [error] = errors_of(json.dumps({"model_type": "opt", "vocab_size": 0}))
    assert error["rule"] == "an opt config.json needs an integer of at least 1"


def test_a_mixture_without_experts_is_told_what_to_write() -> None:
    [error] = errors_of(json.dumps({"model_type": "qwen3_moe", "num_hidden_layers": 1, "mlp_only_layers": [0]}))
    assert error["way_out"] == ['write "model_type": "qwen3" into the file']


def test_layers_without_a_window_are_left_out_once_and_without_contradiction() -> None:
    kinds = ["full_attention"] * 2 + ["sliding_attention"] * 2
    config = QWEN3_32B | {"num_hidden_layers": 4, "max_window_layers": 2, "sliding_window": 64}
    config |= {"use_sliding_window": True, "layer_types": kinds}
    assert "model.sliding_window=64" in _overrides(config)
    assert left_out(config)["layer_types"] == ("the layers without a window use the window here as well", True)
    assert that_matters(config) == ["layer_types"]
    assert that_matters(config | {"layer_types": kinds[2:] * 2}) == []
    assert that_matters(config | {"sliding_window": config["max_position_embeddings"]}) == []
    none = config | {"layer_types": kinds[:2] * 2}
    assert that_matters(none) == []
    assert not [word for word in _overrides(none) if "window" in word]


def test_gemma_has_the_activation_that_its_class_puts_in_place_of_gelu() -> None:
    found = _kept({"model_type": "gemma", "hidden_act": "gelu"})
    assert found == _kept({"model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"})
    assert found["extra"] == {"hidden_act": "gelu_pytorch_tanh"}
    effect = "no effect: transformers' class replaces it with gelu_pytorch_tanh"
    assert left_out({"model_type": "gemma", "hidden_act": "gelu"})["hidden_act"] == (effect, False)
