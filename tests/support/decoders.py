"""Tiny transformers decoders, with the specifications made from their ``config.json``."""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from typing import Any

from launcher.config.hub import reading as hugging_face
from launcher.estimate import families
from launcher.estimate.families._decoders import TYPES, values
from launcher.estimate.rank.engine import EngineTraits
from launcher.spec import RunSpec
from launcher.spec.parse import parse, to_dict
from tests.support.helpers import make_spec

TOKENS = 24
WINDOW = 8
NEEDED: dict[str, dict[str, Any]] = {
    "nemotron": {"num_key_value_heads": 8},
    "ministral": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "dbrx": {"attn_config": {"clip_qkv": 8, "rope_theta": 1e4}},
}
"""Keys that a class needs to be built."""

_SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
}
_MORE = {
    "sliding_window": WINDOW,
    "use_sliding_window": True,
    "layer_types": ["full_attention", "sliding_attention"],
    "window_size": WINDOW,
    "attention_types": [[["global", "local"], 1]],
    "rotary_dim": 8,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
}
_OF_KIND: dict[str, dict[str, Any]] = {
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
        "ssm_state_size": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "chunk_size": 8,
        "moe_shared_expert_intermediate_size": 40,
    },
}
_MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 16}
_DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 12,
    "layer_types": ["linear_attention", "full_attention"],
}
_OF_KIND |= {
    "bamba": {**_MAMBA, "mamba_chunk_size": 8, "attn_layer_indices": [1]},
    "granitemoehybrid": {**_MAMBA, "mamba_chunk_size": 8, "layer_types": ["mamba", "attention"]},
    "falcon_h1": {
        **_MAMBA,
        "mamba_chunk_size": 8,
        "mamba_d_ssm": 128,
        "lm_head_multiplier": 0.5,
        "key_multiplier": 0.7,
        "attention_in_multiplier": 0.9,
        "ssm_in_multiplier": 1.25,
        "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9],
        "mlp_multipliers": [0.9, 0.8],
    },
    "dbrx": {"attn_config.clip_qkv": 8, "attn_config.rope_theta": 1e4},
    "llama4_text": {
        "intermediate_size_mlp": 80,
        "layer_types": None,
        "no_rope_layers": [1, 0],
        "moe_layers": [1],
        "attention_chunk_size": WINDOW,
        "floor_scale": 8,
    },
    "mimo_v2_flash": {"v_head_dim": 12, "mlp_layer_types": ["dense", "sparse"]},
    "jamba": {
        "mamba_d_state": 4,
        "mamba_dt_rank": 6,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "falcon_mamba": {"state_size": 4, "time_step_rank": 6},
    "mamba": {"state_size": 4, "time_step_rank": 6},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8},
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid"],
        "num_hidden_layers": 4,
        "num_mem_blocks": 2,
        "use_shared_attention_adapter": True,
        "num_key_value_heads": 4,
        "adapter_rank": 12,
        "n_mamba_heads": 8,
        "mamba_d_state": 16,
        "mamba_ngroups": 2,
        "chunk_size": 8,
        "use_mem_rope": True,
    },
    "qwen3_5_moe_text": _DELTA,
    "qwen3_5_text": _DELTA,
    "qwen3_next": _DELTA,
}
"""Keys of types with several kinds of layers, or with defaults that no class computes."""

VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    ("falcon", {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}),
    ("gpt_bigcode", {"multi_query": False}),
    ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True}),
    ("cohere", {"use_qk_norm": True}),
    ("phi", {"qk_layernorm": True}),
    ("persimmon", {"qk_layernorm": False}),
    ("opt", {"word_embed_proj_dim": 48, "enable_bias": False}),
    ("gpt_neox", {"attention_bias": False, "use_parallel_residual": False}),
    ("cwm", {"mlp_bias": True, "head_dim": 96}),
    ("granite", {"attention_bias": True, "mlp_bias": True}),
    ("ernie4_5", {"use_bias": True}),
    ("gemma2", {"tie_word_embeddings": False, "attention_bias": True}),
    ("gpt_oss", {"attention_bias": False}),
    ("nemotron_h", {"tie_word_embeddings": True, "moe_latent_size": 24}),
    ("dbrx", {"ffn_config.moe_jitter_eps": 0.01}),
    ("zamba2", {"add_bias_linear": True, "use_mem_rope": False}),
    ("zamba2", {"use_shared_attention_adapter": False, "num_mem_blocks": 1, "num_key_value_heads": 2}),
    ("zamba2", {"num_mem_blocks": 3, "use_long_context": True, "mamba_expand": 4}),
    ("zamba2", {"num_mem_blocks": 9}),
)


def tiny(kind: str, **changes: Any) -> dict[str, Any]:
    """A ``config.json`` of a small model whose window is shorter than a sequence."""
    there = values.defaults(kind)
    named = {name: size for key, size in _SIZES.items() if (name := values.their_key(kind, key))}
    more = {key: value for key, value in _MORE.items() if key in there}
    more |= _OF_KIND.get(kind, {})
    return values.nested({"model_type": kind, **named, **more, **dict.fromkeys(TYPES[kind].dropouts, 0.0), **changes})


def spec_of(document: dict[str, Any]) -> RunSpec:
    """A run of the model that a ``config.json`` describes."""
    run = to_dict(make_spec("model=tiny", "precision=fp32"))
    group = run["model"]
    assert isinstance(group, dict)
    run["model"] = {
        **group,
        "hidden_act": "silu",
        "rope_theta": 1e4,
        **hugging_face.read(json.dumps(document), "config.json").model,
    }
    return parse(run)


