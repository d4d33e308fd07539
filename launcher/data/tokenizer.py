"""Text to token ids: bytes, or a Hugging Face tokenizer from a local folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from launcher.errors import DataError


class Tokenizer(Protocol):
    """Turns documents into ids below ``size``."""

    @property
    def size(self) -> int:
        """The number of ids."""

    def encode(self, text: str) -> Sequence[int]:
        """The ids of one document, with its end marked where the tokenizer has a token for that."""

    @property
    def special(self) -> frozenset[int]:
        """The ids of special tokens, such as the end of a turn."""

    def pieces(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """The ids of a text that has all its special tokens in it, and the characters that each stands for."""


class Bytes:
    """One id for each value of a byte of UTF-8."""

    size = 256
    special: frozenset[int] = frozenset()

    def encode(self, text: str) -> Any:
        """The bytes as numbers."""
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def pieces(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """The bytes, each of its character."""
        places = [(place, place + 1) for place, letter in enumerate(text) for _ in letter.encode()]
        return list(text.encode()), places


class Folder:
    """A tokenizer that ``transformers`` loads from a folder; nothing is fetched and no code of it is run."""

    def __init__(self, path: str) -> None:
        from transformers import AutoTokenizer

        if not Path(path).is_dir():
            raise DataError(f"data.tokenizer={path}: there is no such folder; data.tokenizer=bytes needs none")
        try:
            self._words = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        except Exception as error:
            raise DataError(f"data.tokenizer={path}: {type(error).__name__}: {error}") from error
        self.size = len(self._words)
        self.special = frozenset(number for number, token in self._words.added_tokens_decoder.items() if token.special)

    def encode(self, text: str) -> Sequence[int]:
        """The ids, then the end-of-text token where there is one."""
        ids: list[int] = self._words.encode(text, add_special_tokens=False)
        end = self._words.eos_token_id
        return ids if end is None else [*ids, end]

    def pieces(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """Ids and characters, with no token that is not in the text.

        Raises:
            DataError: The tokenizer does not know the characters of its tokens.
        """
        if not self._words.is_fast:
            raise DataError(
                f"data.tokenizer={self._words.name_or_path} has no tokenizer.json, without which a token's place in "
                "the text is not known: save it as a fast tokenizer"
            )
        found = self._words(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return found["input_ids"], found["offset_mapping"]


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer that ``data.tokenizer`` names.

    Raises:
        DataError: There is no such folder, or no tokenizer in it.
    """
    return Bytes() if name == "bytes" else Folder(name)
