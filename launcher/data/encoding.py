"""Conversations as token ids with marks of the trained ones, and previews of the first conversations.

The rendered text is tokenised as a whole, as in ``transformers``: special tokens are recognised anywhere in it, even in
a message's own text. A token is trained if any part of it is in the assistant's text. White space after the last
special token there (the end of a turn) is not trained: the template writes it, and the model need not generate it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import batched, islice

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.data import task_rows
from launcher.data.chat import Conversation, conversation, conversations, empty, mapped
from launcher.data.documents import table_rows
from launcher.data.rendering import writer, written
from launcher.data.template import Rendered, Span
from launcher.data.tokenizer import Pieces, Tokenizer, tokenizer
from launcher.data.unusable import BadRows, Unusable
from launcher.spec.training import DataSpec

_BATCH = 256  # Conversations tokenised at once, on all cores.


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids, and which of them are trained as labels; ``trained`` is None for text, which is trained whole.

    The documents of text become one long token sequence that is cut into samples; if ``trained`` is given, these ids
    are one sample.
    """

    ids: Sequence[int]
    trained: Sequence[bool] | None = None
    ended: bool = False  # True if a document or conversation ends with these ids.


def encode_rows(
    rows: Iterable[Mapping[str, object]], data: DataSpec, words: Tokenizer, skipped: Counter[str], bad: BadRows
) -> Iterator[Encoded]:
    """Encode each conversation of the rows, with its marks; ``skipped`` and ``bad`` as for :func:`conversations`."""
    template = writer(data)
    for some in batched(conversations(rows, data, skipped, bad), _BATCH):
        texts = []
        for one, outcome in zip(some, template.outcomes(some, data.train_on), strict=True):
            if isinstance(outcome, Unusable):
                bad.refuse(outcome, one.place)
            else:
                texts.append(outcome)
        for text, pieces in zip(texts, words.pieces([each.text for each in texts]), strict=True):
            yield mark(text, pieces, words.special)


def row_encoder(data: DataSpec, words: Tokenizer) -> Callable[[Mapping[str, object], int], Encoded | None]:
    """A function that encodes a row, given its number from 1, or returns None if there is nothing to learn from."""
    template = writer(data)

    def encode(row: Mapping[str, object], number: int) -> Encoded | None:
        one = conversation(mapped(row, data.columns), number, data.column)
        if empty(one, data.train_on) is not None:
            return None
        [text] = map(written, template.outcomes([one], data.train_on))
        [pieces] = words.pieces([text.text])
        return mark(text, pieces, words.special)

    return encode


def task_encoder(data: DataSpec, words: Tokenizer, task: str) -> Callable[[Mapping[str, object], int], Encoded]:
    """A function that encodes the longest sequence of a ``data=rows`` row, training its answer but not its prompt.

    Messages are rendered by the template, the one that TRL would use; a text is followed by its end token. A row that
    ``task`` cannot use is Unusable.
    """
    template, end = writer(data), () if words.end is None else (words.end,)

    def encode(row: Mapping[str, object], number: int) -> Encoded:
        named = mapped(row, data.columns)
        found = task_rows.read(named, task, number) if task else named
        return max((sequence(*each) for each in task_rows.sequences(found, number)), key=lambda one: len(one.ids))

    def sequence(prompt: object, answer: object) -> Encoded:
        if isinstance(prompt, str) and isinstance(answer, str):
            first, both = (words.encode_all([text])[0] for text in (prompt, prompt + answer))
            ids = [*both, *end]
            return Encoded(ids, [place >= len(first) for place in range(len(ids))])
        turns = [*(prompt if isinstance(prompt, list) else ()), *(answer if isinstance(answer, list) else ())]
        one = Conversation(tuple(turns), 0)
        [text] = map(written, template.outcomes([one], "last"))
        [pieces] = words.pieces([text.text])
        return mark(text, pieces, words.special)

    return encode


def mark(text: Rendered, pieces: Pieces, special: frozenset[int]) -> Encoded:
    """The tokens of a text, marked where their characters are trained."""
    ids, places = pieces
    if text.trained is None:
        return Encoded(ids, [True] * len(ids))
    trained = [False] * len(ids)
    for first, last in _tokens(places, text.trained):
        end = next((place + 1 - first for place in reversed(range(first, last)) if ids[place] in special), 0)
        behind = text.text[places[first + end - 1][1] : places[last - 1][1]] if end else ""
        last = first + end if end and not behind.strip() else last
        trained[first:last] = [True] * (last - first)
    return Encoded(ids, trained)


def _tokens(places: Sequence[Span], spans: Iterable[Span]) -> Iterator[tuple[int, int]]:
    """The first token of each span and the one after its last, skipping spans without tokens; both are in order."""
    token = 0
    for start, end in spans:
        while token < len(places) and places[token][1] <= start:
            token += 1
        first = token
        while token < len(places) and places[token][0] < end:
            token += 1
        if token > first:
            yield first, token


@dataclass(frozen=True, slots=True)
class Token:
    """A token, its text (empty for a later byte of a character), and whether it is a label."""

    id: int
    text: str
    trained: bool


@dataclass(frozen=True, slots=True)
class Preview:
    """One previewed sample (``data.preview``)."""

    row: int  # Row of the data, from 1.
    tokens: tuple[Token, ...]  # The tokens in the sample.
    cut: int  # Tokens of the conversation beyond the sample.

    @property
    def trained(self) -> int:
        """Number of labels; the first token is not one."""
        return sum(token.trained for token in self.tokens[1:])

    def as_dict(self) -> JsonObject:
        """The form in ``check --json``."""
        tokens = [asdict(token) for token in self.tokens]
        return {"row": self.row, "tokens": tokens, "trained": self.trained, "cut": self.cut}


def previews(data: DataSpec, length: int) -> list[Preview]:
    """The first ``data.preview`` conversations of a run, cut to ``length`` + 1 tokens as its samples are."""
    template, words, bad = writer(data), tokenizer(data.tokenizer, data.roles), BadRows.of(data)
    found: list[Preview] = []
    for one in conversations(table_rows(data, bad), data, Counter(), bad):
        if len(found) == data.preview:
            break
        [text] = template.outcomes([one], data.train_on)
        if isinstance(text, Unusable):
            bad.refuse(text)
            continue
        [(ids, places)] = words.pieces([text.text])
        marks = mark(text, (ids, places), words.special).trained or ()
        tokens, shown = [], 0
        for number, (start, end), trained in islice(zip(ids, places, marks, strict=True), length + 1):
            tokens.append(Token(number, text.text[max(start, shown) : end], trained))
            shown = max(end, shown)
        found.append(Preview(one.row, tuple(tokens), max(0, len(ids) - length - 1)))
    return found
