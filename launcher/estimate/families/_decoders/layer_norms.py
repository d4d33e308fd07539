"""Descriptions of decoders with LayerNorm, of ``modeling_<model_type>.py`` in transformers 5.23."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcher.estimate.families._decoders.description import WORDS, Decoder, Experts

_INNER: Mapping[str, Any] = {"gate": "", "gated": False}
_ALL_HEADS: Mapping[str, Any] = {"num_key_value_heads": None}
_ALIBI: Mapping[str, Any] = {"position_embedding": "none"}
_LEARNED: Mapping[str, Any] = {"position_embedding": "learned"}
_EAGER = ("eager",)  # The class has an attention of its own and no other.
_TWO_NORMS: Mapping[str, Any] = {"first": "ln_attn", "second": "ln_mlp"}
_PARALLEL: Mapping[str, Any] = {"second": "", "parallel": True}
_ALL: Mapping[str, Any] = {"input_bias": True, "output_bias": True, "mlp_bias": True}
_HEAD_NORMS: Mapping[str, Any] = {"head_norms": ("q_layernorm", "k_layernorm")}
_LAYER = Decoder(norm="layernorm", norm_code="kernel", norm_bias=True)
_NO_WEIGHTS = replace(_LAYER, norm_bias=False)
_COHERE = replace(_NO_WEIGHTS, norm_code="cohere", **_PARALLEL)
_PLAIN_MLP = replace(_LAYER, **_INNER)
_GPT = replace(_LAYER, table="wte", first="ln_1", second="ln_2", last="ln_f", attention="attn", **_INNER, mlp_bias=True)
_GPT_J = replace(
    _GPT,
    **_PARALLEL,
    wide_queries=True,
    output="out_proj",
    up="fc_in",
    down="fc_out",
    head_bias=True,
    fixed=_ALL_HEADS,
    attentions=_EAGER,
)
_FOURFOLD = replace(
    _LAYER,
    **_INNER,
    inputs=("query_key_value",),
    output="dense",
    up="dense_h_to_4h",
    down="dense_4h_to_h",
    fixed=_ALL_HEADS,
)

TYPES: dict[str, Decoder] = {
    "bloom": replace(
        _FOURFOLD,
        score_copies=2,
        table="word_embeddings",
        embedding_norm="word_embeddings_layernorm",
        last="ln_f",
        attention="self_attention",
        **_ALL,
        fixed={**_ALL_HEADS, **_ALIBI, "hidden_act": "gelu_new"},
        attentions=_EAGER,
    ),
    "codegen": replace(_GPT_J, inputs=("qkv_proj",)),
    "cohere": replace(
        _COHERE,
        head_norms=("q_norm", "k_norm"),
        head_norm_size="each",
    ),
    "cohere2": replace(_COHERE, windows="wwwf"),
    "dbrx": replace(
        _NO_WEIGHTS,
        table="wte",
        first="norm_attn_norm.norm_1",
        second="norm_attn_norm.norm_2",
        last="norm_f",
        attention="norm_attn_norm.attn",
        inputs=("Wqkv",),
        output="out_proj",
        clips_joint=True,
        experts=Experts(kind="stacked_experts", name="ffn", router="router.layer"),
        fixed={"tie_word_embeddings": False, "hidden_act": "silu"},
        settings={"attn_config.rope_theta": 10000.0},  # Its attention reads it, and rotates by the model's own.
        legal=WORDS["legal"]["dbrx"],
    ),
    "falcon": replace(
        _FOURFOLD,
        keeps_joint=False,
        table="word_embeddings",
        last="ln_f",
        attention="self_attention",
        input_bias="bias",
        output_bias="bias",
        mlp_bias="bias",
        own_attention=True,
        variants=(
            ("multi_query", True, {"fixed": {"num_key_value_heads": 1}}),
            ("parallel_attn", True, _PARALLEL),
            ("new_decoder_architecture", True, {"fixed": {}, "repeats_keys": True, **_TWO_NORMS}),
            ("num_ln_in_parallel_attn", 2, _TWO_NORMS),
            ("num_ln_in_parallel_attn", 1, {"first": "input_layernorm", "second": ""}),
            ("alibi", True, {"attentions": _EAGER}),
        ),
    ),
    "gpt_bigcode": replace(
        _GPT,
        positions="wpe",
        inputs=("c_attn",),
        output="c_proj",
        **_ALL,
        up="c_fc",
        down="c_proj",
        fixed={**_LEARNED, **_ALL_HEADS},
        variants=(("multi_query", True, {"fixed": {**_LEARNED, "num_key_value_heads": 1}}),),
    ),
    "gpt_neo": replace(
        _GPT,
        wide_queries=True,
        attention="attn.attention",
        positions="wpe",
        output="out_proj",
        output_bias=True,
        up="c_fc",
        down="c_proj",
        fixed={**_LEARNED, **_ALL_HEADS},
        attentions=_EAGER,
    ),
    "gpt_neox": replace(
        _FOURFOLD,
        joins_queries=True,
        table="embed_in",
        last="final_layer_norm",
        attention="attention",
        mlp_bias=True,
        variants=(("use_parallel_residual", True, {"parallel": True}),),
    ),
    "gptj": _GPT_J,
    "jais2": _PLAIN_MLP,
    "mpt": replace(
        _NO_WEIGHTS,
        table="wte",
        first="norm_1",
        second="norm_2",
        last="norm_f",
        attention="attn",
        inputs=("Wqkv",),
        output="out_proj",
        mlp="ffn",
        **_INNER,
        fixed={**_ALL_HEADS, **_ALIBI, "hidden_act": "gelu"},
        attentions=_EAGER,
        legal=WORDS["legal"]["mpt"],
    ),
    "nemotron": replace(_PLAIN_MLP, joins_queries=True),
    "olmo": replace(_NO_WEIGHTS, norm_code="wide kernel", norm_weight=False),
    "opt": replace(
        _LAYER,
        positions="embed_positions",
        positions_offset=2,
        first="self_attn_layer_norm",
        second="final_layer_norm",
        last="final_layer_norm",
        output="out_proj",
        input_bias="enable_bias",
        output_bias="enable_bias",
        mlp="",
        up="fc1",
        down="fc2",
        **_INNER,
        mlp_bias="enable_bias",
        fixed={**_LEARNED, **_ALL_HEADS},
        legal=WORDS["legal"]["opt"],
    ),
    "persimmon": replace(
        _FOURFOLD,
        joins_queries=True,
        last="final_layernorm",
        **_ALL,
        **_HEAD_NORMS,
        head_norm_bias=True,
    ),
    "phi": replace(
        _LAYER,
        joins_queries=True,
        **{**_INNER, **_PARALLEL},
        last="final_layernorm",
        output="dense",
        **_ALL,
        up="fc1",
        down="fc2",
        head_bias=True,
        **_HEAD_NORMS,
        head_norm_bias=True,
    ),
    "stablelm": replace(
        _LAYER,
        joins_queries=True,
        input_bias="use_qkv_bias",
        **_HEAD_NORMS,
        head_norm_size="each",
        head_norm_copies="norms.{}",
        variants=(("use_parallel_residual", True, _PARALLEL),),
    ),
    "starcoder2": replace(
        _LAYER,
        **_INNER,
        input_bias="use_bias",
        output_bias="use_bias",
        up="c_fc",
        down="c_proj",
        mlp_bias="use_bias",
    ),
}
