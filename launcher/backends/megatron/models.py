"""Models that Megatron-LM's arguments cannot describe, or whose parameters it would count otherwise than their family.

The files named are those of megatron-core 0.19.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher import families
from launcher.errors import ConfigError
from launcher.spec import RunSpec


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Settings that contradict the family, biases, activations and positions without an argument."""
    yield from _family(spec)
    yield from _biases(spec)
    yield from _activation(spec)
    model = spec.model
    if model.position_embedding == "rope" and model.rope_theta != int(model.rope_theta):
        rule = "--rotary-base is a whole number"
        yield ConfigError("model.rope_theta", model.rope_theta, rule, [f"model.rope_theta={int(model.rope_theta)}.0"])


def _family(spec: RunSpec) -> Iterator[ConfigError]:
    """Experts and latent attention belong to families, by which the memory estimate counts them."""
    model, traits = spec.model, families.of(spec.model).traits
    if traits.names is None:
        rule = f"Megatron-LM's arguments describe no model of the family {model.family}"
        yield ConfigError("model.family", model.family, rule, ["model.family=llama", "parallel=fsdp"])
    if model.num_experts and not traits.experts:
        rule = f"the family {model.family} has no experts"
        yield ConfigError("model.num_experts", model.num_experts, rule, ["model.family=moe", "model.num_experts=0"])
    if model.kv_lora_rank and not traits.latent_attention:
        rule = f"the family {model.family} has no multi-head latent attention"
        way_out = ["model.family=deepseek", "model.kv_lora_rank=0"]
        yield ConfigError("model.kv_lora_rank", model.kv_lora_rank, rule, way_out)
    if traits.output_bias and model.gated and not (model.attention_bias or model.mlp_bias):
        rule = "Megatron-LM knows a model by its settings, and these are of the family llama"
        yield ConfigError("model.family", model.family, rule, ["model.family=llama"])
    if traits.latent_attention and not model.kv_lora_rank:
        rule = f"the family {model.family} has multi-head latent attention, whose size this is"
        yield ConfigError("model.kv_lora_rank", 0, rule, ["model.kv_lora_rank=512", "model.family=moe"])


def _biases(spec: RunSpec) -> Iterator[ConfigError]:
    """``--disable-bias-linear`` is for all linear layers; ``--add-qkv-bias`` then adds those of attention's inputs."""
    model = spec.model
    if families.of(model).traits.output_bias:
        if model.attention_bias != model.mlp_bias:
            key = "model.mlp_bias" if model.attention_bias else "model.attention_bias"
            rule = "Megatron-LM's linear layers have biases all together, the output projection of attention included"
            yield ConfigError(key, False, rule, [f"{key}=true"])
        return
    if model.mlp_bias:
        rule = f"Megatron-LM would add one to attention's output projection, which the family {model.family} has not"
        yield ConfigError("model.mlp_bias", True, rule, ["model.mlp_bias=false", "model.family=gpt"])
    if model.attention_bias and model.kv_lora_rank:
        rule = "Megatron-LM's latent attention has no biases (core/transformer/multi_latent_attention.py)"
        yield ConfigError("model.attention_bias", True, rule, ["model.attention_bias=false"])


def _activation(spec: RunSpec) -> Iterator[ConfigError]:
    model = spec.model
    if model.hidden_act == "relu":
        rule = "Megatron-LM has no argument for it"
        yield ConfigError("model.hidden_act", "relu", rule, ["model.hidden_act=squared_relu", "model.hidden_act=gelu"])
    if model.hidden_act == "gelu_new" and not model.mlp_bias:
        rule = "Megatron-LM's tanh approximation of GELU is fused with a bias, and model.mlp_bias is false"
        yield ConfigError("model.hidden_act", "gelu_new", rule, ["model.hidden_act=gelu", "model.mlp_bias=true"])
