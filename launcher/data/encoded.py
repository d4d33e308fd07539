"""The token ids of one document or conversation, before it is written to a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class Unfinished(str):
    """A piece of a document that goes on in the next string, so that nobody has to hold a long one as a whole."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids, and which of them are trained as labels; ``trained`` is None for text: all of them, end to end.

    A text's documents become one long row of tokens that is cut into samples; where ``trained`` is given, these ids are
    one sample.
    """

    ids: Sequence[int]
    trained: Sequence[bool] | None = None
