"""Decoders of ``transformers``: one declarative description a model type, and what follows from it.

``description`` says what a description holds; ``descriptions.json`` has a row a type, and ``hybrids`` the layers of
those that have several kinds of them;
``values`` joins a model's sizes with its class's defaults; ``kinds`` has what layers are made of, ``layers`` the kinds
of each layer; ``weights``, ``saved``, ``checks`` and ``reading`` follow.
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
    """The keys of a class and their defaults, as they are written in it; none of a class that is not described."""
    if model_type not in _DESCRIBED:
        return {}
    found = families.classes()["classes"][model_type]
    own = {key: value for key, value in found["defaults"].items() if key not in found["derived"]}
    return {**own, **found["further"]}


TYPES: dict[str, Decoder] = {
    kind: completed(kind, found, families.classes()["architectures"][kind], defaults(kind))
    for kind, found in _DESCRIBED.items()
}
"""Each ``model_type`` that is described."""
