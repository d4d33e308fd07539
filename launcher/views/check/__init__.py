"""The result of a check as an object: as text, as the document of ``check --json``, and as a notebook's cell.

The cell has only inline styles and no script, since a notebook shows an untrusted cell without either; text is escaped.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.base.units import gib
from launcher.estimate.memory.result import MemoryEstimate, Peak
from launcher.estimate.memory.terms import Pile
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight.assess import Assessment, as_json, invalid_as_json
from launcher.preflight.fixes import Fix
from launcher.preflight.verdict import VerdictName
from launcher.rules.model import not_named
from launcher.spec import RunSpec

if TYPE_CHECKING:
    from launcher.preflight.explain import Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The pre-flight answer for one run; ``print`` shows what ``launch check`` prints."""

    assessment: Assessment | None
    errors: tuple[ConfigError, ...]
    warnings: tuple[ConfigError, ...]

    @classmethod
    def of(cls, assessment: Assessment, *, warnings: tuple[ConfigError, ...] = ()) -> "Check":
        """The answer about a judged run; ``warnings`` stand before its own."""
        judged = replace(assessment, warnings=(*warnings, *assessment.warnings))
        return cls(assessment=judged, errors=judged.errors, warnings=judged.warnings)

    @property
    def verdict(self) -> VerdictName:
        """The answer in one word: ``fits``, ``tight``, ``does_not_fit``, ``invalid`` or ``unknown``."""
        return "invalid" if self.assessment is None else self.assessment.verdict.name

    @property
    def fits(self) -> bool | None:
        """True if the run fits, also when only within the error band; None when the model of a script is unknown."""
        return False if self.assessment is None else self.assessment.verdict.fits

    @property
    def spec(self) -> RunSpec | None:
        """The settings of the run; None when the overrides are invalid."""
        return None if self.assessment is None else self.assessment.spec

    @property
    def peak(self) -> Peak | None:
        """The peak of the worst rank in bytes; None for an invalid run, and where the verdict is ``unknown``."""
        estimate = None if self.assessment is None else self.assessment.estimate
        return None if estimate is None else estimate.peak

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """Changes that would make it fit, cheapest first; each has its ``overrides``."""
        return () if self.assessment is None else self.assessment.fixes

    @property
    def speed(self) -> SpeedEstimate | None:
        """The predicted speed, even when the run does not fit; None when unknown."""
        return None if self.assessment is None else self.assessment.speed

    def explain(self, pile: Pile) -> "Explanation":
        """The terms of one pile, as ``launch check --explain`` prints them; raises ConfigErrors without an estimate."""
        from launcher.preflight.explain import explained  # Imported late: few checks ask for it.

        return explained(self._estimated().spec, pile)

    def speed_table(self, width: int = 80) -> str:
        """The parts of a step, as ``launch check --speed`` prints them; raises ConfigErrors without an estimate."""
        from launcher.views.check import detail  # Imported late: few checks ask for it.

        return detail.speed_text(self._estimated(), width)

    def _estimated(self) -> Assessment:
        if self.assessment is None or self.assessment.estimate is None:
            raise ConfigErrors(self.errors or [not_named()])
        return self.assessment

    def as_dict(self) -> dict[str, Any]:
        """The document of ``launch check --json`` (docs/contract/documents.md)."""
        return invalid_as_json(self.errors, self.warnings) if self.assessment is None else as_json(self.assessment)

    def as_text(self, width: int = 80) -> str:
        """The text of ``launch check`` on a terminal of ``width`` columns."""
        from launcher.views.check.text import as_text, errors_as_text  # Imported late: a JSON document needs no text.

        return errors_as_text(self.errors, width) if self.assessment is None else as_text(self.assessment, width)

    def __str__(self) -> str:
        return self.as_text()

    def _repr_html_(self) -> str:
        from launcher.charts.html import tag
        from launcher.views.check import sentences, text

        assessment, colour = self.assessment, _COLOURS[self.verdict]
        parts: list[object] = [tag("b", self.verdict.replace("_", " ").upper(), style=f"color:{colour}")]
        if assessment is not None and not assessment.errors:
            run, answer = text.heading(assessment)
            parts.append(f" {run}")
            parts += [part for said in (answer, *sentences.speed(assessment)) for part in (tag("br"), said)]
        if assessment is not None and assessment.estimate is not None:
            parts.append(_piles(assessment.estimate, assessment.verdict.capacity_bytes, colour))
        for title, errors in (("errors", self.errors), ("warnings", self.warnings)):
            parts += _listed(title, map(_finding, errors))
        title = f"what would {'leave room' if self.fits else 'fit'}, cheapest first"
        fixes = (
            [tag("code", " ".join(fix.overrides)), f" needs {gib(fix.peak_bytes)}; {fix.price}"] for fix in self.fixes
        )
        return tag("div", *parts, *_listed(title, fixes))


_COLOURS: dict[VerdictName, str] = {
    "fits": "#2e8b57", "tight": "#c77f0a", "does_not_fit": "#c0392b", "invalid": "#c0392b", "unknown": "#808080",
}  # fmt: skip
_BAR = "display:inline-block;height:.8em;background:{};width:{:.1f}%"
_CELLS = ("text-align:left", "text-align:right;white-space:nowrap", "text-align:left;width:30em")


def _piles(estimate: MemoryEstimate, capacity: int | None, colour: str) -> str:
    from launcher.charts.html import tag

    total = estimate.peak.device_bytes
    known = sorted((pile for pile in estimate.piles if pile.bytes), key=lambda pile: -pile.bytes)
    rows = [(pile.pile.replace("_", " "), pile.bytes, "#4d7ea8") for pile in known]
    rows.append(("whole process", total, colour))
    rows += [] if capacity is None else [("capacity", capacity, "#888888")]
    scale = 100 / max(total, capacity or 0, 1)
    drawn = ((name, gib(size), tag("span", style=_BAR.format(hue, size * scale))) for name, size, hue in rows)
    cells = ([tag("td", cell, style=style) for cell, style in zip(row, _CELLS, strict=True)] for row in drawn)
    return tag("table", *(tag("tr", *row) for row in cells), style="margin-top:.5em")


def _finding(finding: ConfigError) -> Iterator[object]:
    from launcher.charts.html import tag

    yield from (tag("code", finding.where), f": {finding.rule}")
    for number, way in enumerate(finding.way_out):
        yield from ("; try " if number == 0 else " or ", tag("code", way))


def _listed(title: str, entries: Iterable[Iterable[object]]) -> Iterator[str]:
    from launcher.charts.html import items, joined, tag

    if found := [joined(*entry) for entry in entries]:
        yield from (tag("p", title), items(found))
