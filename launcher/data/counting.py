"""Tokenizers for planning: quickly there, and without the packages that training needs.

They encode as those of :mod:`launcher.data.tokenizer` do. A ``tokenizer.json`` is read by the package tokenizers alone,
since ``transformers`` takes seconds to be imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.base import package
from launcher.base.files import load_json
from launcher.data.unusable import NotHere, PackageMissing, Unusable

if TYPE_CHECKING:
    from launcher.data.tokenizer import Pieces, Tokenizer


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens of some texts, and the largest of their ids; -1 where there is none."""

    tokens: int
    largest: int


def counted(words: Tokenizer, texts: Sequence[str], *, ends: int) -> Counted:
    """Count the tokens of texts, ``ends`` of which are ends of documents."""
    found = words.encode_all(texts)
    end = words.end if ends else None
    largest = max((_largest(ids) for ids in found if len(ids)), default=-1)
    return Counted(sum(map(len, found)) + (0 if end is None else ends), max(largest, -1 if end is None else end))


def _largest(ids: Sequence[int]) -> int:
    if not isinstance(ids, bytes):
        return max(map(int, ids))
    return next(value for value in range(255, -1, -1) if value in ids)  # ``max`` takes longer than all the rest.


class Bytes:
    """One id for each value of a byte of UTF-8."""

    size = 256
    end = None
    special: frozenset[int] = frozenset()

    def encode_all(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """The bytes of each."""
        return [text.encode() for text in texts]

    def pieces(self, texts: Sequence[str]) -> Sequence[Pieces]:
        """The bytes, each of its character."""
        places = ([(at, at + 1) for at, letter in enumerate(text) for _ in letter.encode()] for text in texts)
        return list(zip(self.encode_all(texts), places, strict=True))


class Quick:
    """The ``tokenizer.json`` of a folder."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._words = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._words.no_truncation()  # It may have been saved with both.
        self._words.no_padding()
        self.size: int = 1 + max(self._words.get_vocab(with_added_tokens=True).values(), default=-1)
        self.end: int | None = self._words.token_to_id(_end(folder) or "")
        self.special = frozenset(id_ for id_, token in self._words.get_added_tokens_decoder().items() if token.special)

    def encode_all(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """The ids of each, one text after the other, since its threads would not survive a fork of this process."""
        return [ids for ids, _ in self.pieces(texts)]

    def pieces(self, texts: Sequence[str]) -> Sequence[Pieces]:
        """Ids and the characters that each stands for."""
        found = (self._words.encode(text, add_special_tokens=False) for text in texts)
        return [(encoding.ids, encoding.offsets) for encoding in found]


def words(name: str) -> Tokenizer:
    """The tokenizer that ``data.tokenizer`` names.

    Raises:
        NotHere: There is no such folder.
        PackageMissing: What reads it is not installed.
        Unusable: There is no tokenizer in it.
    """
    if name == "bytes":
        return Bytes()
    folder = Path(name)
    if not name or not folder.is_dir():
        rule = "must be bytes or the folder of a Hugging Face tokenizer, and there is no such folder on this machine"
        raise NotHere("data.tokenizer", name, rule, ["data.tokenizer=bytes"])
    quick = folder / "tokenizer.json"
    changed = quick.stat().st_mtime_ns if quick.is_file() else None
    try:
        return _read(name, changed)
    except ImportError as error:
        rule = f"needs {error.name}, not installed for this Python"
        raise PackageMissing("data.tokenizer", name, rule, [package.install(package.TRAINING)]) from None
    except Unusable:
        raise
    except Exception as error:  # The package has no exceptions of its own.
        rule = f"it cannot be read as a tokenizer: {error}"
        raise Unusable("data.tokenizer", name, rule, ["data.tokenizer=bytes"]) from None


@lru_cache(maxsize=4)  # To read one of 128,000 words takes half a second.
def _read(name: str, changed_ns: int | None) -> Tokenizer:
    if changed_ns is not None:
        return Quick(Path(name))
    from launcher.data.tokenizer import tokenizer

    return tokenizer(name)


def _end(folder: Path) -> str | None:
    """The token at the end of a text, as ``tokenizer_config.json`` names it."""
    try:
        named = load_json(folder / "tokenizer_config.json").get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    found = named.get("content") if isinstance(named, dict) else named
    return found if isinstance(found, str) else None
