"""Megatron-LM arguments as settings. Defaults are those of ``megatron/training/arguments.py``, megatron-core 0.19.2.

Each function reads the arguments of one group through a :class:`Reader`, which notes what was read: what is left over
at the end is handed on or named (``launcher.importers.megatron``). An argument that is not given has Megatron-LM's
default, not ours, because the file is read as Megatron-LM would read it. Wrong values are collected, so that all come
at once, and a value that only the tokenizer or a shell variable knows is left open rather than guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.config.foreign import shown
from launcher.errors import ConfigError
from launcher.importers._megatron_text import Arguments

_GPT2_VOCABULARY = 50257
"""Entries of the ``vocab.json`` of GPT-2, which ``GPT2BPETokenizer`` reads."""


@dataclass(slots=True)
class Reader:
    """The arguments; remembers which were read, which could not be, and which were wrong."""

    arguments: Arguments
    path: str
    read: set[str] = field(default_factory=set)
    errors: list[ConfigError] = field(default_factory=list)
    not_understood: list[str] = field(default_factory=list)

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or the default where there is none or it is a variable that the file does not set."""
        self.read.add(name)
        argument = self.arguments.get(name)
        if argument is None:
            return default
        if isinstance(argument.value, str) and argument.value.startswith("$"):
            self.not_understood.append(f"--{argument.spelling} {argument.value}: the file does not set the variable")
            return default
        return argument.value

    def number(self, name: str, default: Any = None) -> Any:
        """A number, or the default."""
        value = self.get(name, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            self.errors.append(ConfigError(f"{self.path}: --{name}", value, "is a number"))
            return default
        return value

    def word(self, name: str, default: str | None = None) -> Any:
        """A word, or the default."""
        value = self.get(name, default)
        if value is not None and not isinstance(value, str):
            self.errors.append(ConfigError(f"{self.path}: --{name}", value, "is a word"))
            return default
        return value

    def count(self, name: str, default: int | None = None) -> Any:
        """A whole number, or the default."""
        value = self.number(name, default)
        if isinstance(value, float):
            self.errors.append(ConfigError(f"{self.path}: --{name}", value, "is a whole number"))
            return default
        return value

    def required(self, *names: str) -> int:
        """The first of several spellings that is there; none is an error, and 1 stands in."""
        value = next((found for name in names if (found := self.count(name)) is not None), None)
        if value is None or value < 1:
            if not self.errors or f"--{names[0]}" not in self.errors[-1].path:
                rule = "the size of the model does not follow without it"
                self.errors.append(ConfigError(f"{self.path}: --{names[0]}", value, rule, [f"--{names[0]} ..."]))
            return 1
        return int(value)

    def switch(self, name: str) -> bool:
        """True if a switch is given; a variable after it is somebody else's."""
        given = name in self.arguments
        return given and self.get(name, True) is not False

    def words(self, name: str) -> list[str]:
        """A list of words, also as the text ``"[a b]"`` of Megatron's own YAML files."""
        value = self.get(name, [])
        items = value if isinstance(value, list) else re.split(r"[\s,]+", str(value).strip("[] "))
        return [str(item) for item in items if item]


def model(reader: Reader) -> dict[str, Any]:
    """Sizes and kinds of the model."""
    layers = reader.required("num-layers", "encoder-num-layers")
    hidden, heads = reader.required("hidden-size"), reader.required("num-attention-heads")
    swiglu = reader.switch("swiglu")
    biased = not reader.switch("disable-bias-linear")
    latent = reader.switch("multi-latent-attention")
    default_ffn = int((4 * hidden * 2 / 3) / 64) * 64 if swiglu else 4 * hidden
    ffn = reader.count("ffn-hidden-size", default_ffn)
    settings = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": reader.count("num-query-groups") if reader.switch("group-query-attention") else None,
        "head_dim": reader.count("kv-channels"),
        "vocab_size": _vocabulary(reader),
        "tie_word_embeddings": not reader.switch("untie-embeddings-and-output-weights"),
        "hidden_act": _activation(reader, swiglu),
        "normalization": {"RMSNorm": "rmsnorm"}.get(reader.word("normalization", "LayerNorm"), "layernorm"),
        "position_embedding": _positions(reader),
        "rope_theta": float(reader.number("rotary-base", 10000)),
        "norm_epsilon": reader.number("norm-epsilon", 1e-5),
        "attention_bias": biased or reader.switch("add-qkv-bias"),
        "mlp_bias": biased,
        "qk_norm": reader.switch("qk-layernorm") and not latent,  # Latent attention has its norms in any case.
        "max_position_embeddings": reader.required("max-position-embeddings", "seq-length"),
        "dropout": _dropout(reader),
        "initializer_range": reader.number("init-method-std", 0.02),
        "attention": _attention(reader),
    }
    experts = _experts(reader, layers, ffn)
    family = "deepseek" if latent else "moe" if experts else "llama" if swiglu and not biased else "gpt"
    return {"family": family, **settings, **experts, **(_latent(reader) if latent else {})}