def config(kind: str, document: dict[str, Any]) -> Any:
    """The class's own reading of a ``config.json``."""
    return getattr(_transformers(), TYPES[kind].config)(**{
        key: document[key] for key in document if key != "model_type"
    })


def parameters(kind: str, document: dict[str, Any]) -> int:
    """Number of parameters, counted on the class's own modules, built without memory."""
    with _torch().device("meta"):
        made = _transformers().AutoModelForCausalLM.from_config(config(kind, document))
    return sum(each.numel() for each in made.parameters())


def losses(kind: str) -> tuple[list[float], list[float]]:
    """Loss and squared gradient norm of the worker's network and of the plain class, with the same weights."""
    torch = _torch()
    ours, plain, spec = _networks(kind)
    tokens = torch.randint(0, 256, (2, TOKENS + 1), generator=torch.Generator().manual_seed(1))
    model = import_module("launcher.worker.model").LanguageModel(ours, spec).train()
    first = model(tokens)
    first.backward()
    logits = plain(input_ids=tokens[:, :-1], use_cache=False).logits.float()
    second = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    second.backward()
    return _numbers(first, ours), _numbers(second, plain)


def _numbers(loss: Any, made: Any) -> list[float]:
    return [
        float(loss.detach()),
        float(sum(each.grad.pow(2).sum() for each in made.parameters() if each.grad is not None)),
    ]


def spreads(kind: str) -> dict[str, tuple[float, float]]:
    """Initial value of each parameter, or the standard deviation if it is random: ours and the class's."""
    ours, plain = fresh(kind), _plain(kind)
    theirs = dict(plain.named_parameters())
    found: dict[str, tuple[float, float]] = {}
    for name, parameter in ours.named_parameters():
        first, second = (each.detach().float() for each in (parameter, theirs[name]))
        if float(second.std(correction=0)) == 0:
            found[name] = (float(first.mean()), float(second.mean()))
        elif parameter.numel() > 200:
            found[name] = (float(first.std()), float(second.std()))
    return found


def fresh(kind: str) -> Any:
    """The worker's network with its initial values."""
    network, initial = import_module("launcher.worker.model.network"), import_module("launcher.worker.model.initial")
    made = network.network(spec_of(tiny(kind)).model, _torch().float32)
    made.to_empty(device="cpu")
    network.retie(made)
    initial.fill(made, 1)
    return made


def _plain(kind: str) -> Any:
    _torch().manual_seed(0)
    made = import_module("launcher.worker.model.network").config(spec_of(tiny(kind)).model)
    return _transformers().AutoModelForCausalLM.from_config(made).float().train()


def _networks(kind: str) -> tuple[Any, Any, RunSpec]:
    torch = _torch()
    ours, plain = fresh(kind), _plain(kind)
    with torch.no_grad():
        for each in plain.parameters():  # Initial values are too small for a window or a cap to have an effect.
            each.add_(torch.randn_like(each) * 0.3)
    ours.load_state_dict(plain.state_dict(), strict=True)
    return ours, plain, spec_of(tiny(kind))


def saved(kind: str, layer: int = 1) -> tuple[int, int]:
    """Bytes that a block's forward pass saves, each storage once, and those of the formula, in bf16."""
    torch = _torch()
    windows = ("sliding_window", "attention_chunk_size")
    document = tiny(kind, **{key: 64 for key in windows if key in values.defaults(kind)})
    spec = spec_of(document)
    network = import_module("launcher.worker.model.network")
    made = network.network(spec.model, torch.bfloat16)
    made.to_empty(device="cpu")
    network.retie(made)
    import_module("launcher.worker.model.initial").fill(made, 1)
    grouped = TYPES[kind].layers is not None
    if spec.model.num_experts and not grouped:
        made.set_experts_implementation("eager")
    engine = EngineTraits(
        library="transformers",
        size=2,
        residual_size=2,
        sequence_length=TOKENS,
        cpu=True,
        grouped_experts=grouped,
        scores=spec.model.attention == "eager",
    )
    choices = dict.fromkeys(("routed", "routed_tensor"), spec.model.num_experts_per_tok)
    rows = families.of(spec.model).saved(spec.model, layer, engine)
    assert rows
    return _by_autograd(made, network.blocks(made)[layer]), sum(
        row.bytes * TOKENS * choices.get(row.share, 1) for row in rows
    )


def _by_autograd(made: Any, block: Any) -> int:
    torch = _torch()
    known = {each.untyped_storage()._cdata for each in (*made.parameters(), *made.buffers())}
    inside: list[bool] = []
    storages: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        table = tensor.grad_fn is None and tensor.dim() > 1 and tensor.shape[-1] > 1 and tensor.shape[-2] == TOKENS
        if inside and storage._cdata not in known and not table:
            storages[storage._cdata] = storage
        return tensor

    block.register_forward_pre_hook(lambda *_: inside.append(True))
    block.register_forward_hook(lambda *_: inside.clear())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made.train()(input_ids=torch.randint(0, 256, (1, TOKENS)), use_cache=False)
    assert storages
    return sum(int(storage.nbytes()) for storage in storages.values())


@cache
def _torch() -> Any:
    return import_module("torch")


@cache
def _transformers() -> Any:
    return import_module("transformers")
