"""Why a run ended, as terminal text: reason, piles, ways out, evidence, and earlier attempts."""

from collections.abc import Iterator
from dataclasses import fields

from launcher.base.frozen import dataclass
from launcher.base.terminal import visible, wrapped
from launcher.base.units import gib
from launcher.job.memory import PileRow
from launcher.views import pairs
from launcher.why.answer import Answer

_SMALLEST = 0.005  # Smallest pile shown, as a share of the largest.
_INDENT = "      "
_FORM = "  {:18} {:>11} {:>11} {:>12}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained(Answer):
    """The answer of ``Run.why()``; ``print`` shows what ``launch why`` prints."""

    @classmethod
    def of(cls, answer: Answer) -> "Explained":
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
            lines += [f"  {way.command}", *_wrapped(way.text, width, _INDENT, _INDENT)]
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
    """One line on a run of a sweep."""
    pile = "" if answer.pile is None else f" ({answer.pile.replace('_', ' ')})"
    return f"{answer.id}: {answer.cause.replace('_', ' ')}{pile}: {answer.said[0]}"


def _ended(answer: Answer) -> str:
    words = {
        "out_of_memory": "ran out of memory", "rank_killed": "lost a rank", "hang": "hung", "nan": "diverged",
        "time_limit": "met its time limit", "preempted": "was preempted", "disk": "ran out of disk", "error": "failed",
        "none": f"is {answer.state}",
    }  # fmt: skip
    return words[answer.cause]


def _piles(answer: Answer) -> Iterator[str]:
    least = _SMALLEST * max(row.largest_bytes for row in answer.piles)
    yield _FORM.format("pile", "predicted", "measured", "difference")
    shown = [row for row in answer.piles if row.largest_bytes >= least]
    yield from pairs.rows(_FORM, ((row.pile, row.sizes, _difference(row, answer)) for row in shown))


def _difference(row: PileRow, answer: Answer) -> str:
    size = row.sizes.difference
    text = "-" if size is None else f"{'+' if size >= 0 else '-'}{gib(abs(size))}"
    return f"{text:>12}{'  <-' if row.pile == answer.pile else ''}"


def _wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    return wrapped(visible(text), width, first, rest)
