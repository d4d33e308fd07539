"""Read a ``torch.distributed.checkpoint`` checkpoint such that none of its files can run code.

Torch 2.15 loads the description ``.metadata`` as any pickle, and entries that it declares as bytes, not tensors, with
``weights_only=False`` (``FileSystemReader.read_metadata``, ``DefaultLoadPlanner.load_bytes``). A checkpoint may come
from elsewhere, so here the description may name only the classes that describe tensors, and bytes may hold only
tensors, numbers and their containers. Tensors are already read with ``weights_only=True`` by torch itself.
"""

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from launcher.base.files import opened
from launcher.saved import headers


class SafeReader(FileSystemReader):
    """Reads a checkpoint's folder; its description cannot run code."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Read the description of all tensors; pickle.UnpicklingError for anything else in it."""
        with opened(Path(self.path) / headers.METADATA) as file:
            content = _Descriptions(file).load()
        if not isinstance(content, Metadata):
            raise pickle.UnpicklingError(f"{headers.METADATA} holds {type(content).__name__}, not a description")
        content.storage_meta = content.storage_meta or StorageMeta()
        content.storage_meta.load_id = self.load_id
        return content

    def has(self, part: str) -> bool:
        """True if the checkpoint has tensors under this name."""
        return any(name.startswith(f"{part}.") for name in self.read_metadata().state_dict_metadata)


class SafePlanner(DefaultLoadPlanner):
    """Loads tensors and bytes; bytes cannot run code."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Read bytes with ``weights_only`` and pass them on, serialized again; else pickle.UnpicklingError."""
        checked = io.BytesIO()
        try:
            torch.save(torch.load(value, weights_only=True), checked)
        except pickle.UnpicklingError:
            rule = "holds neither a tensor nor numbers, text or containers of them, and reading it could run code"
            raise pickle.UnpicklingError(f"{read_item.dest_index.fqn} {rule}") from None
        checked.seek(0)
        super().load_bytes(read_item, checked)


class _Descriptions(pickle.Unpickler):
    """Reads descriptions of tensors as torch's own classes; a pickle that names anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the classes that describe tensors; pickle.UnpicklingError for any other."""
        headers.require_description(module, name)
        return super().find_class("pathlib" if module == "pathlib._local" else module, name)
