"""Decoders of ``transformers`` that no other family describes, as building their class without memory shows them.

``model.extra.config`` is the file that describes the model, ``model.extra.observed`` what
``python -m launcher.worker.observe`` found: the parameters by place, the kind of each layer, and the bytes that a layer
of each kind saves. All that a class computes by code of Python is counted as that code; a kernel that takes its place
where it is installed saves less.
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
"""Of a model that ``choices`` refuses."""

_UNCUT = ("tensor", "pipeline", "context", "ulysses", "expert")


def attends(model: ModelSpec, layer: int) -> bool:
    """True if a layer has attention among what it computes."""
    return any(_ATTENTION.search(name) for name in _kinds(model)[kind(model, layer)])


def choices(spec: RunSpec) -> Iterator[ConfigError]:
    """A model without what was found of its class, or of other sizes than those."""
    model, again = spec.model, "launch import hf config.json"
    if not {"observed", "config"} <= {*model.extra}:
        rule = "family=observed is made of a config.json by the class of transformers that it names"
        yield ConfigError("model.family", model.family, rule, ["model=./folder", again])
        return
    for key, wanted in found(model)["sizes"].items():
        if (given := getattr(model, key)) != wanted:
            rule = f"the layers that were found are those of {wanted}: change the file, and import it again"
            yield ConfigError(f"model.{key}", given, rule, [edit.override(f"model.{key}", wanted)])
    if "passes" not in found(model):
        rule = f"nothing is known of its memory, as its layers were not run without values: {found(model)['why']}"
        yield ConfigError("model.model_type", model.model_type, rule, ["script=path/to/train.py"])


def _mask(model: ModelSpec, engine: EngineTraits) -> int:
    """Bytes of a mask: of scores in memory, of a window, or of a class that asks for one in any case."""
    seen = found(model)
    if engine.scores or not (seen.get("attention") == "sdpa" or any("window" in name for name in seen["kinds"])):
        return _transformers.mask(model, engine)
    return engine.size * engine.sequence_length**2


traits = FamilyTraits(
    experts=True,
    mask=_mask,
    observed=True,
    not_linear="layers that are known by their parameters alone",
    attends=attends,
    choices=choices,
)


def found(model: ModelSpec) -> Mapping[str, Any]:
    """What building the class has shown."""
    observed: Mapping[str, Any] = model.extra.get("observed", _NOTHING)
    return observed


def embedding(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """Parameters before the layers, the token table first."""
    rows = [_table(model, vocabulary, name, shape) for name, shape in found(model)["before"].items()]
    return sorted(rows, key=lambda row: row.shape[0] != vocabulary)


def block(model: ModelSpec, layer: int) -> list[Weight]:
    """Parameters of one layer; experts that are modules of their own are copies of one."""
    grouped: dict[tuple[str, tuple[int, ...]], int] = {}
    for name, shape in _kinds(model)[kind(model, layer)].items():
        key = (_EXPERT.sub("experts.", name), tuple(shape))
        grouped[key] = grouped.get(key, 0) + 1
    linears = found(model).get("linears", ())
    shared = found(model).get("shared", {}).get(kind(model, layer), {})
    used = [Weight(name=name, shape=tuple(shape), outside=True) for name, shape in shared.items()]
    return [*(_weight(name, shape, count, linears) for (name, shape), count in grouped.items()), *used]


def head(model: ModelSpec, vocabulary: int) -> list[Weight]:
    """Parameters behind the layers."""
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
    """The word for a layer's kind."""
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
    """The most that the backward pass of one layer allocates beside what the forward pass saved."""
    return [_row("inside the backward pass", _passes(model, layer, engine)["extra"], engine)]


def saves_input(model: ModelSpec, engine: EngineTraits) -> bool:
    """True if the first layer saves the tensor that it is called with."""
    return bool(_passes(model, 0, engine)["keeps_input"])


def after_blocks(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """Tensors saved by the last norm, taken for one of Llama's, whose output the output projection reads."""
    return _transformers.norm(model.hidden_size, model, engine, readers=("lm_head",))


def first_norm_backward(model: ModelSpec, engine: EngineTraits) -> list[SavedTensor]:
    """The backward pass of a first norm like Llama's."""
    return _transformers.first_norm_backward(model, engine)


def transformers_config(model: ModelSpec) -> TransformersConfig | None:
    """The class, with all that the file says."""
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
    """Axes along which such models are not cut, parts of layers that are not told apart, logits of another kind."""
    model, how = spec.model, spec.checkpointing
    for axis in _UNCUT:
        degree = getattr(spec.parallel, axis)
        if degree > 1:
            rule = f"this version splits a {model.model_type} by FSDP and ZeRO alone"
            yield ConfigError(f"parallel.{axis}", degree, rule, [f"parallel.{axis}=1", "parallel=fsdp"])
    if how.mode == "selective":
        rule = f"the parts of a layer of a {model.model_type} are not told apart here"
        yield ConfigError("checkpointing.mode", how.mode, rule, ["checkpointing=full", "checkpointing=none"])
    if spec.adapter.name == "qlora":
        rule = "of layers that no formula describes this version packs no weights"
        yield ConfigError("adapter.name", "qlora", rule, ["adapter=lora"])
    if spec.adapter.name != "none" and "shared" in found(model):
        rule = f"several layers of a {model.model_type} use one module, beside which this version puts no adapter"
        yield ConfigError("adapter.name", spec.adapter.name, rule, ["adapter=none"])
    wanted = "eager" if found(model).get("attention") == "eager" else "sdpa"
    if model.attention not in (wanted, "flash" if wanted == "sdpa" else wanted):
        rule = f"its layers were run with {wanted}"
        yield ConfigError("model.attention", model.attention, rule, [f"model.attention={wanted}"])
    chunk = model.extra["config"].get("attention_chunk_size")
    if isinstance(chunk, int) and spec.sequence_length > chunk:
        rule = f"a token attends within chunks of {chunk} (attention_chunk_size), and the worker's to all before it"
        way = edit.override("train.sequence_length", chunk)
        yield ConfigError("train.sequence_length", spec.sequence_length, rule, [way])
    if found(model)["logits"] is None:
        rule = f"transformers' {model.model_type} makes its logits in a way that the worker's loss does not know"
        yield ConfigError("model.model_type", model.model_type, rule, ["script=path/to/train.py"])


def read_config(config: ConfigFile) -> JsonObject:
    """None: the class of a file is built in a process of its own (``launcher.config.hub.observing``)."""
    config.error("model_type", "its class is to be built, which reading a file does not do")
    return {}
