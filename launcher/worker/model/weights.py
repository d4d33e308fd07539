"""Load weights from a local Hugging Face folder: each rank reads only its own part of each tensor, whole or sharded.

One error names all tensors that are missing, or have another shape. A LoRA adapter's own parameters are initialized.
Experts stored as separate tensors are read into the one tensor of their layer (``conversion_mapping.py`` of
``transformers``).
"""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from launcher.base.files import load_json
from launcher.saved.headers import SCALES
from launcher.spec import RunSpec
from launcher.worker import CheckpointError
from launcher.worker.model import adapters, initial

_EXPERTS = 3  # Dimensions of the tensor with the weights of all experts of a layer.


def begin(made: Any, spec: RunSpec, access: initial.Access) -> None:
    """Give a network on a real device its initial values: those of ``model.weights``, or drawn ones."""
    if spec.model.weights is None:
        initial.fill(made, spec.train.seed, access)
    else:
        load(made, Path(spec.model.weights), spec.train.seed, access, grows=spec.data.special_tokens is not None)
    if spec.adapter.dora:
        adapters.set_magnitudes(made)


@torch.no_grad()
def load(
    made: Any, folder: Path, seed: int, access: initial.Access = contextlib.nullcontext, *, grows: bool = False
) -> None:
    """Fill a network, possibly sharded, from a folder's safetensors; CheckpointError if they do not fit.

    If it ``grows`` by added tokens, vocabulary rows that the folder lacks keep their drawn values.
    """
    source = Folder(folder, made)
    ends = (made.get_input_embeddings(), made.get_output_embeddings()) if grows else ()
    tables = {id(each.weight) for each in ends if each is not None}
    wanted = [(initial.plain(name), parameter) for name, parameter in made.named_parameters()]
    missing = [name for name, _ in wanted if not source.has(name) and ".lora_" not in name]
    if missing:
        raise CheckpointError(f"model.weights={folder} lacks {len(missing)} tensors of this model: {_preview(missing)}")
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
            fewer = id(parameter) in tables and shape[0] < part.shape[0] and shape[1:] == part.shape[1:]
            if shape != part.shape and not fewer:
                differing.append(f"{name} has shape {shape} in it and {part.shape} in this run")
            elif part.tensor.numel():
                for place, region in _pieces(part, shape[0]):
                    part.tensor[place].copy_(stored[region])
        del opened, part  # Free them before the next one is allocated.
    _load_buffers(made, source)
    if differing:
        raise CheckpointError(f"model.weights={folder} is another model: {_preview(differing)}")


def _load_buffers(made: Any, source: "Folder") -> None:
    for name, buffer in persistent(made):
        if source.has(name) and buffer.dim():
            buffer.copy_(source.read(name, tuple(buffer.shape), tuple(slice(0, size) for size in buffer.shape)))


def _pieces(part: initial.Local, rows: int) -> Iterator[tuple[slice, tuple[slice, ...]]]:
    """Slices of a rank's part and the file regions to read into them: all at once, or one expert after the other.

    ``rows`` is the number of rows in the file.
    """
    count = max(0, min(part.tensor.shape[0], rows - part.offset[0])) if part.shape else 1
    step = 1 if len(part.shape) == _EXPERTS else count
    for start in range(0, count, step):
        first = part.offset[0] + start
        yield slice(start, start + step), (slice(first, first + step), *part.region[1:])


