"""Megatron-core's ``HybridModel``: each layer is one part of a block, by letter (``core/models/hybrid``, 0.19.2).

``model.extra.pattern`` has one letter per layer: ``M`` a Mamba-2 mixer, ``*`` attention, ``-`` an MLP, ``E`` experts.
``model.extra.mtp`` has the letters of one depth of multi-token prediction. Each layer has one norm, which Transformer
Engine fuses with the linear layer after it, except for experts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.estimate.families import _megatron, _weights, llama
from launcher.estimate.families._decoders.kinds import mamba2
from launcher.estimate.families._decoders.kinds.mamba2 import Sizes
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import ConfigFile, FamilyTraits, TransformersConfig
from launcher.estimate.rank.tensors import NO_SCANS, SavedTensor, Scans, Weight
from launcher.spec import ModelSpec, RunSpec, edit

WORDS: Mapping[str, str] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "experts"}
"""The letters of ``Symbols`` in ``hybrid_layer_allocation.py``, and their meaning."""

MIXER: Mapping[str, int | None] = {
    "mamba_num_heads": None, "mamba_head_dim": 64, "mamba_state_dim": 128, "mamba_num_groups": 8,
}  # fmt: skip
"""Sizes of the mixer, with the defaults of ``TransformerConfig``; by default its heads cover twice the hidden size."""

_CHUNK, _CONV = 128, 4  # ``chunk_size`` and ``d_conv`` of ``MambaMixer``, which no argument sets.


class _Letters(NamedTuple):
    layers: str  # One for each layer.
    further: str  # Those of one depth of multi-token prediction.


def letters(model: ModelSpec) -> _Letters:
    """The letters of all layers, and of one depth of multi-token prediction."""
    return _Letters(str(model.extra.get("pattern", "")), str(model.extra.get("mtp", "")))


def choices(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of unknown letters, of another number of letters than layers, and of unknown keys."""
    model = spec.model
    yield from edit.refused(spec, "model.model_type", "family=hybrid has no types")
    for key, text in (("pattern", letters(model).layers), ("mtp", letters(model).further)):
        path, wrong = f"model.extra.{key}", sorted({*text} - {*WORDS})
        if wrong or (key == "pattern" and not text):
            rule = f"has one letter per layer: {', '.join(f'{letter} ({word})' for letter, word in WORDS.items())}"
            yield ConfigError(path, text, rule, [edit.override(path, "M-M*")])
    if (count := len(letters(model).layers)) not in (0, model.num_hidden_layers):
        rule = f"model.extra.pattern has {count} letters, one per layer"
        yield ConfigError(
            "model.num_hidden_layers", model.num_hidden_layers, rule, [f"model.num_hidden_layers={count}"]
        )
    if bool(model.mtp_layers) != bool(letters(model).further):
        rule = "model.extra.mtp has the letters of one depth of multi-token prediction"
        yield ConfigError("model.mtp_layers", model.mtp_layers, rule, ["model.mtp_layers=0", "model.extra.mtp='*E'"])
    for key, value in model.extra.items():
        if key in (*MIXER, *traits.counts) and not (value is None or (type(value) is int and value >= 1)):
            rule = "is a whole number of at least 1, or null"
            yield ConfigError(f"model.extra.{key}", value, rule, [f"model.extra.{key}=null"])
        elif key not in (*MIXER, *traits.counts, "pattern", "mtp", "mtp_shared"):
            rule = f"family=hybrid has pattern, mtp, mtp_shared, {', '.join((*MIXER, *traits.counts))}"
            yield ConfigError(f"model.extra.{key}", value, rule, [])
    yield from _mixer(spec)


