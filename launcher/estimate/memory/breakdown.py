"""The piles of every phase and of every pipeline stage, from the same terms as the estimate."""

from collections.abc import Iterable, Sequence
from dataclasses import field

from launcher.base.frozen import dataclass
from launcher.estimate.memory.estimate import RankTerms
from launcher.estimate.memory.moments import MOMENTS, PHASES, Moment, Phase
from launcher.estimate.memory.result import MemoryEstimate, PileBytes, RankPeak
from launcher.estimate.memory.terms import OUTSIDE_PILES, PILES, MemoryTerm, Pile


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The piles of one rank at one moment."""

    phase: Phase  # The phase of the moment.
    stage: int  # The pipeline stage of the rank.
    # Bytes of each pile that is not empty, in the order of ``PILES``. ``fragmentation`` applies the share that the
    # allocator loses at the stage's peak to the bytes allocated here.
    piles: dict[Pile, int] = field(hash=False)
    terms: tuple[MemoryTerm, ...] = field(default=(), hash=False)  # The terms of all piles but ``fragmentation``.

    @property
    def device_bytes(self) -> int:
        """Bytes that the process takes on the device: the sum of all piles."""
        return sum(self.piles.values())

    @property
    def allocated_bytes(self) -> int:
        """Bytes that torch's allocator has handed out, without fragmentation and without what lies outside it."""
        return sum(size for pile, size in self.piles.items() if pile not in OUTSIDE_PILES and pile != "fragmentation")

    def explained(self, pile: Pile) -> PileBytes:
        """Return a pile with the formulas and sources of its terms."""
        return PileBytes.of(pile, [term for term in self.terms if term.pile == pile and term.bytes])


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """An estimate's peaks by pile."""

    phases: tuple[Column, ...]  # One column per phase: its peak, on the rank where that is highest.
    stages: tuple[Column, ...]  # One column per pipeline stage: its peak over all phases.


def breakdown(ranks: Sequence[RankTerms], estimate: MemoryEstimate) -> Breakdown:
    """Split the peaks of an estimate into piles."""
    peaks = {peak.stage: peak for peak in estimate.ranks}
    every = {phase: [(rank, own) for rank in ranks for own in MOMENTS if MOMENTS[own] == phase] for phase in PHASES}
    worst = [max(those, key=lambda one: one[0].allocated(one[1])) for those in every.values()]
    return Breakdown(
        phases=tuple(_column(rank, moment, peaks) for rank, moment in worst),
        stages=tuple(_column(rank, rank.peak[1], peaks) for rank in ranks),
    )


def _column(rank: RankTerms, moment: Moment, peaks: dict[int, RankPeak]) -> Column:
    stage = rank.model.view.stage
    peak, allocated = peaks[stage], rank.allocated(moment)
    terms = tuple(rank.at(moment))
    sums = _sums(terms)
    piles = {pile: sums[pile] for pile in PILES if sums.get(pile)}
    # Rounded up like the estimate: at the stage's own peak this is its reserved minus its allocated bytes.
    lost = -(-(peak.reserved_bytes - peak.allocated_bytes) * allocated // max(peak.allocated_bytes, 1))
    if lost:
        piles["fragmentation"] = piles.get("fragmentation", 0) + lost
    return Column(phase=MOMENTS[moment], stage=stage, piles=piles, terms=terms)


def allocated_piles(rank: RankTerms, moment: Moment) -> dict[str, int]:
    """Bytes that torch's allocator has handed out at a moment, by pile of a rank."""
    return {pile: size for pile, size in _sums(rank.at(moment)).items() if pile not in OUTSIDE_PILES}


def _sums(terms: Iterable[MemoryTerm]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for term in terms:
        sums[term.pile] = sums.get(term.pile, 0) + term.bytes
    return sums
