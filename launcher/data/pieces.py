"""A file of plain text in pieces, so that memory holds a part of it however long it is."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from launcher.data.encoded import Unfinished
from launcher.data.opening import opened
from launcher.data.unusable import Unusable

SIZE = 1 << 18
"""Bytes that are read at once; pieces of 16 KiB are encoded at two thirds of the speed, larger ones no faster."""

_LONGEST = 64 * SIZE
"""Characters without any space after which a piece is cut all the same."""


def pieces(path: Path) -> Iterator[str]:
    """The text, cut where a tokenizer would: each piece but the last one is :class:`Unfinished`.

    The tokenizers in use split words from lines first, so that a line feed between two other characters always ends a
    token (GPT-2's and Llama 3's patterns; SentencePiece has its own mark of a word's start, which a piece begins with
    anew). Where there is none a piece ends before a space, and without spaces after 16 MiB.

    Raises:
        Unusable: It is no UTF-8 text, or cannot be read.
    """
    decoder, rest = codecs.getincrementaldecoder("utf-8")(), ""
    with opened(path) as file:
        while content := file.read(SIZE):
            text = decoder.decode(content)
            if "\0" in text:
                ways = [f"data=tokens data.path={path}"]
                raise Unusable("data.path", str(path), "it holds zero bytes, so it is no text", ways)
            rest += text
            if len(rest) > SIZE // 2 and (place := _end(rest)):
                yield Unfinished(rest[:place])
                rest = rest[place:]
        rest += decoder.decode(b"", final=True)
    yield rest


def _end(text: str) -> int:
    """Where to cut a text in two that are not empty; 0 for not yet."""
    place = len(text) - 1
    while (place := text.rfind("\n", 1, place)) > 0:
        if not text[place - 1].isspace() and not text[place + 1].isspace():
            return place + 1
    space = text.rfind(" ")
    if space > 0:
        return space
    return len(text) - 1 if len(text) > _LONGEST else 0