def _mixer(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of heads and groups that tensor parallel ranks cannot split (``MambaMixer.__init__``)."""
    if "M" not in letters(spec.model).layers + letters(spec.model).further:
        return
    one, degree = mixer(spec.model), spec.parallel.tensor
    for count, key in ((one.heads, "mamba_num_heads"), (one.groups, "mamba_num_groups")):
        if count % degree:
            rule = f"tensor parallel ranks must divide the {count} of model.extra.{key}"
            yield ConfigError("parallel.tensor", degree, rule, ["parallel.tensor=1"])
    if one.heads % one.groups:
        rule = f"must divide the {one.heads} heads of the mixer"
        path = "model.extra.mamba_num_groups"
        yield ConfigError(path, one.groups, rule, [f"{path}={n}" for n in (8, 4, 2, 1) if one.heads % n == 0][:2])


traits = FamilyTraits(
    attention_output="self_attention.linear_proj.weight",
    experts=True,
    counts=("shared_width", "latent"),
    not_linear="blocks that Megatron-core builds",
    choices=choices,
    attends=lambda model, layer: "*" in _block(model, layer),
    scans=lambda model, layer, size: scans(model, layer, size),
    sums=lambda model, layer: len(_block(model, layer)),
    pattern=lambda model: letters(model).layers,
    predicted_layer=lambda model: model.num_hidden_layers,
    shares_predicted=lambda model: model.extra.get("mtp_shared") is True,
)

embedding = llama.embedding
head = llama.head
after_blocks = llama.after_blocks
first_norm_backward = llama.first_norm_backward
saves_input = llama.saves_input


def _block(model: ModelSpec, layer: int) -> str:
    found = letters(model)
    return found.layers[layer : layer + 1] or found.further


def kind(model: ModelSpec, layer: int) -> str:
    """The name of a layer's kind, from its letters."""
    return " ".join(WORDS.get(letter, letter) for letter in _block(model, layer)) or "none"


def mixer(model: ModelSpec) -> Sizes:
    """The sizes of a Mamba-2 mixer (``MambaMixer.__init__``)."""
    found = {key: model.extra.get(key) or default for key, default in MIXER.items()}
    head_dim, state, groups = (int(found[key] or 0) for key in (*MIXER,)[1:])
    heads = int(found["mamba_num_heads"] or 2 * model.hidden_size // head_dim)
    return Sizes(heads, head_dim, state, groups, _CONV, _CHUNK, True)


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Weights of a layer: a norm, and those of the part that its letter names."""
    return [weight for letter in _block(model, layer) for weight in _WEIGHTS[letter](model)]


def _of_mixer(model: ModelSpec) -> list[Weight]:
    """Two linear layers, the convolution of the state's inputs, three numbers per head and a norm (``MambaMixer``)."""
    one, hidden = mixer(model), model.hidden_size
    heads = [Weight(name=f"mixer.{each}", shape=(one.heads,), split="tensor") for each in ("dt_bias", "A_log", "D")]
    return [
        *_weights.norm("mixer.in_proj.layer_norm", hidden, model),
        *_weights.linear("mixer.in_proj", one.projected, hidden, bias=False),
        Weight(name="mixer.conv1d.weight", shape=(one.convolved, 1, one.conv), split="tensor"),
        Weight(name="mixer.conv1d.bias", shape=(one.convolved,), split="tensor"),
        *heads,
        Weight(name="mixer.norm.weight", shape=(one.inner,), split="tensor"),
        *_weights.linear("mixer.out_proj", hidden, one.inner, bias=False, rows=False),
    ]


def _of_attention(model: ModelSpec) -> list[Weight]:
    name, hidden = "self_attention", model.hidden_size
    joined = model.query_size + 2 * model.key_value_size
    weights = _weights.norm(f"{name}.linear_qkv.layer_norm", hidden, model)
    weights += _weights.linear(f"{name}.linear_qkv", joined, hidden, bias=model.attention_bias)
    weights += _weights.linear(f"{name}.linear_proj", hidden, model.query_size, bias=model.mlp_bias, rows=False)
    return weights + (_weights.head_norms(name, model) if model.qk_norm else [])


def _of_mlp(model: ModelSpec) -> list[Weight]:
    return _weights.norm("mlp.layer_norm", model.hidden_size, model) + _weights.feed_forward(
        "mlp", model, model.intermediate_size
    )


def _of_experts(model: ModelSpec) -> list[Weight]:
    """The norm, the router, the experts at the token's latent width, and the shared experts' MLP."""
    hidden, latent = model.hidden_size, _count(model, "latent")
    rows = _weights.norm("pre_mlp_layernorm", hidden, model)
    experts = _weights.experts(replace(model, hidden_size=latent or hidden, num_shared_experts=0, extra={}))
    rows += [replace(experts[0], shape=(model.num_experts, hidden)), *experts[1:]]
    if latent:
        rows += _weights.linear("mlp.fc1_latent_proj", latent, hidden, bias=model.mlp_bias, split=False)
        rows += _weights.linear("mlp.fc2_latent_proj", hidden, latent, bias=model.mlp_bias, split=False)
    if model.shared_width:
        rows += _weights.feed_forward("mlp.shared_experts", model, model.shared_width)
    return rows


_WEIGHTS = {"M": _of_mixer, "*": _of_attention, "-": _of_mlp, "E": _of_experts}


def _count(model: ModelSpec, key: str) -> int:
    return int(model.extra.get(key) or 0)


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by the norm and the part of a layer."""
    return [row for letter in _block(model, layer) for row in _SAVED[letter](model, engine)]


def _by_mixer(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """The norm and the projection; the scan's output; the norm after it and its output (``MambaMixer._ssm_training``).

    The scan's kernel saves the projection with the sequences first and its output before the gate, and recomputes the
    convolution and all states (``MambaSplitConv1dScanCombinedFn`` of ``mamba_ssm`` 2.3); the gated output is transposed
    into a copy, which the grouped norm saves with one deviation per group.
    """
    one, size = mixer(model), engine.size
    read = _megatron.read_by_linear(engine, one.inner)
    return [
        *_megatron.norm(model.hidden_size, engine, linears=1),
        SavedTensor("projection of the mixer", size * one.projected, "tensor", "mixer"),
        SavedTensor("output of the scan", size * one.inner, "tensor", "mixer"),
        SavedTensor("input of the mixer's norm", size * one.inner + 4 * one.groups, "tensor", "mixer"),
        SavedTensor("input of the output projection", read, "tensor", "mixer"),
        *_megatron.dropout(model, engine),
    ]


def _by_experts(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """As for other experts; latent tokens are kept as they are dispatched, and once more after the experts."""
    latent, shared = _count(model, "latent"), model.shared_width
    rows = _megatron.norm(model.hidden_size, engine, moved=("mlp_norm", ""))
    rows += _megatron.routed(replace(model, hidden_size=latent) if latent else model, engine)
    if latent:
        copied = _megatron.copied_by_linear(engine, model.hidden_size)
        kept = copied + _megatron.read_by_linear(engine, latent)
        rows.append(SavedTensor("narrower tokens", kept, "residual", "moe"))
    if shared:
        rows += _megatron.shared_experts(model, engine, shared)
    return rows + _megatron.dropout(model, engine)


_SAVED: Mapping[str, Callable[[ModelSpec, EngineTraits], list[SavedTensor]]] = {
    "M": _by_mixer,
    "*": llama.attention,
    "-": llama.feed_forward,
    "E": _by_experts,
}


def backward_extra(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """The most that the backward pass of a layer adds, counted for the last of several letters."""
    letter = _block(model, layer)[-1:]
    if letter == "M":
        inside = mamba2.kernels(mixer(model), engine)
        return [SavedTensor("inside the scan's backward pass", inside, "tensor", "mixer"), _stream(model, engine)]
    if letter == "*":
        return [*_inside_attention(model, engine), _stream(model, engine)]
    width = model.intermediate_size
    if letter == "E":
        width = model.moe_intermediate_size * model.num_experts_per_tok + model.shared_width
    return _megatron.backward_extra(model, engine, width)


def _inside_attention(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Gradients of the output, and of queries, keys and values; two more for scores in memory."""
    sizes = engine.size * (2 * model.query_size + 2 * model.key_value_size)
    if engine.scores:
        sizes += 2 * engine.size * model.num_attention_heads * engine.sequence_length
    return [SavedTensor("gradients of attention", sizes, "tensor", "attention")]


def _stream(model: ModelSpec, engine: EngineTraits) -> SavedTensor:
    size = engine.size * model.hidden_size
    return SavedTensor("gradient of the residual stream", size, "residual", "mlp")


def scans(model: ModelSpec, layer: int, size: int) -> Scans:
    """The scan kernels of a layer's mixers."""
    count = _block(model, layer).count("M")
    if not count:
        return NO_SCANS
    one = mamba2.scans_of(mixer(model), size)
    return Scans(count * one.forward, count * one.backward)


def transformers_config(model: ModelSpec) -> TransformersConfig | None:
    """None: only Megatron-core builds it."""
    return None


def not_computed(spec: RunSpec) -> Iterator[ConfigError]:
    """No errors: no class of ``transformers`` computes it."""
    yield from ()


def read_config(config: ConfigFile) -> JsonObject:
    """None: it has no ``config.json``."""
    config.error(
        "model_type", "Megatron-core's hybrid models have no config.json: launch import megatron reads their lists"
    )
    return {}
