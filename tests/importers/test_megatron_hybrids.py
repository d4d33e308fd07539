"""Hybrids of Megatron-core: layers by letters, read from an argument list and written into one again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from launcher.backends.megatron.translate import argument_list
from launcher.estimate import families
from launcher.estimate.rank.counts import parameter_counts
from launcher.importers import Imported, megatron, megatron_bridge
from launcher.preflight import findings
from launcher.spec import RunSpec
from tests.support.helpers import make_spec

LIST: dict[str, Any] = {
    "--hidden-size": 256, "--ffn-hidden-size": 512, "--num-attention-heads": 4, "--group-query-attention": True,
    "--num-query-groups": 2, "--kv-channels": 64, "--mamba-num-heads": 8, "--mamba-head-dim": 64,
    "--normalization": "RMSNorm", "--squared-relu": True, "--disable-bias-linear": True,
    "--untie-embeddings-and-output-weights": True, "--position-embedding-type": "none", "--hidden-dropout": 0.0,
    "--attention-dropout": 0.0, "--seq-length": 512, "--max-position-embeddings": 512, "--micro-batch-size": 1,
    "--global-batch-size": 8, "--train-iters": 10, "--lr": 1e-4, "--bf16": True, "--vocab-size": 1000,
    "--mock-data": True, "--tokenizer-type": "NullTokenizer", "--use-distributed-optimizer": True,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "--num-experts": 8, "--moe-router-topk": 2, "--moe-ffn-hidden-size": 128, "--moe-grouped-gemm": True,
    "--moe-shared-expert-intermediate-size": 384,
}  # fmt: skip


def read(pattern: str, **more: Any) -> Imported:
    return megatron.read(json.dumps({**LIST, "--hybrid-layer-pattern": pattern, **more}), "list.json")


def spec_of(found: Imported) -> RunSpec:
    assert not found.errors
    return make_spec(*found.overrides, "hardware=h100_80g", "cluster.gpus_per_node=4")


def written(spec: RunSpec, name: str) -> str:
    words = argument_list(spec)
    return words[words.index(f"--{name}") + 1]


@pytest.mark.parametrize(
    ("pattern", "more"),
    [
        ("M-M*-", {}),
        ("M-M*|-M-M", {"--pipeline-model-parallel-size": 2}),
        ("MEM*E/*E/*E", EXPERTS | {"--mtp-num-layers": 2}),
    ],
)
def test_a_pattern_comes_back_as_it_was_and_nothing_refuses_it(pattern: str, more: dict[str, Any]) -> None:
    spec = spec_of(read(pattern, **more))
    assert written(spec, "hybrid-layer-pattern") == pattern
    assert "--num-layers" not in argument_list(spec)
    assert not findings.errors(spec)


def test_shares_of_layers_beside_a_pattern_say_nothing_more() -> None:
    found = read("M-M*-", **{"--hybrid-attention-ratio": 0.2, "--hybrid-mlp-ratio": 0.4})
    assert [left.key for left in found.left_out if left.matters] == []


def test_chunks_end_where_the_pattern_says() -> None:
    spec = spec_of(read("M-M*-|M*|M-|M", **{"--pipeline-model-parallel-size": 2}))
    assert spec.parallel.layout == ("Ettttt", "tt", "tt", "tL")
    assert (spec.parallel.virtual_pipeline, spec.model.num_hidden_layers) == (2, 10)


@pytest.mark.parametrize("pattern", ["M-G*", "MD", "M+-", "MxM", "M/*E/E"])
def test_letters_without_a_formula_are_refused_by_name(pattern: str) -> None:
    [error] = [error for error in read(pattern).errors if "hybrid-layer-pattern" in str(error.path)][:1]
    assert pattern in str(error.found)


def test_a_hybrid_has_the_parameters_of_nemotron_h() -> None:
    """The same layers by Megatron-core's modules and by those of transformers."""
    ours = spec_of(read("ME*-ME", **EXPERTS)).model
    theirs = make_spec(
        *("model=tiny", "model.family=transformers", "model.model_type=nemotron_h", "model.num_hidden_layers=6"),
        *("model.hidden_size=256", "model.intermediate_size=512", "model.num_attention_heads=4", "model.head_dim=64"),
        *("model.num_key_value_heads=2", "model.vocab_size=1000", "model.hidden_act=squared_relu"),
        *("model.num_experts=8", "model.num_experts_per_tok=2", "model.moe_intermediate_size=128"),
        *("model.position_embedding=none", "model.tie_word_embeddings=false", "model.max_position_embeddings=512"),
        "model.extra={hybrid_override_pattern:'ME*-ME',mamba_num_heads:8,mamba_head_dim:64,ssm_state_size:128,"
        "n_groups:8,conv_kernel:4,moe_shared_expert_intermediate_size:384}",
    )
    own = make_spec(*read("ME*-ME", **EXPERTS).overrides, "hardware=h100_80g")
    assert own.model == ours
    assert parameter_counts(own, families.of(ours)) == parameter_counts(theirs, families.of(theirs.model))