def _vocabulary(reader: Reader) -> int | str:
    """As given, or GPT-2's; ``???`` where it is known to the tokenizer alone, so that nothing is guessed."""
    given = reader.count("padded-vocab-size") or reader.count("vocab-size")
    kind = reader.word("tokenizer-type")
    if given is not None:
        return int(given)
    if kind == "GPT2BPETokenizer" or (kind is None and "merge-file" in reader.arguments):
        return _GPT2_VOCABULARY + int(reader.count("vocab-extra-ids", 0))
    reader.not_understood.append(f"the vocabulary of --tokenizer-type {kind}: set model.vocab_size")
    return "???"


def _activation(reader: Reader, swiglu: bool) -> str:
    """GELU that is fused with the bias is its tanh approximation (``core/fusions/fused_bias_gelu.py``).

    So is that of ``--openai-gelu`` in the layers before Megatron-core (``legacy/model/transformer.py``).
    """
    if swiglu:
        return "silu"
    fused = not (reader.switch("no-bias-gelu-fusion") or reader.switch("disable-bias-linear"))
    if reader.switch("squared-relu"):
        return "squared_relu"
    return "gelu_new" if fused or reader.switch("openai-gelu") else "gelu"


def _positions(reader: Reader) -> str:
    kind = reader.word("position-embedding-type", "learned_absolute")
    if reader.switch("use-rotary-position-embeddings") or kind == "rope":
        return "rope"
    if kind not in ("learned_absolute", "none"):
        reader.not_understood.append(shown("--position-embedding-type", kind))
    return "none" if kind == "none" or reader.switch("no-position-embedding") else "learned"


def _dropout(reader: Reader) -> float:
    """One setting stands for both; the attention's own is named where it differs."""
    hidden, attention = reader.number("hidden-dropout", 0.1), reader.number("attention-dropout", 0.1)
    if hidden != attention:
        reader.not_understood.append(f"--attention-dropout {attention} beside --hidden-dropout {hidden}")
    return float(hidden)


def _attention(reader: Reader) -> str:
    """``local`` layers without the flash-attention package compute scores in full (``core/transformer``)."""
    backend = reader.word("attention-backend", "auto")
    flash = reader.switch("use-flash-attn") or backend == "flash"
    local = reader.arguments.get("transformer-impl")
    if backend in ("unfused", "local") or (local is not None and local.value == "local" and not flash):
        return "eager"
    return "flash" if flash else "sdpa"


def _experts(reader: Reader, layers: int, ffn: int) -> dict[str, Any]:
    experts = reader.count("num-experts")
    if not experts:
        return {}
    width = reader.count("moe-ffn-hidden-size", ffn)
    shared = reader.count("moe-shared-expert-intermediate-size", 0)
    if shared % width:
        reader.not_understood.append(f"--moe-shared-expert-intermediate-size {shared} is no multiple of {width}")
    return {
        "num_experts": experts,
        "num_experts_per_tok": reader.count("moe-router-topk", 2),
        "moe_intermediate_size": width,
        "num_shared_experts": shared // width,
        "first_dense_layers": _first_dense(reader, layers),
    }


def _first_dense(reader: Reader, layers: int) -> int:
    """From ``([0]*3+[1]*58)``: layers without experts, which must come first."""
    frequency = reader.get("moe-layer-freq", 1)
    match = re.fullmatch(r"\(?\s*(?:\[0\]\s*\*\s*(\d+)\s*\+\s*)?\[1\]\s*\*\s*(\d+)\s*\)?", str(frequency))
    if match is not None and int(match[1] or 0) + int(match[2]) == layers:
        return int(match[1] or 0)
    if frequency != 1:
        reader.not_understood.append(shown("--moe-layer-freq", frequency))
    return 0


def _latent(reader: Reader) -> dict[str, Any]:
    """Multi-head latent attention; Megatron's defaults (``core/transformer/transformer_config.py``)."""
    return {
        "head_dim": None,
        "q_lora_rank": reader.count("q-lora-rank", 0) or 0,
        "kv_lora_rank": reader.count("kv-lora-rank", 32),
        "qk_nope_head_dim": reader.count("qk-head-dim", 128),
        "qk_rope_head_dim": reader.count("qk-pos-emb-head-dim", 64),
        "v_head_dim": reader.count("v-head-dim", 128),
    }


