"""Hugging Face ``config.json``, of whose model types and keys ``launcher.config.hugging_face`` knows all."""

from __future__ import annotations

from launcher.config import hugging_face
from launcher.importers import Imported, imported


def read(text: str, path: str, *, weights: str | None = None) -> Imported:
    """Read a ``config.json``.

    Args:
        text: The file's content.
        path: The file, for messages.
        weights: The folder of the model's weights, where it has some.

    Raises:
        ConfigErrors: It is not a ``config.json``, of a model that no family here describes, or sizes are missing.
    """
    found = hugging_face.read(text, path)
    model = {**found.model, **({} if weights is None else {"weights": weights})}
    return imported(
        summary=f"The model of {model['source']}",
        source=str(model["source"]),
        choose={},
        settings={f"model.{key}": value for key, value in model.items()},
        not_understood=found.not_understood,
    )
