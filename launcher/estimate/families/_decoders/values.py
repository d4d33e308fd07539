"""A model's values under its class's own keys: its sizes, ``model.extra``, and the class's defaults for the rest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from launcher.base.files import JsonObject
from launcher.estimate.families._decoders import TYPES
from launcher.estimate.families._decoders import defaults as defaults
from launcher.estimate.families._decoders.description import WORDS, Bias, Decoder, completed
from launcher.estimate.families._hugging_face import ACTIVATIONS
from launcher.spec import ModelSpec

NAMES: Mapping[str, Sequence[str]] = WORDS["names"]
"""The names that classes use for each of our keys; a class has one of them or none."""

_MOST_LAYERS = 10_000  # No model has more, and naming each of many more would exhaust the memory.
_UNKNOWN = replace(completed("", Decoder(), "", {}), config="")


def their_key(model_type: str | None, key: str) -> str | None:
    """The class's name for one of our keys; None if it has none."""
    there = defaults(model_type)
    return next((name for name in NAMES[key] if name in there), None)


@lru_cache(maxsize=256)
def decoder(model: ModelSpec) -> Decoder:
    """The description of a model with its variants applied; a plain decoder's if its type is not described."""
    return varied(model.model_type, lambda key: _known(model, key))


def _known(model: ModelSpec, key: str) -> Any:
    """The value of a key of the class's configuration that is not one of our flags."""
    if key in model.extra:
        return model.extra[key]
    ours = _named(model.model_type).get(key)
    return defaults(model.model_type).get(key) if ours is None else _ours(model, ours)


@cache
def _named(model_type: str | None) -> Mapping[str, str]:
    """Our keys by the class's names for them."""
    return {name: key for key in NAMES if (name := their_key(model_type, key))}


def varied(model_type: str | None, value_of: Callable[[str], Any]) -> Decoder:
    """The description of a model type with the variants that the class's keys select."""
    found = TYPES.get(model_type or "", _UNKNOWN)
    for key, wanted, changes in found.variants:
        if value_of(key) == wanted:
            found = replace(found, **changes)
    return found


def value(model: ModelSpec, key: str) -> Any:
    """The value of a key of the class's configuration."""
    ours = None if key in model.extra else flags(decoder(model)).get(key)
    return _known(model, key) if ours is None else getattr(model, ours)


def words(found: Decoder, value_of: Callable[[str], Any], number: object) -> tuple[str, ...]:
    """The kind of each layer, by name; empty if all layers are of one kind, or if a value has the wrong type."""
    if found.layers is None or type(number) is not int or number > _MOST_LAYERS:
        return ()
    try:
        return found.layers(value_of, number)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return ()


@lru_cache(maxsize=256)
def named(model: ModelSpec) -> tuple[str, ...]:
    """The kind of each layer of a model, by name (:func:`words`)."""
    return words(decoder(model), lambda key: value(model, key), model.num_hidden_layers)


def flags(found: Decoder) -> Mapping[str, str]:
    """Our flags by the class's keys for them; if two share a key, the attention's flag is the one returned."""
    pairs = {"mlp_bias": found.mlp_bias, "attention_bias": found.input_bias, "qk_norm": found.with_head_norms}
    return {theirs: ours for ours, theirs in pairs.items() if isinstance(theirs, str) and theirs}


def flag(model: ModelSpec, bias: Bias) -> bool:
    """True if the model has a bias."""
    return bias if isinstance(bias, bool) else value(model, bias) is True


def count(model: ModelSpec, key: str) -> int:
    """A size that only the class's configuration has; 0 if it is not an integer."""
    found = value(model, key) if key else 0
    return found if type(found) is int else 0


def size(model: ModelSpec, found: Decoder, word: str) -> int:
    """A size of a state space or of linear attention, or 1 for a flag that is on; 0 if its class has none."""
    key = found.sizes.get(word, 0)
    given = value(model, key) if isinstance(key, str) else key
    return int(given) if isinstance(given, int | float) else 0


def norms_of_heads(model: ModelSpec, found: Decoder) -> bool:
    """True if queries and keys are normalised."""
    return bool(found.head_norms) and (not found.with_head_norms or value(model, found.with_head_norms) is True)


def settings(model: ModelSpec) -> JsonObject:
    """The arguments of the configuration class: the model's sizes under its keys, and ``model.extra``."""
    found, kind = decoder(model), model.model_type
    made: JsonObject = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    for key in NAMES:
        name = their_key(kind, key)
        if name is not None and key not in found.fixed:
            made[name] = _ours(model, key)
    made |= {theirs: getattr(model, ours) for theirs, ours in flags(found).items()}
    made |= dict.fromkeys(found.dropouts, model.dropout)
    return nested({**made, **found.settings, **model.extra})


def nested(flat: JsonObject) -> JsonObject:
    """Turn keys of a nested configuration, ``outer.inner``, into a nested mapping (DBRX)."""
    made: JsonObject = {}
    for key, found in flat.items():
        outer, dot, inner = key.partition(".")
        made[outer] = {**made.get(outer, {}), inner: found} if dot else found
    return made


def _ours(model: ModelSpec, key: str) -> Any:
    if key == "hidden_act":
        return ACTIVATIONS.get(model.hidden_act, model.hidden_act)
    derived = {"head_dim": model.head_size, "num_key_value_heads": model.key_value_heads}
    return derived.get(key, getattr(model, key))


def spoken_for(model: ModelSpec) -> dict[str, str]:
    """The class's keys that a key of ``model`` sets, and that key of ``model``."""
    return {**_named(model.model_type), **flags(decoder(model))}
