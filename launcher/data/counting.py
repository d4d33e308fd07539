"""Numbers of tokens of texts, for planning: quickly, by the tokenizer's own file where it has one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from launcher import extras
from launcher.data.unusable import NotHere, PackageMissing, Unusable


@dataclass(frozen=True, slots=True)
class Counted:
    """Tokens of some texts, and the largest of their ids, at least; -1 where there is none."""

    tokens: int
    largest: int


class Words(Protocol):
    """A tokenizer that only counts."""

    @property
    def size(self) -> int:
        """The number of ids."""

    @property
    def exact_bytes(self) -> bool:
        """True if a text has as many tokens as bytes of UTF-8."""

    def count(self, texts: Sequence[str], *, ends: int) -> Counted:
        """Tokens of texts, ``ends`` of which are ends of documents, marked where the tokenizer has a token for that."""


_ASCII = bytes(range(128))
_LOOKED_AT = 1 << 12


class _Bytes:
    size = 256
    exact_bytes = True

    def count(self, texts: Sequence[str], *, ends: int) -> Counted:
        content = [text.encode() for text in texts]
        # To look for the largest byte takes longer than all the rest, and most are ASCII.
        largest = max(
            (max(part.translate(None, _ASCII), default=max(part[:_LOOKED_AT])) for part in content if part), default=-1
        )
        return Counted(sum(map(len, content)), largest)


class _Quick:
    """A ``tokenizer.json``, read by the package tokenizers alone: ``transformers`` takes seconds to be imported."""

    exact_bytes = False

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._words = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.size: int = self._words.get_vocab_size(with_added_tokens=True)
        found = self._words.token_to_id(_end(folder) or "")
        self._end = -1 if found is None else int(found)

    def count(self, texts: Sequence[str], *, ends: int) -> Counted:
        ids = [self._words.encode(text, add_special_tokens=False).ids for text in texts]
        marks = ends if self._end >= 0 else 0
        largest = max((max(part) for part in ids if part), default=-1)
        return Counted(sum(map(len, ids)) + marks, max(largest, self._end if marks else -1))


class _Slow:
    """Any other tokenizer, as training has it."""

    exact_bytes = False

    def __init__(self, name: str) -> None:
        from launcher.data.tokenizer import tokenizer

        self._words: Any = tokenizer(name)
        self.size: int = self._words.size

    def count(self, texts: Sequence[str], *, ends: int) -> Counted:
        ids = [list(self._words.encode(text)) for text in texts]
        return Counted(sum(map(len, ids)), max((max(part) for part in ids if part), default=-1))


def words(name: str) -> Words:
    """The tokenizer that ``data.tokenizer`` names.

    Raises:
        NotHere: There is no such folder.
        Unusable: There is no tokenizer in it, or what reads it is not installed.
    """
    if name == "bytes":
        return _Bytes()
    folder = Path(name)
    if not folder.is_dir():
        rule = "must be bytes or the folder of a Hugging Face tokenizer, and there is no such folder on this machine"
        raise NotHere("data.tokenizer", name, rule, ["data.tokenizer=bytes"])
    quick = folder / "tokenizer.json"
    changed = quick.stat().st_mtime_ns if quick.is_file() else 0
    try:
        return _read(name, changed)
    except ImportError as error:
        rule = f"needs {error.name}, not installed for this Python"
        raise PackageMissing("data.tokenizer", name, rule, [extras.install(extras.TRAINING)]) from None
    except Exception as error:  # The package has no exceptions of its own.
        rule = f"it cannot be read as a tokenizer: {error}"
        raise Unusable("data.tokenizer", name, rule, ["data.tokenizer=bytes"]) from None


@lru_cache(maxsize=4)  # To read one of 128,000 words takes half a second.
def _read(name: str, changed_ns: int) -> Words:
    return _Quick(Path(name)) if changed_ns else _Slow(name)


def _end(folder: Path) -> str | None:
    """The token at the end of a text, as ``tokenizer_config.json`` names it."""
    try:
        named = json.loads((folder / "tokenizer_config.json").read_text()).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    found = named.get("content") if isinstance(named, dict) else named
    return found if isinstance(found, str) else None