def parallel(reader: Reader, layers: int) -> dict[str, Any]:
    """Degrees, and where the layers go."""
    pipeline = reader.count("pipeline-model-parallel-size", 1)
    virtual = _virtual(reader, layers, pipeline)
    return {
        "tensor": reader.count("tensor-model-parallel-size", 1),
        "pipeline": pipeline,
        "virtual_pipeline": virtual,
        "first_stage_layers": reader.count("decoder-first-pipeline-num-layers"),
        "last_stage_layers": reader.count("decoder-last-pipeline-num-layers"),
        "context": reader.count("context-parallel-size", 1),
        "expert": reader.count("expert-model-parallel-size", 1),
        "expert_tensor": reader.count("expert-tensor-parallel-size"),
        "sequence": reader.switch("sequence-parallel"),
        "replicate": reader.count("num-distributed-optimizer-instances", 1),
        "schedule": "interleaved" if virtual > 1 else None,
    }


def _virtual(reader: Reader, layers: int, pipeline: int) -> int:
    """Model chunks of a stage, given as such or by the layers of a chunk."""
    per_chunk = reader.count("num-layers-per-virtual-pipeline-stage")
    chunks = reader.count("num-virtual-stages-per-pipeline-rank", 1)
    if per_chunk is None:
        return int(chunks)
    if layers % (pipeline * per_chunk):
        reader.not_understood.append(
            f"--num-layers-per-virtual-pipeline-stage {per_chunk}: {layers} layers over {pipeline} stages leave a rest"
        )
    return int(max(1, layers // (pipeline * per_chunk)))


def precision(reader: Reader) -> tuple[str, dict[str, Any]]:
    """The word for the computation, and the formats of gradients and optimizer that differ from its meaning."""
    half = "bf16" if reader.switch("bf16") else "fp16" if reader.switch("fp16") else "fp32"
    settings: dict[str, Any] = {}
    fp8 = reader.arguments.get("fp8-format") is not None
    if fp8:
        recipe = reader.word("fp8-recipe", "delayed")
        settings["recipe"] = recipe
        if half == "fp32":
            reader.not_understood.append("--fp8-format without --bf16: parameters count as bf16")
    narrow = reader.switch("grad-reduce-in-bf16")
    aware = reader.switch("use-precision-aware-optimizer")
    if narrow or (aware and reader.word("main-grads-dtype", "fp32") == "bf16"):
        settings |= dict.fromkeys(("gradients", "accumulate", "reduce"), "bf16")
    if reader.switch("accumulate-allreduce-grads-in-fp32") and half == "fp16":
        reader.not_understood.append("--accumulate-allreduce-grads-in-fp32 beside --fp16: gradients count as fp16")
    if aware:
        settings |= _narrow_states(reader)
    return "fp8" if fp8 else half, settings | _fsdp_formats(reader, half)


def _fsdp_formats(reader: Reader, half: str) -> dict[str, Any]:
    """Megatron-FSDP sums gradients in the parameters' format unless it is told otherwise."""
    main = reader.word("megatron-fsdp-main-params-dtype", "fp32")
    summed, sent = (reader.word(f"megatron-fsdp-{of}-dtype", "auto") for of in ("main-grads", "grad-comm"))
    strategy = reader.word("data-parallel-sharding-strategy", "optim_grads_params")
    if not reader.switch("use-megatron-fsdp") or not strategy.startswith("optim_grads"):
        return {}
    if sent not in ("auto", summed):
        reader.not_understood.append(shown("--megatron-fsdp-grad-comm-dtype", sent))
    if half != "fp32" and main not in ("fp32", "fp16"):
        reader.not_understood.append(shown("--megatron-fsdp-main-params-dtype", main))
    settings: dict[str, Any] = dict.fromkeys(
        ("gradients", "accumulate", "reduce"), half if summed == "auto" else summed
    )
    return settings | ({"master": main} if main == "fp16" else {})


def _narrow_states(reader: Reader) -> dict[str, Any]:
    master = reader.word("main-params-dtype", "fp32")
    first, second = reader.word("exp-avg-dtype", "fp32"), reader.word("exp-avg-sq-dtype", "fp32")
    if first != second:
        reader.not_understood.append(f"--exp-avg-dtype {first} beside --exp-avg-sq-dtype {second}")
        return {}
    return {"master": master, "optimizer_states": first}


def checkpointing(reader: Reader) -> tuple[str, Mapping[str, Any]]:
    """The kind of activation recomputation."""
    mode = reader.word("recompute-granularity")
    old = reader.switch("recompute-activations"), reader.switch("checkpoint-activations")
    modules = reader.words("recompute-modules")
    if mode == "full" or old[1]:
        method, layers = reader.word("recompute-method", "uniform"), reader.count("recompute-num-layers", 1)
        return "full", {"method": method, "layers": layers}
    if mode == "selective" or old[0]:
        return "selective", {"modules": modules} if modules else {}
    return "none", {}
