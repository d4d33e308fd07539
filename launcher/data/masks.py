"""From conversations to token ids and the marks of what is trained.

The text that the template has written is tokenised as a whole, as ``transformers`` does it: special tokens are
recognised wherever they stand in it, in a message's own text too. A token is trained if a part of it lies in what the
assistant says. Behind the last special token there (the end of a turn) white space is not: a template writes it on its
own, and nobody has to generate it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from launcher.data.chat import Conversation, conversations
from launcher.data.encoded import Encoded
from launcher.data.template import Span, Template, template
from launcher.data.tokenizer import Tokenizer
from launcher.spec.data import DataSpec


def encoded(
    rows: Iterable[Mapping[str, object]], data: DataSpec, words: Tokenizer, skipped: Counter[str]
) -> Iterator[Encoded]:
    """Each conversation of the rows as token ids with their marks.

    Args:
        rows: Values by their column.
        data: The run's data.
        words: Its tokenizer.
        skipped: Counts the rows that are left out, by the reason.

    Raises:
        Unusable: A row or the template cannot be used, or no row is left.
    """
    writer = template(data)
    for conversation in conversations(rows, data, skipped):
        yield encode(conversation, writer, words, data.train_on)


def encode(conversation: Conversation, writer: Template, words: Tokenizer, train_on: str) -> Encoded:
    """One conversation as token ids, marked as ``data.train_on`` says: assistant, last or all.

    Raises:
        Unusable: The template fails, or where a turn begins or ends cannot be said.
    """
    written = writer.written(conversation, train_on)
    ids, places = words.pieces(written.text)
    if written.trained is None:
        return Encoded(ids, [True] * len(ids))
    trained = [False] * len(ids)
    for first, last in _tokens(places, written.trained):
        end = _end_of_turn(ids[first:last], words.special)
        behind = written.text[places[first + end - 1][1] : places[last - 1][1]] if end else ""
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
