"""The model of a Megatron-LM argument list, with the defaults of ``megatron/training/arguments.py`` 0.19.2.

Each function reads the arguments of one group through a :class:`ArgumentReader`, which enters them in the ledger.
"""

import re
from typing import Any

from launcher.base.frozen import dataclass
from launcher.config.ledger import OPEN, Settings
from launcher.importers.megatron.reader import ArgumentReader, split
from launcher.importers.megatron.vocabulary import vocabulary

_LETTERS = {"M", "*", "-", "E"}
_OTHERS = {"G": "gated delta nets", "D": "DeepSeek's sparse attention", "+": "latent attention"}
_NAMES = ("hybrid-layer-pattern", "hybrid-override-pattern")
_SIZES = ("mamba-num-heads", "mamba-head-dim", "mamba-state-dim", "mamba-num-groups")
_SAYS = "model.extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The letters of a hybrid's layers: ``--hybrid-layer-pattern M-M*-|M-M*-/*E/*E``.

    One for each layer, ``|`` between model chunks, and behind each ``/`` the letters of one depth of multi-token
    prediction (``core/models/hybrid/hybrid_layer_allocation.py`` of 0.19.2).
    """

    chunks: tuple[str, ...]  # Of each model chunk, in the order of the model.
    further: tuple[str, ...]  # Of each depth of multi-token prediction.

    @property
    def layers(self) -> str:
        """Of all layers."""
        return "".join(self.chunks)

    @property
    def layout(self) -> list[str]:
        """The chunks as ``parallel.layout`` has them; none where the list does not say them."""
        if len(self.chunks) == 1:
            return []
        parts = ["t" * len(chunk) for chunk in self.chunks]
        return [f"E{parts[0]}", *parts[1:-1], f"{parts[-1]}{'m' * len(self.further)}L"]


def pattern(reader: ArgumentReader) -> Pattern | None:
    """The letters of the layers; None where the list is of no hybrid, or of one whose letters are not known."""
    name = next((name for name in _NAMES if name in reader), None)
    text = reader.text(name, f"{_SAYS}.pattern") if name else None
    if name is None or text is None:
        return None
    main, *further = text.replace("\\", "").strip("\"' ").split("/")
    old = reader.text("mtp-hybrid-override-pattern", f"{_SAYS}.mtp")
    if old and not further:
        further = [old] * int(reader.count("mtp-num-layers", "model.mtp_layers", default=1))
    found = Pattern(chunks=tuple(main.split("|")), further=tuple(part for part in further if part))
    wrong = sorted({*found.layers, *"".join(found.further)} - _LETTERS)
    if wrong or not found.layers:
        known = _OTHERS.get(wrong[0] if wrong else "", "a kind that Megatron-core does not know either")
        rule = f"its layers are Mamba (M), attention (*), MLP (-) or experts (E) here, and {wrong or 'none'} is {known}"
        reader.wrong(name, text, rule)
        return None
    if len({*found.further}) > 1:
        reader.wrong(name, text, "all depths of multi-token prediction have the same letters")
        return None
    return found


def hybrid_model(reader: ArgumentReader, found: Pattern, settings: Settings) -> Settings:
    """The keys of ``model`` of a hybrid, whose other sizes are in ``settings``."""
    counts = {name.replace("-", "_"): reader.count(name, f"{_SAYS}.{name.replace('-', '_')}") for name in _SIZES}
    shared = reader.count("moe-shared-expert-intermediate-size", f"{_SAYS}.shared_width")
    repeated = reader.switch("mtp-use-repeated-layer", f"{_SAYS}.mtp_shared")
    extra: dict[str, Any] = {
        "pattern": found.layers,
        **{key: value for key, value in counts.items() if value is not None},
        **({"shared_width": shared} if shared else {}),
        **({"latent": latent} if (latent := reader.count("moe-latent-size", f"{_SAYS}.latent")) else {}),
        **({"mtp": found.further[0], "mtp_shared": repeated} if found.further else {}),
    }
    reader.switch("is-hybrid-model", f"{_SAYS}.pattern")
    reader.idle("the pattern says which layers they are", "hybrid-attention-ratio", "hybrid-mlp-ratio")
    return {
        **settings,
        "family": "hybrid",
        "num_hidden_layers": len(found.layers),
        "mtp_layers": len(found.further),
        "num_shared_experts": 0,
        "first_dense_layers": 0,
        "attention_output_bias": settings["mlp_bias"] or None,
        "extra": extra,
    }


_NORMS = {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm"}
_POSITIONS = {"learned_absolute": "learned", "rope": "rope", "none": "none", "rotary": "rope", "absolute": "learned"}
_NORMED = (
    "the maths: latent attention has norms of its latents here, as with --qk-layernorm: add it, or go on with --partial"
)
_OF_LATENT = ("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim")
_OF_EXPERTS = ("moe-ffn-hidden-size", "moe-router-topk", "moe-shared-expert-intermediate-size", "moe-layer-freq")
_BACKENDS = {"auto": "sdpa", "fused": "sdpa", "flash": "flash", "unfused": "eager", "local": "eager"}


def model(reader: ArgumentReader, letters: Pattern | None = None) -> Settings:
    """Sizes and kinds of the model, as ``model.KEY``; ``letters`` are those of a hybrid's layers."""
    layers = _layers(reader, letters)
    hidden = reader.size("hidden-size", says="model.hidden_size")
    heads = reader.size("num-attention-heads", says="model.num_attention_heads")
    gated = _is_gated(reader)
    biased = not reader.switch("disable-bias-linear", "model.mlp_bias", "model.attention_bias")
    latent = reader.switch("multi-latent-attention", "model.family")
    ffn = _ffn(reader, hidden, gated)
    settings = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": _key_value_heads(reader, latent),
        "head_dim": reader.count("kv-channels", "model.head_dim"),
        "vocab_size": vocabulary(reader),
        "tie_word_embeddings": not reader.switch("untie-embeddings-and-output-weights", "model.tie_word_embeddings"),
        "hidden_act": _activation(reader, gated),
        "normalization": reader.choice("normalization", _NORMS, "model.normalization", default="layernorm"),
        "position_embedding": _positions(reader),
        "rope_theta": float(reader.number("rotary-base", "model.rope_theta", default=10000)),
        "norm_epsilon": _epsilon(reader),
        "attention_bias": reader.switch("add-qkv-bias", "model.attention_bias") or biased,
        "mlp_bias": biased,
        "qk_norm": not latent and reader.switch("qk-layernorm", "model.qk_norm"),
        "max_position_embeddings": _longest(reader),
        "dropout": _dropout(reader),
        "initializer_range": reader.number("init-method-std", "model.initializer_range", default=0.02),
        "attention": _attention(reader),
        "mtp_layers": reader.count("mtp-num-layers", "model.mtp_layers", default=0),
    }
    experts = _experts(reader, layers, ffn, hybrid=letters is not None)
    if not latent:
        reader.idle("without --multi-latent-attention nothing reads it", *_OF_LATENT)
    family = "deepseek" if latent else "moe" if experts else "llama" if gated and not biased else "gpt"
    found = {"family": family, **settings, **experts, **(_latent(reader) if latent else {})}
    found = found if letters is None else hybrid_model(reader, letters, found)
    return {f"model.{key}": value for key, value in found.items()}


