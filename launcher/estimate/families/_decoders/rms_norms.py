"""Descriptions of decoders with RMSNorm, of ``modeling_<model_type>.py`` in transformers 5.23."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcher.estimate.families._decoders.description import Decoder

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
