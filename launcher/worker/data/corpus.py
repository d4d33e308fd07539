"""Corpora: a long row of tokens cut into samples of one length, documents, or synthetic samples.

Sample ``i`` of a row is tokens ``i * length`` to ``(i + 1) * length``, both included: inputs are all but the last,
labels all but the first, so neighbours share one token and none is lost between them; document boundaries are ignored.
Otherwise a sample is one document or conversation, or as many as fit (``data.packing``). Marks
(``launcher.worker.marks``) tell which tokens are not trained. Files are memory-mapped, not read, since every rank opens
all of them; ids are checked against the vocabulary when a sample is read.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from launcher.base.errors import DataError
from launcher.base.frozen import dataclass
from launcher.data.epoch import samples_drawn
from launcher.data.packing import packed
from launcher.data.token_folder import ENDS, TOKENS, TRAINED, Span, TokenFolder
from launcher.worker import marks
from launcher.worker.data.order import mixed

type Tokens = npt.NDArray[np.int64]


class Corpus(Protocol):
    """Samples by number; sample ``i`` is the same on every rank and at any time."""

    @property
    def size(self) -> int:
        """Number of samples."""

    @property
    def sha256(self) -> str | None:
        """Hash of the whole source, if one was computed while it was written; else None."""

    def sample(self, index: int) -> Tokens:
        """Read ``sequence_length + 1`` token ids; ids that are not trained as labels are marked."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Rows that a model learns quickly: each token is ``5 x + 1`` modulo the vocabulary of the one before, ``x``."""

    vocabulary: int
    length: int
    seed: int
    size: int = 2**40
    sha256: None = None

    def sample(self, index: int) -> Tokens:
        """Make a row that begins with a random token."""
        row = np.empty(self.length + 1, dtype=np.int64)
        token = mixed(self.seed, index) % self.vocabulary
        for place in range(self.length + 1):
            row[place] = token
            token = (5 * token + 1) % self.vocabulary
        return row


class TokenFiles:
    """Concatenated token files, read through memory maps; neighbouring samples share one token."""

    def __init__(
        self,
        paths: Sequence[Path],
        dtype: npt.DTypeLike,
        *,
        length: int,
        vocabulary: int,
        sha256: str | None = None,
        trained: npt.NDArray[np.uint8] | None = None,
        part: slice = slice(None),
        key: str = "data.path",
    ) -> None:
        """Map files of raw little-endian unsigned integers below ``vocabulary``; they must hold at least one sample.

        ``trained`` has a mark for each token of ``part``, a part of one file; None trains all tokens. ``key`` is the
        setting that named the files.
        """
        self._trained = trained
        self._paths, self._length, self._vocabulary, self.sha256 = list(paths), length, vocabulary, sha256
        width = np.dtype(dtype).itemsize
        for path in self._paths:
            if path.stat().st_size % width:
                raise DataError(f"{path} has {path.stat().st_size} bytes, which is not a multiple of {width} ({dtype})")
        self.maps = [np.memmap(path, dtype=dtype, mode="r")[part] for path in self._paths if path.stat().st_size]
        self._ends = np.cumsum([len(tokens) for tokens in self.maps])
        total = int(self._ends[-1]) if self.maps else 0
        if total < length + 1:
            raise DataError(
                f"{key} has {total} tokens in {len(self._paths)} files, but one sample needs {length + 1} "
                f"(train.sequence_length={length} plus one): add data or set a shorter length"
            )
        self.size = (total - 1) // length

    def sample(self, index: int) -> Tokens:
        """Read tokens ``index * length`` to ``(index + 1) * length``, both included."""
        start = index * self._length
        row = self._read(start, start + self._length + 1)
        _check(row, self._vocabulary)
        if self._trained is None:
            return row
        return marks.mark(row, self._trained[start : start + self._length + 1].astype(bool))

    def _read(self, start: int, end: int) -> Tokens:
        pieces = []
        file = int(np.searchsorted(self._ends, start, side="right"))
        while start < end:
            base = int(self._ends[file - 1]) if file else 0
            piece = self.maps[file][start - base : end - base]
            pieces.append(np.asarray(piece, dtype=np.int64))
            start += len(piece)
            file += 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class Documents:
    """Documents or conversations: one per sample, truncated to its length, or with ``apart`` as many as fit whole.

    Samples are padded at the end with untrained tokens, which causal attention does not see. Documents packed in one
    sample are separated by attention and positions; one that is longer than a sample continues in others.
    """

    def __init__(
        self,
        folder: TokenFolder,
        span: Span,
        *,
        length: int,
        vocabulary: int,
        apart: bool = False,
        key: str = "data.path",
    ) -> None:
        """Map the files that ``launcher.data.prepare`` wrote: tokens, one mark byte per token, and document ends."""
        self._tokens, self._trained = mapped(folder)
        self._ends = np.memmap(folder.path / ENDS, dtype=np.uint64, mode="r")[span.documents]
        self._start = span.tokens.start
        self._length, self._vocabulary, self.sha256 = length, vocabulary, folder.sha256
        self.size, self._packed = len(self._ends), None
        if apart:
            ends = folder.ends()[span.documents]
            self._packed = packed(ends, length, split=not folder.marked, start=self._start)
            self.size = len(self._packed.ends)
            if not self.size:
                raise DataError(f"{key} has no document of two tokens or more")

    def sample(self, index: int) -> Tokens:
        """Read the start of a document, or the documents packed in the sample, with padding."""
        ids, trained = np.zeros((2, self._length + 1), dtype=np.int64)
        begins, place = list[int](), 0
        for start, stop in self._pieces(index):
            behind = place + stop - start
            ids[place:behind] = self._tokens[start:stop]
            trained[place:behind] = 1 if self._trained is None else self._trained[start:stop]
            begins.append(behind)
            place = behind
        _check(ids, self._vocabulary)
        apart = [each for each in begins if each <= self._length] if self._packed else ()
        return marks.mark(ids, trained.astype(bool), apart)

    def _pieces(self, index: int) -> list[tuple[int, int]]:
        if self._packed is not None:
            return self._packed.pieces(index)
        start = int(self._ends[index - 1]) if index else self._start
        return [(start, min(int(self._ends[index]), start + self._length + 1))]


