"""The texts of ``data.path``, one document after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher import extras
from launcher.data.files import data_files
from launcher.errors import DataError
from launcher.spec.data import DataSpec


def documents(data: DataSpec) -> Iterator[str]:
    """The texts of a run's data."""
    if data.source == "text":
        return _texts(files_of(data))
    return (str(row[data.column]) for row in _columns(data))


def fingerprint(data: DataSpec) -> list[object]:
    """What the texts are known by."""
    if data.source == "text":
        return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files_of(data)]
    return [_columns(data)._fingerprint, data.column]


def _columns(data: DataSpec) -> Any:
    data_set = _data_set(data.path or "", data.split)
    if data.column not in data_set.column_names:
        columns = ", ".join(data_set.column_names)
        raise DataError(f"data.column={data.column}: {data.path} has the columns {columns}")
    return data_set


def files_of(data: DataSpec) -> list[Path]:
    """The files of ``data.path``; an error where there is none, or nothing in them."""
    pattern = data.path
    found = data_files(pattern or "")
    if not found:
        raise DataError(f"data.path={pattern}: no file matches")
    if not any(path.stat().st_size for path in found):
        raise DataError(f"data.path={pattern}: every file that matches is empty")
    return found


def _texts(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        content = path.read_bytes()
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"data.path: {path} is not UTF-8 text (byte {error.start} cannot be decoded): name text files, "
                "or data=tokens for files of token ids"
            ) from None
        if "\0" in text:
            raise DataError(f"data.path: {path} holds zero bytes, so it is no text: name text files, or data=tokens")
        yield text


def _data_set(path: str, split: str) -> Any:
    """A saved data set, a local folder that ``datasets`` can read, or a name on the Hugging Face hub.

    Raises:
        DataError: None of them.
    """
    try:
        import datasets
    except ImportError:
        raise DataError(f"data=huggingface needs the package datasets: {extras.install('fsdp')}") from None
    datasets.disable_progress_bars()
    try:
        if not _is_saved(Path(path)):
            return datasets.load_dataset(path, split=split)
        found = datasets.load_from_disk(path)
    except Exception as error:
        raise DataError(f"data.path={path}: {type(error).__name__}: {error}") from error
    if isinstance(found, datasets.DatasetDict):
        if split not in found:
            raise DataError(f"data.split={split}: {path} has {', '.join(found)}")
        return found[split]
    return found


def _is_saved(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
