"""Rules about the model's own sizes and its number formats: heads, positions, experts, vocabulary.

Only rules that hold for every engine are here. Limits of one engine are in its ``check``, and those of a parallel
axis in its strategy, so that each way out names a key that the user meant to decide.
"""

from collections.abc import Iterator, Mapping
from itertools import chain

from launcher.base.errors import ConfigError
from launcher.base.typed import is_number
from launcher.spec import RunSpec, edit
from launcher.spec.parse import closest

_BYTES = 256  # Ids of the byte tokenizer: one for each byte value.


_AMPERE, _LARGEST_HEAD = 8.0, 256

_NEEDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
}
"""The numbers that each scaling requires (``modeling_rope_utils.py``)."""

_ALSO: Mapping[str, tuple[str, ...]] = {
    "yarn": (
        "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "original_max_position_embeddings",
        "truncate",
    ),
}  # fmt: skip
"""Further entries that a scaling reads; all read ``partial_rotary_factor``."""

_PREFERENCE = ("bf16", "fp16", "fp32")
"""Formats to fall back to, best first: bf16 has the range of fp32 and needs no loss scale."""

_CAPABLE = {"fp4": "b200", "fp8": "h100_80g", "bf16": "a100_80g", "fp16": "a100_80g"}
"""A GPU whose matrix units have the format (NVIDIA's data sheets; see conf/hardware)."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield errors of a model that no engine could build as asked."""
    for rule in (_heads, _rotated, _positions, _experts, _latent_attention, _attention, _vocabulary, _formats, _rotary):
        yield from rule(spec)


