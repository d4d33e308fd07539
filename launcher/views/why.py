"""Why a run ended, as text for a terminal: sentences, piles, what would help, the evidence, and earlier attempts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields

from launcher.base.terminal import visible
from launcher.base.units import gib
from launcher.why.answer import Answer, PileRow

_SMALLEST = 0.005
"""Share of the largest pile below which one is not shown."""

_INDENT = "      "


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(Answer):
    """The answer of ``Run.why()``; ``print`` shows what ``launch why`` prints."""

    @classmethod
    def of(cls, answer: Answer) -> Explained:
        """The same answer, with its text."""
        return cls(**{field.name: getattr(answer, field.name) for field in fields(answer)})

    def __str__(self) -> str:
        return as_text(self)


def as_text(answer: Answer, width: int = 80) -> str:
    """The text of ``launch why RUN``."""
    lines = [*_wrapped(f"{answer.id} {_ended(answer)}: {answer.said[0]}.", width)]
    for sentence in answer.said[1:]:
        lines += _wrapped(f"{sentence[:1].upper()}{sentence[1:]}.", width)
    if any(row.measured_bytes is not None for row in answer.piles):
        lines += ["", *_piles(answer)]
    if answer.ways:
        lines += ["", answer.ways_title]
        for way in answer.ways:
            lines += [f"  {way.command}", *_wrapped(way.text, width, _INDENT)]
    if answer.evidence:
        lines += ["", "evidence:"]
        for each in answer.evidence:
            place = each.file if each.line is None else f"{each.file}:{each.line}"
            lines += _wrapped(f"{place}  {each.text}", width, "  ", "      ")
    if answer.earlier:
        lines += ["", "earlier attempts:"]
        lines += [line for text in answer.earlier for line in _wrapped(text, width, "  ", "      ")]
    return "\n".join(lines)


def as_line(answer: Answer) -> str:
    """One line about a run of a sweep."""
    pile = "" if answer.pile is None else f" ({answer.pile.replace('_', ' ')})"
    return f"{answer.id}: {answer.cause.replace('_', ' ')}{pile}: {answer.said[0]}"


def _ended(answer: Answer) -> str:
    words = {
        "out_of_memory": "ran out of memory",
        "rank_killed": "lost a rank",
        "hang": "hung",
        "nan": "diverged",
        "time_limit": "met its time limit",
        "preempted": "was preempted",
        "disk": "ran out of disk",
        "error": "failed",
        "none": f"is {answer.state}",
    }
    return words[answer.cause]


def _piles(answer: Answer) -> Iterator[str]:
    """A table of piles, those that matter."""
    largest = max(max(row.predicted_bytes or 0, row.measured_bytes or 0) for row in answer.piles)
    yield f"  {'pile':18} {'predicted':>11} {'measured':>11} {'difference':>12}"
    for row in answer.piles:
        if max(row.predicted_bytes or 0, row.measured_bytes or 0) >= _SMALLEST * largest:
            mark = "  <-" if row.pile == answer.pile else ""
            sizes = f"{_size(row.predicted_bytes):>11} {_size(row.measured_bytes):>11} {_difference(row):>12}"
            yield f"  {row.pile.replace('_', ' '):18} {sizes}{mark}"


def _size(size: int | None) -> str:
    return "-" if size is None else gib(size)


def _difference(row: PileRow) -> str:
    if row.predicted_bytes is None or row.measured_bytes is None:
        return "-"
    return f"{'+' if row.grown_bytes >= 0 else '-'}{gib(abs(row.grown_bytes))}"


def _wrapped(text: str, width: int, first: str = "", then: str | None = None) -> list[str]:
    then = first if then is None else then
    return textwrap.wrap(
        visible(text),
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_on_hyphens=False,
        break_long_words=False,
    )
