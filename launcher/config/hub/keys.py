"""Keys of a Hugging Face ``config.json`` beside the sizes: those without effect on training, and what others change.

``class_defaults.json`` beside this file, written by ``python -m tests.support.class_defaults``, has the classes of one
version of ``transformers``: the value that each takes for a key that a file leaves out, and the keys that it reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from launcher.base.files import JsonObject

_TABLE = Path(__file__).with_name("class_defaults.json")

_GENERATION = (
    "bad_words_ids", "begin_suppress_tokens", "cache_implementation", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "forced_bos_token_id", "forced_eos_token_id", "guidance_scale", "length_penalty", "max_length", "max_new_tokens",
    "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_scores", "penalty_alpha", "remove_invalid_values", "renormalize_logits",
    "repetition_penalty", "return_dict_in_generate", "suppress_tokens", "temperature", "top_k", "top_p", "typical_p",
    "use_cache",
)  # fmt: skip

_HISTORY = (
    "_attn_implementation_autoset", "_commit_hash", "_diffusers_version", "_name_or_path", "adapter_path", "alpha",
    "finetuning_task", "id2label", "label2id", "language", "license", "max_sequence_length", "model_max_length",
    "model_type", "name_or_path", "num_labels", "prefix", "problem_type", "pruned_heads", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
    "tokenizer_class", "tokenizer_model_max_length", "tokenizer_padding_side", "transformers.js_config",
    "transformers_version", "unsloth_fixed", "unsloth_version", "zero_division",
)  # fmt: skip

_OUTPUTS = (
    "gradient_checkpointing", "output_attentions", "output_hidden_states", "return_dict", "return_token_timestamps",
    "tf_legacy_loss", "torchscript", "use_return_dict",
)  # fmt: skip

_TOKENS = (
    "bos_token_id", "eos_token_id", "ignore_index", "image_token_id", "mask_token_id", "pad_token_id", "sep_token_id",
    "unk_token_id", "vision_end_token_id", "vision_start_token_id", "vision_token_id",
)  # fmt: skip

_IMPLEMENTATION = (
    "_attn_implementation", "_attn_implementation_internal", "_experts_implementation", "_flash_attn_2_enabled",
    "attn_implementation", "fused_qkv", "reorder_and_upcast_attn", "use_bfloat16", "use_flash_attention",
    "use_flash_attn", "use_flash_attention_2", "use_mem_efficient_attention", "use_sdpa",
)  # fmt: skip

_TRAINING_OF_MPT = ("init_config", "init_device", "tokenizer_name", "verbose")

_STORED = (
    "no effect: of the stored weights; model.weights refuses those of 8 bits, adapter=qlora packs others in 4 bits"
)

NO_EFFECT: Mapping[str, str] = {
    **dict.fromkeys(_GENERATION, "no effect: of generation alone"),
    **dict.fromkeys(_HISTORY, "no effect: the file's history, labels and tokenizer"),
    **dict.fromkeys(_OUTPUTS, "no effect: what a call returns or keeps; the run says that itself"),
    **dict.fromkeys(_TOKENS, "no effect: an id, which data and tokenizer bring themselves"),
    **dict.fromkeys(_TRAINING_OF_MPT, "no effect: of the program that trained it"),
    **dict.fromkeys(_IMPLEMENTATION, "no effect: the same maths by other kernels; model.attention chooses here"),
    "auto_map": "no effect: transformers has a class of this model_type, which is built; the folder's code is not run",
    **dict.fromkeys(("aux_loss_alpha", "seq_aux"), "no effect: transformers' class adds no such loss"),
    "chunk_size_feed_forward": "no effect: transformers' class does not read it",
    **dict.fromkeys(("compression_config", "quantization_config"), _STORED),
    **dict.fromkeys(("dtype", "torch_dtype"), "no effect: of the stored weights; precision decides here"),
    "ep_size": "no effect: parallel.expert decides here",
    "is_decoder": "no effect: the class is a decoder in any case",
    "max_window_layers": "no effect: of sliding windows, which no layer has",
    "n_ctx": "no effect: a second name of n_positions",
    "num_mtp_layers": "no effect: transformers' class trains without the modules that predict further tokens",
    "num_nextn_predict_layers": "no effect: transformers' class trains without the modules that predict further tokens",
    "output_router_logits": "no effect: the loss here is cross entropy alone",
    "pretraining_tp": "no effect: the same maths in slices, which transformers no longer computes",
    "qk_head_dim": "no effect: the sum of qk_nope_head_dim and qk_rope_head_dim",
    "router_aux_loss_coef": "no effect: output_router_logits is false, so that no such loss is added",
}
"""Keys that change nothing of training, with the reason."""

MATTERS: Mapping[str, str] = {
    "add_cross_attention": "attention to an encoder is not built here",
    "attention_dropout": "no weight of attention is dropped here",
    "is_encoder_decoder": "only the decoder is built here",
    "layer_types": "all layers attend to all tokens before them here",
    "moe_layer_freq": "every layer behind the first dense ones has experts here",
    "rope_interleave": "the elements of a head are turned in interleaved pairs here",
    "router_jitter_noise": "no noise is put on what the router reads here",
    "scale_attn_by_inverse_layer_idx": "the scores of all layers are scaled alike here",
    "scale_attn_weights": "scores are scaled by the root of a head's size here",
    "scoring_func": "the router scores by the function of its class here",
    "topk_method": "the router chooses by the method of its class here",
    "tie_encoder_decoder": "there is no encoder here",
    "use_sliding_window": "all layers attend to all tokens before them here",
}
"""Keys that change the maths or the memory, with what a run has here in their place."""

HARMLESS: Mapping[str, tuple[object, ...]] = {
    "add_cross_attention": (False, None),
    "attention_dropout": (0, None),
    "compression_config": (None,),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (False, None),
    "layer_types": (None, []),
    "mlp_only_layers": ([], None),
    "moe_layer_freq": (1, None),
    "num_nextn_predict_layers": (0, None),
    "quantization_config": (None, {}),
    "rope_interleave": (True, None),
    "router_jitter_noise": (0, None),
    "scale_attn_by_inverse_layer_idx": (False, None),
    "scale_attn_weights": (True, None),
    "scoring_func": ("sigmoid", None),
    "tie_encoder_decoder": (False, None),
    "topk_method": ("noaux_tc", None),
    "use_sliding_window": (False, None),
}
"""Values with which a key that has no counterpart changes nothing."""


_SIZES: Mapping[str, tuple[str, ...]] = {
    "num_hidden_layers": (
        "num_hidden_layers", "num_layers", "n_layers", "n_layer", "layers", "depth", "num_blocks", "n_blocks",
        "num_decoder_layers", "decoder_layers", "num_transformer_layers",
    ),
    "hidden_size": (
        "hidden_size", "hidden_dim", "hidden_dims", "n_embd", "n_embed", "d_model", "model_dim", "dim", "embed_dim",
        "embedding_dim", "embedding_size", "decoder_embed_dim", "decoder_hidden_size",
    ),
    "intermediate_size": (
        "intermediate_size", "intermediate_dim", "hidden_dim", "ffn_dim", "ffn_embed_dim", "ffn_hidden_size",
        "ffn_hidden_dim", "ffn_intermediate_size", "decoder_ffn_dim", "decoder_ffn_embed_dim", "n_inner", "d_ff",
        "d_ffn", "ff_dim", "mlp_dim", "mlp_hidden_size", "feedforward_dim", "inner_size", "inner_dim",
    ),
    "num_attention_heads": (
        "num_attention_heads", "num_attn_heads", "attention_heads", "decoder_attention_heads", "num_heads", "n_heads",
        "n_head", "heads", "num_query_heads",
    ),
    "num_key_value_heads": (
        "num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "kv_n_heads", "kv_heads", "num_query_groups",
        "multi_query_group_num", "num_key_value_groups",
    ),
    "head_dim": ("head_dim", "head_size", "d_head", "attention_head_dim", "attention_head_size", "kv_channels"),
    "vocab_size": ("vocab_size", "n_vocab", "vocabulary_size", "vocab", "num_embeddings", "padded_vocab_size"),
    "max_position_embeddings": (
        "max_position_embeddings", "max_target_positions", "max_positions", "n_positions", "max_seq_len",
        "max_seq_length", "seq_length", "seq_len", "block_size",
    ),
    "num_experts": (
        "num_experts", "num_local_experts", "n_routed_experts", "num_routed_experts", "n_experts", "moe_num_experts",
        "num_moe_experts",
    ),
    "num_experts_per_tok": (
        "num_experts_per_tok", "num_experts_per_token", "n_experts_per_tok", "experts_per_token", "moe_top_k",
        "moe_topk", "moe_router_topk", "num_selected_experts",
    ),
    "moe_intermediate_size": (
        "moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size", "expert_intermediate_size",
        "moe_hidden_dim", "expert_hidden_size",
    ),
    "num_shared_experts": ("num_shared_experts", "n_shared_experts", "moe_num_shared_experts"),
}  # fmt: skip
"""What ``transformers``, fairseq, Megatron-LM, the programs of model makers and estimators call the sizes of a model.

