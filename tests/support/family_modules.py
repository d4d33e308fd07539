"""Modules of ``transformers``, the overrides that describe them, and the bytes autograd keeps for a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

TOKENS = 64
SIZES = ("hidden_size=64", "intermediate_size=176", "num_attention_heads=4", "num_hidden_layers=2", "vocab_size=128")
LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 128,
    "attn_implementation": "sdpa",
    "use_cache": False,
}
GPT = ("family=gpt", "num_key_value_heads=null", "normalization=layernorm", "position_embedding=learned")
BIASES = ("attention_bias=true", "mlp_bias=true", "tie_word_embeddings=true", "max_position_embeddings=96")
LATENT = {"q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
EXPERTS = {"moe_intermediate_size": 48, "num_experts_per_tok": 2}


def _sized(*settings: str) -> tuple[str, ...]:
    return tuple(f"model.{setting}" for setting in (*SIZES, "num_key_value_heads=2", *settings))


def _plain(values: dict[str, int]) -> tuple[str, ...]:
    return tuple(f"{key}={value}" for key, value in values.items())


def _llama(**changes: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, **changes))


def _qwen3() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**LLAMA, head_dim=24))


def _qwen2() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**LLAMA))


def gpt2(dropout: float = 0.0) -> Any:
    """A small GPT-2 of transformers."""
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 64, "n_inner": 176, "n_head": 4, "n_layer": 2, "vocab_size": 128, "n_positions": 96}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**sizes, **dropouts, **tokens, attn_implementation="sdpa", use_cache=False)
    return transformers.GPT2LMHeadModel(config)


def _mixtral() -> Any:
    transformers = pytest.importorskip("transformers")
    changes = {"intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = transformers.MixtralConfig(**{**LLAMA, **changes}, experts_implementation="eager")
    return transformers.MixtralForCausalLM(config)


def _deepseek() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {**LLAMA, **LATENT, **EXPERTS, "num_key_value_heads": 4}
    router = {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
    config = transformers.DeepseekV3Config(**sizes, **router, experts_implementation="eager")
    return transformers.DeepseekV3ForCausalLM(config)


def _latent(name: str, **changes: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {**LLAMA, **LATENT, **EXPERTS, **ROUTER, "num_key_value_heads": 4, **changes}
    config = getattr(transformers, f"{name}Config")(**sizes, experts_implementation="eager")
    return getattr(transformers, f"{name}ForCausalLM")(config)


ROUTER = {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
GROUPED = ("num_experts=8", "num_shared_experts=1", "first_dense_layers=1", "n_group=2", "topk_group=1")


def _qwen3_moe() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {**LLAMA, **EXPERTS, "num_experts": 4, "norm_topk_prob": True, "head_dim": 24, "mlp_only_layers": [0]}
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, experts_implementation="eager"))


def _glm4_moe() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {**LLAMA, **EXPERTS, **ROUTER, "head_dim": 24, "use_qk_norm": True, "attention_bias": True}
    return transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**sizes, experts_implementation="eager"))


type Case = tuple[Callable[[], Any], tuple[str, ...]]

CASES: dict[str, Case] = {
    "llama": (_llama, _sized()),
    "llama with tied embeddings": (lambda: _llama(tie_word_embeddings=True), _sized("tie_word_embeddings=true")),
    "qwen2, biases of query, key and value": (_qwen2, _sized("attention_bias=true")),
    "qwen3, norms of heads": (_qwen3, _sized("qk_norm=true", "head_dim=24")),
    "gpt2": (gpt2, _sized(*GPT, *BIASES, "hidden_act=gelu_new")),
    "mixtral": (_mixtral, _sized("family=moe", "num_experts=4", *_plain(EXPERTS))),
    "llama with all biases": (
        lambda: _llama(attention_bias=True, mlp_bias=True),
        _sized("attention_bias=true", "attention_output_bias=true", "mlp_bias=true"),
    ),
    "llama with a gated GELU": (lambda: _llama(hidden_act="gelu"), _sized("hidden_act=gelu", "gated=true")),
    "llama with a gated tanh GELU": (
        lambda: _llama(hidden_act="gelu_new"),
        _sized("hidden_act=gelu_new", "gated=true"),
    ),
    "llama with a gated squared ReLU": (
        lambda: _llama(hidden_act="relu2"),
        _sized("hidden_act=squared_relu", "gated=true"),
    ),
    "qwen3_moe": (
        _qwen3_moe,
        _sized("family=moe", "qk_norm=true", "head_dim=24", "num_experts=4", "first_dense_layers=1", *_plain(EXPERTS)),
    ),
    "glm4_moe": (
        _glm4_moe,
        _sized(
            "family=glm",
            "qk_norm=true",
            "head_dim=24",
            "attention_bias=true",
            "rope_parameters={rope_type:default,partial_rotary_factor:0.5}",
            *GROUPED,
            *_plain(EXPERTS),
        ),
    ),
    "deepseek_v2": (
        lambda: _latent("DeepseekV2", topk_method="group_limited_greedy"),
        _sized("family=deepseek_v2", "norm_topk_prob=false", *GROUPED, *_plain(EXPERTS), *_plain(LATENT)),
    ),
    "deepseek_v32": (
        lambda: _latent("DeepseekV32", index_topk=8, index_head_dim=16, index_n_heads=2),
        _sized(
            *("family=deepseek_sparse", "model_type=deepseek_v32", *GROUPED, *_plain(EXPERTS), *_plain(LATENT)),
            "extra={index_topk:8,index_head_dim:16,index_n_heads:2}",
        ),
    ),
    "deepseek": (
        _deepseek,
        _sized(
            "family=deepseek",
            "num_experts=8",
            "num_shared_experts=1",
            "first_dense_layers=1",
            "n_group=2",
            "topk_group=1",
            *_plain(EXPERTS),
            *_plain(LATENT),
        ),
    ),
}


def block_of(module: Any, layer: int) -> Any:
    """A block of a module of ``transformers``."""
    return (module.model.layers if hasattr(module, "model") else module.transformer.h)[layer]


def saved_by_autograd(module: Any, *, layer: int, sequences: int = 1) -> int:
    """Bytes that one block's forward pass saves, each storage once, without weights and rotary tables."""
    torch = pytest.importorskip("torch")
    known = {weight.untyped_storage()._cdata for weight in module.parameters()}
    inside: list[bool] = []
    storages: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        rotary = tensor.grad_fn is None and tensor.dim() == 4 and tensor.shape[:2] == (1, 1)
        if inside and storage._cdata not in known and not rotary:
            storages[storage._cdata] = storage
        return tensor

    block = block_of(module, layer)
    block.register_forward_pre_hook(lambda *_: inside.append(True))
    block.register_forward_hook(lambda *_: inside.clear())
    ids = torch.randint(0, 128, (sequences, TOKENS))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module.train()(input_ids=ids)
    assert output.logits.shape[1] == TOKENS
    assert storages
    return sum(int(storage.nbytes()) for storage in storages.values())
