"""``transformers`` decoders: one declarative description per model type, and the functions that read it.

``description`` defines a description; ``descriptions.json`` has one per type, and ``hybrids`` the layers of types with
several kinds of layers; ``values`` combines a model's sizes with its class's defaults; ``kinds`` has the parts of
layers, ``layers`` the parts of each layer; ``saved``, ``checks`` and ``reading`` build on these.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from launcher.estimate import families
from launcher.estimate.families._decoders.description import Decoder, completed, described
from launcher.estimate.families._decoders.hybrids import LAYERED

_DESCRIBED = {kind: replace(found, **LAYERED.get(kind, {})) for kind, found in described().items()}


@cache
def defaults(model_type: str | None) -> Mapping[str, Any]:
    """The keys of a class and their defaults, as written in it; empty for a class that is not described."""
    if model_type not in _DESCRIBED:
        return {}
    found = families.classes()["classes"][model_type]
    own = {key: value for key, value in found["defaults"].items() if key not in found["derived"]}
    return {**own, **found["further"]}


TYPES: dict[str, Decoder] = {
    kind: completed(kind, found, families.classes()["architectures"][kind], defaults(kind))
    for kind, found in _DESCRIBED.items()
}
"""The description of each supported ``model_type``."""
