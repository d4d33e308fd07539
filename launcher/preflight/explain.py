"""``check --explain PILE``: every term of a pile with its symbols, numbers, bytes, moments and source.

The terms are those of the estimate's worst rank. Terms that are live at the rank's peak come first and sum to the pile
that ``check`` prints; the others make up the pile at other moments. The error band of the verdict comes last, with the
measured runs that it is taken from.
"""

from collections.abc import Iterable
from dataclasses import asdict

from launcher.base.files import JsonObject
from launcher.base.formula import names_in
from launcher.base.frozen import dataclass
from launcher.estimate.memory.estimate import RankTerms, error_band, rank_terms, worst_rank
from launcher.estimate.memory.moments import MOMENTS
from launcher.estimate.memory.result import Band
from launcher.estimate.memory.terms import MemoryTerm, Pile, symbols
from launcher.preflight.assess import parts
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The terms of one pile on the worst rank."""

    pile: Pile  # The pile.
    stage: int  # The rank's pipeline stage.
    moment: str  # When the rank is at its peak.
    at_peak: tuple[MemoryTerm, ...]  # The terms that are live then, the largest first.
    elsewhere: tuple[MemoryTerm, ...]  # The terms that are not.
    band: Band  # The measured runs behind the error band of the verdict.

    @property
    def symbols(self) -> dict[str, str]:
        """The legend of the names that the terms use."""
        names = {name for term in (*self.at_peak, *self.elsewhere) for name in names_in(term.expression)}
        return {name: symbols().get(name, "as its source says") for name in sorted(names, key=str.lower)}

    def as_dict(self) -> JsonObject:
        """The part that ``check --explain PILE --json`` adds to the document."""
        return {
            "pile": self.pile,
            "stage": self.stage,
            "moment": self.moment,
            "terms": [_as_dict(term, at_peak=True) for term in self.at_peak]
            + [_as_dict(term, at_peak=False) for term in self.elsewhere],
            "symbols": self.symbols,
            "band": {name: value for name, value in asdict(self.band).items() if name != "quantiles"},
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
        band=error_band(spec, model["backend"], model["family"]),
    )


def _terms(rank: RankTerms, pile: Pile) -> Iterable[MemoryTerm]:
    if pile == "fragmentation":
        return [term for term in (rank.lost(rank.peak[0]),) if term.bytes]
    return [term for term in rank.terms if term.pile == pile and term.bytes]


def _as_dict(term: MemoryTerm, *, at_peak: bool) -> JsonObject:
    return {
        "what": term.what,
        "symbols": term.symbols,
        "numbers": term.numbers,
        "bytes": term.bytes,
        "moments": [moment for moment in MOMENTS if moment in term.moments],
        "at_peak": at_peak,
        "source": term.source,
    }