By the key of ``model``; ``hidden_dim`` is the width of the MLP in some and the hidden size in others.
"""

_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")

OLDER_NAMES: Mapping[str, tuple[str, ...]] = {"bloom": ("n_embed",), "falcon": ("n_embed",)}
"""Names of sizes that a class takes in its code alone, from files of older versions."""


@cache
def table() -> JsonObject:
    """The classes of ``transformers``: ``version``, ``architectures`` by model type, ``classes`` that families read."""
    found: JsonObject = json.loads(_TABLE.read_text())
    return found


SAME_CLASS: Mapping[str, str] = {"kimi_k2": "deepseek_v3"}
"""Types of which transformers has no class, whose files name that of another type as their architecture."""


TEXT_MODELS: Mapping[str, str] = {
    **dict.fromkeys(("glm4v_text", "glm_image_text"), "glm4"),
    "glm4v_moe_text": "glm4_moe",
    "granite_docling_text": "granite",
    **dict.fromkeys(("qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text"), "qwen2"),
    **dict.fromkeys(("qwen3_omni_moe_text", "qwen3_vl_moe_text"), "qwen3_moe"),
    "qwen3_vl_text": "qwen3",
}
"""Language models inside those of other media, by the type whose layers they have under defaults of their own."""

WITHOUT_A_PART: Mapping[str, str] = {
    **{kind: f"{kind}_text" for kind in ("qwen2_5_vl", "qwen2_vl")},
    "llava_llama": "llama",
    "llava_mistral": "mistral",
    **dict.fromkeys(("llava_qwen", "llava_qwen2"), "qwen2"),
    "phi3_v": "phi3",
}
"""Models of images whose files may have the keys of the language model beside those of the encoder, by its type."""


def class_of(kind: str) -> JsonObject:
    """``defaults`` and ``reads`` of the class of a model type; empty where no family reads it."""
    found: JsonObject = table()["classes"].get(SAME_CLASS.get(kind, kind), {"defaults": {}, "reads": []})
    return found


def sizes_of(key: str) -> list[str]:
    """The keys of ``model`` that a key means in some program, in whatever case; none where it names no size."""
    word = _HUMP.sub("_", key).replace("-", "_").lower()
    return [setting for setting, words in _SIZES.items() if word in words]
