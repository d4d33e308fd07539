"""Reading of a Hugging Face ``config.json`` of any model type that a family supports: Llama, Mixtral, GPT-2 and more.

The family reads its keys; this module finds the family and accounts for the keys that it did not read.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.base import files, registry
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.config.hub import keys, observing
from launcher.config.hub import model_types as types
from launcher.config.hub.file import Config
from launcher.config.ledger import Imported, name_from
from launcher.estimate import families
from launcher.estimate.rank.family import Family

_HEADS = ("ForCausalLM", "LMHeadModel")

_INFINITY = r'(?:Infinity|\{\s*"__float__"\s*:\s*"Infinity"\s*\})'
_NO_LIMIT = re.compile(rf'"time_step_limit"(\s*:\s*)\[\s*0(?:\.0)?\s*,\s*{_INFINITY}\s*\]')
"""The default of every class with Mamba layers, in JSON that only Python reads, or as transformers 5 writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A ``config.json`` as settings of ``model``."""

    model: Mapping[str, Any]  # Values of the keys of ``model``.
    imported: Imported  # The same as overrides and as a recipe, with the fate of each key of the file.
    within: str | None = None  # The key of the language model inside a multimodal model, if that was read.

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        """Errors for which the file cannot be used."""
        return self.imported.errors


def read(
    text: str, path: str, *, name: str | None = None, source: str | None = None, weights: str | None = None
) -> ModelFile:
    """Return a ``config.json`` as settings; reasons why it cannot be used are in its ``errors``.

    ``name`` and ``source`` replace the file's own, ``weights`` is the folder of the model's weights, if it has any;
    those of a multimodal model are not used for its language model. Raises ConfigErrors if the text is not a JSON
    object.
    """
    content = _content(text, path)
    config = Config(content, path)
    origin = str(content.get("_name_or_path") or "")
    called = name or name_from(origin or config.model_type)
    said = source or (f"config.json of {called}" if origin else "a config.json")
    model, within = _model(config), _within(config)
    starts = {} if weights is None or within is not None else {"weights": weights}
    if model:
        model = {"name": called, **model, "source": said, **starts}
        config.ledger.say("model_type", "model.family", "model.model_type")
        if origin and name is None:
            config.ledger.say("_name_or_path", "model.name")
    imported = config.ledger.imported(
        summary=f"The model of {said}",
        source=said,
        choose={},
        settings={f"model.{key}": value for key, value in model.items()},
        not_understood=[f"the weights in {weights}: {other_weights(within)}"] if within and weights and model else [],
        errors=config.errors,
    )
    return ModelFile(model=model, imported=imported, within=within)


def other_weights(within: str) -> str:
    """Return why a multimodal model's weights cannot be used for its language model ``within``."""
    return f"the tensors of {within} have other names, which this version does not read: it starts from random weights"


def _within(config: Config) -> str | None:
    kind = config.content.get("model_type")
    known = _families(kind if isinstance(kind, str) else "")
    return types.text_model(config.content, known) or (types.inside(config.content) and str(kind))


def _model(config: Config) -> JsonObject:
    kind = config.content.get("model_type")
    known = _families(kind if isinstance(kind, str) else "")
    if (key := types.text_model(config.content, known)) is not None:
        outer = config.has("tie_word_embeddings") and kind not in keys.OWN_HEADS
        tied = {"tie_word_embeddings": config.get("tie_word_embeddings")} if outer else {}
        inner = {**tied, **types.named(config.content, key)}  # The inner model has the whole model's head.
        for name in keys.OF_IMAGES.get(str(kind), ()):
            inner.pop(name, None)
        return _text_model(config, Config(inner, f"{config.path}: {key}"), f"{key}.")
    if (inside := types.inside(config.content)) is not None:
        if (error := types.sizes_left_out(config.content, config.path, inside)) is not None:
            config.errors.append(error)
            return _left(config)
        alone = {**types.without_parts(config.content), "model_type": inside}
        own = str(kind) if kind in keys.TEXT_MODELS else inside
        return _text_model(config, Config(alone, config.path, defaults_of=own), "")
    if isinstance(kind, str) and kind not in known and types.is_text_decoder(config.content):
        return _observed(config)
    if not isinstance(kind, str) or kind not in known:
        config.errors.append(types.refusal(config.content, config.path, known))
        return _left(config)
    found = known[kind].read_config(config)
    if config.errors and {error.path.rpartition(": ")[2] for error in config.errors} <= keys.BUILT.get(kind, set()):
        config.restart()
        return _observed(config)
    _enter_others(config, found)
    return found


