"""Descriptions of decoders with RMSNorm, of ``modeling_<model_type>.py`` in transformers 5.23."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcher.estimate.families._decoders.description import Decoder, Experts

_BOTH = "attention_bias"  # The key of the biases of all four projections.
_PLAIN = Decoder(config="", input_bias=_BOTH, output_bias=_BOTH)
_BIASED = replace(_PLAIN, mlp_bias="mlp_bias")
_GEMMA = replace(_PLAIN, norm_code="gemma", legal={"use_bidirectional_attention": (None, False)})
_SANDWICH = replace(
    _GEMMA,
    after_attention="post_attention_layernorm",
    second="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
_HEADS = ("q_norm", "k_norm")
_AFTER = replace(
    _PLAIN,
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
    "apertus": replace(
        _PLAIN,
        config="ApertusConfig",
        first="attention_layernorm",
        second="feedforward_layernorm",
        head_norms=_HEADS,
        gate="",
        gated=False,
        activation_weights=("act_fn.alpha_p", "act_fn.alpha_n"),
        legal={"hidden_act": ("xielu",)},
    ),
    "arcee": replace(_BIASED, config="ArceeConfig", gate="", gated=False),
    "cwm": replace(_PLAIN, config="CwmConfig", windows="fwww", input_bias=False, output_bias=False, settings=_IDS),
    "ernie4_5": replace(
        _PLAIN, config="Ernie4_5Config", input_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", dropouts=()
    ),
    "exaone4": replace(_AFTER, config="Exaone4Config", windows="wwwf", input_bias=False, output_bias=False),
    "gemma": replace(_GEMMA, config="GemmaConfig"),
    "gemma2": replace(_SANDWICH, config="Gemma2Config", windows="wf", attentions=_SOFTCAP),
    "gemma3_text": replace(
        _SANDWICH,
        config="Gemma3TextConfig",
        windows="wwwwwf",
        head_norms=_HEADS,
        legal={"use_bidirectional_attention": (None, False), "attn_logit_softcapping": (None,)},
    ),
    "glm": replace(_PLAIN, config="GlmConfig", joins_queries=True, output_bias=False, **_JOINED),
    "glm4": replace(
        _PLAIN,
        config="Glm4Config",
        joins_queries=True,
        output_bias=False,
        after_attention="post_self_attn_layernorm",
        after_mlp="post_mlp_layernorm",
        **_JOINED,
    ),
    "granite": replace(_BIASED, config="GraniteConfig", logits_divisor="logits_scaling"),
    "helium": replace(_BIASED, config="HeliumConfig", norm_code="gemma", output_bias=False),
    "hunyuan_v1_dense": replace(
        _PLAIN,
        config="HunYuanDenseV1Config",
        head_norms=("query_layernorm", "key_layernorm"),
        dropouts=("attention_dropout",),
    ),
    "ministral": replace(_PLAIN, config="MinistralConfig", input_bias=False, output_bias=False),
    "ministral3": replace(_PLAIN, config="Ministral3Config", input_bias=False, output_bias=False),
    "olmo2": replace(_OLMO, config="Olmo2Config"),
    "olmo3": replace(_OLMO, config="Olmo3Config", windows="wwwf"),
    "phi3": replace(
        _PLAIN,
        config="Phi3Config",
        joins_queries=True,
        inputs=("qkv_proj",),
        input_bias=False,
        output_bias=False,
        dropouts=("resid_pdrop", "embd_pdrop", "attention_dropout"),
        **_JOINED,
    ),
    "seed_oss": replace(
        _BIASED,
        config="SeedOssConfig",
        output_bias="attention_out_bias",
        dropouts=("residual_dropout", "attention_dropout"),
    ),
    "smollm3": replace(_BIASED, config="SmolLM3Config", windows="fffw"),
    "vaultgemma": replace(
        _GEMMA,
        config="VaultGemmaConfig",
        windows="wf",
        second="pre_feedforward_layernorm",
        attentions=_SOFTCAP,
        legal={},
    ),
}


_ROUTED = replace(_PLAIN, experts=Experts())
_SPARSE = Experts(name="block_sparse_moe", router="router")
_NO_LOSS: Mapping[str, Any] = {"output_router_logits": (False,)}  # The workers' loss is the cross entropy alone.

EXPERTS: dict[str, Decoder] = {
    "flex_olmo": replace(_OLMO, config="FlexOlmoConfig", experts=Experts(), legal=_NO_LOSS),
    "gpt_oss": replace(
        _ROUTED,
        config="GptOssConfig",
        windows="wf",
        norm_code="gemma",
        sinks=True,
        softmax="less largest",
        experts=Experts(router="router", router_bias=True, bias=True, transposed=True),
        attentions=("eager",),
        legal=_NO_LOSS,
    ),
    "granitemoe": replace(
        _ROUTED, config="GraniteMoeConfig", experts=_SPARSE, logits_divisor="logits_scaling", legal=_NO_LOSS
    ),
    "granitemoeshared": replace(
        _ROUTED,
        config="GraniteMoeSharedConfig",
        experts=replace(_SPARSE, shared="shared_mlp", shared_width="shared_intermediate_size", shared_joined=True),
        logits_divisor="logits_scaling",
        legal=_NO_LOSS,
    ),
    "minimax_m2": replace(
        _ROUTED,
        config="MiniMaxM2Config",
        input_bias=False,
        output_bias=False,
        head_norms=_HEADS,
        head_norm_size="all",
        joins_queries=True,
        legal={**_NO_LOSS, "router_jitter_noise": (0.0, 0)},
    ),
    "olmoe": replace(_ROUTED, config="OlmoeConfig", head_norms=_HEADS, head_norm_size="all", legal=_NO_LOSS),
    "qwen2_moe": replace(
        _ROUTED,
        config="Qwen2MoeConfig",
        input_bias="qkv_bias",
        output_bias=False,
        experts=Experts(
            shared="mlp.shared_expert",
            shared_width="shared_expert_intermediate_size",
            shared_gate="mlp.shared_expert_gate",
        ),
        legal={**_NO_LOSS, "decoder_sparse_step": (1,), "mlp_only_layers": ([], None), "use_sliding_window": (False,)},
    ),
}
"""Classes with routed experts in place of the MLP."""