def persistent(made: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The buffers that ``transformers`` saves, such as the biases with which DeepSeek-V3 selects experts."""
    for path, module in made.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield initial.plain(f"{path}.{name}"), buffer


class _Stacked:
    """Experts stored separately, each as one or more row blocks, read as one tensor of all experts."""

    def __init__(self, experts: list[list[Any]]) -> None:
        self._experts = experts
        self._rows = [one.get_shape()[0] for one in experts[0]]

    def get_shape(self) -> list[int]:
        """The shape of the tensor of all experts."""
        return [len(self._experts), sum(self._rows), *self._experts[0][0].get_shape()[1:]]

    def __getitem__(self, region: tuple[slice, ...]) -> torch.Tensor:
        numbers, rows, columns = region
        return torch.stack([torch.cat([*self._of_one(one, rows, columns)]) for one in self._experts[numbers]])

    def _of_one(self, tensors: list[Any], rows: slice, columns: slice) -> Iterator[torch.Tensor]:
        start = 0
        for tensor, count in zip(tensors, self._rows, strict=True):
            low, high = max(rows.start, start), min(rows.stop, start + count)
            if low < high:
                yield tensor[low - start : high - start, columns]
            start += count


class Folder:
    """The tensors of a Hugging Face folder, read by regions."""

    def __init__(self, path: Path, made: Any) -> None:
        self._path, self._files, self._prefix = path, _files(path), f"{made.base_model_prefix}."
        self._renamed, self._stacked = _conversions(made.config.model_type)
        self._opened: dict[Path, Any] = {}

    def has(self, name: str) -> bool:
        """True if the folder has this tensor, or the experts that make it up."""
        return self._stored(name) is not None or bool(self._experts(name))

    def read(self, name: str, shape: tuple[int, ...], region: tuple[slice, ...]) -> torch.Tensor:
        """Read a region of a tensor, or raise CheckpointError if it is missing or has another shape."""
        whole = self.slices(name)
        there = tuple(whole.get_shape())
        if there != shape:
            raise CheckpointError(
                f"model.weights={self._path} is another model: {name} has shape {there} in it and {shape} in this run"
            )
        values: torch.Tensor = whole[region]
        return values

    def slices(self, name: str) -> Any:
        """Open a tensor to read slices of it, or raise CheckpointError if it is missing."""
        stored = self._stored(name)
        if stored is not None:
            return self._slices(stored)
        if not (experts := self._experts(name)):
            raise CheckpointError(f"model.weights={self._path} lacks a tensor of this model: {name}")
        return _Stacked([[self._slices(one) for one in names] for names in experts])

    def _slices(self, stored: str) -> Any:
        scale = next((f"{stored}{end}" for end in SCALES if f"{stored}{end}" in self._files), None)
        if scale is not None:
            raise CheckpointError(
                f"model.weights={self._path} is quantised ({scale}), and launch reads only 16- or 32-bit weights: "
                "name a folder with those; adapter=qlora quantises them itself"
            )
        file = self._files[stored]
        if file not in self._opened:
            self._opened[file] = _opened(file)
        return self._opened[file].get_slice(stored)

    def _stored(self, name: str) -> str | None:
        return next((candidate for candidate in self._names(name) if candidate in self._files), None)

    def _names(self, name: str) -> Iterator[str]:
        for candidate in (name, name.removeprefix(self._prefix)):
            yield candidate
            for old, new in self._renamed:
                if new in candidate:
                    yield candidate.replace(new, old)

    def _experts(self, name: str) -> list[list[str]]:
        for candidate in self._names(name):
            for target, sources in self._stacked:
                start = candidate.removesuffix(target)
                numbered = itertools.takewhile(
                    lambda names: names[0] in self._files,
                    (
                        [f"{start}{source}".replace("*", str(number)) for source in sources]
                        for number in itertools.count()
                    ),
                )
                if start != candidate and (found := [*numbered]):
                    return found
        return []


type _Names = list[tuple[str, str]]


def _conversions(model_type: str) -> tuple[_Names, list[tuple[str, list[str]]]]:
    """A class's name conversions: (old, new) parts of names, and the stored tensors of each stacked experts' tensor."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping  # Late: few runs load weights.

    renamed, stacked = list[tuple[str, str]](), list[tuple[str, list[str]]]()
    for each in get_checkpoint_conversion_mapping(model_type) or ():
        (target,) = each.target_patterns[:1]
        steps = [type(step).__name__ for step in getattr(each, "operations", [])]
        if steps in (["MergeModulelist"], ["MergeModulelist", "Concatenate"]):
            stacked.append((target, [*each.source_patterns]))
        elif not steps:
            renamed.append((each.source_patterns[0].replace("\\", ""), target))
    return renamed, stacked


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


def _preview(items: list[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")
