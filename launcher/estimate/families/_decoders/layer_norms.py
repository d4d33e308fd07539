"""Descriptions of decoders with LayerNorm, of ``modeling_<model_type>.py`` in transformers 5.23."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcher.estimate.families._decoders.description import WORDS, Decoder

_INNER: Mapping[str, Any] = {"gate": "", "gated": False}
_ALL_HEADS: Mapping[str, Any] = {"num_key_value_heads": None}
_ALIBI: Mapping[str, Any] = {"position_embedding": "none"}
_LEARNED: Mapping[str, Any] = {"position_embedding": "learned"}
_EAGER = ("eager",)  # The class has an attention of its own and no other.
_TWO_NORMS: Mapping[str, Any] = {"first": "ln_attn", "second": "ln_mlp"}
_PARALLEL: Mapping[str, Any] = {"second": "", "parallel": True}
_SOME: Mapping[str, Any] = {"input_bias": "attention_bias", "output_bias": "attention_bias"}
_ALL: Mapping[str, Any] = {"input_bias": True, "output_bias": True, "mlp_bias": True}
_HEAD_NORMS: Mapping[str, Any] = {"head_norms": ("q_layernorm", "k_layernorm"), "with_head_norms": "qk_layernorm"}
_OF_RESIDUALS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
_OF_HIDDEN = ("hidden_dropout", "attention_dropout")
_LAYER = Decoder(config="", norm="layernorm", norm_code="kernel", norm_bias=True)
_NO_WEIGHTS = replace(_LAYER, norm_bias=False)
_COHERE = replace(_NO_WEIGHTS, norm_code="cohere", **_PARALLEL, **_SOME, logits_factor="logit_scale")
_PLAIN_MLP = replace(_LAYER, **_INNER, **_SOME, mlp_bias="mlp_bias")
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
    dropouts=_OF_RESIDUALS,
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
    dropouts=_OF_HIDDEN,
)

TYPES: dict[str, Decoder] = {
    "bloom": replace(
        _FOURFOLD,
        config="BloomConfig",
        score_copies=2,
        table="word_embeddings",
        embedding_norm="word_embeddings_layernorm",
        last="ln_f",
        attention="self_attention",
        **_ALL,
        fixed={**_ALL_HEADS, **_ALIBI, "hidden_act": "gelu_new"},
        attentions=_EAGER,
    ),
    "codegen": replace(_GPT_J, config="CodeGenConfig", inputs=("qkv_proj",)),
    "cohere": replace(
        _COHERE,
        config="CohereConfig",
        head_norms=("q_norm", "k_norm"),
        head_norm_size="each",
        with_head_norms="use_qk_norm",
    ),
    "cohere2": replace(_COHERE, config="Cohere2Config", windows="wwwf"),
    "falcon": replace(
        _FOURFOLD,
        config="FalconConfig",
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
        config="GPTBigCodeConfig",
        positions="wpe",
        inputs=("c_attn",),
        output="c_proj",
        **_ALL,
        up="c_fc",
        down="c_proj",
        fixed={**_LEARNED, **_ALL_HEADS},
        dropouts=_OF_RESIDUALS,
        legal={"add_cross_attention": (False,)},
        variants=(("multi_query", True, {"fixed": {**_LEARNED, "num_key_value_heads": 1}}),),
    ),
    "gpt_neo": replace(
        _GPT,
        config="GPTNeoConfig",
        wide_queries=True,
        attention="attn.attention",
        positions="wpe",
        output="out_proj",
        output_bias=True,
        up="c_fc",
        down="c_proj",
        fixed={**_LEARNED, **_ALL_HEADS},
        dropouts=("resid_dropout", "embed_dropout", "attention_dropout"),
        attentions=_EAGER,
    ),
    "gpt_neox": replace(
        _FOURFOLD,
        config="GPTNeoXConfig",
        joins_queries=True,
        table="embed_in",
        last="final_layer_norm",
        attention="attention",
        **_SOME,
        mlp_bias=True,
        variants=(("use_parallel_residual", True, {"parallel": True}),),
    ),
    "gptj": replace(_GPT_J, config="GPTJConfig"),
    "jais2": replace(_PLAIN_MLP, config="Jais2Config"),
    "mpt": replace(
        _NO_WEIGHTS,
        config="MptConfig",
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
        dropouts=("resid_pdrop", "emb_pdrop"),
        attentions=_EAGER,
        legal=WORDS["legal"]["mpt"],
    ),
    "nemotron": replace(_PLAIN_MLP, config="NemotronConfig", joins_queries=True),
    "olmo": replace(_NO_WEIGHTS, config="OlmoConfig", norm_code="wide kernel", norm_weight=False, **_SOME),
    "opt": replace(
        _LAYER,
        config="OPTConfig",
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
        dropouts=("dropout", "attention_dropout"),
        legal=WORDS["legal"]["opt"],
    ),
    "persimmon": replace(
        _FOURFOLD,
        config="PersimmonConfig",
        joins_queries=True,
        last="final_layernorm",
        **_ALL,
        **_HEAD_NORMS,
        head_norm_bias=True,
    ),
    "phi": replace(
        _LAYER,
        config="PhiConfig",
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
        dropouts=("resid_pdrop", "embd_pdrop", "attention_dropout"),
    ),
    "stablelm": replace(
        _LAYER,
        config="StableLmConfig",
        joins_queries=True,
        input_bias="use_qkv_bias",
        **_HEAD_NORMS,
        head_norm_size="each",
        head_norm_copies="norms.{}",
        dropouts=_OF_HIDDEN,
        variants=(("use_parallel_residual", True, _PARALLEL),),
    ),
    "starcoder2": replace(
        _LAYER,
        config="Starcoder2Config",
        **_INNER,
        input_bias="use_bias",
        output_bias="use_bias",
        up="c_fc",
        down="c_proj",
        mlp_bias="use_bias",
        dropouts=("residual_dropout", "embedding_dropout", "attention_dropout"),
    ),
}
