"""Reasons to refuse a ``config.json`` whose model type no family reads, one specific sentence each."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from launcher.base.errors import ConfigError
from launcher.base.files import JsonObject
from launcher.config.hub import keys
from launcher.estimate import families
from launcher.job import versions

_OWN_SCRIPT = "script=path/to/train.py without model="
"""The way to train a model that no family describes; a family may also be added (docs/architecture.md)."""

_LIKE = {**dict.fromkeys(("aquila", "skywork", "xverse", "yi"), "llama"), "mimo": "qwen2"}
"""Types with custom code but the layers and tensors of another type, except a multi-token prediction module."""

_ENCODERS, _SEQ2SEQ, _SOUND, _IMAGES = (keys.MODEL_TYPES[kind] for kind in ("encoders", "seq2seq", "sound", "images"))

_PARTS: Mapping[str, str] = {key: what for what, named in keys.WORDS["parts"].items() for key in named.split()}
"""Keys that only models with a non-text encoder have."""

_OF_PARTS = ("mm_", "image_", "video_", "vision_", "embd_layer", "tune_mm_", "freeze_mm_")
"""Prefixes of such keys in files that mix them with those of the language model."""

_TEXT = ("text_config", "llm_config", "llm_cfg", "language_config", "thinker_config")
"""Keys of the language model inside a multimodal model."""


def refusal(content: Mapping[str, Any], path: str, known: Collection[str]) -> ConfigError:
    """Return why launch cannot train the model of a file; ``known`` are the model types that a family reads."""
    kind = content.get("model_type")
    where = f"{path}: model_type"
    if not isinstance(kind, str):
        rule = f"config.json must name its model by model_type; supported are {', '.join(known)}"
        return ConfigError(where, kind, rule, [*_relatives(content, known), _OWN_SCRIPT])
    media = dict.fromkeys(what for key, what in _PARTS.items() if content.get(key))
    if media or kind in _IMAGES or kind in _SOUND:
        what = " and ".join(media) or ("images" if kind in _IMAGES else "sound")
        rule = f"this is a model of text and {what}, and launch trains only language models of text"
        inner = [within.get("model_type") for key in _TEXT if isinstance(within := content.get(key), Mapping)]
        if inner and inner[0] not in families.classes()["architectures"]:
            rule += f": transformers has no causal LM class for its language model alone ({inner[0]})"
        return ConfigError(where, kind, rule, [_OWN_SCRIPT])
    if (sentence := _other_kind(kind)) is not None:
        return ConfigError(where, kind, sentence, [_OWN_SCRIPT])
    relatives = [*_relatives(content, known)]
    if relatives:
        named = ", ".join(_architectures(content))
        rule = f"no model family reads it, but architectures names {named}, the class of another model_type"
        return ConfigError(where, kind, rule, [*relatives, _OWN_SCRIPT])
    code = ", and launch does not run the code in its folder" if content.get("auto_map") else ""
    rule = f"no model family reads it, so its memory is unknown: {_in_transformers(kind)}{code}"
    like = _LIKE.get(kind.lower())
    ways = [f'write "model_type": "{like}" into the file, whose layers are the same'] if like else []
    return ConfigError(where, kind, rule, [*ways, _OWN_SCRIPT, f"model=custom model.family=... {_by_hand(content)}"])


def _by_hand(content: Mapping[str, Any]) -> str:
    """The overrides that describe a model, with the sizes that a file gives under an unambiguous name."""
    sizes = {key: keys.sizes_of(key) for key, value in content.items() if type(value) is int}
    said = {}
    for setting, words in keys.SIZES.items():
        named = {keys.word_of(key): content[key] for key, found in sizes.items() if found == [setting]}
        if named:
            said[setting] = next(named[word] for word in words.split() if word in named)  # Most common name first.
    wanted = [key for key in keys.WORDS["by_hand"].split() if key in said or key != "num_key_value_heads"]
    return " ".join(f"model.{key}={said.get(key, '...')}" for key in wanted)


def is_text_decoder(content: Mapping[str, Any]) -> bool:
    """True if ``transformers`` has a causal LM class for a file's model type."""
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in families.classes()["architectures"]:
        return False
    return not any(kind in others for others in keys.MODEL_TYPES.values()) and not any(
        content.get(key) for key in _PARTS
    )