def test_one_layer_for_all_depths_is_counted_once() -> None:
    def total(**more: Any) -> int:
        spec = spec_of(read("MEM*E/*E/*E", **EXPERTS, **more))
        return parameter_counts(spec, families.of(spec.model))[0]

    depth = total(**{"--mtp-num-layers": 2}) - total(**{"--mtp-num-layers": 2, "--mtp-use-repeated-layer": True})
    without = spec_of(read("MEM*E", **EXPERTS))
    alone = parameter_counts(without, families.of(without.model))[0]
    assert total(**{"--mtp-num-layers": 2}) == alone + 2 * depth


def test_a_hybrid_is_no_run_for_cpus_nor_for_classes_of_transformers() -> None:
    found = read("M-M*-").overrides
    cpu = [error.path for error in findings.errors(make_spec(*found, "hardware=cpu", "cluster.gpus_per_node=2"))]
    assert "model.family" in cpu
    other = [*(word for word in found if not word.startswith(("parallel", "zero"))), "parallel=fsdp"]
    assert [error.path for error in findings.errors(make_spec(*other, "hardware=h100_80g"))]


RECIPE = """
def one():
    cfg = BASE()
    cfg.model = HybridModelProvider(
        hybrid_layer_pattern="M-M*-", num_layers=5, hidden_size=256, ffn_hidden_size=512, num_attention_heads=4,
        num_query_groups=2, kv_channels=64, mamba_num_heads=8, mamba_head_dim=64, make_vocab_size_divisible_by=128,
        activation_func=squared_relu, is_hybrid_model=True, moe_grouped_gemm=True, seq_length=512,
    )
    cfg.tokenizer.tokenizer_type = "NullTokenizer"
    cfg.tokenizer.vocab_size = 1000
    cfg.train.train_iters = 1000
    return cfg
"""


def test_a_hybrid_of_megatron_bridges_is_the_one_of_an_argument_list() -> None:
    found = megatron_bridge.read(RECIPE.replace("BASE", "_pretrain_common"), "own.py")
    assert [left.key for left in found.left_out if left.matters] == []
    own, list_ = (replace(spec_of(each).model, name="", source="", attention="sdpa") for each in (found, read("M-M*-")))
    assert own == list_
    assert not findings.errors(spec_of(found))


def test_a_hybrid_of_megatron_bridges_has_experts_as_an_argument_list_says_them() -> None:
    sizes = "num_moe_experts=8, moe_router_topk=2, moe_ffn_hidden_size=128, moe_shared_expert_intermediate_size=384, "
    text = (
        RECIPE.replace("BASE", "_pretrain_common").replace("M-M*-", "MEM*E").replace("seq_length", sizes + "seq_length")
    )
    found, list_ = megatron_bridge.read(text, "own.py"), read("MEM*E", **EXPERTS)
    assert [left.key for left in found.left_out if left.matters] == []
    own, other = (replace(spec_of(each).model, name="", source="", attention="sdpa") for each in (found, list_))
    assert own == other
    assert not findings.errors(spec_of(found))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("BASE", "_peft_common", "recipe"),
        ("M-M*-", "M-MG-", "model.hybrid_layer_pattern"),
    ],
)
def test_a_hybrid_of_megatron_bridges_that_is_not_counted_here_is_refused_by_its_key(
    old: str, new: str, key: str
) -> None:
    found = megatron_bridge.read(RECIPE.replace(old, new).replace("BASE", "_pretrain_common"), "own.py")
    assert key in [left.key for left in found.left_out if left.matters]


@pytest.mark.parametrize("word", ["mamba_chunk_size=256", "use_mamba_mem_eff_path=False"])
def test_the_same_scan_by_another_kernel_is_said_and_keeps_nobody_from_importing(word: str) -> None:
    text = RECIPE.replace("BASE", "_pretrain_common").replace("is_hybrid_model", f"{word}, is_hybrid_model")
    found = megatron_bridge.read(text, "own.py")
    [(effect, matters)] = [
        (left.effect, left.matters) for left in found.left_out if left.key == f"model.{word.split('=')[0]}"
    ]
    assert "same scan" in effect
    assert not matters


def test_an_adapter_beside_a_hybrid_trains_on_the_model_of_the_hub_that_its_tokenizer_names() -> None:
    text = RECIPE.replace("BASE", "_peft_common").replace(
        '"NullTokenizer"', '"HuggingFaceTokenizer"\n    cfg.tokenizer.tokenizer_model = "nvidia/Nemotron-H-8B-Base-8K"'
    )
    found = megatron_bridge.read(text, "own.py")
    assert [left.key for left in found.left_out if left.matters] == []
    assert {"model=nvidia/Nemotron-H-8B-Base-8K", "adapter=lora", "parallel=ddp"} <= set(found.overrides)
    assert not any(word.startswith(("model.hidden_size", "model.extra")) for word in found.overrides)
    assert any("sizes are taken to be the recipe's" in note for note in found.not_understood)
