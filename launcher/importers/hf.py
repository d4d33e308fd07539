"""Hugging Face ``config.json``, of whose model types and keys ``launcher.config.hub.reading`` knows all."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from launcher.config.hub import reading as hugging_face
from launcher.importers import Imported

_NONE: Mapping[str, str] = MappingProxyType({})


def read(text: str, path: str, *, variables: Mapping[str, str] = _NONE, weights: str | None = None) -> Imported:
    """Read a ``config.json``.

    Args:
        text: The file's content.
        path: The file, for messages.
        variables: None are in such a file.
        weights: The folder of the model's weights, where it has some.

    Raises:
        ConfigErrors: It is not a JSON object.
    """
    return hugging_face.read(text, path, weights=weights).imported