def _layers(reader: ArgumentReader, letters: Pattern | None) -> Any:
    if letters is None:
        return reader.size("num-layers", "encoder-num-layers", says="model.num_hidden_layers")
    if reader.count("num-layers", "model.num_hidden_layers", default=len(letters.layers)) != len(letters.layers):
        reader.note(f"--num-layers beside a pattern of {len(letters.layers)} layers: Megatron-LM takes the pattern's")
    return len(letters.layers)


def _is_gated(reader: ArgumentReader) -> bool:
    found = reader.switch("swiglu", "model.hidden_act")
    if reader.switch("quick-geglu"):
        reader.leave("quick-geglu", "the maths: the gate is SiLU here, GELU's quick approximation there")
        found = True
    if (gate := reader.word("glu-activation", "model.hidden_act")) is not None:
        if gate.lower() != "swiglu":
            reader.leave("glu-activation", f"the maths: the gate is SiLU here, and {gate} there")
        found = True
    return found


def _ffn(reader: ArgumentReader, hidden: Any, gated: bool) -> Any:
    """Megatron-LM's own default is four times the width, or two thirds of that where there is a gate."""
    given = reader.count("ffn-hidden-size", "model.intermediate_size")
    if given is not None or hidden == OPEN:
        return OPEN if given is None else given
    return int((4 * hidden * 2 / 3) / 64) * 64 if gated else 4 * hidden


