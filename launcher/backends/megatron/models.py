"""Models that Megatron-LM's arguments cannot describe, or whose parameters it would count differently.

Files named below are in megatron-core 0.19.2.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.spec import RunSpec, edit


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for settings that contradict the family, and for model parts that Megatron-LM has no argument for."""
    yield from _family(spec)
    if _unknown(spec):
        return
    yield from _biases(spec)
    yield from _activation(spec)
    yield from _router(spec)
    yield from _positions(spec)
    if spec.model.kv_lora_rank and spec.hardware.device == "cpu":
        rule = (
            "latent attention needs Transformer Engine, which runs only on CUDA: Megatron-core's own attention does not"
            " support its key width (core/transformer/multi_latent_attention.py)"
        )
        yield ConfigError("model.kv_lora_rank", spec.model.kv_lora_rank, rule, ["hardware=h100_80g", "parallel=fsdp"])
    if spec.model.mtp_layers:
        yield from _further_tokens(spec)
    if families.of(spec.model).traits.pattern is not None:
        yield from _hybrid(spec)


def _hybrid(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for hybrid layers, which are Transformer Engine's (``core/models/hybrid/hybrid_layer_specs.py``)."""
    model = spec.model
    if spec.hardware.device == "cpu":
        rule = (
            "a hybrid's layers are modules of Transformer Engine and its mixers are kernels of mamba_ssm"
            " (core/ssm/mamba_mixer.py), which run only on CUDA"
        )
        yield ConfigError("model.family", model.family, rule, ["hardware=h100_80g", "model.family=llama"])
    rule = "this version does not convert a Hugging Face folder into a hybrid's layers"
    yield from edit.refused(spec, "model.weights", rule)
    rule = "this version does not convert a hybrid's layers into a Hugging Face folder"
    yield from edit.refused(spec, "save.export", rule)
    if spec.parallel.virtual_pipeline > 1:
        rule = "a hybrid's pattern sets its stages; use parallel.layout for chunks of other sizes"
        yield from edit.refused(spec, "parallel.first_stage_layers parallel.last_stage_layers", rule)


def _unknown(spec: RunSpec) -> bool:
    traits = families.of(spec.model).traits
    return traits.names is None and traits.pattern is None


def _further_tokens(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for multi-token prediction (``validate_args``; ``core/transformer/multi_token_prediction.py``)."""
    without = "model.mtp_layers=0"
    if spec.model.position_embedding not in ("rope", "none"):
        rule = "Megatron-LM predicts further tokens only with rotary or no positions, and these are learned"
        yield ConfigError("model.mtp_layers", spec.model.mtp_layers, rule, [without])
    settings = spec.checkpointing
    if settings.mode == "full" and settings.method != "block" and (settings.layers or 1) > 1:
        rule = "multi-token prediction layers are recomputed one by one"
        yield ConfigError("checkpointing.layers", settings.layers, rule, ["checkpointing.layers=1", without])
    rule = "transformers builds no multi-token prediction layers, so these would be lost"
    yield from edit.refused(spec, "save.export", rule, without)


def _positions(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for rotary positions without an argument (``rotary_pos_embedding.py``), and for windows across ranks."""
    model = spec.model
    way = spec.backend.extra.get("cp-comm-type", "p2p")
    if model.sliding_window and spec.parallel.context > 1 and way == "p2p":
        rule = "Transformer Engine's ring of keys and values (p2p) supports no sliding window (model.sliding_window)"
        ways = ["parallel.context=1", "+backend.extra.cp-comm-type=a2a"]
        yield ConfigError("parallel.context", spec.parallel.context, rule, ways)
    if model.position_embedding == "rope" and model.rope_theta != int(model.rope_theta):
        rule = "--rotary-base must be a whole number"
        yield ConfigError("model.rope_theta", model.rope_theta, rule, [f"model.rope_theta={int(model.rope_theta)}.0"])
    given = model.rope_parameters
    if given and not _has_argument(given, latent=bool(model.kv_lora_rank)):
        rule = (
            "Megatron-LM has arguments for Llama 3's scaling, with low_freq_factor 1, high_freq_factor 4 and"
            " original_max_position_embeddings 8192 (only factor may differ), and for part of a head"
            " (partial_rotary_factor); null leaves rotary positions unscaled, which is a different model"
        )
        yield ConfigError("model.rope_parameters", dict(given), rule, ["parallel=fsdp", "model.rope_parameters=null"])


_LLAMA3 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}


def _has_argument(given: Mapping[str, Any], *, latent: bool) -> bool:
    kind, rest = given.get("rope_type", "default"), {key: given[key] for key in given if key != "rope_type"}
    if kind == "llama3":
        return not latent and rest.pop("factor", None) is not None and rest == _LLAMA3
    return kind == "default" and not latent and set(rest) <= {"partial_rotary_factor"}


def _family(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for experts and latent attention that the family lacks: the memory estimate counts by family."""
    model, traits = spec.model, families.of(spec.model).traits
    if _unknown(spec):
        rule = f"Megatron-LM's arguments cannot describe the family {model.family}"
        yield ConfigError("model.family", model.family, rule, ["parallel=fsdp", "parallel=zero3"])
    if model.num_experts and not traits.experts:
        rule = f"the family {model.family} has no experts"
        yield ConfigError("model.num_experts", model.num_experts, rule, ["model.family=moe", "model.num_experts=0"])
    if model.kv_lora_rank and not traits.latent_attention:
        rule = f"the family {model.family} has no multi-head latent attention"
        way_out = ["model.family=deepseek", "model.kv_lora_rank=0"]
        yield ConfigError("model.kv_lora_rank", model.kv_lora_rank, rule, way_out)
    if traits.output_bias and model.gated and not (model.attention_bias or model.mlp_bias):
        rule = "Megatron-LM identifies a model by its settings, and these describe the family llama"
        yield ConfigError("model.family", model.family, rule, ["model.family=llama"])
    if traits.latent_attention and not model.kv_lora_rank:
        rule = f"the family {model.family} has multi-head latent attention, whose size this is"
        yield ConfigError("model.kv_lora_rank", 0, rule, ["model.kv_lora_rank=512", "model.family=moe"])
    heads, hidden = model.num_attention_heads, model.hidden_size
    if model.kv_lora_rank and model.head_dim is None and hidden % heads:  # Another rule is for other attention.
        rule = f"for latent attention, too, Megatron-LM needs heads to divide the hidden size {hidden} (validate_args)"
        yield ConfigError("model.num_attention_heads", heads, rule, [f"model.head_dim={max(1, hidden // heads)}"])


def _biases(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for biases: ``--disable-bias-linear`` is for all linear layers, ``--add-qkv-bias`` only for QKV."""
    model = spec.model
    if families.of(model).traits.output_bias:
        yield from _biases_of_gpt(spec)
        return
    output = model.attention_output_bias is True
    if model.mlp_bias and model.num_experts:
        rule = "Megatron-LM would add biases to the experts, which have none in the families counted here"
        yield ConfigError("model.mlp_bias", True, rule, ["model.mlp_bias=false"])
    elif model.mlp_bias and not (model.attention_bias and output):
        rule = (
            "in Megatron-LM either all linear layers have biases or none, attention's (model.attention_bias) and its"
            " output projection's (model.attention_output_bias) included"
        )
        yield ConfigError("model.mlp_bias", True, rule, ["model.mlp_bias=false", "parallel=fsdp"])
    elif output and not model.mlp_bias:
        rule = "Megatron-LM has a bias on attention's output projection only if the MLP has one (model.mlp_bias)"
        path = "model.attention_output_bias"
        yield ConfigError(path, True, rule, ["parallel=fsdp", f"{path}=false"])
    if model.attention_bias and model.kv_lora_rank:
        rule = "Megatron-LM's latent attention has no biases (core/transformer/multi_latent_attention.py)"
        yield ConfigError("model.attention_bias", True, rule, ["model.attention_bias=false"])


def _biases_of_gpt(spec: RunSpec) -> Iterator[ConfigError]:
    model = spec.model
    if model.attention_bias != model.mlp_bias:
        key = "model.mlp_bias" if model.attention_bias else "model.attention_bias"
        rule = "in Megatron-LM either all linear layers have biases or none, including attention's output projection"
        yield ConfigError(key, False, rule, [f"{key}=true"])
    if model.attention_output_bias not in (None, model.attention_bias):
        path, rule = "model.attention_output_bias", "in Megatron-LM all linear layers of attention have biases or none"
        yield ConfigError(path, model.attention_output_bias, rule, [f"{path}=null"])


def _activation(spec: RunSpec) -> Iterator[ConfigError]:
    model = spec.model
    if model.gated != (model.hidden_act == "silu"):
        rule = "Megatron-LM's only gated activation is SiLU (--swiglu); its others are not gated"
        yield ConfigError("model.gated", model.gated, rule, ["parallel=fsdp", "model.gated=null"])
    elif model.hidden_act == "relu":
        rule = "Megatron-LM has no argument for it"
        yield ConfigError("model.hidden_act", "relu", rule, ["model.hidden_act=squared_relu", "model.hidden_act=gelu"])
    elif model.hidden_act == "gelu_new" and not model.mlp_bias:
        rule = "Megatron-LM's tanh approximation of GELU is fused with a bias, and model.mlp_bias is false"
        yield ConfigError("model.hidden_act", "gelu_new", rule, ["model.hidden_act=gelu", "model.mlp_bias=true"])


def _router(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors for routers that ``topk_routing_with_score_function`` and ``group_limited_topk`` do not compute."""
    model = spec.model
    if model.norm_topk_prob is False and families.of(model).traits.balances_experts:
        rule = "Megatron-LM always normalizes expert weights from sigmoid scores to a sum of 1"
        yield ConfigError("model.norm_topk_prob", False, rule, ["parallel=fsdp", "model.norm_topk_prob=true"])
    if model.n_group > 1 and model.topk_group and model.num_experts_per_tok // model.topk_group != _BEST_OF_GROUP:
        rule = (
            f"Megatron-LM scores a group by its best {model.num_experts_per_tok // model.topk_group} experts"
            f" (num_experts_per_tok / topk_group), DeepSeek-V3 by its best {_BEST_OF_GROUP}"
        )
        yield ConfigError("model.topk_group", model.topk_group, rule, ["parallel=fsdp"])


_BEST_OF_GROUP = 2  # Experts whose scores sum to their group's score (arXiv:2412.19437, section 2.1.2).
