"""The files that ``data.path`` names, found without reading their content; and Megatron-LM's indexed data sets.

In an indexed data set ``PREFIX.bin`` holds token ids end to end and ``PREFIX.idx`` gives their type. The layout of the
index is ``core/datasets/indexed_dataset.py`` of megatron-core: nine bytes of magic, eight of version, one of type. The
ends of documents that follow are not read: here the ids are one long sequence.
"""

import glob
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from launcher.base import cache, files
from launcher.data import hub
from launcher.data.opening import errors_named
from launcher.data.unusable import NotHere, Unusable
from launcher.spec import DataSpec

STDLIB = "{stdlib}"  # Stands in ``data.path`` for the folder of Python's own sources.

_SAVED, _SAVED_SPLITS = "state.json", "dataset_dict.json"
"""Files that ``save_to_disk`` of the package datasets writes for one data set, and for several splits."""

_BESIDE_TABLES = re.compile(r"(readme|license|citation|dataset_infos?\.json)", re.IGNORECASE)
"""Files in a data set's folder that hold no rows."""

_WORDS = {"validation": ("validation", "valid", "val", "dev"), "test": ("test", "testing", "eval"), "train": ("train",)}
"""Words in file names that tell which split a file belongs to (datasets, ``data_files.py``)."""

_SUFFIX = re.compile(r"\.(jsonl|ndjson|json|csv|tsv|parquet|arrow|txt|bin)(\.gz|\.zst)?\Z", re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9_./~+@%-]+")  # A value that neither Hydra nor a shell would interpret.
_READ = {
    "text": "text, or rows of JSON lines, JSON, CSV, Parquet or Arrow with the column data.column",
    "chat": "conversations (messages, or prompt and completion) of JSON lines, JSON, CSV, Parquet or Arrow",
    "rows": "rows of JSON lines, JSON, CSV, Parquet or Arrow with the columns that the task names",
    "huggingface": "rows of JSON lines, JSON, CSV, Parquet or Arrow with the column data.column",
    "tokens": "token ids of data.token_dtype end to end, or Megatron-LM's PREFIX.bin with PREFIX.idx",
}
"""The files that each data source reads, in words for an error message."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def data_files(pattern: str) -> list[Path]:
    """The files of ``data.path``, in alphabetical order: a file, a folder's files except hidden ones, or a glob.

    The prefix of a Megatron-LM indexed data set stands for its file of token ids.
    """
    pattern = pattern.replace(STDLIB, str(Path(os.__file__).parent))
    path = files.expanded(pattern)
    if path.name and (tokens := indexed_tokens(path)) is not None:
        return [tokens]
    if not path.is_dir():
        names = (name for name in glob.glob(str(path), recursive=True) if os.path.isfile(name))  # noqa: PTH113
        return [Path(name) for name in sorted(names, key=lambda name: name.split("/"))]
    if (saved := _saved(path)) is not None:
        return saved
    found = (entry for entry in path.rglob("*") if entry.is_file())
    return sorted(entry for entry in found if not any(part[0] == "." for part in entry.relative_to(path).parts))


def local_files(data: DataSpec) -> list[Path]:
    """The files of a data source on this machine; none if ``data.path`` matches nothing here.

    ``data=text`` and ``data=tokens`` read all files; other sources read a folder's files of ``data.split``.
    """
    pattern = data.path or ""
    folder = files.expanded(pattern)
    if (folder / _SAVED_SPLITS).is_file():
        return data_files(str(_saved_split(folder, data)))
    found = data_files(pattern)
    if data.source in ("text", "tokens") or not folder.is_dir() or (folder / _SAVED).is_file():
        return found
    return _of_split(_tables(found), data, folder)


def _tables(found: Sequence[Path]) -> list[Path]:
    """The files of a data set's folder that may hold rows; where names say so, no pictures and scripts beside them."""
    own = [path for path in found if not _BESIDE_TABLES.match(path.name)]
    return [path for path in own if _SUFFIX.search(path.name)] or own


def other_splits(data: DataSpec) -> dict[str, int]:
    """The splits of a folder that ``data.split`` does not select, with the number of files of each."""
    folder = files.expanded(data.path or "")
    if not data.of_the_hub or not folder.is_dir() or (folder / _SAVED).is_file():
        return {}
    if (folder / _SAVED_SPLITS).is_file():
        found = {name: len(data_files(str(folder / name))) for name in _saved_splits(folder)}
    else:
        found = Counter(_split_of(path.relative_to(folder)) for path in _tables(data_files(str(folder))))
    return {name: number for name, number in sorted(found.items()) if name != hub.split_name(data.split)}


