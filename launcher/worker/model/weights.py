"""Start from a local Hugging Face folder: each rank reads only its own part of each tensor.

Safetensors files are mapped, and a slice of a tensor is read without the rest. Each parameter is asked for this rank's
region of the whole (``initial.local``), so the same code serves whole and sharded models. All that is missing, or of
another shape, is named in one error. A LoRA adapter's own parameters, which no folder holds, get fresh values.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from launcher.base.files import load_json
from launcher.worker import CheckpointError
from launcher.worker.model import initial


@torch.no_grad()
def load(made: Any, folder: Path, seed: int, access: initial.Access = contextlib.nullcontext) -> None:
    """Fill a network, possibly sharded, from a folder's safetensors. Raises CheckpointError where they do not fit."""
    source = Folder(folder, made)
    wanted = [(initial.plain(name), parameter) for name, parameter in made.named_parameters()]
    missing = [name for name, _ in wanted if not source.has(name) and ".lora_" not in name]
    if missing:
        raise CheckpointError(f"model.weights={folder} lacks {len(missing)} tensors of this model: {_some(missing)}")
    initial.fill(made, seed, access)
    differing = []
    for name, parameter in wanted:
        if not source.has(name):
            continue
        with access(parameter) as opened:
            if opened is None:
                continue
            part, stored = initial.local(opened), source.slices(name)
            shape = tuple(stored.get_shape())
            if shape != part.shape:
                differing.append(f"{name} is {shape} there and {part.shape} here")
            elif part.tensor.numel():
                part.tensor.copy_(stored[part.region])
        del opened, part  # Else they would outlive the next one's making.
    if differing:
        raise CheckpointError(f"model.weights={folder} is of another model: {_some(differing)}")


class Folder:
    """The tensors of a Hugging Face folder, read region by region."""

    def __init__(self, path: Path, made: Any) -> None:
        self._path, self._files, self._prefix = path, _files(path), f"{made.base_model_prefix}."
        self._opened: dict[Path, Any] = {}

    def has(self, name: str) -> bool:
        """True if there is such a tensor."""
        return self._stored(name) is not None

    def read(self, name: str, shape: tuple[int, ...], region: tuple[slice, ...]) -> torch.Tensor:
        """Read a region of a tensor, or raise a :class:`CheckpointError` if it is missing or has another shape."""
        whole = self.slices(name)
        there = tuple(whole.get_shape())
        if there != shape:
            raise CheckpointError(
                f"model.weights={self._path} is of another model: {name} is {there} there and {shape} here"
            )
        values: torch.Tensor = whole[region]
        return values

    def slices(self, name: str) -> Any:
        """Open a tensor to read slices of it, or raise a :class:`CheckpointError` if it is missing."""
        stored = self._stored(name)
        if stored is None:
            raise CheckpointError(f"model.weights={self._path} lacks a tensor of this model: {name}")
        file = self._files[stored]
        if file not in self._opened:
            self._opened[file] = _opened(file)
        return self._opened[file].get_slice(stored)

    def _stored(self, name: str) -> str | None:
        """The name in the folder: as the model has it, or, as GPT-2's own files do, without the base model's prefix."""
        candidates = (name, name.removeprefix(self._prefix))
        return next((candidate for candidate in candidates if candidate in self._files), None)


def _files(folder: Path) -> dict[str, Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed: dict[str, str] = load_json(index)["weight_map"]
        return {name: folder / file for name, file in listed.items()}
    single = folder / "model.safetensors"
    if not single.is_file():
        raise CheckpointError(f"model.weights={folder} has neither model.safetensors nor model.safetensors.index.json")
    with _opened(single) as content:
        return dict.fromkeys(content.keys(), single)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def _some(items: list[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")
