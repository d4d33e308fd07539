"""Keys of a Hugging Face ``config.json`` beside the sizes: those without effect on training, and what others change.

They stand in ``keys.yaml``; what the classes of ``transformers`` take for keys that a file leaves out is the families'.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.estimate import families

WORDS = files.load_own(Path(__file__).with_suffix(".yaml"))
NO_EFFECT = {key: f"no effect: {why}" for why, keys in WORDS["no_effect"].items() for key in keys.split()}
"""Keys that change nothing of training, with the reason."""

ACTIVATIONS = {name: ours for ours, names in WORDS["activations"].items() for name in names.split()}
"""Our name of an activation function by each of transformers'."""

MATTERS: Mapping[str, str] = WORDS["matters"]
"""Keys that change the maths or the memory, with what a run has here in their place."""

HARMLESS: Mapping[str, Sequence[object]] = WORDS["harmless"]
"""Values with which a key that has no counterpart changes nothing."""

SIZES: Mapping[str, str] = WORDS["sizes"]
"""Names of each size in other programs, between blanks, by the key of ``model``."""

MODEL_TYPES = {kind: frozenset(names.split()) for kind, names in WORDS["model_types"].items()}
"""Model types that are no decoder of text, by what they are."""

_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
OLDER_NAMES: Mapping[str, tuple[str, ...]] = {"bloom": ("n_embed",), "falcon": ("n_embed",)}
"""Names of sizes that a class takes in its code alone, from files of older versions."""


BUILT: Mapping[str, frozenset[str]] = {kind: frozenset(named.split()) for kind, named in WORDS["built"].items()}
"""Keys of layers that a family describes with one of their values; with another the class is built to be counted."""

SAME_CLASS: Mapping[str, str] = {"gpt-sw3": "gpt2", "kimi_k2": "deepseek_v3"}
"""Types without a class of their own, whose architecture is that of another type."""


TEXT_MODELS: Mapping[str, str] = WORDS["text_models"]
"""Language models inside those of other media, by the type whose layers they have under defaults of their own."""

OWN_HEADS = tuple(WORDS["own_heads"].split())
"""Models of images in which the language model has its own head, which its own configuration ties or not."""

OF_IMAGES: Mapping[str, Sequence[str]] = WORDS["of_images"]
"""Keys of a language model inside that speak of images beside its text, by the type of the whole."""

WITHOUT_A_PART: Mapping[str, str] = WORDS["without_a_part"]
"""Models of images whose files may have the keys of the language model beside those of the encoder, by its type."""


def class_of(kind: str) -> JsonObject:
    """``defaults`` and ``reads`` of the class of a model type; empty where no family reads it."""
    found: JsonObject = families.classes()["classes"].get(SAME_CLASS.get(kind, kind), {"defaults": {}, "reads": []})
    return found


def sizes_of(key: str) -> list[str]:
    """The keys of ``model`` that a key means in some program, in whatever case; none where it names no size."""
    return [setting for setting, words in SIZES.items() if word_of(key) in words.split()]


def word_of(key: str) -> str:
    """A key as ``SIZES`` has it: ``numLayers`` is ``num_layers``."""
    return _HUMP.sub("_", key).replace("-", "_").lower()
