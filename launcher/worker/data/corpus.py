"""Corpora: a long row of tokens cut into samples of one length, or samples made on the spot.

Sample ``i`` of text is tokens ``i * length`` to ``(i + 1) * length``, both included: inputs are all but the last,
labels all but the first, so neighbours share one token and none is lost between them. Document borders are not looked
at. A conversation is a sample of its own, with marks (``launcher.worker.marks``) on what is not trained. Files are
mapped, not read, since every rank opens all of them; ids are compared with the vocabulary as a sample is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from launcher.base.errors import DataError
from launcher.base.frozen import dataclass
from launcher.data.token_folder import ENDS, TOKENS, TRAINED
from launcher.worker import marks
from launcher.worker.data.order import mixed

type Tokens = npt.NDArray[np.int64]


class Corpus(Protocol):
    """Samples by number; sample ``i`` is the same whenever and wherever it is asked for."""

    @property
    def size(self) -> int:
        """Number of samples."""

    @property
    def sha256(self) -> str | None:
        """The hash of all that it was cut from, where that was taken as it was written."""

    def sample(self, index: int) -> Tokens:
        """Read ``sequence_length + 1`` token ids; ids that are not trained as labels are marked."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Rows that are learnt quickly: each token follows from the one before, ``5 x + 1`` modulo the vocabulary."""

    vocabulary: int
    length: int
    seed: int
    size: int = 2**40
    sha256: None = None

    def sample(self, index: int) -> Tokens:
        """Make a row that begins anywhere in the vocabulary."""
        row = np.empty(self.length + 1, dtype=np.int64)
        token = mixed(self.seed, index) % self.vocabulary
        for place in range(self.length + 1):
            row[place] = token
            token = (5 * token + 1) % self.vocabulary
        return row


class TokenFiles:
    """Token files end to end, read through memory maps; neighbouring samples share one token."""

    def __init__(
        self, paths: Sequence[Path], dtype: npt.DTypeLike, *, length: int, vocabulary: int, sha256: str | None = None
    ) -> None:
        """Map files of raw little-endian unsigned integers below ``vocabulary``, which must hold one sample."""
        self._paths, self._length, self._vocabulary, self.sha256 = list(paths), length, vocabulary, sha256
        width = np.dtype(dtype).itemsize
        for path in self._paths:
            if path.stat().st_size % width:
                raise DataError(f"{path} has {path.stat().st_size} bytes, which is no multiple of {width} ({dtype})")
        self.maps = [np.memmap(path, dtype=dtype, mode="r") for path in self._paths if path.stat().st_size]
        self._ends = np.cumsum([len(tokens) for tokens in self.maps])
        total = int(self._ends[-1]) if self.maps else 0
        if total < length + 1:
            raise DataError(
                f"data.path holds {total} tokens in {len(self._paths)} files, and one sample needs {length + 1} "
                f"(train.sequence_length={length} and one more): name more data or set a shorter length"
            )
        self.size = (total - 1) // length

    def sample(self, index: int) -> Tokens:
        """Read tokens ``index * length`` to ``(index + 1) * length``, both included."""
        start = index * self._length
        row = self._read(start, start + self._length + 1)
        _check(row, self._vocabulary)
        return row

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


class Conversations:
    """Conversations, one a sample: cut at the length, or padded behind their end by tokens that are not trained.

    Causal attention looks at no later token, so padding needs no attention mask.
    """

    def __init__(
        self, folder: Path, dtype: npt.DTypeLike, *, length: int, vocabulary: int, sha256: str | None = None
    ) -> None:
        """Map the files that ``launcher.data.prepare`` has written: tokens, a byte for each, and ends of samples."""
        self._tokens = np.memmap(folder / TOKENS, dtype=dtype, mode="r")
        self._trained = np.memmap(folder / TRAINED, dtype=np.uint8, mode="r")
        self._ends = np.memmap(folder / ENDS, dtype=np.uint64, mode="r")
        self._length, self._vocabulary, self.sha256 = length, vocabulary, sha256
        self.size = len(self._ends)

    def sample(self, index: int) -> Tokens:
        """Read the start of conversation ``index``, and padding."""
        start = int(self._ends[index - 1]) if index else 0
        end = min(int(self._ends[index]), start + self._length + 1)
        row = np.asarray(self._tokens[start:end], dtype=np.int64)
        _check(row, self._vocabulary)
        ids, trained = np.zeros((2, self._length + 1), dtype=np.int64)
        ids[: len(row)], trained[: len(row)] = row, self._trained[start:end]
        return marks.mark(ids, trained.astype(bool))


def _check(row: Tokens, vocabulary: int) -> None:
    largest = int(row.max(initial=0))
    if largest >= vocabulary:
        raise DataError(
            f"the data hold token id {largest}, and the model has rows for ids below model.vocab_size="
            f"{vocabulary}: check data.tokenizer and data.token_dtype, or set model.vocab_size={largest + 1}"
        )


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a corpus, to train on or to evaluate on."""

    whole: Corpus
    start: int
    size: int

    @property
    def sha256(self) -> str | None:
        """The hash of the whole."""
        return self.whole.sha256

    def sample(self, index: int) -> Tokens:
        """Read the sample with this number in the part."""
        return self.whole.sample(self.start + index)


def split(corpus: Corpus, held_out: float) -> tuple[Part, Part]:
    """Split a corpus in a part to train on and its end to evaluate on; a :class:`DataError` if one would be empty."""
    count = max(1, round(corpus.size * held_out))
    if count >= corpus.size:
        raise DataError(
            f"the corpus has {corpus.size} samples and data.eval_fraction={held_out} holds {count} of them out: "
            "name more data, set a shorter train.sequence_length, or train.eval_every=null"
        )
    return Part(corpus, 0, corpus.size - count), Part(corpus, corpus.size - count, count)
