"""The page of ``launch check --plot FILE.html``: one file with the figure and its numbers, which loads nothing.

The figure is the SVG of ``launcher.preflight.plot``, put in as it is. Tables beside it give the same piles in numbers,
then the time of a step by part, the formulas and sources of the peak, and the ways out. All text is escaped, since
names of models and paths are the user's or a recipe's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from launcher.memory.breakdown import Breakdown, Column
from launcher.memory.result import MemoryEstimate
from launcher.memory.terms import PILES
from launcher.preflight import speed_line
from launcher.preflight.assess import Assessment
from launcher.preflight.plot_time import said
from launcher.preflight.report import heading
from launcher.preflight.speed_line import name_of
from launcher.speed.result import SpeedEstimate
from launcher.text.terminal import in_html
from launcher.text.units import gib

_NOISE = 1e-9
"""Seconds below which hidden time is a rounding error."""

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; margin: 2rem; max-width: 110rem; }
h1 { font-size: 1.3rem; margin: 0 0 .3rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
.beside { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start; }
.beside > figure { flex: 1 1 40rem; margin: 0; } .beside > div { flex: 0 1 auto; overflow-x: auto; }
body > div { overflow-x: auto; margin-top: 1.6rem; }
figure svg { width: 100%; height: auto; }
table { border-collapse: collapse; } caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td.text { text-align: left; } td.text { white-space: normal; max-width: 45rem; }
tfoot td { font-weight: 600; border-top: 2px solid #888; } code { background: #f3f3f3; padding: 0 .25rem; }
"""


def page(assessment: Assessment, columns: Breakdown, svg: str) -> str:
    """The whole page.

    Args:
        assessment: A valid run.
        columns: Its piles.
        svg: The figure, from ``<svg`` on.
    """
    run, verdict = heading(assessment)
    estimate = assessment.estimate
    if estimate is None:
        raise AssertionError("a page of a run that is not valid")
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        # The page may load nothing from anywhere; a browser that honours this line holds it to that.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{in_html(run)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{in_html(run)}</h1><p>{in_html(verdict)}</p>",
        f'<div class="beside"><figure>{svg}</figure><div>',
        *_columns("phases", "by phase, each at its peak", columns.phases, [_phase(c) for c in columns.phases]),
        *_counters(assessment, estimate),
        "</div></div>",
    ]
    if len(columns.stages) > 1:
        names = [f"stage {column.stage} ({_phase(column)})" for column in columns.stages]
        parts += ["<div>", *_columns("stages", "by pipeline stage, each at its peak", columns.stages, names), "</div>"]
    if assessment.speed is not None:
        parts += _speed(assessment, assessment.speed)
    return "\n".join([*parts, *_formulas(estimate), *_fixes(assessment), "</body></html>", ""])


def _columns(identity: str, caption: str, columns: Sequence[Column], names: Sequence[str]) -> Iterator[str]:
    """A row a pile and a column a peak, and their sums."""
    yield f'<table id="{identity}"><caption>{caption}</caption>'
    yield f"<thead>{_row('th', ['', *names])}</thead><tbody>"
    for pile in PILES:
        sizes = [column.piles.get(pile, 0) for column in columns]
        if any(sizes):
            yield _row("td", [pile.replace("_", " "), *(gib(size) if size else "" for size in sizes)])
    yield "</tbody><tfoot>"
    yield _row("td", ["allocated", *(gib(column.allocated_bytes) for column in columns)])
    yield _row("td", ["whole process", *(gib(column.device_bytes) for column in columns)])
    yield "</tfoot></table>"


def _counters(assessment: Assessment, estimate: MemoryEstimate) -> Iterator[str]:
    peak, outside, capacity = estimate.peak, estimate.outside_bytes, assessment.verdict.capacity_bytes
    rows = [
        ("allocated (max_memory_allocated)", gib(peak.allocated_bytes)),
        ("needed, with context and communicators", gib(peak.needed_bytes + outside)),
        ("its error band", f"{gib(peak.low_bytes + outside)} to {gib(peak.high_bytes + outside)}"),
        ("reserved (max_memory_reserved)", gib(peak.reserved_bytes)),
        ("whole process (nvidia-smi)", gib(peak.device_bytes)),
        ("capacity", "unknown" if capacity is None else gib(capacity)),
        ("between two steps, allocated", gib(estimate.static_bytes)),
    ]
    yield '<h2>the peak of the worst rank</h2><table id="peak"><tbody>'
    yield from (_row("td", row) for row in rows)
    yield "</tbody></table>"


def _speed(assessment: Assessment, speed: SpeedEstimate) -> Iterator[str]:
    """The sentences about speed, then a row a part."""
    yield "<h2>the time of a step, by part</h2>"
    yield from (f"<p>{in_html(sentence)}</p>" for sentence in speed_line.said(assessment))
    yield '<table id="speed"><thead>'
    yield f"{_row('th', ['part', 'waited for', 'share', 'hidden', 'formula', 'source'])}</thead><tbody>"
    for part, terms in speed.parts():
        exposed = speed.exposed(part)
        hidden = sum(term.seconds for term in terms) - exposed
        cells = [name_of(part), said(exposed), f"{exposed / speed.step_seconds:.1%}"]
        cells.append(said(hidden) if hidden > _NOISE else "")
        texts = (" + ".join(term.formula for term in terms), "; ".join(dict.fromkeys(term.source for term in terms)))
        yield f"<tr>{_cells(cells)}{_cells(texts, kind='text')}</tr>"
    yield f"</tbody><tfoot>{_row('td', ['a step', said(speed.step_seconds), '100.0%', '', '', ''])}</tfoot></table>"


def _cells(texts: Iterable[str], kind: str | None = None) -> str:
    return "".join(f"<td{'' if kind is None else f' class="{kind}"'}>{in_html(text)}</td>" for text in texts)


def _formulas(estimate: MemoryEstimate) -> Iterator[str]:
    yield '<h2>how the piles at the peak were computed</h2><table id="formulas"><thead>'
    yield f"{_row('th', ['pile', 'size', 'formula', 'source'])}</thead><tbody>"
    for pile in sorted(estimate.piles, key=lambda pile: -pile.bytes):
        cells = f"<td>{pile.pile.replace('_', ' ')}</td><td>{gib(pile.bytes)}</td>"
        cells += "".join(f'<td class="text">{in_html(text)}</td>' for text in (pile.formula, pile.source))
        yield f"<tr>{cells}</tr>"
    yield "</tbody></table>"


def _fixes(assessment: Assessment) -> Iterator[str]:
    if assessment.fixes:
        yield "<h2>what would fit, cheapest first</h2><ul>"
        for fix in assessment.fixes:
            overrides, price = in_html(" ".join(fix.overrides)), in_html(fix.price)
            yield f"<li><code>{overrides}</code> needs {gib(fix.peak_bytes)}; {price}</li>"
        yield "</ul>"


def _row(cell: str, texts: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{cell}>{in_html(text)}</{cell}>' for text in texts)}</tr>"


def _phase(column: Column) -> str:
    return column.phase.replace("_", " ")