def mapped(folder: TokenFolder) -> tuple[Any, Any]:
    """Memory maps of a folder's token ids, and of its marks (None if it has none)."""
    tokens = np.memmap(folder.path / TOKENS, dtype=folder.dtype, mode="r")
    return tokens, np.memmap(folder.path / TRAINED, dtype=np.uint8, mode="r") if folder.marked else None


def _check(row: Tokens, vocabulary: int) -> None:
    largest = int(row.max(initial=0))
    if largest >= vocabulary:
        raise DataError(
            f"the data have token id {largest}, but the model has rows only for ids below model.vocab_size="
            f"{vocabulary}: check data.tokenizer and data.token_dtype, or set model.vocab_size={largest + 1}"
        )


@dataclass(frozen=True, slots=True)
class Part:
    """A range of samples of a corpus, for training or evaluation."""

    whole: Corpus
    start: int
    size: int

    @property
    def sha256(self) -> str | None:
        """Hash of the whole corpus."""
        return self.whole.sha256

    def sample(self, index: int) -> Tokens:
        """Read a sample by its number in the part."""
        return self.whole.sample(self.start + index)


class Mix:
    """Several corpora as one, each with as many samples as its weight gives it (``launcher.data.epoch``)."""

    def __init__(self, parts: Sequence[Corpus], weights: Sequence[float]) -> None:
        """Join corpora with samples of one length; without weights each sample occurs once."""
        self._parts, drawn = parts, samples_drawn([part.size for part in parts], weights)
        self._ends = np.cumsum(drawn)
        self.size = int(self._ends[-1])
        self.ranges = [0, *map(int, self._ends[:-1])], drawn  # The first sample of each corpus, and how many it has.

    @property
    def sha256(self) -> str | None:
        """Hash of the folder that contains all of them."""
        return self._parts[0].sha256

    def sample(self, index: int) -> Tokens:
        """Read a sample; a corpus drawn more often than its size starts again from its beginning."""
        part = int(np.searchsorted(self._ends, index, side="right"))
        first = int(self._ends[part - 1]) if part else 0
        corpus = self._parts[part]
        return corpus.sample((index - first) % corpus.size)


def split(corpus: Corpus, held_out: float) -> tuple[Part, Part]:
    """Split a corpus into a training part and its end for evaluation; DataError if one would be empty."""
    count = max(1, round(corpus.size * held_out))
    if count >= corpus.size:
        raise DataError(
            f"the corpus has {corpus.size} samples and data.eval_fraction={held_out} holds out {count} of them: "
            "add data, set a shorter train.sequence_length, or train.eval_every=null"
        )
    return Part(corpus, 0, corpus.size - count), Part(corpus, corpus.size - count, count)