def _key_value_heads(reader: ArgumentReader, latent: bool) -> Any:
    """Groups count with ``--group-query-attention`` alone, and are one group where their number is not given."""
    key = "model.num_key_value_heads"
    if (old := reader.count("num-key-value-heads", key)) is not None:  # Megatron-DeepSpeed's spelling.
        reader.idle("--num-key-value-heads says it", "group-query-attention", "num-query-groups")
        return old
    if not reader.switch("group-query-attention", key):
        if "num-query-groups" in reader:
            reader.idle("without --group-query-attention nothing reads it", "num-query-groups")
        return None
    groups = reader.count("num-query-groups", key)
    if latent:
        reader.note("--group-query-attention beside --multi-latent-attention: Megatron-LM refuses the two together")
        return None
    if groups is None and "num-query-groups" not in reader:
        reader.note("--group-query-attention without --num-query-groups: one group, as in Megatron-LM")
        return 1
    return groups


def _activation(reader: ArgumentReader, gated: bool) -> str:
    """GELU that is fused with the bias is its tanh approximation (``core/fusions/fused_bias_gelu.py``).

    So is that of ``--openai-gelu`` in the layers before Megatron-core (``legacy/model/transformer.py``).
    """
    says = () if gated else ("model.hidden_act",)
    squared = reader.switch("squared-relu", *says)
    fused = not reader.switch("no-bias-gelu-fusion", *says) and "disable-bias-linear" not in reader
    openai = reader.switch("openai-gelu", *says)
    if gated:
        reader.idle("the feed-forward layer has a gate", "squared-relu", "no-bias-gelu-fusion", "openai-gelu")
        return "silu"
    if squared:
        return "squared_relu"
    return "gelu_new" if fused or openai else "gelu"


def _positions(reader: ArgumentReader) -> str:
    key = "model.position_embedding"
    kind = reader.word("position-embedding-type", key, default="learned_absolute")
    if reader.switch("use-rotary-position-embeddings", key) or kind == "rope":
        reader.switch("no-position-embedding", key)
        return "rope"
    if kind == "yarn":
        reader.keep("position-embedding-type")  # Its parameters and its memory are those of rotary positions.
        return "rope"
    if kind not in _POSITIONS:
        reader.leave("position-embedding-type", f"the maths: no {kind} positions here, and no others in their place")
        return "none"
    return "none" if reader.switch("no-position-embedding", key) else _POSITIONS[kind]


def _epsilon(reader: ArgumentReader) -> Any:
    old = reader.number("layernorm-epsilon", "model.norm_epsilon", default=1e-5)
    return reader.number("norm-epsilon", "model.norm_epsilon", default=old)


def _longest(reader: ArgumentReader) -> Any:
    key = "model.max_position_embeddings"
    found = reader.count("max-position-embeddings", key)
    return found if found is not None else reader.size("seq-length", "encoder-seq-length", says=key)


def _dropout(reader: ArgumentReader) -> float:
    hidden = reader.number("hidden-dropout", "model.dropout", default=0.1)
    attention = reader.number("attention-dropout", "model.dropout", default=0.1)
    if hidden != attention and "attention-dropout" in reader:
        reader.keep("attention-dropout")
    elif hidden != attention:
        reader.note(f"attention's dropout is {hidden} here as well; Megatron-LM's own default of it is {attention}")
    return float(hidden)


def _attention(reader: ArgumentReader) -> str:
    """``local`` layers without the flash-attention package compute scores in full (``core/transformer``)."""
    key = "model.attention"
    backend = reader.word("attention-backend", key, default="auto")
    found = _BACKENDS.get(str(backend).rpartition(".")[2])
    if found is None:
        reader.wrong("attention-backend", backend, f"is one of {', '.join(_BACKENDS)}")
    if reader.switches(("use-flash-attn", "use-flash-attn-v2", "use-flash-attn-triton"), key) or found == "flash":
        return "flash"
    return "eager" if found == "eager" or is_local(reader) else "sdpa"


