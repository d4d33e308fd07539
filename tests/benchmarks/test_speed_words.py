"""Words of the measured files as overrides, and the tables of frameworks, models and GPUs."""

from __future__ import annotations

from dataclasses import fields

import pytest

from benchmarks.speed import frameworks
from benchmarks.speed.cards import network_bandwidth
from benchmarks.speed.models import model_words
from benchmarks.speed.stand_in import StandIn
from benchmarks.speed.words import LeftOutError, precision, recompute, sharding
from launcher.base import registry
from launcher.estimate.rank.engine import Execution
from tests.support.measured_speed import LINE


@pytest.mark.parametrize(
    ("word", "stage"),
    [
        ("0", 0),
        ("ZeRO-1", 1),
        ("distributed optimizer (ZeRO-1)", 1),
        ("sharding stage 2 over 4", 2),
        ("FSDP SHARD_GRAD_OP (ZeRO-2)", 2),
        ("FSDP FULL_SHARD (ZeRO-3)", 3),
        ("Megatron-FSDP", 3),
    ],
)
def test_a_word_for_sharding_is_a_stage(word: str, stage: int) -> None:
    assert sharding(word, 16) == {"zero.stage": stage}


def test_states_sharded_within_a_group_are_replicated_over_the_groups() -> None:
    assert sharding("ZeRO-1 within 8 ranks", 64) == {"zero.stage": 1, "parallel.replicate": 8}
    assert sharding("ZeRO-1 within 8 ranks", 8) == {"zero.stage": 1}
    assert sharding("FSDP within 128, replicated outside", 256) == {"zero.stage": 3, "parallel.replicate": 2}


def test_offloading_is_read_from_the_word_for_sharding() -> None:
    found = sharding("ZeRO-3, optimizer offload Y, parameter offload N", 4)
    assert found == {"zero.stage": 3, "zero.offload_optimizer": "cpu"}
    assert sharding("ZeRO-3 with full offload", 4)["zero.offload_parameters"] == "cpu"


@pytest.mark.parametrize("word", ["", "ZeRO-2 or 3", "FSDP + DP"])
def test_sharding_that_is_not_certain_leaves_a_row_out(word: str) -> None:
    with pytest.raises(LeftOutError):
        sharding(word, 8)


def test_a_word_for_recomputation_is_a_mode_and_its_modules() -> None:
    assert recompute("none", 1) == {"checkpointing.mode": "none"}
    assert recompute("selective (core attention)", 1)["checkpointing.modules"] == "[core_attn]"
    assert recompute("norm, act", 1)["checkpointing.modules"] == "[layernorm,moe_act]"
    assert recompute("full on 10 layers", 2)["checkpointing.layers"] == 5
    assert recompute("op", 1) == {"checkpointing.mode": "selective"}


@pytest.mark.parametrize("word", ["", "best effort"])
def test_recomputation_that_is_not_certain_leaves_a_row_out(word: str) -> None:
    with pytest.raises(LeftOutError):
        recompute(word, 1)


def test_a_precision_without_a_model_leaves_a_row_out() -> None:
    assert precision("mxfp8") == ("precision=fp8", "precision.recipe=mxfp8")
    assert precision("nvfp4") == ("precision=nvfp4",)
    with pytest.raises(LeftOutError, match="int4"):
        precision("int4")
    with pytest.raises(LeftOutError, match="not stated"):
        precision("")


def test_a_model_takes_its_blocks_from_its_name_and_its_sizes_from_the_row() -> None:
    preset, settings = model_words(LINE)
    assert (preset, settings["model.hidden_size"], settings["model.head_dim"]) == ("llama3_8b", "4096", "null")
    preset, settings = model_words(LINE | {"model": "GPT 1.3B", "kv_heads": "", "ffn": ""})
    assert (preset, settings["model.intermediate_size"]) == ("gpt3_175b", 4 * 4096)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "Something-9B"}, "nothing is known"),
        ({"model": "Nemotron-H-8B (hybrid)"}, "hybrid"),
        ({"hidden": ""}, "shape"),
        ({"kv_heads": ""}, "shape"),
        ({"ffn": ""}, "shape"),
    ],
)
def test_a_model_whose_blocks_are_not_known_leaves_a_row_out(change: dict[str, str], reason: str) -> None:
    with pytest.raises(LeftOutError, match=reason):
        model_words(LINE | change)


def test_a_stated_network_is_the_share_of_one_gpu() -> None:
    assert network_bandwidth("1600 Gb/s per node RoCE", 8) == 1600e9 / 8 / 8
    assert network_bandwidth("4 x 100 Gb RoCE", 8) == 4 * 100e9 / 8 / 8
    assert network_bandwidth("NVLink, one node", 8) is None


@pytest.mark.parametrize(("gpus", "share"), [(4, 12.5e9), (8, 6.25e9)])
def test_the_four_links_of_a_node_of_jean_zay_are_shared_by_its_gpus(gpus: int, share: float) -> None:
    assert network_bandwidth("Jean Zay: Omni-Path", gpus) == share


def test_a_framework_is_a_name_without_its_release() -> None:
    found = {frameworks.find(word, "any") for word in ("Megatron-Core r0.8.0", "Megatron-LM 23e00ed0")}
    assert {one.name for one in found if one is not None} == {"Megatron-Core"}
    assert frameworks.find("MindSpeed-LLM", "any") is None


def test_features_that_were_chosen_on_scored_rows_are_marked_and_can_be_left_out() -> None:
    default = Execution(framework="")
    for framework in frameworks.table():
        chosen = {name for name, source in framework.sources.items() if "chosen on" in source}
        assert chosen == set(framework.fitted), framework.name
        backend = StandIn(
            base=registry.load("backends", framework.engine), executes=framework.execution, fitted=framework.fitted
        )
        plain = backend.without_fitted().executes
        assert all(getattr(plain, name) == getattr(default, name) for name in framework.fitted)
        assert plain.fused_norm == framework.execution.fused_norm
    assert sum(bool(framework.fitted) for framework in frameworks.table()) == 3


def test_no_source_is_provisional() -> None:
    assert not any("provisional" in text for one in frameworks.table() for text in one.sources.values())


def test_every_feature_and_every_meaning_of_a_blank_has_a_source() -> None:
    assert frameworks.table()
    default = Execution(framework="")
    for framework in frameworks.table():
        said = {one.name for one in fields(Execution) if one.name not in ("framework", "related")}
        unlike = {name for name in said if getattr(framework.execution, name) != getattr(default, name)}
        needed = unlike | set(framework.blank) | set(framework.settings)
        assert needed <= set(framework.sources), (framework.name, framework.matches)
