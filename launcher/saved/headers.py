"""Names and shapes of saved tensors, read only from headers: no tensor is loaded and no foreign code is run.

``torch.distributed.checkpoint`` writes a pickle ``.metadata``, and a pickle can run any code when it is read: here only
the few classes that describe tensors are allowed, each replaced by an empty stand-in.
"""

import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launcher.base.files import any_json, load_json, opened
from launcher.base.frozen import dataclass

type Shapes = Mapping[str, tuple[int, ...]]

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
METADATA = ".metadata"
SCALES = ("_scale_inv", "_scale")  # Suffixes of the scale tensors of 8-bit weights.
_LONGEST = 100 * 2**20  # The most bytes of a header; safetensors itself refuses longer ones.


class Unreadable(Exception):
    """A file is missing, or is not a header of saved tensors."""


def safetensors(folder: Path) -> Shapes:
    """Return shapes of a Hugging Face folder's tensors: ``model.safetensors``, or all files that its index names."""
    if (folder / INDEX).is_file():
        files = _indexed(folder)
    elif (folder / SINGLE).is_file():
        files = [SINGLE]
    else:
        raise Unreadable(f"the folder has neither {SINGLE} nor {INDEX}")
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        some = ", ".join(missing[:3])
        raise Unreadable(f"{len(missing)} of the {len(files)} files that its index names are missing: {some}")
    found: dict[str, tuple[int, ...]] = {}
    for name in files:
        found |= _header(folder / name)
    return found


def _indexed(folder: Path) -> list[str]:
    try:
        return sorted(set(load_json(folder / INDEX)["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise Unreadable(f"{INDEX} is not an index of safetensors files") from None


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with opened(path) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _LONGEST:
                raise ValueError
            content = any_json(file.read(length))
        shapes = {name: tuple(entry["shape"]) for name, entry in content.items() if name != "__metadata__"}
        ends = (entry["data_offsets"][1] for name, entry in content.items() if name != "__metadata__")
        if path.stat().st_size < 8 + length + max(ends, default=0):
            raise Unreadable(f"{path.name} is truncated: it is shorter than its header says")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error):
        raise Unreadable(f"{path.name} is not a safetensors file, or is damaged") from None
    return shapes


@dataclass(frozen=True, slots=True)
class Distributed:
    """A checkpoint of ``torch.distributed.checkpoint``: the shapes of its tensors, and the files that hold them."""

    shapes: Shapes
    files: frozenset[str]


def distributed(checkpoint: Path) -> Distributed | None:
    """Return the contents of a checkpoint from its ``.metadata``; None if it has none."""
    path = checkpoint / METADATA
    if not path.is_file():
        return None
    try:
        with opened(path) as file:
            content = _Descriptions(file).load()
        tensors = {name: entry.state.get("size") for name, entry in content.state["state_dict_metadata"].items()}
        shapes = {name: tuple(size.arguments[0]) for name, size in tensors.items() if size is not None}
        files = {entry.state["relative_path"] for entry in content.state["storage_data"].values()}
    except Exception as error:  # A damaged pickle may raise anything.
        raise Unreadable(f"{METADATA} cannot be read: {error}") from None
    return Distributed(shapes, frozenset(files))


class _StandIn:
    """Replaces every known class: it stores the pickle's arguments and state, and runs nothing."""

    arguments: Any = ()
    state: Any = MappingProxyType({})  # A class without fields (``BytesStorageMetadata``) is pickled without a state.

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


_KNOWN: Mapping[str, tuple[str, ...]] = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "ChunkStorageMetadata", "TensorProperties"),
        *("TensorStorageMetadata", "BytesStorageMetadata", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.planner": (  # Which rank wrote what; Megatron-LM's checkpoints keep it.
        *("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.serialization": ("_get_layout",),
    "torch": (
        *("Size", "bool", "uint8", "int8", "int16", "int32", "int64"),
        *("bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    ),
    "pathlib": ("Path", "PosixPath", "PurePosixPath", "WindowsPath"),
    "pathlib._local": ("PosixPath",),  # In Python 3.13.
}


def require_description(module: str, name: str) -> None:
    """Raise UnpicklingError for a name in a pickle that describes no tensor, since loading it could run code."""
    if name not in _KNOWN.get(module, ()):
        raise pickle.UnpicklingError(f"it names {module}.{name}, which describes no tensor")


class _Descriptions(pickle.Unpickler):
    """Reads descriptions of tensors, and refuses a pickle that names anything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a known class."""
        require_description(module, name)
        return _StandIn
