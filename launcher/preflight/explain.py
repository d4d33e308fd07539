"""``check --explain PILE``: every term of a pile with its symbols, numbers, bytes, moments and source.

The terms are those of the estimate, of its worst rank. Those that are alive at the rank's peak come first and sum to
the pile that ``check`` prints; the others show what the pile is at other moments. Last comes the error band of the
verdict: the measured runs that its ends are taken from.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from launcher.base.formula import names_in
from launcher.base.units import gib
from launcher.estimate.memory import device
from launcher.estimate.memory.band import Band
from launcher.estimate.memory.estimate import RankTerms, error_band, rank_terms, worst_rank
from launcher.estimate.memory.moments import ALWAYS, MOMENTS, TRAINING, Moments
from launcher.estimate.memory.symbols import SYMBOLS
from launcher.estimate.memory.terms import MemoryTerm, Pile
from launcher.preflight.assess import parts
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The terms of one pile on the worst rank.

    Attributes:
        pile: The pile.
        stage: The rank's pipeline stage.
        moment: When the rank is at its peak.
        at_peak: The terms that are alive then, the largest first.
        elsewhere: Those that are not.
        band: The measured runs behind the error band of the verdict.
    """

    pile: Pile
    stage: int
    moment: str
    at_peak: tuple[MemoryTerm, ...]
    elsewhere: tuple[MemoryTerm, ...]
    band: Band

    @property
    def symbols(self) -> dict[str, str]:
        """The legend of the names that the terms use."""
        names = {name for term in (*self.at_peak, *self.elsewhere) for name in names_in(term.expression)}
        return {name: SYMBOLS.get(name, "as its source says") for name in sorted(names, key=str.lower)}

    def as_dict(self) -> dict[str, Any]:
        """The part that ``check --explain PILE --json`` adds to the document."""
        return {
            "pile": self.pile,
            "stage": self.stage,
            "moment": self.moment,
            "terms": [_as_dict(term, at_peak=True) for term in self.at_peak]
            + [_as_dict(term, at_peak=False) for term in self.elsewhere],
            "symbols": self.symbols,
            "band": asdict(self.band),
        }


def explained(spec: RunSpec, pile: Pile) -> Explanation:
    """The terms of one pile of a valid run."""
    model = parts(spec)
    worst = worst_rank(rank_terms(spec, **model))
    _, moment = worst.peak
    own = sorted(_terms(worst, pile), key=lambda term: -term.bytes)
    return Explanation(
        pile=pile,
        stage=worst.model.view.stage,
        moment=moment,
        at_peak=tuple(term for term in own if moment in term.moments),
        elsewhere=tuple(term for term in own if moment not in term.moments),
        band=error_band(spec, model["backend"]),
    )


def _terms(rank: RankTerms, pile: Pile) -> Iterable[MemoryTerm]:
    if pile == "fragmentation":
        return [term for term in (device.fragmentation(rank.model.spec, rank.peak[0]),) if term.bytes]
    return [term for term in rank.terms if term.pile == pile and term.bytes]


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


def _as_dict(term: MemoryTerm, *, at_peak: bool) -> dict[str, Any]:
    return {
        "what": term.what,
        "symbols": term.symbols,
        "numbers": term.numbers,
        "bytes": term.bytes,
        "moments": [moment for moment in MOMENTS if moment in term.moments],
        "at_peak": at_peak,
        "source": term.source,
    }