def _observed(config: Config) -> JsonObject:
    """Settings of a model that no family describes, found by building its class."""
    try:
        model, reads = observing.settings(config.content)
    except observing.NotObservedError as error:
        config.errors.append(types.not_observed(config.content, config.path, str(error)))
    else:
        _enter_observed(config, model, reads)
    return _left(config) if config.errors else model


def _left(config: Config) -> JsonObject:
    for key in config.ledger.values:
        config.ledger.leave(key, "launch cannot train this model")
    return {}


def _text_model(config: Config, inner: Config, prefix: str) -> JsonObject:
    """Settings of the language model inside a model of images or sound, which is trained alone."""
    model = _model(inner)
    config.errors += inner.errors
    config.ledger.adopt(prefix, inner.ledger)
    config.ledger.say(f"{prefix}model_type", "model.family", "model.model_type")
    own = config.model_type in keys.OWN_HEADS
    if prefix and not own and "tie_word_embeddings" not in config.content[prefix.rstrip(".")]:
        config.ledger.say("tie_word_embeddings", "model.tie_word_embeddings")
    for leaf in config.ledger.values:
        if config.ledger.is_open(leaf):
            whose = prefix.rstrip(".") or config.model_type
            effect = f"only the language model of {whose} is trained, without the encoders of images or sound"
            config.ledger.leave(leaf, effect, matters=False)
    return model


def _enter_observed(config: Config, model: Mapping[str, Any], reads: frozenset[str]) -> None:
    for size, words in keys.SIZES.items():
        read = [word for word in words.split() if word in reads]
        if read:
            config.sources[size] = next(filter(config.has, read), read[0])
    for leaf in config.ledger.values:
        key = leaf.partition(".")[0]
        if key in reads and key not in observing.NOT_OF_THE_CLASS:
            config.ledger.keep(leaf)
        elif key in keys.MATTERS and not _other_code(config):
            config.ledger.leave(leaf, "no effect: its class does not read it", matters=False)
        else:
            _enter(config, leaf, key, reads)
            _enter_size(config, leaf, model, reads)


def _families(kind: str) -> dict[str, Family]:
    found = _readers(registry.shipped("families"))
    more = {} if kind in found else _readers(registry.offered("families"))
    return dict(sorted({**more, **found}.items()))


def _readers(names: Iterable[str]) -> dict[str, Family]:
    families: list[Family] = [registry.load("families", name) for name in names]
    return {kind: family for family in families for kind in family.traits.model_types}


def _enter_others(config: Config, model: Mapping[str, Any]) -> None:
    reads = frozenset(keys.class_of(config.model_type)["reads"])
    for leaf in config.ledger.values:
        if config.ledger.is_open(leaf):
            _enter(config, leaf, leaf.partition(".")[0], reads)
            _enter_size(config, leaf, model, reads)


