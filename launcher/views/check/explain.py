"""The text of ``launch check --explain PILE``: the terms of a pile, their symbols, and the error band."""

from __future__ import annotations

import textwrap

from launcher.base.units import gib
from launcher.estimate.memory.band import Band
from launcher.estimate.memory.moments import ALWAYS, MOMENTS, TRAINING, Moments
from launcher.estimate.memory.terms import MemoryTerm
from launcher.preflight.explain import Explanation


def as_text(found: Explanation, width: int = 80) -> str:
    """The explanation for a terminal of ``width`` columns."""
    place = f"the worst rank (stage {found.stage}) at its peak, {found.moment.replace('_', ' ')}"
    name = found.pile.replace("_", " ")
    total = sum(term.bytes for term in found.at_peak)
    lines = textwrap.wrap(f"{name} of {place}: {gib(total)} ({total:,} bytes)", width)
    for term in found.at_peak:
        lines += ["", *_as_lines(term, width)]
    if found.elsewhere:
        lines += ["", f"{name} at other moments:"]
        for term in found.elsewhere:
            lines += ["", *_as_lines(term, width)]
    if found.symbols:
        lines += ["", "symbols:"]
        for symbol, meaning in found.symbols.items():
            lines += textwrap.wrap(f"{symbol}: {meaning}", width, initial_indent="  ", subsequent_indent="    ")
    lines += ["", *textwrap.wrap(_band(found.band), width, break_on_hyphens=False)]
    return "\n".join(lines)


def _band(band: Band) -> str:
    """The band's ends and the runs that they are of, and why those where they are not of the framework's own."""
    if band.own:
        whose = f"{band.rows} runs of {band.whose}"
    elif band.runs_on is not None:
        whose = f"{band.rows} runs of {band.whose}, which is {band.runs_on} too"
    else:
        whose = f"{band.rows} runs of {band.whose}, the widest there is: too few runs of this kind were measured"
    return (
        f"error band of the verdict: {band.low:.3f} to {band.high:.3f} times what is needed, measured / predicted in"
        f" {whose} (launcher/estimate/memory/residuals.json)"
    )


def _as_lines(term: MemoryTerm, width: int) -> list[str]:
    rows = [
        f"= {term.symbols}",
        f"= {term.numbers}",
        f"= {term.bytes:,} bytes, {gib(term.bytes)}",
        f"when: {when(term.moments)}",
        f"source: {term.source}",
    ]
    lines = textwrap.wrap(term.what, width, initial_indent="  ", subsequent_indent="  ")
    for row in rows:
        wrapped = textwrap.wrap(row, width, initial_indent="    ", subsequent_indent="      ", break_on_hyphens=False)
        lines += wrapped
    return lines


def when(moments: Moments) -> str:
    """The moments of a term in the order of a step, in words where they are all."""
    if moments == ALWAYS:
        return "always"
    if moments == TRAINING:
        return "always, once the model is loaded"
    return ", ".join(moment.replace("_", " ") for moment in MOMENTS if moment in moments)
