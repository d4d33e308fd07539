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

import numpy as np
import torch.distributed as dist

from launcher.data.documents import documents, files_of, fingerprint
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
        return TokenFiles(files_of(spec.data), spec.data.token_dtype, length=length, vocabulary=vocabulary)
    path, dtype = _tokenised(context)
    return TokenFiles([path], dtype, length=length, vocabulary=vocabulary)


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
    name = _digest(spec.data.tokenizer, fingerprint(spec.data))
    target = folder / f"{name}.{dtype}"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(target, documents(spec.data), words, dtype)
    return target, dtype


def _digest(words: str, content: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps([words, content]).encode()).hexdigest()[:16]


def _write(target: Path, texts: Iterator[str], words: Tokenizer, dtype: str) -> None:
    """Tokenise into a file that gets its name once it is whole."""
    partial = target.with_suffix(f".{os.getpid()}.partial")
    with partial.open("wb") as file:
        for text in texts:
            np.asarray(words.encode(text), dtype=dtype).tofile(file)
    files.flush(partial)
    partial.rename(target)
