"""The description of a decoder of ``transformers``: names, norms, biases, gates, and peculiarities of its class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

type Bias = bool | str
"""True or false, or the key of the class's configuration that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts in place of the MLP.

    Attributes:
        name: The module that holds router and experts.
        router: The router's module in it.
        router_bias: True if the router has a bias.
        bias: True if each expert's two projections have one.
        transposed: True if an expert's matrices are held with the inputs first.
        shared: The module of the MLP that every token meets; empty without one.
        shared_width: The key with its width.
        shared_joined: True if its gate and up projections are one linear.
        shared_gate: The linear that weighs it; empty without one.
    """

    name: str = "mlp"
    router: str = "gate"
    router_bias: bool = False
    bias: bool = False
    transposed: bool = False
    shared: str = ""
    shared_width: str = ""
    shared_joined: bool = False
    shared_gate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """One model type.

    Attributes:
        config: The class of its configuration.
        table: The token embedding.
        positions: The learned positions; empty without them.
        positions_offset: Rows of theirs that no position uses.
        embedding_norm: The norm of the embeddings; empty without one.
        norm: The kind of its norms.
        norm_code: How they are computed, for the tensors that they save: Llama's RMSNorm, Gemma's whose
            weight is multiplied in fp32, torch's LayerNorm, Cohere's in Python, torch's with fp32 input.
        norm_weight: True if they have a weight.
        norm_bias: True if they have a bias.
        first: The norm before attention; empty without one.
        after_attention: The norm of attention's output; empty without one.
        second: The norm before the MLP; empty where the MLP reads what attention reads.
        parallel: True if attention and MLP read the same stream and are added together.
        after_mlp: The norm of the MLP's output; empty without one.
        last: The norm after the blocks; empty without one.
        attention: The module of attention.
        inputs: Its projections: queries, keys and values, or one of all three.
        output: The projection of its output.
        input_bias: The bias of ``inputs``.
        output_bias: The bias of ``output``.
        head_norms: The norms of queries and of keys; empty without them.
        head_norm_size: What one of them covers: a head, all heads, or each head with weights of its own.
        head_norm_bias: True if they have a bias.
        head_norm_copies: What follows their name where each head has a module of its own.
        with_head_norms: The key that turns them on; empty where they are always there.
        sinks: True if each head has a learned sink.
        joins_queries: True if queries are put together from a rotated and another part, and attention's output is
            then copied for its projection.
        keeps_joint: True if the values are a slice of the output of one projection, all of which stays.
        repeats_keys: True if keys and values are copied for each head of queries.
        wide_queries: True if queries and keys are made fp32 for the scores of eager attention.
        mlp: The module of the MLP; empty where its linears are the block's.
        gate: Its gate; empty where there is none or ``up`` holds both.
        up: Its first linear.
        down: Its last linear.
        gated: True if the activation of one half is multiplied with the other.
        mlp_bias: The bias of its linears.
        activation_weights: Learned numbers of its activation.
        experts: The routed experts in place of the MLP.
        head_bias: The bias of the output projection.
        inner_factor: Of the hidden size, where the class has no other width of the MLP.
        fixed: Our keys of ``model`` that its class decides.
        settings: Further arguments of the class of its configuration.
        dropouts: The class's keys of dropout.
        attentions: The values of ``model.attention`` with which its class computes.
        score_copies: Tensors as large as the scores that eager attention still names while it computes their softmax.
        windows: The kinds of layers that repeat where there is a window, ``w`` with it and ``f`` without; empty where
            all have it.
        own_attention: True if its class chooses among modules of its own by transformers' names of attention.
        legal: Values of the class's keys that this description covers; any other is refused.
        variants: Other fields where a key of the class has a value: (key, value, fields), the later ones stronger.
        logits_factor: The key that logits are multiplied with; empty without one.
        logits_divisor: The key that logits are divided by; empty without one.
    """

    config: str
    table: str = "embed_tokens"
    positions: str = ""
    positions_offset: int = 0
    embedding_norm: str = ""
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_code: Literal["llama", "gemma", "kernel", "cohere", "wide kernel"] = "llama"
    norm_weight: bool = True
    norm_bias: bool = False
    first: str = "input_layernorm"
    after_attention: str = ""
    second: str = "post_attention_layernorm"
    parallel: bool = False
    after_mlp: str = ""
    last: str = "norm"
    attention: str = "self_attn"
    inputs: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    output: str = "o_proj"
    input_bias: Bias = False
    output_bias: Bias = False
    head_norms: tuple[str, ...] = ()
    head_norm_size: Literal["head", "all", "each"] = "head"
    head_norm_bias: bool = False
    head_norm_copies: str = ""
    with_head_norms: str = ""
    sinks: bool = False
    joins_queries: bool = False
    keeps_joint: bool = True
    repeats_keys: bool = False
    wide_queries: bool = False
    mlp: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    gated: bool = True
    mlp_bias: Bias = False
    activation_weights: tuple[str, ...] = ()
    experts: Experts | None = None
    head_bias: Bias = False
    inner_factor: int = 4
    fixed: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    dropouts: tuple[str, ...] = ("attention_dropout",)
    attentions: tuple[str, ...] = ("sdpa", "flash", "eager")
    score_copies: int = 0
    windows: str = ""
    own_attention: bool = False
    legal: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    variants: tuple[tuple[str, object, Mapping[str, Any]], ...] = ()
    logits_factor: str = ""
    logits_divisor: str = ""
