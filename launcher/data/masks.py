"""From conversations to token ids and the marks of what is trained.

The text that the template has written is tokenised as a whole, as ``transformers`` does it: special tokens are
recognised wherever they stand in it, in a message's own text too. A token is trained if a part of it lies in what the
assistant says. Behind the last special token there (the end of a turn) white space is not: a template writes it on its
own, and nobody has to generate it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import batched

from launcher.data.bad_rows import BadRows
from launcher.data.chat import conversation, conversations, empty
from launcher.data.encoded import Encoded
from launcher.data.rendering import writer, written
from launcher.data.template import Span, Written
from launcher.data.tokenizer import Pieces, Tokenizer
from launcher.data.unusable import Unusable
from launcher.spec.data import DataSpec

_BATCH = 256
"""Conversations that are tokenised at once, on all cores."""


def encoded(
    rows: Iterable[Mapping[str, object]], data: DataSpec, words: Tokenizer, skipped: Counter[str], bad: BadRows
) -> Iterator[Encoded]:
    """Each conversation of the rows as token ids with their marks.

    Args:
        rows: Values by their column.
        data: The run's data.
        words: Its tokenizer.
        skipped: Counts the rows that are left out, by the reason.
        bad: What becomes of a row that cannot be used.

    Raises:
        Unusable: A row or the template cannot be used, or no row is left.
    """
    template = writer(data)
    for some in batched(conversations(rows, data, skipped, bad), _BATCH):
        texts = []
        for one, outcome in zip(some, template.outcomes(some, data.train_on), strict=True):
            if isinstance(outcome, Unusable):
                bad.refuse(outcome, one.place)
            else:
                texts.append(outcome)
        for text, pieces in zip(texts, words.pieces([each.text for each in texts]), strict=True):
            yield marked(text, pieces, words.special)


def encoder(data: DataSpec, words: Tokenizer) -> Callable[[Mapping[str, object], int], Encoded | None]:
    """A function that encodes a row, given its number from 1; None for one that has nothing to learn from."""
    template = writer(data)

    def encode(row: Mapping[str, object], number: int) -> Encoded | None:
        one = conversation(row, number, data.column)
        if empty(one, data.train_on) is not None:
            return None
        [text] = map(written, template.outcomes([one], data.train_on))
        [pieces] = words.pieces([text.text])
        return marked(text, pieces, words.special)

    return encode


def marked(text: Written, pieces: Pieces, special: frozenset[int]) -> Encoded:
    """The tokens of a text, marked where what they stand for is trained."""
    ids, places = pieces
    if text.trained is None:
        return Encoded(ids, [True] * len(ids))
    trained = [False] * len(ids)
    for first, last in _tokens(places, text.trained):
        end = _end_of_turn(ids[first:last], special)
        behind = text.text[places[first + end - 1][1] : places[last - 1][1]] if end else ""
        last = first + end if end and not behind.strip() else last
        trained[first:last] = [True] * (last - first)
    return Encoded(ids, trained)


def _tokens(places: Sequence[Span], spans: Iterable[Span]) -> Iterator[tuple[int, int]]:
    """The first token of each span and the one behind its last, left out where it has none; both are in order."""
    token = 0
    for start, end in spans:
        while token < len(places) and places[token][1] <= start:
            token += 1
        first = token
        while token < len(places) and places[token][0] < end:
            token += 1
        if token > first:
            yield first, token


def _end_of_turn(ids: Sequence[int], special: frozenset[int]) -> int:
    """The number of tokens up to and with the last special one; 0 without any."""
    return next((place + 1 for place in reversed(range(len(ids))) if int(ids[place]) in special), 0)