def _heads(spec: RunSpec) -> Iterator[ConfigError]:
    model = spec.model
    heads, hidden, key_value = model.num_attention_heads, model.hidden_size, model.num_key_value_heads
    if model.head_dim is None and hidden % heads and not model.kv_lora_rank:  # Latent attention has sizes of its own.
        rule = f"must divide the hidden size {hidden} when model.head_dim is not set"
        path = "model.num_attention_heads"
        legal = edit.nearest(spec, path, edit.divisors(hidden), lambda run: not list(_heads(run)), limit=2)
        head_dim = edit.override("model.head_dim", max(1, hidden // heads))
        wider = (edit.override("model.hidden_size", size) for size in edit.multiples_around(hidden, heads, 1))
        yield ConfigError(path, heads, rule, chain(legal, (head_dim,), wider))
    if key_value is not None and heads % key_value:
        path = "model.num_key_value_heads"
        rule = f"must divide the {heads} attention heads: every group of them shares one key and value head"
        legal = edit.nearest(spec, path, edit.divisors(heads), lambda _: True, limit=2)
        yield ConfigError(path, key_value, rule, legal)


def _rotated(spec: RunSpec) -> Iterator[ConfigError]:
    """Rotary embeddings rotate pairs of elements of a head (RoFormer, arXiv:2104.09864, equation 34)."""
    model = spec.model
    if model.position_embedding != "rope":
        return
    path, size = "model.head_dim", model.head_size
    if model.kv_lora_rank:
        path, size = "model.qk_rope_head_dim", model.qk_rope_head_dim
    if size % 2:
        rule = f"rotary position embeddings rotate pairs of elements of a head, whose size of {size} must be even"
        yield ConfigError(path, edit.value_at(spec, path), rule, [edit.override(path, size + 1)])


def _positions(spec: RunSpec) -> Iterator[ConfigError]:
    length, limit = spec.train.sequence_length, spec.model.max_position_embeddings
    if length is not None and length > limit:
        rule = f"the model has positions for {limit} tokens (model.max_position_embeddings)"
        way_out = [
            edit.override("train.sequence_length", limit),
            edit.override("model.max_position_embeddings", length),
        ]
        yield ConfigError("train.sequence_length", length, rule, way_out)


def _experts(spec: RunSpec) -> Iterator[ConfigError]:
    model = spec.model
    if not model.num_experts:
        return
    chosen, path = model.num_experts_per_tok, "model.num_experts_per_tok"
    if not 1 <= chosen <= model.num_experts:
        nearest = min(max(chosen, 1), model.num_experts)
        rule = f"a token is routed to 1 to {model.num_experts} experts (model.num_experts)"
        yield ConfigError(path, chosen, rule, [edit.override(path, nearest)])
    if not model.moe_intermediate_size:
        rule = "must be set when the model has experts: the intermediate size of one expert"
        path = "model.moe_intermediate_size"
        yield ConfigError(path, 0, rule, [edit.override(path, model.intermediate_size)])
    yield from _groups(spec)
    if model.first_dense_layers >= model.num_hidden_layers:
        rule = f"leaves none of the {model.num_hidden_layers} layers for the {model.num_experts} experts"
        path = "model.first_dense_layers"
        yield ConfigError(path, model.first_dense_layers, rule, [edit.override(path, model.num_hidden_layers - 1)])


def _groups(spec: RunSpec) -> Iterator[ConfigError]:
    """Groups of experts have equal sizes, and a token's groups hold enough experts (arXiv:2412.19437, 2.1.2)."""
    model = spec.model
    groups, chosen, path = model.n_group, model.topk_group, "model.topk_group"
    if groups and model.num_experts % groups:
        rule = f"must divide the {model.num_experts} experts (model.num_experts)"
        ways = edit.nearest(spec, "model.n_group", edit.divisors(model.num_experts), lambda _: True, limit=2)
        yield ConfigError("model.n_group", groups, rule, ways)
    elif groups and not 1 <= chosen <= groups:
        rule = f"a token is routed to 1 to {groups} groups of experts (model.n_group)"
        yield ConfigError(path, chosen, rule, [edit.override(path, min(max(chosen, 1), groups))])
    elif groups and chosen * (model.num_experts // groups) < model.num_experts_per_tok:
        rule = f"{chosen} groups have fewer experts than the {model.num_experts_per_tok} that a token is routed to"
        yield ConfigError(path, chosen, rule, [edit.override(path, groups)])
    elif chosen and not groups:
        rule = "takes effect only when experts are grouped (model.n_group)"
        yield ConfigError(path, chosen, rule, [edit.override(path, 0)])


def _latent_attention(spec: RunSpec) -> Iterator[ConfigError]:
    model = spec.model
    if not model.kv_lora_rank:
        return
    sizes = {
        "model.qk_nope_head_dim": model.qk_nope_head_dim,
        "model.qk_rope_head_dim": model.qk_rope_head_dim,
        "model.v_head_dim": model.v_head_dim,
    }
    for path, size in sizes.items():
        if not size:
            rule = "must be set for multi-head latent attention (model.kv_lora_rank is set)"
            yield ConfigError(path, 0, rule, [edit.override(path, model.head_size)])


def _attention(spec: RunSpec) -> Iterator[ConfigError]:
    if spec.model.attention != "flash":
        return
    if spec.hardware.device == "cpu":
        rule = "the flash-attn package has only GPU kernels, and this run is on CPU ranks (hardware.device)"
        yield ConfigError("model.attention", "flash", rule, ["model.attention=sdpa", "hardware=h100_80g"])
    elif spec.precision.compute == "fp32":
        rule = "the flash-attn package computes only in fp16 and bf16"
        yield ConfigError("model.attention", "flash", rule, ["model.attention=sdpa", "precision=bf16"])
    yield from _flash_kernels(spec)


def _flash_kernels(spec: RunSpec) -> Iterator[ConfigError]:
    """flash-attn 2 has kernels for some GPUs and head sizes (its README, "CUDA support"); unknown GPUs may try."""
    capability, size = spec.hardware.compute_capability, spec.model.head_size
    if spec.model.kv_lora_rank:
        size = spec.model.qk_nope_head_dim + spec.model.qk_rope_head_dim
    if spec.hardware.device == "cuda" and capability is not None and capability < _AMPERE:
        rule = f"flash-attn needs compute capability 8.0 or higher, and {spec.hardware.title} has {capability}"
        yield ConfigError("model.attention", "flash", rule, ["model.attention=sdpa", "hardware=a100_80g"])
    if size > _LARGEST_HEAD:
        rule = f"flash-attn supports head sizes up to {_LARGEST_HEAD}, and this model's is {size}"
        yield ConfigError("model.attention", "flash", rule, ["model.attention=sdpa"])


def _vocabulary(spec: RunSpec) -> Iterator[ConfigError]:
    size = spec.model.vocab_size
    reads_text = spec.data.source in ("text", "chat", "huggingface", "rows") and spec.script is None
    if reads_text and spec.data.tokenizer == "bytes" and size < _BYTES:
        rule = f"the byte tokenizer has {_BYTES} ids, but the model's vocabulary has {size}"
        yield ConfigError("model.vocab_size", size, rule, [edit.override("model.vocab_size", _BYTES)])


def not_named() -> ConfigError:
    """Return the warning about a script for which no model is named."""
    rule = "the script builds its own model, which launch does not know: its memory is not checked"
    return ConfigError("model", None, rule, ["model=llama3_8b", "model=./folder"])


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Yield warnings about an unnamed model of a script, vocabularies that do not fit, and risky number formats."""
    if spec.judges_no_model:
        yield not_named()
    size = spec.model.vocab_size
    if size == 1:
        rule = "with a vocabulary of one token the next one is always known: the loss is 0 from the first step"
        yield ConfigError("model.vocab_size", 1, rule, [edit.override("model.vocab_size", _BYTES)])
    if spec.data.source == "tokens" and spec.data.token_dtype == "uint16" and size > 2**16:
        rule = f"a uint16 file holds ids below {2**16}, but the vocabulary has {size}: was it written as uint32?"
        yield ConfigError("data.token_dtype", "uint16", rule, ["data.token_dtype=uint32"])
    yield from _risky_formats(spec)


def _rotary(spec: RunSpec) -> Iterator[ConfigError]:
    path, given = "model.rope_parameters", spec.model.rope_parameters
    if not given:
        return
    kind = given.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in _NEEDS:
        ways = [f"{path}.rope_type={near}" for near in closest(str(kind), list(_NEEDS))]
        rule = f"supported scalings of rotary positions are {', '.join(_NEEDS)}"
        yield ConfigError(f"{path}.rope_type", kind, rule, [*ways, f"{path}=null"])
        return
    if "rope_theta" in given:
        way = edit.override("model.rope_theta", given["rope_theta"])
        yield ConfigError(f"{path}.rope_theta", given["rope_theta"], "set it as model.rope_theta", [way])
    for name in _NEEDS[kind]:
        if not is_number(given.get(name)):
            rule = f"rope_type={kind} requires it, as a number"
            yield ConfigError(f"{path}.{name}", given.get(name), rule, [f"+{path}.{name}=..."])
    known = ("rope_type", "rope_theta", "partial_rotary_factor", *_NEEDS[kind], *_ALSO.get(kind, ()))
    for name, value in given.items():
        if name not in known:
            rule = f"rope_type={kind} does not use it; it uses {', '.join(known[2:])}"
            yield ConfigError(f"{path}.{name}", value, rule, [f"{path}=null"])


def _formats(spec: RunSpec) -> Iterator[ConfigError]:
    compute, hardware = spec.precision.compute, spec.hardware
    if compute not in hardware.dtypes:
        instead = [word for word in _PREFERENCE if word in hardware.dtypes]
        way_out = [f"precision={word}" for word in instead]
        if compute in _CAPABLE:
            way_out.append(f"hardware={_CAPABLE[compute]}")
        rule = f"{hardware.title} supports {', '.join(hardware.dtypes)}"
        yield ConfigError("precision.compute", compute, rule, way_out)
    if spec.precision.loss_scale is not None:
        rule = f"precision.loss_scale={spec.precision.loss_scale:g} is constant, so nothing adjusts it"
        paths = "precision.initial_loss_scale precision.loss_scale_window"
        yield from edit.refused(spec, paths, rule, "precision.loss_scale=null")


def _risky_formats(spec: RunSpec) -> Iterator[ConfigError]:
    precision, hardware = spec.precision, spec.hardware
    if precision.compute == "fp16" and "bf16" in hardware.dtypes:
        rule = (
            "fp16 overflows above 65,504 and needs a loss scale, so steps are skipped while it adapts;"
            f" {hardware.title} has bf16, with the range of fp32"
        )
        yield ConfigError("precision.compute", "fp16", rule, ["precision=bf16"])
    if precision.optimizer_states in ("fp16", "fp8"):
        rule = "the second moment underflows in fp16 and fp8: squared gradients are far below their smallest numbers"
        yield from edit.refused(spec, "precision.optimizer_states", rule)
