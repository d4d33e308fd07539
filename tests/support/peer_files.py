"""Configurations of other fine-tuning and training programs: the files of ``tests/importers/files`` as plain values."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "importers" / "files"
KINDS = ("accelerate", "axolotl", "llamafactory", "megatron_bridge", "nanotron", "torchtitan", "torchtune", "trl")


def content_of(path: Path) -> dict[str, Any] | None:
    """A file's values, read independently of the importers; None for Python."""
    text = path.read_text()
    if path.suffix == ".txt":
        return None
    if path.suffix == ".toml":
        return tomllib.loads(text)
    found = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    assert isinstance(found, dict)
    return found


def files(kind: str) -> list[Path]:
    """The files of a program."""
    return sorted((FOLDER / kind).iterdir())


PEERS = {
    kind: [content for path in files(kind)[:4] if (content := content_of(path)) is not None]
    or [content for path in files(kind) if (content := content_of(path)) is not None]
    for kind in KINDS
}
"""Some files of each program as plain values, for tests to modify."""


FILES = [path for kind in KINDS for path in files(kind)]


def identity(path: Path) -> str:
    """The test id of a file."""
    return f"{path.parent.name}-{path.name}"
