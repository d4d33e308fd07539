"""Tokenise texts and messages into folders of token ids (``launcher.data.token_folder``) before a job needs them.

Documents are read, encoded in batches on all cores and written one by one, so memory holds only some megabytes of them
however large the files are. If several processes need the same folder, a lock lets one make it while the others wait;
on a file system without locks each writes its own folder, and the first to be renamed wins.
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from launcher.base import files, machine
from launcher.base.errors import DataError, SubmitError
from launcher.base.files import write_atomically
from launcher.base.process import Timer
from launcher.data import documents, hub, template, token_folder
from launcher.data.encoding import Encoded, encode_rows
from launcher.data.token_folder import ENDS, META, TOKENS, TRAINED, TokenFolder
from launcher.data.tokenizer import Tokenizer, fingerprint, tokenizer
from launcher.data.unusable import BadRows
from launcher.spec.training import DataSpec

FORMAT = 2  # Version of the folder's format; part of its hash, so another version of this program makes its own.
_BATCH = min(16, max(2, os.cpu_count() or 1)) << 19
"""Characters encoded at once: two pieces of a long document per core, for up to 16 cores. A fast tokenizer needs some
100 bytes per character (``benchmarks/results/tokenising.json``)."""

_TOLD_S = 0.2
_LOOK_S = 0.5


@dataclass(slots=True)
class Progress:
    """Documents, bytes and tokens written so far, skipped rows by reason, and bad rows."""

    documents: int = 0
    text_bytes: int = 0
    tokens: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    bad: BadRows = field(default_factory=BadRows)


type Tell = Callable[[Progress], None]


def prepared(
    data: DataSpec, root: Path, *, tell: Tell | None = None, waits: Callable[[], None] | None = None
) -> TokenFolder:
    """The folder of the token ids of some data, found in the cache ``root`` or made there.

    ``tell`` receives the progress some times a second; ``waits`` is called once if another process is making the same
    folder. DataError: the data cannot be read as configured; SubmitError: the cache cannot be written.
    """
    hub.fetch_tokenizer(data.tokenizer)
    digest = digest_of(data)
    path = root / digest
    found = token_folder.read(path)
    if found is not None:
        return found
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(path, waits) as locked:
            if locked:
                for half in path.parent.glob(f"{path.name}.*.partial"):
                    shutil.rmtree(half, ignore_errors=True)
            return token_folder.read(path) or _make(data, path, digest, tell or (lambda progress: None))
    except OSError as error:
        raise SubmitError(
            f"the folder of token ids {root} cannot be written: {error.strerror or error}; "
            f"{token_folder.CACHE}=FOLDER names another place, `launch prepare --clear` empties it"
        ) from None


def digest_of(data: DataSpec) -> str:
    """A hash that names the ids: of the content of data files and tokenizer, and of the settings."""
    content: list[object] = [FORMAT, fingerprint(data.tokenizer)]
    for each in data.sets:
        content += [documents.fingerprint(each), token_folder.settings(each)]
        if each.is_chat:
            content.append(template.fingerprint(each))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def encoded(data: DataSpec, words: Tokenizer, progress: Progress, *, marked: bool = False) -> Iterator[Encoded]:
    """The ids of every document, counted in ``progress`` as they are yielded.

    Texts that are ``marked``, as in a mix with conversations, are samples whose tokens are all trained.
    """
    if data.is_chat:
        for one in encode_rows(documents.table_rows(data, progress.bad), data, words, progress.left_out, progress.bad):
            progress.documents += 1
            yield Encoded(one.ids, one.trained, ended=True)
        return
    for batch in _batches(documents.documents(data, progress.bad)):
        for text, ids in zip(batch, words.encode_all(batch), strict=True):
            ended = not isinstance(text, documents.Unfinished)
            progress.documents += ended
            progress.text_bytes += len(text.encode())
            ids = [*ids, words.end] if ended and words.end is not None else ids
            yield Encoded(ids, [True] * len(ids) if marked else None, ended=ended)


def _readable(found: Iterator[Encoded]) -> Iterator[Encoded]:
    try:
        yield from found
    except OSError as error:
        raise DataError(f"data.path: {error.filename or 'a file'} cannot be read: {error.strerror or error}") from None


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _make(data: DataSpec, path: Path, digest: str, tell: Tell) -> TokenFolder:
    words = tokenizer(data.tokenizer, data.roles)
    partial = path.with_name(f"{path.name}.{machine.label()}.{os.getpid()}.partial")
    began, progress, parts = time.monotonic(), Progress(bad=BadRows.of(data)), list[tuple[int, int]]()
    trained = ""
    try:
        partial.mkdir()
        with _Writer(partial, words.size) as writer:
            for each, key in zip(data.sets, data.places, strict=True):
                found = encoded(each, words, progress, marked=data.is_chat)
                _write(found, f"{key}={each.path}", progress, writer, tell)
                parts.append((writer.tokens, progress.documents))
                trained = writer.sha256 if len(parts) == len(data.trained) else trained
        tell(progress)
        facts = {
            "dtype": writer.dtype,
            "tokens": progress.tokens,
            "documents": progress.documents,
            "text_bytes": progress.text_bytes,
            "marked": writer.marked,
            "digest": digest,
            "sha256": trained,
            "left_out": dict(progress.left_out),
            **({"bad_rows": progress.bad.as_dict()} if progress.bad.skips else {}),
            "seconds": round(time.monotonic() - began, 3),
            **({"parts": parts} if len(parts) > 1 else {}),
            "made_of": {"path": data.path, "tokenizer": data.tokenizer, **token_folder.settings(data)},
        }
        write_atomically(partial / META, facts)
        return _finish(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(found: Iterator[Encoded], place: str, progress: Progress, writer: "_Writer", tell: Tell) -> None:
    report, before = Timer(_TOLD_S), writer.tokens
    for one in _readable(found):
        writer.add(one)
        progress.tokens = writer.tokens
        if report.is_due():
            tell(progress)
    if writer.tokens == before:
        raise DataError(f"{place}: nothing to train on: it contains no text")


def _finish(partial: Path, path: Path) -> TokenFolder:
    for each in (*partial.iterdir(), partial):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    try:
        partial.rename(path)
    except OSError:
        if token_folder.read(path) is None:  # Otherwise another process was faster, on a file system without locks.
            raise
    found = token_folder.read(path)
    assert found is not None, f"{path} was written whole"
    return found


class _Writer:
    """Writes the files of a folder, one document or sample at a time, and hashes ids and marks.

    The hash uses 32-bit ids, so it does not depend on their type on disk.
    """

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self.dtype = "uint8" if vocabulary <= 2**8 else "uint16" if vocabulary <= 2**16 else "uint32"
        self.tokens = 0
        self.marked = False
        self._hash = hashlib.sha256()
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {TOKENS: (folder / TOKENS).open("wb")}

    def add(self, one: Encoded) -> None:
        """Append ids and, for a sample, its marks and its end."""
        if self.tokens and self.marked != (one.trained is not None):
            raise AssertionError("samples with marks and text without are never in one folder")
        self._write(TOKENS, one.ids, self.dtype)
        self.tokens += len(one.ids)
        if one.trained is not None:
            self.marked = True
            self._write(TRAINED, one.trained, "uint8")
        if one.ended:
            self._write(ENDS, [self.tokens], "uint64")

    def _write(self, name: str, values: Sequence[Any], dtype: str) -> None:
        if name not in self._files:
            self._files[name] = (self._folder / name).open("wb")
        row = np.frombuffer(values, dtype) if isinstance(values, bytes) else np.asarray(values, dtype)
        self._files[name].write(row.data)
        self._hash.update((row.astype(np.uint32) if name == TOKENS else row).data)

    @property
    def sha256(self) -> str:
        """The hash of all ids, marks and ends so far."""
        return self._hash.hexdigest()

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()


@contextlib.contextmanager
def _alone(path: Path, waits: Callable[[], None] | None) -> Iterator[bool]:
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        told = False
        while (held := files.lock(lock.fileno())) is False:
            if not told and waits is not None:
                waits()
            told = True
            time.sleep(_LOOK_S)
        yield held is not None
