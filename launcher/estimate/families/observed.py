"""``transformers`` decoders that no other family describes, as observed by building their class without memory.

``model.extra.config`` is the file that describes the model; ``model.extra.observed`` is the result of
``python -m launcher.worker.observe``: the parameters by place, the kind of each layer, and the bytes that a layer of
each kind saves. Whatever a class computes in Python code is counted as that code; a kernel that replaces it where it is
installed saves less.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.estimate.families import _transformers
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import ConfigFile, FamilyTraits, TransformersConfig
from launcher.estimate.rank.tensors import SavedTensor, Weight
from launcher.spec import ModelSpec, RunSpec, edit

_EXPERT = re.compile(r"\bexperts\.\d+\.")
_ATTENTION = re.compile(r"attn|attention|\b(q|k|qkv|query_key_value|q_a)_proj")
_NOTHING: Mapping[str, Any] = {"before": {}, "after": {}, "kinds": {"layer": {}}, "layers": ["layer"], "sizes": {}}
"""The observation of a model that ``choices`` refuses."""

_UNCUT = ("tensor", "pipeline", "context", "ulysses", "expert")


def attends(model: ModelSpec, layer: int) -> bool:
    """True if a layer computes attention, possibly among other things."""
    return any(_ATTENTION.search(name) for name in _kinds(model)[kind(model, layer)])


def choices(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of a model without observations of its class, or of other sizes than were observed."""
    model, again = spec.model, "launch import hf config.json"
    if not {"observed", "config"} <= {*model.extra}:
        rule = "family=observed comes from importing a config.json, whose transformers class launch then builds"
        yield ConfigError("model.family", model.family, rule, ["model=./folder", again])
        return
    for key, wanted in found(model)["sizes"].items():
        if (given := getattr(model, key)) != wanted:
            rule = f"the layers were observed with {wanted}: change the file, and import it again"
            yield ConfigError(f"model.{key}", given, rule, [edit.override(f"model.{key}", wanted)])
    if "passes" not in found(model):
        rule = f"its memory is not known, as its layers could not run on tensors without values: {found(model)['why']}"
        yield ConfigError("model.model_type", model.model_type, rule, ["script=path/to/train.py"])


def _mask(model: ModelSpec, engine: EngineTraits) -> int:
    """Bytes of the mask for scores in memory, a window, or a class that always asks for one."""
    seen = found(model)
    if engine.scores or not (seen.get("attention") == "sdpa" or any("window" in name for name in seen["kinds"])):
        return _transformers.mask(model, engine)
    return engine.size * engine.sequence_length**2


traits = FamilyTraits(
    experts=True,
    mask=_mask,
    observed=True,
    not_linear="layers of which only the parameters are known",
    attends=attends,
    choices=choices,
)


def found(model: ModelSpec) -> Mapping[str, Any]:
    """The counts recorded when the model class was built, as ``model.extra`` has them."""
    observed: Mapping[str, Any] = model.extra.get("observed", _NOTHING)
    return observed


