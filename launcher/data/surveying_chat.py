"""Conversations of a sample as training tokens: their lengths, and whether any token is trained."""

import math
from collections.abc import Iterator
from dataclasses import replace

from launcher.data.chat import mapped
from launcher.data.encoding import row_encoder, task_encoder
from launcher.data.formats import Row
from launcher.data.sampling import Sample, ratio_estimate
from launcher.data.survey import Survey
from launcher.data.tokenizer import quick_tokenizer
from launcher.data.unusable import BadRows, Unusable
from launcher.spec import DataSpec
from launcher.spec.training import ROWS

_ENCODED = 1 << 19  # Characters of rows that are rendered and tokenised.


def with_tokens(survey: Survey, sample: Sample, data: DataSpec, bad: BadRows, task: str) -> Survey:
    """Add to a survey the tokens of a sample's rows, or of evenly spaced ones if there are many.

    A row with nothing to learn from has no tokens and is not a sample; ``bad`` collects rows that cannot be encoded.
    """
    words = quick_tokenizer(data.tokenizer, data.roles)
    read = task if {*ROWS.get(task, ())} <= {*survey.columns} else ""  # Columns that all rows lack are reported once.
    encode = task_encoder(data, words, read) if data.source == "rows" else row_encoder(data, words)
    rows = list(_weighed(sample))
    step = math.ceil(sum(len(str(row)) for _, row, _ in rows) / _ENCODED) or 1
    weights: list[float] = []
    lengths: list[int] = []
    labels: list[int | None] = []
    largest, equal, paired = -1, 0, "rejected" in ROWS.get(read, ())
    for number, (weight, row, place) in enumerate(rows[::step]):
        try:
            one = encode(row, number * step + 1 if sample.whole else 0)
        except Unusable as error:
            bad.refuse(_without_number(error), place)
            continue
        ids, trained = ((), ()) if one is None else (one.ids, one.trained or ())
        weights.append(weight)
        lengths.append(len(ids))
        labels.append(next((place for place, label in enumerate(trained) if label and place), None))
        largest = max(largest, max(ids, default=-1))
        equal += paired and (pair := mapped(row, data.columns))["chosen"] == pair["rejected"]
    bad.require_few()
    tokens, error_of_tokens = ratio_estimate(sample.weight, weights, lengths)
    return replace(
        survey,
        tokens=round(tokens),
        tokens_error=0 if sample.whole and step == 1 else max(1, math.ceil(error_of_tokens)),
        vocabulary=words.size,
        largest=largest,
        empty=lengths.count(0),
        equal=equal,
        samples=tuple((length, label) for length, label in zip(lengths, labels, strict=True) if length),
    )


def _weighed(sample: Sample) -> Iterator[tuple[float, Row, str]]:
    for block in sample.blocks:
        weight = block.weight / max(1, len(block.rows))
        yield from ((weight, row, place) for row, place in zip(block.rows, block.places, strict=True))


def _without_number(error: Unusable) -> Unusable:
    """The error without the number of its row, which is unknown in a sample from the middle of a file."""
    finding = error.finding
    return type(error)(finding.path, finding.found, finding.rule.replace("row 0", "a row"), finding.way_out)
