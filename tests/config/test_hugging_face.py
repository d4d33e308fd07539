"""Models by their config.json against the classes of transformers on the meta device, and the table of defaults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.base import registry
from launcher.config.hub import keys
from launcher.config.hub import reading as hugging_face
from launcher.estimate import families
from launcher.estimate.rank.counts import parameter_counts
from tests.support import class_defaults
from tests.support.helpers import make_spec

PUBLISHED: dict[str, dict[str, Any]] = {
    "Mistral-7B-v0.3": {"model_type": "mistral", "vocab_size": 32768, "sliding_window": None},
    "Mistral-Nemo": {"model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40, "head_dim": 128},
    "Qwen2.5-0.5B": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "Qwen3-0.6B": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "Qwen3-235B-A22B": {
        "model_type": "qwen3_moe",
        "head_dim": 128,
        "hidden_size": 4096,
        "moe_intermediate_size": 1536,
        "num_attention_heads": 64,
        "num_hidden_layers": 94,
    },
    "GLM-4.5": {
        "model_type": "glm4_moe",
        "attention_bias": True,
        "first_k_dense_replace": 3,
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "num_hidden_layers": 92,
        "use_qk_norm": True,
    },
    "Moonlight-16B-A3B": {
        "model_type": "deepseek_v3",
        "first_k_dense_replace": 1,
        "hidden_size": 2048,
        "intermediate_size": 11264,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "q_lora_rank": None,
        "topk_group": 1,
        "vocab_size": 163840,
    },
    "all biases of Llama": {"model_type": "llama", "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
    "a dense layer of Qwen3-MoE": {"model_type": "qwen3_moe", "mlp_only_layers": [0], "attention_bias": True},
}
"""Sizes in which published models differ from their class, and biases."""

_LAYERS = 5
"""More than the first dense ones of any of them."""

DEFAULTS = {
    kind: {"model_type": kind}
    for kind in families.classes()["classes"]
    if kind not in (*registry.load("families", "transformers").traits.model_types, *keys.TEXT_MODELS)
}
"""The types of the families that are described by hand; tests/families/test_decoders.py has those of transformers."""


@pytest.mark.parametrize("config", [*DEFAULTS.values(), *PUBLISHED.values()], ids=[*DEFAULTS, *PUBLISHED])
def test_a_config_has_the_parameters_of_its_class(config: dict[str, Any]) -> None:
    """With few layers, of which all further ones are copies; tests/families has totals of whole models."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = config | {"n_layer" if config["model_type"] == "gpt2" else "num_hidden_layers": _LAYERS}
    spec = make_spec(*hugging_face.read(json.dumps(config), "config.json").imported.overrides)
    family = families.of(spec.model)
    assert list(family.not_computed(spec)) == [] or spec.model.sliding_window is not None
    kwargs = {key: value for key, value in config.items() if key != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **kwargs)
    ours = family.transformers_config(spec.model)
    assert ours is not None
    built = getattr(transformers, ours.name)(**ours.settings)
    counted = []
    for settings in (made, built):
        with torch.device("meta"):
            network = transformers.AutoModelForCausalLM.from_config(settings)
        counted.append(sum(weight.numel() for weight in network.parameters()))
    assert counted == [parameter_counts(spec, family)[0]] * 2


def test_the_table_of_defaults_is_that_of_the_installed_classes() -> None:
    transformers = pytest.importorskip("transformers")
    if transformers.__version__ != families.classes()["version"]:
        pytest.skip(f"the table is of transformers {families.classes()['version']}")
    assert class_defaults.text() == class_defaults.FILE.read_text()


def test_a_way_out_of_a_class_says_what_it_changes() -> None:
    spec = make_spec("model=qwen3_8b", "model.mlp_bias=true")
    [error] = families.of(spec.model).not_computed(spec)
    assert error.rule == "no class of transformers combines biases of the MLP with norms of heads (model.qk_norm)"
    assert [*error.way_out] == ["script=path/to/train.py"]


def test_sequences_longer_than_a_window_are_refused_and_the_reason_says_what_null_trains() -> None:
    spec = make_spec("model=llama3_8b", "model.sliding_window=512", "train.sequence_length=1024")
    [error] = families.of(spec.model).not_computed(spec)
    assert "null trains a different model than the one described" in error.rule
    assert [*error.way_out] == ["train.sequence_length=512", "model.sliding_window=null"]
    short = make_spec("model=llama3_8b", "model.sliding_window=512", "train.sequence_length=512")
    assert list(families.of(short.model).not_computed(short)) == []