def _enter_size(config: Config, leaf: str, model: Mapping[str, Any], reads: frozenset[str]) -> None:
    """Enter a key that names a size which is read from another key, and may have the same value.

    Computed positions have no size, and a class without experts is the same model as one with a single expert.
    """
    value, key = config.ledger.values[leaf], leaf.partition(".")[0]
    sizes = [] if key in keys.NO_EFFECT or key in keys.MATTERS else keys.sizes_of(leaf.rpartition(".")[2])
    if model.get("position_embedding") != "learned":
        sizes = [size for size in sizes if size != "max_position_embeddings"]
    if not sizes or value in (None, False, 0, "", [], {}):
        return
    value = value[0] if isinstance(value, list) and all(each == value[0] for each in value) else value  # Per layer.
    heads = model.get("num_attention_heads") or 1
    usual = {"num_key_value_heads": heads, "head_dim": model.get("hidden_size", 0) // heads, "num_experts": 1}
    have = {size: model.get(size) or usual.get(size) for size in sizes}
    said = [size for size in sizes if have[size] == value]
    if said:
        config.ledger.leave(leaf, f"no effect: {config.sources.get(said[0], 'its class')} says the same", matters=False)
        return
    read_from = {size: config.sources.get(size) or (size if size in reads else None) for size in sizes}
    missing = [(size, read) for size, read in read_from.items() if read and not config.has(read)]
    if missing:
        _refuse_size(config, leaf, *missing[0])
        return
    size, read = sizes[0], read_from[sizes[0]]
    where = f"this size is read from {read}, and is {have[size]}" if read else "the class has no such size"
    effect = f"nothing reads it: in {config.model_type} {where}"
    if "." in leaf and read and config.has(read):
        config.ledger.leave(leaf, f"{effect}: it is a size of {key}", matters=False)
    else:
        config.ledger.leave(leaf, f"{effect}: set model.{size}")


def _refuse_size(config: Config, leaf: str, size: str, read: str) -> None:
    value = config.ledger.values[leaf]
    rule = f"transformers' class of {config.model_type} does not read it but {read}, and would use its default"
    config.errors.append(ConfigError(f"{config.path}: {leaf}", value, rule, [f"rename it to {read} in the file"]))
    config.ledger.leave(leaf, f"refused: model.{size} is read from {read}")


def _enter(config: Config, leaf: str, key: str, reads: frozenset[str]) -> None:
    ledger, value = config.ledger, config.content.get(key)
    if key == "architectures":
        _enter_architectures(config, leaf)
    elif _is_harmless(key, value) or leaf.endswith(".model_type"):
        ledger.default(leaf)
    elif key in keys.MATTERS:
        ledger.leave(leaf, keys.MATTERS[key])
    elif key in keys.NO_EFFECT:
        ledger.leave(leaf, keys.NO_EFFECT[key], matters=False)
    elif key in reads:
        ledger.leave(leaf, "the transformers class reads it, and launch has no setting for it")
    elif _other_code(config) and ledger.values[leaf] not in (None, False, 0, "", [], {}):
        ledger.leave(leaf, "the folder's own code may read it, which launch does not run")
    else:
        ledger.leave(leaf, f"no effect: transformers' class of {config.model_type} does not read it", matters=False)


def _other_code(config: Config) -> bool:
    """True if a folder's own code has a class other than that of ``transformers``, which would replace the same one."""
    code, architecture = config.content.get("auto_map"), families.classes()["architectures"].get(config.model_type, "")
    name = code.get("AutoModelForCausalLM") if isinstance(code, Mapping) else None
    return bool(code) and str(name).rpartition(".")[2].lower() != architecture.lower()


def _is_harmless(key: str, value: object) -> bool:
    if key == "layer_types" and isinstance(value, list):
        return all(kind in ("full_attention", "indexed_attention") for kind in value)  # The second is DeepSeek-V3.2's.
    return key in keys.HARMLESS and any(value == harmless for harmless in keys.HARMLESS[key])


def _enter_architectures(config: Config, leaf: str) -> None:
    named = config.content.get("architectures")
    others = [name for name in named if not str(name).endswith(_HEADS)] if isinstance(named, list) else []
    if others:
        config.ledger.leave(leaf, f"the run trains the class with a language model head instead of {others[0]}")
    else:
        config.ledger.leave(leaf, "no effect: model_type names the class", matters=False)


def _content(text: str, path: str) -> JsonObject:
    try:
        content = files.parse_json(_NO_LIMIT.sub(r'"no_time_step_limit"\1null', text))
    except ValueError as error:
        raise ConfigErrors([ConfigError(path, text[:40], f"a config.json must be valid JSON: {error}")]) from None
    if not isinstance(content, dict):
        raise ConfigErrors([ConfigError(path, text[:40], "a config.json must be one JSON object: {...}")])
    return content