def text_model(content: Mapping[str, Any], known: Collection[str]) -> str | None:
    """Return the key of the language model inside a multimodal model, if that can be read; else None."""
    kind = content.get("model_type")
    if isinstance(kind, str) and kind in known:
        return None
    for key in _TEXT:
        within = content.get(key)
        inner = named(content, key) if isinstance(within, Mapping) else {}
        kind = inner.get("model_type")
        if isinstance(kind, str) and (
            kind in known or kind in keys.TEXT_MODELS or is_text_decoder(inner) or text_model(inner, known)
        ):
            return key
    return None


def named(content: Mapping[str, Any], key: str) -> JsonObject:
    """Return the language model inside a multimodal model, with the class's default type if it names none."""
    kinds = families.classes()["inner"] if key == "text_config" and "model_type" not in content[key] else {}
    kind = kinds.get(content.get("model_type"))
    return {**({"model_type": kind} if kind else {}), **content[key]}


def inside(content: Mapping[str, Any]) -> str | None:
    """Return the type whose layers the language model of a vision-language model has; None if it is not one."""
    kind = str(content.get("model_type"))
    beside = "hidden_size" in content and not any(key in content for key in _TEXT)
    return keys.TEXT_MODELS.get(kind) or (keys.WITHOUT_A_PART.get(kind) if beside else None)


def without_parts(content: Mapping[str, Any]) -> JsonObject:
    """Return the keys of a file without those of non-text encoders."""
    parts = ("architectures", "auto_map", *_PARTS)
    return {key: value for key, value in content.items() if key not in parts and not key.startswith(_OF_PARTS)}


def sizes_left_out(content: Mapping[str, Any], path: str, inside: str) -> ConfigError | None:
    """Return the refusal of a file that relies on defaults of a class that ``transformers`` lacks, else None."""
    missing = [key for key in keys.WORDS["by_hand"].split() if key != "num_key_value_heads" and key not in content]
    if not missing or inside in keys.TEXT_MODELS or content.get("model_type") in keys.TEXT_MODELS:
        return None
    rule = f"its layers are those of {inside}, but the defaults of sizes missing in the file belong to another program"
    return ConfigError(
        f"{path}: model_type", content.get("model_type"), rule, [f"name {', '.join(missing)} in the file"]
    )


def not_observed(content: Mapping[str, Any], path: str, why: str) -> ConfigError:
    """Return the refusal of a model whose class could not be built."""
    kind = str(content.get("model_type"))
    rule = f"no model family describes it, so its class must be built (without memory) to be counted: {why}"
    return ConfigError(f"{path}: model_type", kind, rule, [_OWN_SCRIPT])


def _other_kind(kind: str) -> str | None:
    if kind in _ENCODERS:
        kind_of = "this is an encoder, which predicts masked words"
        return f"{kind_of}, and launch trains only models that predict the next token"
    if kind in _SEQ2SEQ:
        return "this is an encoder-decoder, and launch trains only decoder models"
    return None


def _architectures(content: Mapping[str, Any]) -> list[str]:
    named = content.get("architectures")
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def _relatives(content: Mapping[str, Any], known: Collection[str]) -> Iterator[str]:
    named = _architectures(content)
    for kind, architecture in families.classes()["architectures"].items():
        if kind in known and architecture in named:
            yield f'write "model_type": "{kind}" into the file'


def _in_transformers(kind: str) -> str:
    """A clause on whether ``transformers`` has a class for a model type, with the versions."""
    table = families.classes()
    has = table["architectures"].get(kind)
    installed = versions.installed("transformers")
    of_table = f"transformers {table['version']}"
    said = f"{of_table} has {has} for it" if has else f"{of_table} has no language model of this type"
    if installed in (None, table["version"]):
        return said
    return f"{said} (installed is {installed})"
