"""Sizes of a ``config.json`` by the words of other programs: refused, left out, or said once more."""

from __future__ import annotations

import json

import pytest

from launcher.config.hub import keys as hugging_face_keys
from launcher.estimate import families
from launcher.importers.hf import read
from tests.support.foreign_files import LLAMA3_8B
from tests.support.model_files import left_out, model_of, refused, that_matters

ESTIMATORS = {"model_type": "opt", "num_layers": 64, "hidden_dim": 9216, "ffn_embed_dim": 36864, "n_head": 72}


def test_a_model_in_another_programs_words_is_no_import_of_the_classes_default_sizes() -> None:
    [first, *_] = read(json.dumps(ESTIMATORS), "config.json").errors
    assert first.path == "config.json: num_layers"
    assert "of opt does not read it but num_hidden_layers, and would use its default" in first.rule
    assert refused(ESTIMATORS) == {
        "num_layers": "rename it to num_hidden_layers in the file",
        "hidden_dim": "rename it to hidden_size in the file",
        "ffn_embed_dim": "rename it to ffn_dim in the file",
        "n_head": "rename it to num_attention_heads in the file",
    }
    assert refused({"model_type": "gpt2", "nLayers": 48}) == {"nLayers": "rename it to n_layer in the file"}
    written = {"hidden_size": 9216, "num_attention_heads": 72, "num_hidden_layers": 64}
    assert refused({"model_type": "opt", **written, "hidden_dim": 36864}) == {
        "hidden_dim": "rename it to ffn_dim in the file"
    }


@pytest.mark.parametrize("kind", [*families.classes()["classes"]])
def test_a_word_for_a_size_that_a_class_does_not_read_is_never_without_effect(kind: str) -> None:
    size = 999_983  # A prime, so that it is the value of nothing else.
    learned = model_of({"model_type": kind})["position_embedding"] == "learned"
    words = {
        word: setting
        for setting, words in hugging_face_keys.SIZES.items()
        for word in words.split()
        if setting != "max_position_embeddings" or learned
    }
    found = 0
    for word, setting in words.items():
        document = {"model_type": kind, word: size}
        if word in refused(document):
            found += 1
            continue
        left = {left.key: left for left in read(json.dumps(document), "c.json").left_out}
        if word in left and "made from the latent" not in left[word].effect:
            found += 1
            assert left[word].matters, word
            assert f"set model.{setting}" in left[word].effect or word == "hidden_dim"
    assert found > 20


def test_a_second_word_for_a_size_that_says_the_same_has_no_effect() -> None:
    same = {"n_layers": 32, "dim": 4096, "hidden_dim": 14336, "n_kv_heads": 8, "d_head": 128, "num_experts": 1}
    left = left_out(LLAMA3_8B | same)
    assert that_matters(LLAMA3_8B | same) == []
    assert left["n_layers"] == ("no effect: num_hidden_layers says the same", False)
    assert that_matters(LLAMA3_8B | {"n_layers": 33, "num_experts": 8}) == ["n_layers", "num_experts"]


def test_a_size_that_the_class_reads_and_the_file_leaves_out_is_named_by_the_class_s_word() -> None:
    sizes = {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1024}
    config = {"model_type": "llama", "vocab_size": 1000, **sizes}
    assert refused(config | {"kv_heads": 2}) == {"kv_heads": "rename it to num_key_value_heads in the file"}
    assert "the class has no such size" in left_out({"model_type": "gpt2", "kv_heads": 2})["kv_heads"][0]


def test_a_second_name_that_the_class_takes_is_read_and_stronger_than_the_first() -> None:
    names = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": 32}
    model = model_of({"model_type": "gpt2", **names})
    assert {key: model[key] for key in names} == names
    assert model["intermediate_size"] == 256
    both = {"model_type": "gpt2", "n_layer": 12, "num_hidden_layers": 3}
    assert (model_of(both)["num_hidden_layers"], that_matters(both)) == (3, ["n_layer"])
    assert that_matters({**both, "n_layer": 3}) == []
    biased = model_of({"model_type": "internlm3", "qkv_bias": True, "bias": True})
    assert (biased["attention_bias"], biased["mlp_bias"], biased["vocab_size"]) == (True, True, 128512)


@pytest.mark.parametrize(("kind", "family"), [("internlm3", "llama"), ("iquestcoder", "llama"), ("gpt-sw3", "gpt")])
def test_types_that_are_trained_by_the_class_of_another_are_of_its_family(kind: str, family: str) -> None:
    assert model_of({"model_type": kind, "num_hidden_layers": 2})["family"] == family
