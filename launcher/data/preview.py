"""The first conversations of a run's data as the tokens that it would train on (``data.preview``)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Any

from launcher.data.bad_rows import BadRows
from launcher.data.chat import conversations
from launcher.data.documents import table_rows
from launcher.data.masks import marked
from launcher.data.rendering import writer
from launcher.data.tokenizer import tokenizer
from launcher.data.unusable import Unusable
from launcher.spec.data import DataSpec


@dataclass(frozen=True, slots=True)
class Token:
    """A token, the text that it stands for (none for a later byte of a character), and whether it is a label."""

    id: int
    text: str
    trained: bool


@dataclass(frozen=True, slots=True)
class Preview:
    """One sample.

    Attributes:
        row: Of the data, from 1.
        tokens: Those that are in the sample.
        cut: How many more the conversation has.
    """

    row: int
    tokens: tuple[Token, ...]
    cut: int

    @property
    def trained(self) -> int:
        """Labels: the first token is none."""
        return sum(token.trained for token in self.tokens[1:])

    def as_dict(self) -> dict[str, Any]:
        """The form in which ``check --json`` lists it."""
        tokens = [{"id": token.id, "text": token.text, "trained": token.trained} for token in self.tokens]
        return {"row": self.row, "tokens": tokens, "trained": self.trained, "cut": self.cut}


def previews(data: DataSpec, length: int) -> list[Preview]:
    """The first ``data.preview`` samples of conversations.

    Args:
        data: The run's data.
        length: Its ``sequence_length``; a sample has one token more.

    Raises:
        DataError: The data, the tokenizer or the template cannot be used.
    """
    template, words, bad = writer(data), tokenizer(data.tokenizer), BadRows.of(data)
    found: list[Preview] = []
    for one in conversations(table_rows(data, bad), data, Counter(), bad):
        if len(found) == data.preview:
            break
        [text] = template.outcomes([one], data.train_on)
        if isinstance(text, Unusable):
            bad.refuse(text)
            continue
        [(ids, places)] = words.pieces([text.text])
        marks = marked(text, (ids, places), words.special).trained or ()
        tokens, shown = [], 0
        for number, (start, end), trained in islice(zip(ids, places, marks, strict=True), length + 1):
            tokens.append(Token(int(number), text.text[max(start, shown) : end], trained))
            shown = max(end, shown)
        found.append(Preview(one.row, tuple(tokens), max(0, len(ids) - length - 1)))
    return found
