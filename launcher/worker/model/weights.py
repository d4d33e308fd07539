"""Start from a local Hugging Face folder: each rank reads only its own part of each tensor.

Safetensors files are mapped, and a slice of a tensor is read without the rest. Each parameter is asked for the region
of the whole that this rank holds (``initial.local``), so the same code serves whole and sharded models. All that is
missing, or of another shape, is named in one error. Parameters that a folder cannot hold, those of a LoRA adapter, get
fresh values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from launcher.base.files import load_json
from launcher.worker import CheckpointError
from launcher.worker.model import initial


@torch.no_grad()
def load(made: Any, folder: Path, seed: int, access: initial.Access = contextlib.nullcontext) -> None:
    """Fill a network on a real device from the safetensors of a folder.

    Args:
        made: The network, its parameters possibly sharded.
        folder: Holds ``model.safetensors``, or several files and their index.
        seed: For what the folder cannot hold: a LoRA adapter's own parameters.
        access: As in ``initial.fill``.

    Raises:
        CheckpointError: Files or tensors are missing, or a tensor has another shape than the model's.
    """
    files = _files(folder)
    prefix = f"{made.base_model_prefix}."
    wanted = _parameters(made)
    names = {name: _stored(name, prefix, files) for name in wanted}
    missing = [name for name, stored in names.items() if stored is None and ".lora_" not in name]
    if missing:
        raise CheckpointError(f"model.weights={folder} lacks {len(missing)} tensors of this model: {_some(missing)}")
    initial.fill(made, seed, access)
    found = {name: (wanted[name], stored) for name, stored in names.items() if stored is not None}
    _read_all(found, files, folder, access)


class Folder:
    """The tensors of a Hugging Face folder, read region by region."""

    def __init__(self, path: Path, made: Any) -> None:
        self._path, self._files, self._prefix = path, _files(path), f"{made.base_model_prefix}."
        self._opened: dict[Path, Any] = {}

    def has(self, name: str) -> bool:
        """True if there is such a tensor."""
        return _stored(name, self._prefix, self._files) is not None

    def read(self, name: str, shape: tuple[int, ...], region: tuple[slice, ...]) -> torch.Tensor:
        """A region of a tensor.

        Raises:
            CheckpointError: There is no such tensor, or it has another shape.
        """
        stored = _stored(name, self._prefix, self._files)
        if stored is None:
            raise CheckpointError(f"model.weights={self._path} lacks a tensor of this model: {name}")
        file = self._files[stored]
        if file not in self._opened:
            self._opened[file] = _opened(file)
        whole = self._opened[file].get_slice(stored)
        there = tuple(whole.get_shape())
        if there != shape:
            raise CheckpointError(
                f"model.weights={self._path} is of another model: {name} is {there} there and {shape} here"
            )
        values: torch.Tensor = whole[region]
        return values


def _parameters(made: nn.Module) -> dict[str, torch.Tensor]:
    return {name.replace(".base_layer", ""): parameter for name, parameter in made.named_parameters()}


def _files(folder: Path) -> dict[str, Path]:
    """The file of each tensor."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed: dict[str, str] = load_json(index)["weight_map"]
        return {name: folder / file for name, file in listed.items()}
    single = folder / "model.safetensors"
    if not single.is_file():
        raise CheckpointError(f"model.weights={folder} has neither model.safetensors nor model.safetensors.index.json")
    with _opened(single) as content:
        return dict.fromkeys(content.keys(), single)


def _stored(name: str, prefix: str, files: dict[str, Path]) -> str | None:
    """The name in the folder: as the model has it, or, as GPT-2's own files do, without the base model's prefix."""
    candidates = (name, name.removeprefix(prefix))
    return next((candidate for candidate in candidates if candidate in files), None)


def _read_all(
    wanted: dict[str, tuple[torch.Tensor, str]], files: dict[str, Path], folder: Path, access: initial.Access
) -> None:
    differing = []
    for path, names in _by_file(wanted, files):
        with _opened(path) as content:
            for name in names:
                parameter, stored = wanted[name]
                with access(parameter) as opened:
                    if opened is None:
                        continue
                    part, whole = initial.local(opened), content.get_slice(stored)
                    shape = tuple(whole.get_shape())
                    if shape != part.shape:
                        differing.append(f"{name} is {shape} there and {part.shape} here")
                    elif part.tensor.numel():
                        part.tensor.copy_(whole[part.region])
    if differing:
        raise CheckpointError(f"model.weights={folder} is of another model: {_some(differing)}")


def _by_file(wanted: dict[str, tuple[torch.Tensor, str]], files: dict[str, Path]) -> Iterator[tuple[Path, list[str]]]:
    grouped: dict[Path, list[str]] = {}
    for name, (_, stored) in wanted.items():
        grouped.setdefault(files[stored], []).append(name)
    yield from grouped.items()


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def _some(items: list[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")
