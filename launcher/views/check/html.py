"""A check in a notebook's cell: verdict, piles as bars against the capacity, errors, warnings and ways out.

Only inline styles and no script, since a notebook shows an untrusted cell without either; text is escaped, since names
of models and paths are the user's or a recipe's. Colours are mid tones that can be read on a light and a dark page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from launcher.base.errors import ConfigError
from launcher.base.terminal import in_html
from launcher.base.units import gib
from launcher.estimate.memory.result import MemoryEstimate
from launcher.preflight.assess import Assessment
from launcher.preflight.fixes import Fix
from launcher.preflight.verdict import VerdictName
from launcher.views.check import speed_line
from launcher.views.check.text import heading

_COLOURS: dict[VerdictName, str] = {
    "fits": "#2e8b57",
    "tight": "#c77f0a",
    "does_not_fit": "#c0392b",
    "invalid": "#c0392b",
    "unknown": "#808080",
}
_BAR = "display:inline-block;height:.8em;background:{};width:{:.1f}%"
_WIDTH = "30em"


def as_html(
    verdict: VerdictName,
    assessment: Assessment | None,
    errors: Sequence[ConfigError],
    warnings: Sequence[ConfigError],
) -> str:
    """The whole cell."""
    word = verdict.replace("_", " ").upper()
    parts = [f'<div><b style="color:{_COLOURS[verdict]}">{word}</b>']
    if assessment is not None and not assessment.errors:
        run, answer = heading(assessment)
        parts.append(f" {in_html(run)}<br>{in_html(answer)}")
        parts += [f"<br>{in_html(text)}" for text in speed_line.sentences(assessment)]
    if assessment is not None and assessment.estimate is not None:
        parts += _piles(assessment.estimate, assessment.verdict.capacity_bytes, _COLOURS[verdict])
    parts += _findings("errors", errors)
    parts += _findings("warnings", warnings)
    if assessment is not None:
        parts += _fixes(assessment.fixes, fits=assessment.verdict.fits is True)
    return "".join([*parts, "</div>"])


def _piles(estimate: MemoryEstimate, capacity: int | None, colour: str) -> Iterator[str]:
    """A row a pile with its bar, then the whole against the capacity."""
    total = estimate.peak.device_bytes
    scale = 100 / max(total, capacity or 0, 1)
    yield '<table style="margin-top:.5em">'
    for pile in sorted((pile for pile in estimate.piles if pile.bytes), key=lambda pile: -pile.bytes):
        yield _row(pile.pile.replace("_", " "), pile.bytes, scale, "#4d7ea8")
    yield _row("whole process", total, scale, colour)
    if capacity is not None:
        yield _row("capacity", capacity, scale, "#888888")
    yield "</table>"


def _row(name: str, size: int, scale: float, colour: str) -> str:
    bar = f'<span style="{_BAR.format(colour, size * scale)}"></span>'
    cells = f'<td style="text-align:left">{name}</td><td style="text-align:right;white-space:nowrap">{gib(size)}</td>'
    return f'<tr>{cells}<td style="text-align:left;width:{_WIDTH}">{bar}</td></tr>'


def _findings(kind: str, findings: Iterable[ConfigError]) -> Iterator[str]:
    rows = [
        f"<li><code>{in_html(finding.where)}</code>: {in_html(finding.rule)}{_ways(finding.way_out)}</li>"
        for finding in findings
    ]
    if rows:
        yield f"<p>{kind}</p><ul>{''.join(rows)}</ul>"


def _ways(ways: Sequence[str]) -> str:
    return f"; try {' or '.join(f'<code>{in_html(way)}</code>' for way in ways)}" if ways else ""


def _fixes(fixes: Iterable[Fix], *, fits: bool) -> Iterator[str]:
    rows = [
        f"<li><code>{in_html(' '.join(fix.overrides))}</code> needs {gib(fix.peak_bytes)}; {in_html(fix.price)}</li>"
        for fix in fixes
    ]
    if rows:
        yield f"<p>what would {'leave room' if fits else 'fit'}, cheapest first</p><ul>{''.join(rows)}</ul>"