def files_of(data: DataSpec) -> list[Path]:
    """The files that are not empty; NotHere if there are no files, Unusable if all are empty.

    For a name on the Hub, the files that ``datasets`` has built in its cache; none if it has not built them yet.
    """
    others = [] if data.source == "rows" else ["data=synthetic data.path=null"]  # A task that reads rows.
    found = local_files(data)
    if not found and is_on_hub(data):
        made = hub.built(data)
        return [] if made is None else list(made.files)
    if not found:
        rule = "no file matches"
        if data.source not in ("text", "tokens"):
            rule = "no file matches, and it cannot be a name on the Hugging Face Hub (OWNER/NAME)"
        near = (f"data.path={path}" for path in files.similar_paths(data.path or "") if _PLAIN.fullmatch(path))
        raise NotHere(
            "data.path", data.path, f"{rule}; data={data.source} reads {_READ[data.source]}", [*near, *others]
        )
    for key in ("revision", "config"):
        if found and (value := getattr(data, key)) is not None and not is_on_hub(data):
            rule = "the data is files on this machine, and only a data set on the Hub has this"
            raise Unusable(f"data.{key}", value, rule, [f"data.{key}=null"])
    try:
        held = [path for path in found if path.stat().st_size]
    except OSError as error:
        raise Unusable("data.path", str(error.filename), f"it cannot be read: {error.strerror}") from None
    if not held:
        raise Unusable("data.path", data.path, "every file that matches is empty", others)
    return held


def is_on_hub(data: DataSpec) -> bool:
    """True if the data is a data set of the Hugging Face Hub: no local file has this name."""
    return data.of_the_hub and is_hub_name(data.path or "") and not local_files(data)


def stamps(files: Iterable[Path]) -> list[list[object]]:
    """Path, size in bytes and modification time in nanoseconds of each file."""
    found = ((path, path.stat()) for path in files)
    return [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in found]


def contents(found: Sequence[Path]) -> list[list[str]]:
    """The suffixes and a content hash of each file, cached by the files' paths, sizes and times."""
    hashes = cache.answer("contents", stamps(found), lambda: _hashes(found))
    return [["".join(path.suffixes[-2:]), digest] for path, digest in zip(found, hashes, strict=True)]


def _hashes(found: Sequence[Path]) -> list[str]:
    from concurrent.futures import ThreadPoolExecutor  # Late, because few commands hash data.

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
        return list(threads.map(_hash, found))


def _hash(path: Path) -> str:
    with errors_named(path), files.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_hub_name(path: str) -> bool:
    """True if a path can be a name on the Hub: neither a file of a known kind nor inside an existing folder."""
    owner, slash, _ = path.partition("/")
    return bool(_HUB_NAME.fullmatch(path)) and not _SUFFIX.search(path) and not (slash and Path(owner).is_dir())


def _saved(folder: Path) -> list[Path] | None:
    try:
        content = files.load_json(folder / _SAVED)
        return [folder / str(row["filename"]) for row in content["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _saved_splits(folder: Path) -> list[str]:
    try:
        return [str(name) for name in files.load_json(folder / _SAVED_SPLITS)["splits"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable("data.path", str(folder), f"its {_SAVED_SPLITS} cannot be read: {error}") from None


def _saved_split(folder: Path, data: DataSpec) -> Path:
    splits = _saved_splits(folder)
    if data.source == "text":
        rule = f"it is a saved data set with the splits {', '.join(splits)}, and data=text reads all files of a folder"
        ways = [f"data.path={folder / name}" for name in splits]
        raise Unusable("data.path", str(folder), rule, [f"data=huggingface data.split={splits[0]}", *ways][:4])
    return folder / _known_split(data, splits)


def _of_split(files: list[Path], data: DataSpec, folder: Path) -> list[Path]:
    by_split: dict[str, list[Path]] = {}
    for path in files:
        by_split.setdefault(_split_of(path.relative_to(folder)), []).append(path)
    return by_split[_known_split(data, by_split)] if by_split else []


def _split_of(path: Path) -> str:
    words = set(re.split(r"[^a-z]+", str(path).lower()))
    return next((split for split, names in _WORDS.items() if words & set(names)), "train")


def _known_split(data: DataSpec, splits: Iterable[str]) -> str:
    known, split = sorted(splits), hub.split_name(data.split)
    if split not in known:
        rule = f"{data.path} has {', '.join(known)}"
        raise Unusable("data.split", data.split, rule, [f"data.split={name}" for name in known])
    return split


_MARK = b"MMIDIDX\x00\x00"
_TYPE_AT = len(_MARK) + 8
_TYPES = {4: "uint32", 8: "uint16"}
"""``DType``: int32, whose ids are never negative, and uint16; ``preprocess_data.py`` writes no others."""


def indexed_tokens(prefix: Path) -> Path | None:
    """The token file of an indexed data set, given its prefix as in ``--data-path``; None if there is none."""
    found, index = (prefix.with_name(prefix.name + suffix) for suffix in (".bin", ".idx"))
    return found if found.is_file() and index.is_file() else None


def check_token_type(tokens: Path, dtype: str) -> None:
    """Raise Unusable if the index beside a token file contradicts ``data.token_dtype``."""
    index = tokens.with_suffix(".idx")
    if tokens.suffix != ".bin" or not index.is_file():
        return
    with files.opened(index) as file:
        head = file.read(_TYPE_AT + 1)
    if not head.startswith(_MARK) or len(head) <= _TYPE_AT or head[_TYPE_AT] not in _TYPES:
        rule = "it is not an index of token ids as written by Megatron-LM's preprocess_data.py"
        raise Unusable("data.path", str(index), rule)
    there = _TYPES[head[_TYPE_AT]]
    if there != dtype:
        raise Unusable("data.token_dtype", dtype, f"{index} says {there}", [f"data.token_dtype={there}"])
