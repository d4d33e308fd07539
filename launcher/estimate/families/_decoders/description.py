"""The description of a decoder of ``transformers``: names, norms, biases, gates, and peculiarities of its class."""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass

WORDS: Mapping[str, Any] = files.own_json(Path(__file__).with_name("words.json"))
"""Tables of keys: names of sizes, keys of older files."""

type Bias = bool | str
"""True or false, or the key of the class's configuration that says so."""


type Words = Callable[[Callable[[str], Any], int], tuple[str, ...]]
"""A function that names each layer's kind, from the values of the class's keys and the number of layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A part of a layer: a norm, the modules that read its output, and the sum with the residual stream."""

    norm: str  # The norm.
    kinds: tuple[str, ...]  # The modules of ``_decoders.kinds`` that describe the readers of its output.
    own: Mapping[str, Any] = field(default_factory=dict)  # Fields of the type's description that differ in this step.
    summed: bool = True  # False if the next step reads its output directly, without a sum.


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts in place of the MLP."""

    name: str = "mlp"  # The module that holds router and experts.
    router: str = "gate"  # The router's module in it.
    router_bias: bool = False  # True if the router has a bias.
    bias: bool = False  # True if each expert's two projections have a bias.
    transposed: bool = False  # True if an expert's matrices are stored with the inputs first.
    shared: str = ""  # The module of the shared experts' MLP, which every token passes; empty without one.
    shared_width: str = ""  # The key with its width.
    shared_joined: bool = False  # True if its gate and up projections are one linear layer.
    shared_gate: str = ""  # The linear layer that weights its output; empty without one.
    shared_first: bool = False  # True if that MLP is computed before the routed experts.
    latent: str = ""  # The key of a token's width inside the experts; empty if that is the hidden size.
    # True if the router scores by a sigmoid, in groups, on an fp32 copy of its input.
    wide: bool = False
    gated: bool = True  # True if an expert's activation is gated.
    every: bool = False  # True if every expert computes every token, whatever the router chose.
    kind: str = "experts"  # The module of ``_decoders.kinds`` that describes them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """One model type: the facts that its class's keys do not tell (:func:`completed`)."""

    config: str = ""  # The class of its configuration.
    table: str = "embed_tokens"  # The token embedding.
    positions: str = ""  # The learned positions; empty without them.
    positions_offset: int = 0  # Rows of the learned positions that no position uses.
    embedding_norm: str = ""  # The norm of the embeddings; empty without one.
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"  # The kind of its norms.
    # How they are computed, for the tensors that they save: Llama's RMSNorm, Gemma's whose weight is multiplied in
    # fp32, torch's LayerNorm, Cohere's in Python, torch's with fp32 input.
    norm_code: Literal["llama", "gemma", "kernel", "cohere", "wide kernel"] = "llama"
    norm_weight: bool = True  # True if they have a weight.
    norm_bias: bool = False  # True if they have a bias.
    first: str = "input_layernorm"  # The norm before attention; empty without one.
    after_attention: str = ""  # The norm of attention's output; empty without one.
    second: str = "post_attention_layernorm"  # The norm before the MLP; empty if the MLP shares attention's input.
    parallel: bool = False  # True if attention and MLP read the same stream and their outputs are added.
    after_mlp: str = ""  # The norm of the MLP's output; empty without one.
    last: str = "norm"  # The norm after the blocks; empty without one.
    attention: str = "self_attn"  # The module of attention.
    # Its projections: queries, keys and values, or one of all three.
    inputs: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    output: str = "o_proj"  # The projection of its output.
    joined: int = 1  # Hidden sizes that attention and its norm read: 2 with the embeddings beside the stream.
    square_output: bool = False  # True if it has as many inputs as outputs, whatever the head size.
    input_bias: Bias = "attention_bias"  # The bias of ``inputs``; none if the class has no such key.
    output_bias: Bias = "attention_bias"  # The bias of ``output``, likewise.
    head_norms: tuple[str, ...] = ()  # The norms of queries and of keys; empty without them.
    # What one of them covers: a head, all heads, or each head with its own weights; "none" is a head, unweighted.
    head_norm_size: Literal["head", "all", "each", "none"] = "head"
    head_norm_bias: bool = False  # True if they have a bias.
    head_norm_copies: str = ""  # The suffix of their name if each head has its own module.
    with_head_norms: str = ""  # The key that turns them on; empty if they are always on.
    sinks: bool = False  # True if each head has a learned sink.
    # How eager attention's softmax is computed: in fp32, or in the compute format, on the scores minus their maximum
    # or on the scores as they are.
    softmax: Literal["wide", "less largest", "narrow"] = "wide"
    keys_factor: int = 1  # Heads of keys and values, by ``model.num_key_value_heads``.
    value_width: str = ""  # The key of the width of a value head, if it differs from that of a query head.
    # True if queries are concatenated from a rotated and another part, so that attention's output is copied for its
    # projection.
    joins_queries: bool = False
    clips_joint: bool = False  # True if the output of a single projection is clipped, which keeps that output as well.
    keeps_joint: bool = True  # True if the values are a slice of a single projection's output, which is kept whole.
    repeats_keys: bool = False  # True if keys and values are copied for each query head.
    wide_queries: bool = False  # True if queries and keys are cast to fp32 for the scores of eager attention.
    mlp_width: str = ""  # The key of its width, if it differs from that of the class's other layers.
    mlp: str = "mlp"  # The module of the MLP; empty if its linear layers are the block's own.
    gate: str = "gate_proj"  # Its gate; empty if there is none or ``up`` holds both.
    up: str = "up_proj"  # Its first linear layer.
    down: str = "down_proj"  # Its last linear layer.
    gated: bool = True  # True if the activation of one half is multiplied by the other.
    mlp_bias: Bias = "mlp_bias"  # The bias of its linear layers, likewise.
    # Linear layers whose names ``peft`` takes for routed experts' (0.21, ``_MOE_TARGET_MODULE_MAPPING``).
    unwrapped: tuple[str, ...] = ()
    behind: str = ""  # A linear layer that reads the MLP's output, before the sum; empty without one.
    # The lists of low-rank pairs that each use of a shared block adds to its linear layers, by the names of these.
    beside: Mapping[str, str] = field(default_factory=dict)
    shared: str = ""  # The module that several layers share, counted outside the layers; empty without one.
    activation_weights: tuple[str, ...] = ()  # Learned parameters of its activation.
    experts: Experts | None = None  # The routed experts in place of the MLP.
    head_bias: Bias = False  # The bias of the output projection.
    inner_factor: int = 4  # Width of the MLP over the hidden size, if the class has no key for it.
    fixed: Mapping[str, Any] = field(default_factory=dict)  # Our keys of ``model`` that its class decides.
    settings: Mapping[str, Any] = field(default_factory=dict)  # Further arguments of its configuration class.
    dropouts: tuple[str, ...] = ()  # The class's keys of dropout; by default all but those of other modules.
    # The values of ``model.attention`` that its class supports.
    attentions: tuple[str, ...] = ("sdpa", "flash", "eager")
    # Tensors as large as the scores that eager attention still references while it computes their softmax.
    score_copies: int = 0
    # The repeating pattern of layers with (``w``) and without (``f``) a window; empty if all have one.
    windows: str = ""
    # The kind of each layer if there are several kinds, and the steps of a layer by its kind.
    layers: Words | None = None
    steps: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    mixer: str = "mixer"  # The module of a state space or of linear attention.
    # Its sizes, by the names that its kind uses: the class's keys, or numbers that are fixed in the class.
    sizes: Mapping[str, str | int] = field(default_factory=dict)
    scaled: bool = False  # True if each part of a step reads its own multiple of the norm's output.
    attends: bool = True  # True if some layer may have attention.
    gated_output: bool = False  # True if attention's output is multiplied by a sigmoid from the query projection.
    # True if its class picks its own attention modules by transformers' attention names.
    own_attention: bool = False
    # Values of the class's keys that this description covers; any other is refused.
    legal: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    # Fields that change if a key of the class has a value: (key, value, fields); later ones take precedence.
    variants: tuple[tuple[str, object, Mapping[str, Any]], ...] = ()
    logits_factor: str = ""  # The key that logits are multiplied by; empty without one.
    logits_divisor: str = ""  # The key that logits are divided by; empty without one.


