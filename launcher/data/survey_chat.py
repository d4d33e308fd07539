"""The conversations of a sample, as the tokens that they are trained on: how long they are, and whether anything is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from launcher.data.encoding import row_encoder
from launcher.data.formats import Row
from launcher.data.sampling import Sample
from launcher.data.tokenizer import quick_tokenizer
from launcher.data.unusable import BadRows, Unusable
from launcher.spec import DataSpec

_ENCODED = 1 << 19
"""Characters of rows that are written by the template and tokenised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRows:
    """The encoded rows of a sample.

    Attributes:
        weights: Of each row that was tried, the bytes on disk that it stands for.
        tokens: Of each, their number; 0 for one that has nothing to learn from.
        labels: Of each, the place of the first token that is trained as a label; None where none is.
        whole: True if all rows of the sample were tried.
        vocabulary: One more than the tokenizer's largest id.
        largest: The largest id.
    """

    weights: tuple[float, ...]
    tokens: tuple[int, ...]
    labels: tuple[int | None, ...]
    whole: bool
    vocabulary: int
    largest: int


def encoded(found: Sample, data: DataSpec, bad: BadRows) -> EncodedRows:
    """Encode the rows of a sample, or some at equal distances where they are many; ``bad`` has those that cannot be."""
    words = quick_tokenizer(data.tokenizer)
    encode = row_encoder(data, words)
    rows = list(_weighed(found))
    step = math.ceil(sum(len(str(row)) for _, row, _ in rows) / _ENCODED) or 1
    weights: list[float] = []
    tokens: list[int] = []
    labels: list[int | None] = []
    largest = -1
    for number, (weight, row, place) in enumerate(rows[::step]):
        try:
            one = encode(row, number * step + 1 if found.whole else 0)
        except Unusable as error:
            bad.refuse(_without_number(error), place)
            continue
        weights.append(weight)
        ids, trained = ((), ()) if one is None else (one.ids, one.trained or ())
        largest = max(largest, max(map(int, ids), default=-1))
        tokens.append(len(ids))
        labels.append(next((place for place, label in enumerate(trained) if label and place), None))
    return EncodedRows(
        weights=tuple(weights),
        tokens=tuple(tokens),
        labels=tuple(labels),
        whole=step == 1,
        vocabulary=words.size,
        largest=largest,
    )


def _weighed(found: Sample) -> Iterator[tuple[float, Row, str]]:
    for block in found.blocks:
        weight = block.weight / max(1, len(block.rows))
        yield from ((weight, row, place) for row, place in zip(block.rows, block.places, strict=True))


def _without_number(error: Unusable) -> Unusable:
    """The error without the number of its row, which nobody knows in a sample from the middle of a file."""
    finding = error.finding
    return type(error)(finding.path, finding.found, finding.rule.replace("row 0", "a row"), finding.way_out)
