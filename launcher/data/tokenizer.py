"""Text to token ids: bytes, or a Hugging Face tokenizer from a local folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from launcher.base import files
from launcher.data.unusable import NotHere, Unusable

type Pieces = tuple[Sequence[int], Sequence[tuple[int, int]]]
"""Ids, and where the characters that each stands for begin and end."""


class Tokenizer(Protocol):
    """Turns documents into ids below ``size``."""

    @property
    def size(self) -> int:
        """One more than the largest id, which is not the number of tokens where ids are left out."""

    @property
    def end(self) -> int | None:
        """The token that ends a document, where the tokenizer has one."""

    def encode_all(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """The ids of many texts at once, on all cores where the tokenizer can, without ends."""

    @property
    def special(self) -> frozenset[int]:
        """The ids of special tokens, such as the end of a turn."""

    def pieces(self, texts: Sequence[str]) -> Sequence[Pieces]:
        """The ids of texts that have all their special tokens in them, and the characters that each stands for."""


class Bytes:
    """One id for each value of a byte of UTF-8."""

    size = 256
    end = None
    special: frozenset[int] = frozenset()

    def encode_all(self, texts: Sequence[str]) -> Sequence[Any]:
        """The bytes of each as numbers."""
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def pieces(self, texts: Sequence[str]) -> Sequence[Pieces]:
        """The bytes, each of its character."""
        places = ([(at, at + 1) for at, letter in enumerate(text) for _ in letter.encode()] for text in texts)
        return list(zip(self.encode_all(texts), places, strict=True))


class Folder:
    """A tokenizer that ``transformers`` loads from a folder; nothing is fetched and no code of it is run."""

    def __init__(self, path: str) -> None:
        from transformers import AutoTokenizer

        if not path or not Path(path).is_dir():
            raise NotHere("data.tokenizer", path, "there is no such folder", ["data.tokenizer=bytes"])
        try:
            self._words = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            rule = f"it cannot be read as a tokenizer: {type(error).__name__}: {error}"
            raise Unusable("data.tokenizer", path, rule, ["data.tokenizer=bytes"]) from error
        if self._words.is_fast:  # A tokenizer.json may have been saved with both.
            self._words.backend_tokenizer.no_truncation()
            self._words.backend_tokenizer.no_padding()
        self.size: int = 1 + max(self._words.get_vocab().values(), default=-1)
        self.end: int | None = self._words.eos_token_id
        self.special = frozenset(number for number, token in self._words.added_tokens_decoder.items() if token.special)

    def encode_all(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """The ids; a fast tokenizer takes all cores for them, unless ``TOKENIZERS_PARALLELISM=false``."""
        if self._words.is_fast:
            found = self._words.backend_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [encoding.ids for encoding in found]
        return [self._words.encode(text, add_special_tokens=False) for text in texts]

    def pieces(self, texts: Sequence[str]) -> Sequence[Pieces]:
        """Ids and characters, with no token that is not in the text.

        Raises:
            Unusable: The tokenizer does not know the characters of its tokens.
        """
        if not self._words.is_fast:
            rule = (
                "it has no tokenizer.json, without which a token's place in the text of a conversation is not known: "
                "save it as a fast tokenizer"
            )
            raise Unusable("data.tokenizer", self._words.name_or_path, rule, ["data.tokenizer=bytes"])
        found = self._words.backend_tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in found]


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer that ``data.tokenizer`` names.

    Raises:
        NotHere: There is no such folder.
        Unusable: There is no tokenizer in it.
    """
    return Bytes() if name == "bytes" else Folder(name)


def fingerprint(name: str) -> str:
    """A hash of the tokenizer that ``data.tokenizer`` names: of the files of its folder, wherever that lies."""
    if name == "bytes":
        return name
    content = hashlib.sha256()
    for path in sorted(path for path in Path(name).glob("*") if _decides_ids(path)):
        content.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        content.update(files.read_bytes(path, files.MOST_OF_A_LOG))
    return content.hexdigest()


def _decides_ids(path: Path) -> bool:
    """True if it may be a tokenizer's file: a folder of a model also holds weights, which may be hundreds of GB."""
    return path.is_file() and path.suffix in (".json", ".txt", ".model", ".jinja", ".tiktoken")
