"""Keys of a Hugging Face ``config.json`` other than sizes: those without effect on training, and what others change.

They are listed in ``keys.yaml``; the defaults of the ``transformers`` classes are kept with the families.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.estimate import families

WORDS = files.load_own(Path(__file__).with_suffix(".yaml"))
NO_EFFECT = {key: f"no effect: {why}" for why, keys in WORDS["no_effect"].items() for key in keys.split()}
"""Keys that do not change training, with the reason."""

ACTIVATIONS = {name: ours for ours, names in WORDS["activations"].items() for name in names.split()}
"""Launch's name of an activation function by each of transformers' names."""

MATTERS: Mapping[str, str] = WORDS["matters"]
"""Keys that change the math or the memory, with what a run of launch does instead."""

HARMLESS: Mapping[str, Sequence[object]] = WORDS["harmless"]
"""Values with which a key without a counterpart has no effect."""

SIZES: Mapping[str, str] = WORDS["sizes"]
"""Names of each size in other programs, separated by spaces, by the key of ``model``."""

MODEL_TYPES = {kind: frozenset(names.split()) for kind, names in WORDS["model_types"].items()}
"""Model types that are not text decoders, by what they are."""

_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
OLDER_NAMES: Mapping[str, tuple[str, ...]] = {"bloom": ("n_embed",), "falcon": ("n_embed",)}
"""Names of sizes in files of older versions, which a class accepts only in its code."""


BUILT: Mapping[str, frozenset[str]] = {kind: frozenset(named.split()) for kind, named in WORDS["built"].items()}
"""Keys of which a family supports only some values; with others the class is built and observed."""

SAME_CLASS: Mapping[str, str] = {"gpt-sw3": "gpt2", "kimi_k2": "deepseek_v3"}
"""Types without their own class, which have the architecture of another type."""


TEXT_MODELS: Mapping[str, str] = WORDS["text_models"]
"""Language models inside multimodal models, with the type whose layers they have, under their own defaults."""

OWN_HEADS = tuple(WORDS["own_heads"].split())
"""Vision-language models whose language model has its own head, tied or not by its own configuration."""

OF_IMAGES: Mapping[str, Sequence[str]] = WORDS["of_images"]
"""Keys of an inner language model that concern images, by the type of the whole model."""

WITHOUT_A_PART: Mapping[str, str] = WORDS["without_a_part"]
"""Vision-language models whose files may mix keys of language model and encoder, with the language model's type."""


def class_of(kind: str) -> JsonObject:
    """Return ``defaults`` and ``reads`` of a model type's class; empty if no family reads it."""
    found: JsonObject = families.classes()["classes"].get(SAME_CLASS.get(kind, kind), {"defaults": {}, "reads": []})
    return found


def sizes_of(key: str) -> list[str]:
    """Return the keys of ``model`` that a key means in any program, in any case; empty if it names no size."""
    return [setting for setting, words in SIZES.items() if word_of(key) in words.split()]


def word_of(key: str) -> str:
    """Return a key in the spelling of ``SIZES``: ``numLayers`` is ``num_layers``."""
    return _HUMP.sub("_", key).replace("-", "_").lower()
