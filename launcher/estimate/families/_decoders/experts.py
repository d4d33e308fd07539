"""Descriptions of decoders with routed experts, of ``modeling_<model_type>.py`` in transformers 5.23."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcher.estimate.families._decoders.description import Decoder, Experts

_BOTH = "attention_bias"
_PLAIN = Decoder(config="", input_bias=_BOTH, output_bias=_BOTH, experts=Experts())
_SPARSE = Experts(name="block_sparse_moe", router="router")
_NO_LOSS: Mapping[str, Any] = {"output_router_logits": (False,)}  # The workers' loss is the cross entropy alone.

TYPES: dict[str, Decoder] = {
    "flex_olmo": replace(
        _PLAIN,
        config="FlexOlmoConfig",
        norm_code="gemma",
        first="",
        after_attention="post_attention_layernorm",
        second="",
        after_mlp="post_feedforward_layernorm",
        head_norms=("q_norm", "k_norm"),
        head_norm_size="all",
        legal=_NO_LOSS,
    ),
    "gpt_oss": replace(
        _PLAIN,
        config="GptOssConfig",
        windows="wf",
        norm_code="gemma",
        sinks=True,
        experts=Experts(router="router", router_bias=True, bias=True, transposed=True),
        attentions=("eager",),
        legal=_NO_LOSS,
    ),
    "granitemoe": replace(
        _PLAIN, config="GraniteMoeConfig", experts=_SPARSE, logits_divisor="logits_scaling", legal=_NO_LOSS
    ),
    "granitemoeshared": replace(
        _PLAIN,
        config="GraniteMoeSharedConfig",
        experts=replace(_SPARSE, shared="shared_mlp", shared_width="shared_intermediate_size", shared_joined=True),
        logits_divisor="logits_scaling",
        legal=_NO_LOSS,
    ),
    "olmoe": replace(
        _PLAIN, config="OlmoeConfig", head_norms=("q_norm", "k_norm"), head_norm_size="all", legal=_NO_LOSS
    ),
    "qwen2_moe": replace(
        _PLAIN,
        config="Qwen2MoeConfig",
        input_bias="qkv_bias",
        output_bias=False,
        experts=Experts(
            shared="mlp.shared_expert",
            shared_width="shared_expert_intermediate_size",
            shared_gate="mlp.shared_expert_gate",
        ),
        legal={
            **_NO_LOSS,
            "decoder_sparse_step": (1,),
            "mlp_only_layers": ([], None),
            "use_sliding_window": (False,),
        },
    ),
}