_LEGAL: Mapping[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "output_router_logits": (False,),  # The workers' loss is only the cross entropy.
    "router_jitter_noise": (0.0, 0),
    "use_bidirectional_attention": (None, False),
    "z_loss_coefficient": (0.0, None),
}
"""The supported values of keys that any class may have."""

_OTHER_DROPOUTS = ("classifier_dropout", "layerdrop")  # Dropouts of a classifier head, and of whole layers.


def completed(kind: str, found: Decoder, architecture: str, keys: Mapping[str, Any]) -> Decoder:
    """Complete a description with what follows from its class: the architecture's name, and the keys and defaults.

    transformers calls the configuration of ``OlmoForCausalLM`` ``OlmoConfig``, and that of a multimodal model's text
    part ``...TextConfig``.
    """

    def named(*some: str) -> str:
        return next((key for key in some if keys.get(key) is not None), "")

    def there(bias: Bias) -> Bias:
        return bias if isinstance(bias, bool) or bias in keys else False

    dropouts = tuple(key for key in keys if "drop" in key and key not in _OTHER_DROPOUTS)
    return replace(
        found,
        config=f"{architecture.removesuffix('ForCausalLM')}{'Text' if kind.endswith('_text') else ''}Config",
        with_head_norms=named("use_qk_norm", "qk_layernorm"),
        value_width=named("v_head_dim"),
        logits_factor=named("logit_scale", "lm_head_multiplier"),
        logits_divisor=named("logits_scaling"),
        input_bias=there(found.input_bias),
        output_bias=there(found.output_bias),
        mlp_bias=there(found.mlp_bias),
        dropouts=found.dropouts or dropouts,
        legal={**{key: values for key, values in _LEGAL.items() if key in keys}, **found.legal},
    )


def described() -> dict[str, Decoder]:
    """The descriptions of ``descriptions.json`` by model type, of ``modeling_<model_type>.py`` in transformers 5.23.

    A row is ``like`` another one but for the fields that it names. One whose name begins with ``_`` is no type, and
    ``why`` is for whoever reads the file.
    """
    rows: Mapping[str, JsonObject] = files.own_json(Path(__file__).with_name("descriptions.json"))

    @cache
    def of(kind: str) -> Decoder:
        row = rows[kind]
        return replace(of(row["like"]) if "like" in row else Decoder(), **_fields(row))

    return {kind: of(kind) for kind in rows if not kind.startswith("_")}


def _fields(row: JsonObject) -> JsonObject:
    """The fields of a row as a description holds them, with tuples for lists."""
    said = ((key, value) for key, value in row.items() if key not in ("like", "why"))
    found: JsonObject = {key: tuple(value) if isinstance(value, list) else value for key, value in said}
    if found.get("experts") is not None:
        found["experts"] = Experts(**found["experts"])
    if "legal" in found:
        found["legal"] = {key: tuple(values) for key, values in found["legal"].items()}
    if "variants" in found:
        found["variants"] = tuple((key, value, _fields(changed)) for key, value, changed in found["variants"])
    return found
