"""From ``data.*`` to a corpus: text and data sets are tokenised once, by rank 0, into a file that all ranks map.

The file is named after a hash of the tokenizer and of the texts (their paths, sizes and times, or the data set's
fingerprint), so a resumed run, or with ``LAUNCH_CACHE`` another run, finds it again and new texts make a new one. It is
written under another name and renamed, and its elements are the narrowest unsigned integers that hold the vocabulary.
The other ranks wait in a broadcast, in which rank 0 sends the path or the error, so that all of them end alike.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from launcher import extras
from launcher.data.files import data_files
from launcher.data.tokenizer import Tokenizer, tokenizer
from launcher.errors import DataError
from launcher.worker import files
from launcher.worker.data.corpus import Corpus, Synthetic, TokenFiles
from launcher.worker.engine import Context

CACHE = "LAUNCH_CACHE"
"""Names a folder, seen by all nodes, that keeps tokenised corpora between runs; without it each run has its own."""


def corpus(context: Context) -> Corpus:
    """The run's corpus; called by all ranks together.

    Raises:
        DataError: The data are missing, empty, no text, or outside of the model's vocabulary.
    """
    spec = context.spec
    length, vocabulary = spec.sequence_length, spec.model.vocab_size
    if spec.data.source == "synthetic":
        return Synthetic(vocabulary, length, spec.train.seed)
    if spec.data.source == "tokens":
        return TokenFiles(_files(spec.data.path), spec.data.token_dtype, length=length, vocabulary=vocabulary)
    path, dtype = _tokenised(context)
    return TokenFiles([path], dtype, length=length, vocabulary=vocabulary)


def _files(pattern: str | None) -> list[Path]:
    found = data_files(pattern or "")
    if not found:
        raise DataError(f"data.path={pattern}: no file matches")
    if not any(path.stat().st_size for path in found):
        raise DataError(f"data.path={pattern}: every file that matches is empty")
    return found


def _tokenised(context: Context) -> tuple[Path, str]:
    """The file of token ids and its element type, made by rank 0 unless it is there; the other ranks wait for it."""
    answer: list[tuple[str, str] | DataError | None] = [None]
    if context.rank == 0:
        try:
            path, dtype = _build(context)
            answer = [(str(path), dtype)]
        except DataError as error:
            answer = [error]
    dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], DataError):
        raise answer[0]
    if answer[0] is None:
        raise AssertionError("rank 0 answers with a path or an error")
    return Path(answer[0][0]), answer[0][1]


def _build(context: Context) -> tuple[Path, str]:
    spec = context.spec
    words = tokenizer(spec.data.tokenizer)
    dtype = "uint8" if words.size <= 2**8 else "uint16" if words.size <= 2**16 else "uint32"
    folder = Path(os.environ[CACHE]) / "corpora" if os.environ.get(CACHE) else context.directory / "cache"
    if spec.data.source == "text":
        paths = _files(spec.data.path)
        name = _digest(
            spec.data.tokenizer, [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
        )
        documents = _texts(paths)
    else:
        data_set = _data_set(spec.data.path or "", spec.data.split)
        if spec.data.column not in data_set.column_names:
            columns = ", ".join(data_set.column_names)
            raise DataError(f"data.column={spec.data.column}: {spec.data.path} has the columns {columns}")
        name = _digest(spec.data.tokenizer, [data_set._fingerprint, spec.data.column])
        documents = (str(row[spec.data.column]) for row in data_set)
    target = folder / f"{name}.{dtype}"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(target, documents, words, dtype)
    return target, dtype


def _digest(words: str, content: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps([words, content]).encode()).hexdigest()[:16]


def _write(target: Path, documents: Iterator[str], words: Tokenizer, dtype: str) -> None:
    """Tokenise into a file that gets its name once it is whole."""
    partial = target.with_suffix(f".{os.getpid()}.partial")
    with partial.open("wb") as file:
        for document in documents:
            np.asarray(words.encode(document), dtype=dtype).tofile(file)
    files.flush(partial)
    partial.rename(target)


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
