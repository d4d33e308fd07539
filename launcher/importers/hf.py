"""Hugging Face ``config.json``, whose model types and keys ``launcher.config.hub.reading`` knows."""

from launcher.config.hub import reading
from launcher.importers import Imported


def read(text: str, path: str, *, weights: str | None = None) -> Imported:
    """Read a ``config.json`` of a model whose ``weights`` are in a folder, where it has some; ``path`` is for messages.

    Raises ConfigErrors: It is not a JSON object.
    """
    return reading.read(text, path, weights=weights).imported
