"""Descriptions of decoders with RMSNorm, of ``modeling_<model_type>.py`` in transformers 5.23."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcher.estimate.families._decoders.description import Decoder, Experts

_GEMMA = Decoder(norm_code="gemma")
_SANDWICH = replace(
    _GEMMA,
    after_attention="post_attention_layernorm",
    second="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
_HEADS = ("q_norm", "k_norm")
_AFTER = Decoder(
    first="",
    after_attention="post_attention_layernorm",
    second="",
    after_mlp="post_feedforward_layernorm",
    head_norms=_HEADS,
)
_OLMO = replace(_AFTER, norm_code="gemma", head_norm_size="all")
_JOINED: Mapping[str, Any] = {"gate": "", "up": "gate_up_proj"}
_IDS: Mapping[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}  # The class takes no null.
_SOFTCAP = ("eager", "flash")  # torch's kernels have no cap on the scores.

TYPES: dict[str, Decoder] = {
    "apertus": Decoder(
        first="attention_layernorm",
        second="feedforward_layernorm",
        head_norms=_HEADS,
        gate="",
        gated=False,
        activation_weights=("act_fn.alpha_p", "act_fn.alpha_n"),
        legal={"hidden_act": ("xielu",)},
    ),
    "arcee": Decoder(gate="", gated=False),
    "cwm": Decoder(windows="fwww", settings=_IDS),
    "ernie4_5": Decoder(input_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias"),
    "exaone4": replace(_AFTER, windows="wwwf"),
    "gemma": _GEMMA,
    "gemma2": replace(_SANDWICH, windows="wf", attentions=_SOFTCAP),
    "gemma3_text": replace(_SANDWICH, windows="wwwwwf", head_norms=_HEADS, legal={"attn_logit_softcapping": (None,)}),
    "glm": Decoder(joins_queries=True, output_bias=False, **_JOINED),
    "glm4": Decoder(
        joins_queries=True,
        output_bias=False,
        after_attention="post_self_attn_layernorm",
        after_mlp="post_mlp_layernorm",
        **_JOINED,
    ),
    "granite": Decoder(),
    "helium": Decoder(norm_code="gemma", square_output=True, output_bias=False),
    "hunyuan_v1_dense": Decoder(head_norms=("query_layernorm", "key_layernorm")),
    "ministral": Decoder(),
    "ministral3": Decoder(),
    "olmo2": _OLMO,
    "olmo3": replace(_OLMO, windows="wwwf"),
    "phi3": Decoder(joins_queries=True, inputs=("qkv_proj",), **_JOINED),
    "seed_oss": Decoder(output_bias="attention_out_bias"),
    "smollm3": Decoder(windows="fffw"),
    "vaultgemma": replace(_GEMMA, windows="wf", second="pre_feedforward_layernorm", attentions=_SOFTCAP),
}


_ROUTED = Decoder(experts=Experts())
_SPARSE = Experts(name="block_sparse_moe", router="router")

EXPERTS: dict[str, Decoder] = {
    "flex_olmo": replace(_OLMO, experts=Experts()),
    "gpt_oss": replace(
        _ROUTED,
        windows="wf",
        norm_code="gemma",
        sinks=True,
        softmax="less largest",
        experts=Experts(router="router", router_bias=True, bias=True, transposed=True),
        attentions=("eager",),
    ),
    "granitemoe": replace(_ROUTED, experts=_SPARSE),
    "granitemoeshared": replace(
        _ROUTED,
        experts=replace(_SPARSE, shared="shared_mlp", shared_width="shared_intermediate_size", shared_joined=True),
    ),
    "minimax_m2": replace(_ROUTED, head_norms=_HEADS, head_norm_size="all", joins_queries=True),
    "olmoe": replace(_ROUTED, head_norms=_HEADS, head_norm_size="all"),
    "qwen2_moe": replace(
        _ROUTED,
        input_bias="qkv_bias",
        experts=Experts(
            shared="mlp.shared_expert",
            shared_width="shared_expert_intermediate_size",
            shared_gate="mlp.shared_expert_gate",
        ),
        legal={"decoder_sparse_step": (1,), "mlp_only_layers": ([], None), "use_sliding_window": (False,)},
    ),
}
"""Classes with routed experts in place of the MLP."""
