"""Layers of classes that are no plain decoders, run without values."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch", reason="observing needs the extra 'fsdp'")

from launcher.worker.observe import structure
from launcher.worker.observe.__main__ import observe

DBRX: dict[str, Any] = {
    "model_type": "dbrx", "d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512, "vocab_size": 100,
    "attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
}  # fmt: skip
"""Its experts run in a loop over those that a token has met."""

GEMMA3N: dict[str, Any] = {
    "model_type": "gemma3n_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "vocab_size_per_layer_input": 100,
    "hidden_size_per_layer_input": 16, "laurel_rank": 8, "num_kv_shared_layers": 2, "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "activation_sparsity_pattern": [0.0] * 4,
}  # fmt: skip
"""Its last layers read the keys and values of earlier ones."""


_SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 6}

PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "longcat_flash": ({"num_layers": 2, "n_routed_experts": 4, "expert_ffn_hidden_size": 32}, ""),
    "zamba": ({"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4}, ""),
    "cpmant": ({"dim_ff": 96, "dim_head": 16}, "its layers are in cpmant.encoder.layers"),
}


@pytest.mark.parametrize("kind", PLACES)
def test_each_parameter_is_counted_once_wherever_the_layers_stand(kind: str) -> None:
    own, why = PLACES[kind]
    found = structure.structure(structure.configuration({"model_type": kind, **_SMALL, **own}))
    counted = structure.weights(found)
    parts = (counted["before"], counted["after"], *(counted["kinds"][name] for name in found.layers))
    assert sum(math.prod(shape) for part in parts for shape in part.values()) == found.model.num_parameters()
    assert (why in found.why, bool(found.why)) == (True, bool(why))


HUNYUAN = {"model_type": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": [2, 2], "moe_intermediate_size": [48, 48]}


@pytest.mark.parametrize(("content", "experts"), [(DBRX, (4, 2, 96)), (HUNYUAN, (4, 2, 48))], ids=["dbrx", "hunyuan"])
def test_sizes_of_experts_are_read_where_a_class_has_them(
    content: dict[str, Any], experts: tuple[int, int, int]
) -> None:
    """DBRX has them in a configuration of its own, Hunyuan one for each layer."""
    found = structure.sizes(structure.configuration({**_SMALL, **content}))
    assert tuple(found[key] for key in ("num_experts", "num_experts_per_tok", "moe_intermediate_size")) == experts


@pytest.mark.thorough
@pytest.mark.parametrize("content", [DBRX, GEMMA3N], ids=["dbrx", "gemma3n_text"])
def test_layers_that_ask_for_values_or_for_other_layers_are_run_all_the_same(content: dict[str, Any]) -> None:
    found = observe(content)
    assert "why" not in found or "passes" in found
    saved = [seen["bf16"]["saved"][0] for seen in found["passes"].values()]
    assert min(saved) > 2 * 2 * 64
    forms = [form for seen in found["passes"].values() for form in seen.values()]
    assert all(form["saved"][0] > form["adapted"][0] > form["frozen"][0] for form in forms)
