"""A ``config.json`` that is no model here is refused by what it is, with all of its wrong values at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.base.errors import ConfigErrors
from launcher.config.hub import reading as hugging_face
from launcher.importers.hf import read
from tests.support.foreign_files import LLAMA3_8B
from tests.support.model_files import errors_of, left_out, model_of, refused, that_matters

BY_HAND = (
    "model=custom model.family=... model.num_hidden_layers=... model.hidden_size=... model.intermediate_size=..."
    " model.num_attention_heads=... model.vocab_size=..."
)


def _raised(text: str) -> list[dict[str, object]]:
    with pytest.raises(ConfigErrors) as caught:
        read(text, "models/config.json")
    return [error.as_dict() for error in caught.value.errors]


def test_a_file_that_is_not_json_is_an_error_with_its_path() -> None:
    [error] = _raised("hidden_size: 4096")
    assert error["path"] == "models/config.json"
    assert error["rule"] == "a config.json must be valid JSON: Expecting value: line 1 column 1 (char 0)"
    [error] = _raised("[1, 2]")
    assert (error["found"], error["rule"]) == ("[1, 2]", "a config.json must be one JSON object: {...}")


@pytest.mark.parametrize("kind", [["llama"], {"llama": 1}, 3, None])
def test_a_model_type_that_is_no_word_is_an_error(kind: object) -> None:
    [error] = errors_of(json.dumps(LLAMA3_8B | {"model_type": kind}))
    assert error["path"] == "models/config.json: model_type"


def test_an_unknown_model_type_is_named_by_what_is_known_of_it_and_not_by_its_spelling() -> None:
    [error] = errors_of(json.dumps({"model_type": "xlnet", "d_model": 256}))
    assert str(error["rule"]).startswith("no model family reads it, so its memory is unknown: transformers 5")
    assert "has XLNetLMHeadModel for it" in str(error["rule"])
    assert error["way_out"] == [
        "script=path/to/train.py without model=",
        BY_HAND.replace("hidden_size=...", "hidden_size=256"),
    ]
    [error] = errors_of(json.dumps({"model_type": "lama", "hidden_size": 256}))
    assert "has no language model of this type" in str(error["rule"])
    assert not [way for way in error["way_out"] if "llama" in way]  # type: ignore[attr-defined]


def test_architectures_may_name_the_class_of_a_known_model_type() -> None:
    [error] = errors_of(json.dumps(LLAMA3_8B | {"model_type": "acme"}))
    assert error["rule"] == (
        "no model family reads it, but architectures names LlamaForCausalLM, the class of another model_type"
    )
    assert 'write "model_type": "llama" into the file' in error["way_out"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "bert"}, "this is an encoder, which predicts masked words"),
        ({"model_type": "t5"}, "this is an encoder-decoder"),
        (
            {"model_type": "mllama"},
            "this is a model of text and images, and launch trains only language models of text",
        ),
        (
            {"model_type": "whisper"},
            "this is a model of text and sound, and launch trains only language models of text",
        ),
        (
            {"model_type": "acme", "audio_config": {"a": 1}},
            "this is a model of text and sound, and launch trains only language",
        ),
    ],
)
def test_what_is_no_language_model_is_refused_by_its_kind(config: dict[str, Any], said: str) -> None:
    [error] = errors_of(json.dumps(config))
    assert str(error["rule"]).startswith(said)


def test_the_language_model_of_a_model_of_images_is_read_and_the_rest_is_left_out() -> None:
    document = {"model_type": "llava", "text_config": LLAMA3_8B, "vision_config": {"hidden_size": 64}, "image_id": 7}
    found = hugging_face.read(json.dumps(document), "config.json")
    assert not found.errors
    plain = model_of(LLAMA3_8B)
    assert {key: found.model[key] for key in plain if key not in ("name", "source")} == {
        key: plain[key] for key in plain if key not in ("name", "source")
    }
    effect = "only the language model of text_config is trained, without the encoders of images or sound"
    left = {left.key: (left.effect, left.matters) for left in found.imported.left_out}
    assert left["vision_config.hidden_size"] == left["image_id"] == (effect, False)


IMAGES = {"vision_config": {"depth": 2}, "image_token_id": 7, "architectures": ["AcmeForConditionalGeneration"]}
SIZES = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
MROPE = {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}


@pytest.mark.parametrize(
    "document",
    [
        {"model_type": "qwen2_vl", **IMAGES, **MROPE, "hidden_size": 3584},
        {"model_type": "qwen2_5_vl", **IMAGES, "text_config": {"model_type": "qwen2_vl_text", **MROPE}},
        {
            "model_type": "acme",
            "thinker_config": {"model_type": "b", **IMAGES, "text_config": {"model_type": "qwen2_5_vl_text"}},
        },
        {"model_type": "llava_llama", "mm_vision_tower": "clip", **SIZES, "mm_hidden_size": 1024},
        {"model_type": "llava_qwen", "mm_vision_tower": "clip", "llm_cfg": {"model_type": "qwen2", "hidden_size": 896}},
        {"model_type": "hunyuan_vl", **IMAGES, "hidden_size": 1024, "head_dim": 128},
        {"model_type": "paddleocr_vl", **IMAGES, "auto_map": {"AutoModel": "m.P"}, "hidden_size": 1024, "odd": 1},
        {"model_type": "phi3_v", "img_processor": {"name": "clip"}, "embd_layer": {"a": 1}, **SIZES},
    ],
    ids=lambda document: document["model_type"],
)
def test_a_language_model_among_the_keys_of_one_of_images_is_read_as_the_type_whose_layers_it_has(
    document: dict[str, Any],
) -> None:
    found = hugging_face.read(json.dumps(document), "config.json", weights="folder")
    assert (found.errors, that_matters(document)) == ((), [])
    assert found.model["family"] in ("llama", "transformers")
    assert found.within
    assert "weights" not in found.model
    assert "rope_parameters" not in found.model or found.model["family"] == "transformers"
    if document["model_type"].startswith("qwen"):
        assert (found.model["attention_bias"], found.model["vocab_size"]) == (True, 152064)


INSIDE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gemma3": ({"text_config": {"num_hidden_layers": 6}}, {"model_type": "gemma3_text", "vocab_size": 262208}),
    "llava": ({"text_config": {"vocab_size": 32064}}, {"family": "llama", "vocab_size": 32064, "hidden_size": 4096}),
    "paligemma": (
        {"text_config": {"model_type": "gemma", "use_bidirectional_attention": True}},
        {"model_type": "gemma"},
    ),
    "blip-2": (
        {"text_config": {"model_type": "opt", "dropout": 0.1}, "tie_word_embeddings": False},
        {"model_type": "opt", "tie_word_embeddings": True},
    ),
    "glm4v": (
        {"text_config": {"model_type": "glm4v_text", "num_attention_heads": 64}},
        {"model_type": "glm4", "head_dim": None, "num_attention_heads": 64},
    ),
    "glm_ocr": ({"text_config": {"model_type": "glm_ocr_text"}}, {"head_dim": None, "hidden_size": 1024}),
}
"""Keys of models of images, and what is read of their language model."""


@pytest.mark.parametrize("kind", INSIDE)
def test_a_language_model_inside_another_has_the_type_and_the_values_that_its_class_gives_it(kind: str) -> None:
    document = {"model_type": kind, **IMAGES, **INSIDE[kind][0]}
    assert (refused(document), that_matters(document)) == ({}, [])
    model = model_of(document)
    assert {key: model[key] for key in INSIDE[kind][1]} == INSIDE[kind][1]


def test_a_language_model_of_which_transformers_has_no_class_is_named() -> None:
    [error] = errors_of(json.dumps({"model_type": "molmo2", **IMAGES, "text_config": {"model_type": "molmo2_text"}}))
    assert str(error["rule"]).endswith("no causal LM class for its language model alone (molmo2_text)")


def test_sizes_that_another_programs_class_has_as_defaults_are_not_those_of_the_type_with_such_layers() -> None:
    document = {"model_type": "llava_llama", "mm_vision_tower": "clip", "hidden_size": 4096, "num_hidden_layers": 40}
    [error] = errors_of(json.dumps(document))
    assert error["way_out"] == ["name intermediate_size, num_attention_heads, vocab_size in the file"]
    assert model_of(document) == {}


@pytest.mark.parametrize("tied", [False, True])
def test_the_whole_models_key_ties_the_head_where_the_language_models_own_does_not_say(tied: bool) -> None:
    for inner, expected in (({}, tied), ({"tie_word_embeddings": not tied}, not tied)):
        text = {"model_type": "qwen3_vl_moe_text", "num_hidden_layers": 2, **inner}
        document = {"model_type": "qwen3_vl_moe", **IMAGES, "text_config": text, "tie_word_embeddings": tied}
        assert model_of(document)["tie_word_embeddings"] is expected
        assert that_matters(document) == []


def test_sizes_of_a_part_that_its_class_does_not_read_are_none_of_the_decoders() -> None:
    part = {"perceiver_config": {"num_key_value_heads": 1, "depth": 3}}
    assert that_matters(LLAMA3_8B | part) == []
    assert that_matters(LLAMA3_8B | {"n_layers": 3}) == ["n_layers"]


def test_a_type_without_experts_by_its_number_of_them_says_so() -> None:
    document = {"model_type": "granitemoehybrid", "num_local_experts": 0, "num_experts_per_tok": 0}
    none = ("no effect: no layer has experts", False)
    assert left_out(document) == {"num_local_experts": none, "num_experts_per_tok": none}


def test_the_by_hand_words_take_the_commonest_of_two_names_of_a_size() -> None:
    document = {"model_type": "hf_olmo", "embedding_size": 50304, "d_model": 4096, "nLayers": 3}
    [error] = errors_of(json.dumps(document))
    way = str(error["way_out"][-1])  # type: ignore[index]
    assert "model.num_hidden_layers=3 model.hidden_size=4096 " in way


def test_a_type_of_a_folders_own_code_is_refused_with_the_sizes_that_its_file_says() -> None:
    [error] = errors_of(json.dumps({"model_type": "xverse", "auto_map": {"AutoConfig": "a.B"}, "num_layers": 28}))
    assert str(error["rule"]).endswith(", and launch does not run the code in its folder")
    like, _, by_hand = map(str, error["way_out"])  # type: ignore[call-overload]
    assert like == 'write "model_type": "llama" into the file, whose layers are the same'
    assert by_hand.startswith("model=custom model.family=... model.num_hidden_layers=28 model.hidden_size=... ")


def test_all_wrong_values_come_at_once() -> None:
    errors = errors_of(json.dumps(LLAMA3_8B | {"vocab_size": "32000", "hidden_act": "tanh"}))
    assert [error["path"] for error in errors] == [
        "models/config.json: hidden_act",
        "models/config.json: vocab_size",
    ]
    assert errors[1]["found"] == "32000"
    assert errors[1]["rule"] == "a llama config.json needs an integer of at least 1"
    assert errors[0]["rule"] == (
        "no model family supports it; supported are silu, swish, gelu, gelu_python, gelu_new, gelu_fast,"
        " gelu_pytorch_tanh, relu, relu2"
    )


def test_values_of_the_wrong_kind_are_errors() -> None:
    errors = errors_of(json.dumps(LLAMA3_8B | {"tie_word_embeddings": "no", "rms_norm_eps": [1], "head_dim": 0}))
    assert [(error["path"], error["found"], error["rule"]) for error in errors] == [
        ("models/config.json: head_dim", 0, "a llama config.json needs an integer of at least 1"),
        ("models/config.json: tie_word_embeddings", "no", "must be true or false"),
        ("models/config.json: rms_norm_eps", [1], "must be a number"),
    ]