def embedding(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """Parameters before the layers, the token embedding first."""
    rows = [_table(model, vocabulary, name, shape) for name, shape in found(model)["before"].items()]
    return sorted(rows, key=lambda row: row.shape[0] != vocabulary)


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Parameters of one layer; experts that are separate modules count as copies of one."""
    grouped: dict[tuple[str, tuple[int, ...]], int] = {}
    for name, shape in _kinds(model)[kind(model, layer)].items():
        key = (_EXPERT.sub("experts.", name), tuple(shape))
        grouped[key] = grouped.get(key, 0) + 1
    linears = found(model).get("linears", ())
    shared = found(model).get("shared", {}).get(kind(model, layer), {})
    used = [Weight(name=name, shape=tuple(shape), outside=True) for name, shape in shared.items()]
    return [*(_weight(name, shape, count, linears) for (name, shape), count in grouped.items()), *used]


def head(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """Parameters after the layers."""
    return [_table(model, vocabulary, name, shape) for name, shape in found(model)["after"].items()]


def _table(model: ModelSpec, vocabulary: int, name: str, shape: list[int]) -> Weight:
    rows = vocabulary if shape[0] == model.vocab_size else shape[0]
    return Weight(name=name, shape=(rows, *shape[1:]))


def _weight(name: str, shape: tuple[int, ...], count: int, linears: Collection[str]) -> Weight:
    if name.endswith(".weight") and name.split(".")[-2] in linears:
        return Weight(name=name, shape=shape, copies=count, split="tensor")
    if "experts." in name and (count > 1 or len(shape) > 2):
        copies, one = (count, shape) if count > 1 else (shape[0], shape[1:])
        return Weight(name=name, shape=one, split="expert", copies=copies)
    return Weight(name=name, shape=shape, copies=count)


def _kinds(model: ModelSpec) -> Mapping[str, Mapping[str, list[int]]]:
    kinds: Mapping[str, Mapping[str, list[int]]] = found(model)["kinds"]
    return kinds


def kind(model: ModelSpec, layer: int) -> str:
    """The name of a layer's kind."""
    layers = found(model)["layers"]
    return str(layers[min(layer, len(layers) - 1)])


def _passes(model: ModelSpec, layer: int, engine: EngineTraits) -> Mapping[str, Any]:
    form = "mixed" if engine.autocast else "bf16" if engine.size == 2 else "fp32"
    seen: Mapping[str, Any] = found(model)["passes"][kind(model, layer)][form]
    return seen


def _row(name: str, line: list[float], engine: EngineTraits) -> SavedTensor:
    constant, by_length = line
    return SavedTensor(name, ceil(constant + by_length * engine.sequence_length), "token", "mlp")


def saved(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors that one layer saves: with frozen weights, for its linears' gradients, for other weights' gradients."""
    seen, word = _passes(model, layer, engine), kind(model, layer)
    readers = tuple(found(model).get("linears", ()))
    frozen, adapted = (seen.get(name, seen["saved"]) for name in ("frozen", "adapted"))
    inputs, others = _less(adapted, frozen), _less(seen["saved"], adapted)
    return [
        replace(_row(f"tensors of {word}", frozen, engine), readers=readers),
        replace(_row(f"inputs of linears of {word}", inputs, engine), readers=readers, only_readers=True),
        replace(_row(f"inputs of other weights of {word}", others, engine), only_readers=True),
    ]


def _less(line: list[float], other: list[float]) -> list[float]:
    return [whole - part for whole, part in zip(line, other, strict=True)]


def backward_extra(model: ModelSpec, layer: int, engine: EngineTraits) -> list[SavedTensor]:
    """The most that one layer's backward pass allocates beyond what the forward pass saved."""
    return [_row("inside the backward pass", _passes(model, layer, engine)["extra"], engine)]


def saves_input(model: ModelSpec, engine: EngineTraits) -> bool:
    """True if the first layer saves its input tensor as it is."""
    return bool(_passes(model, 0, engine)["keeps_input"])


def after_blocks(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by the last norm, assumed to be Llama's, whose output the output projection reads."""
    return _transformers.norm(model.hidden_size, model, engine, readers=("lm_head",))


def first_norm_backward(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors of the first norm's backward pass, assumed to be Llama's."""
    return _transformers.first_norm_backward(model, engine)


def transformers_config(model: ModelSpec) -> TransformersConfig | None:
    """The class with all arguments of the file."""
    seen = found(model)
    if "class" not in seen or "config" not in model.extra:
        return None
    factor, cap = seen["logits"] or (1.0, None)
    return TransformersConfig(
        name=str(seen["class"]),
        settings=model.extra["config"],
        own_attention=seen.get("attention") == "sdpa",
        logits_factor=factor,
        logits_cap=cap,
    )


def not_computed(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of axes that do not split such models, of parts of layers, adapters, and logits that are not supported."""
    model, how = spec.model, spec.checkpointing
    for axis in _UNCUT:
        degree = getattr(spec.parallel, axis)
        if degree > 1:
            rule = f"this version splits a {model.model_type} only by FSDP and ZeRO"
            yield ConfigError(f"parallel.{axis}", degree, rule, [f"parallel.{axis}=1", "parallel=fsdp"])
    if how.mode == "selective":
        rule = f"launch does not know the parts of a layer of a {model.model_type}"
        yield ConfigError("checkpointing.mode", how.mode, rule, ["checkpointing=full", "checkpointing=none"])
    if spec.adapter.bits:
        rule = "this version does not quantise weights of layers that no formula describes"
        yield ConfigError("adapter.name", spec.adapter.name, rule, ["adapter=lora"])
    if spec.adapter.name != "none" and "shared" in found(model):
        rule = f"several layers of a {model.model_type} share one module, to which this version adds no adapter"
        yield ConfigError("adapter.name", spec.adapter.name, rule, ["adapter=none"])
    wanted = "eager" if found(model).get("attention") == "eager" else "sdpa"
    if model.attention not in (wanted, "flash" if wanted == "sdpa" else wanted):
        rule = f"its layers were observed with {wanted}"
        yield ConfigError("model.attention", model.attention, rule, [f"model.attention={wanted}"])
    chunk = model.extra["config"].get("attention_chunk_size")
    if isinstance(chunk, int) and spec.sequence_length > chunk:
        rule = f"a token attends within chunks of {chunk} (attention_chunk_size), but in the worker to all earlier ones"
        way = edit.override("train.sequence_length", chunk)
        yield ConfigError("train.sequence_length", spec.sequence_length, rule, [way])
    if found(model)["logits"] is None:
        rule = f"transformers' {model.model_type} computes its logits in a way that the worker's loss does not support"
        yield ConfigError("model.model_type", model.model_type, rule, ["script=path/to/train.py"])


def read_config(config: ConfigFile) -> JsonObject:
    """An error: a separate process builds the class of a file (``launcher.config.hub.observing``)."""
    config.error("model_type", "its class has to be built, which reading a file does not do")
    return {}