def is_local(reader: ArgumentReader) -> bool:
    """True if the layers are Megatron-core's own, not Transformer Engine's."""
    chosen = [reader.arguments[name].value for name in ("transformer-impl", "spec") if name in reader]
    return any(value == "local" or value == ["local"] for value in chosen)


def _experts(reader: ArgumentReader, layers: Any, ffn: Any, *, hybrid: bool) -> Settings:
    experts = reader.count("num-experts", "model.num_experts")
    experts = max(_split_counts(reader), default=0) if experts is None else experts
    if not experts or (experts == 1 and "deepspeed" in reader):
        reader.idle("the model has no experts", *_OF_EXPERTS)
        return {}
    if reader.count("expert-model-parallel-size", default=1) > 1 and "moe-token-dispatcher-type" not in reader:
        reader.extra["moe-token-dispatcher-type"] = "allgather"
    width = reader.count("moe-ffn-hidden-size", "model.moe_intermediate_size", default=ffn)
    return {
        "num_experts": experts,
        "num_experts_per_tok": reader.count("moe-router-topk", "model.num_experts_per_tok", default=2),
        "moe_intermediate_size": width,
        **({"num_shared_experts": 0} if hybrid else _shared(reader, width)),
        "first_dense_layers": 0 if hybrid else _first_dense(reader, layers),
    }


def _split_counts(reader: ArgumentReader) -> list[int]:
    value = reader.arguments["num-experts"].value if "num-experts" in reader else None
    words = value if isinstance(value, list) else split(value)
    return [int(word) for word in words if str(word).isascii() and str(word).isdecimal() and len(str(word)) < 9]


def _shared(reader: ArgumentReader, width: Any) -> Settings:
    shared = reader.count("moe-shared-expert-intermediate-size", "model.num_shared_experts", default=0)
    if not isinstance(width, int) or width < 1:
        return {"num_shared_experts": 0}
    if shared % width:
        return {"num_shared_experts": 0, "extra": {"shared_width": shared}}
    return {"num_shared_experts": shared // width}


def _first_dense(reader: ArgumentReader, layers: Any) -> int:
    frequency = reader.get("moe-layer-freq", "model.first_dense_layers", default=1)
    if isinstance(frequency, list):
        listed = [str(item) for item in frequency]
    else:
        match = re.fullmatch(r"\(?\s*(?:\[0\]\s*\*\s*(\d{1,5})\s*\+\s*)?\[1\]\s*\*\s*(\d{1,5})\s*\)?", str(frequency))
        listed = ["0"] * int(match[1] or 0) + ["1"] * int(match[2]) if match else split(frequency)
    dense = listed.index("1") if "1" in listed else 0
    if listed in (["1"], ["0"] * dense + ["1"] * (len(listed) - dense)) and len(listed) in (1, layers):
        return dense
    reader.leave("moe-layer-freq", "the model there is another: here every layer after the first has experts")
    return 0


def _latent(reader: ArgumentReader) -> Settings:
    """Multi-head latent attention; Megatron's defaults (``core/transformer/transformer_config.py``)."""
    if "kv-channels" in reader:
        reader.idle("latent attention has sizes of its own", "kv-channels")
    if reader.switch("qk-layernorm"):
        reader.ledger.default(reader.key("qk-layernorm"))
    else:
        reader.leave("multi-latent-attention", _NORMED)
    if "rope-type" not in reader:
        reader.note("--multi-latent-attention without --rope-type: YaRN, the default of Megatron-LM's latent attention")
        reader.extra["rope-type"] = "yarn"
    return {
        "head_dim": None,
        "q_lora_rank": reader.count("q-lora-rank", "model.q_lora_rank", default=0) or 0,
        "kv_lora_rank": reader.count("kv-lora-rank", "model.kv_lora_rank", default=32),
        "qk_nope_head_dim": reader.count("qk-head-dim", "model.qk_nope_head_dim", default=128),
        "qk_rope_head_dim": reader.count("qk-pos-emb-head-dim", "model.qk_rope_head_dim", default=64),
        "v_head_dim": reader.count("v-head-dim", "model.v_head_dim", default=128),
    }
