"""The memory estimate of a run: the terms of every stage, their sum at every moment, and the worst rank.

One rank of each pipeline stage is counted (``rank_model``). The functions of ``states``, ``activations``, ``logits``
and ``device`` and the backend's ``overheads`` give its terms; at each moment only those of the fullest instant stay
(``terms.fullest``). Their sum at a moment is what is allocated then; the moment with the largest sum is the rank's
peak, and the stage with the largest peak has the worst rank. Fragmentation, context, communicators and the error band
are added to that rank.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Protocol

from launcher.base.frozen import dataclass
from launcher.estimate.memory import activations, device, host, logits, optimizer, scores, states
from launcher.estimate.memory.modes import unmeasured
from launcher.estimate.memory.moments import MOMENTS, PHASES, Moment, Phase
from launcher.estimate.memory.result import Band, MemoryEstimate, Needs, ParameterCount, Peak, PileBytes, RankPeak, band
from launcher.estimate.memory.terms import OUTSIDE_PILES, PILES, HostPile, MemoryTerm, Pile, by_instant, fullest
from launcher.estimate.rank import model
from launcher.estimate.rank.counts import parameter_counts
from launcher.estimate.rank.engine import kept
from launcher.estimate.rank.family import Family
from launcher.estimate.rank.model import RankModel, rank_model
from launcher.estimate.rank.stages import flow_of, fullest_stages
from launcher.estimate.rank.view import RankView, Strategy, views
from launcher.spec import Offload, RunSpec


class Backend(model.Backend, Protocol):
    """The interface that the memory model needs from a backend."""

    @property
    @abstractmethod
    def framework(self) -> str:
        """The name under which ``residuals.json`` holds the measured runs of its error band."""

    def runs_on(self, spec: RunSpec) -> str | None:
        """The engine whose other frameworks lend their error band where this one has too few measured runs."""
        return None

    def mode(self, spec: RunSpec) -> str | None:
        """The name of its way to shard a model, a key of ``modes.json``; None where no evidence was collected."""
        return None

    @abstractmethod
    def overheads(self, rank: RankModel) -> Iterable[MemoryTerm]:
        """Buffers and temporaries that only this backend has."""


@dataclass(frozen=True, kw_only=True)
class RankTerms:
    """One rank of one stage with all of its terms, or with what :func:`~.terms.fullest` leaves."""

    model: RankModel
    terms: tuple[MemoryTerm, ...]
    # What the allocator is simulated with, which takes longer than all the rest; else it reserves just what it needs.
    simulated: tuple[MemoryTerm, ...] = ()

    def allocated(self, moment: Moment) -> int:
        """Bytes allocated from torch's allocator at one moment."""
        return self.allocations[moment]

    @property
    def outside_bytes(self) -> int:
        """Bytes outside torch's allocator at the peak."""
        moment = self.peak[1]
        return sum(term.bytes for term in self.terms if term.pile in OUTSIDE_PILES and moment in term.moments)

    @cached_property
    def allocations(self) -> dict[Moment, int]:
        """Bytes allocated at every moment, at its fullest instant, in the order of a step."""
        sums = by_instant(term for term in self.terms if term.pile not in OUTSIDE_PILES)
        found = {moment: here.pop("", 0) + max(here.values(), default=0) for moment, here in sums.items()}
        if self.model.layers < 3 and not self.model.engine.partition_buffer:  # One block is at two places.
            place, last = activations.places(self.model), found["block_backward"]
            found |= {moment: last for moment in place if place[moment] == place["block_backward"]}
        return found

    def at(self, moment: Moment) -> list[MemoryTerm]:
        """The terms alive at one moment."""
        return [term for term in self.terms if moment in term.moments]

    def needed(self, allocated: int) -> int:
        """Bytes that the caching allocator needs so as not to run out of memory when ``allocated`` are allocated."""
        return device.needed(self.model, allocated, self.allocated("idle"))

    @cached_property
    def reserved(self) -> int:
        """Bytes that the caching allocator reserves where memory is ample, at least those that it needs."""
        allocated = self.peak[0]
        needed, idle = self.needed(allocated), self.allocated("idle")
        return max(needed, device.reserved(self.model, self.simulated, allocated, idle)) if self.simulated else needed

    def lost(self, allocated: int) -> MemoryTerm:
        """Fragmentation beside ``allocated`` bytes: the same share that the allocator loses at the peak."""
        return device.fragmentation(ceil(self.reserved * Fraction(allocated, max(1, self.peak[0]))), allocated)

    @cached_property
    def peak(self) -> tuple[int, Moment]:
        """The allocated peak and its moment, the first where several are equal."""
        best = max(self.allocations, key=self.allocations.__getitem__)
        return self.allocations[best], best


def estimate(
    spec: RunSpec, *, family: Family, strategies: Iterable[Strategy], backend: Backend, simulate: bool = True
) -> MemoryEstimate:
    """Predict the memory of a run whose parallel degrees divide evenly; ``simulate``: the allocator's as well."""
    ranks = rank_terms(spec, family=family, strategies=strategies, backend=backend, simulate=simulate)
    worst, error = worst_rank(ranks), error_band(spec, backend, family)
    needed, (allocated, moment) = _needs(ranks, error), worst.peak
    total, active = parameter_counts(spec, family)
    return MemoryEstimate(
        parameters=ParameterCount(total=total, active=active, per_rank=worst.model.elements.parameters),
        static_bytes=worst.allocated("idle"),
        peak=needed.peak,
        outside_bytes=needed.outside_bytes,
        moments=needed.moments,
        band=error,
        loses=needed.loses,
        phases=_phases(ranks),
        piles=tuple(_piles([*worst.at(moment), worst.lost(allocated)])),
        ranks=tuple(_rank_peak(rank) for rank in ranks),
        host=needed.host,
        disk=needed.disk,
    )


type Part = Callable[[RankModel], Iterable[MemoryTerm]]
"""A function that gives one kind of term, the same for every backend."""

type Adjusted = Callable[[RankModel, Sequence[MemoryTerm]], Sequence[MemoryTerm]]
"""A function that replaces a rank's terms by ones corrected with the measurements of a similar run."""


def needs(
    spec: RunSpec, *, family: Family, strategies: Iterable[Strategy], backend: Backend, adjusted: Adjusted | None = None
) -> Needs:
    """The part of the estimate that decides the verdict, in half the time; the arguments are those of `estimate`."""
    ranks = []
    for one in _fullest_models(spec, family, strategies, backend):
        terms = tuple(_terms(one, backend))
        ranks.append(RankTerms(model=one, terms=terms if adjusted is None else tuple(adjusted(one, terms))))
    return _needs(ranks, error_band(spec, backend, family))


def needs_within(
    spec: RunSpec, most: int, *, family: Family, strategies: Iterable[Strategy], backend: Backend
) -> Needs | None:
    """The same as :func:`needs`; None, found sooner, where a rank allocates more than ``most`` at some moment."""
    begun = []
    for one in _fullest_models(spec, family, strategies, backend):
        largest: list[MemoryTerm] = []
        for moment, parts in _LARGEST:
            largest += [term for part in parts for term in part(one)]
            if sum(term.bytes for term in largest if moment in term.moments and not term.instant) > most:
                return None
        begun.append((one, largest))
    ranks = [RankTerms(model=one, terms=(*largest, *_terms(one, backend, _OTHERS))) for one, largest in begun]
    return None if worst_rank(ranks).peak[0] > most else _needs(ranks, error_band(spec, backend, family))


def _fullest_models(
    spec: RunSpec, family: Family, strategies: Iterable[Strategy], backend: Backend
) -> Iterator[RankModel]:
    return _models(views(spec, strategies, fullest_stages(family, spec.model, flow_of(spec))), spec, family, backend)


def _needs(ranks: Sequence[RankTerms], error: Band) -> Needs:
    worst = worst_rank(ranks)
    peak, outside = _peak(worst, error), worst.outside_bytes
    return Needs(
        peak=peak,
        outside_bytes=outside,
        moments=tuple(worst.needed(size) + outside for size in _at_moments(ranks)),
        host=host.host_memory(tuple(rank.model for rank in ranks), peak.device_bytes),
        disk=host.checkpoint(worst.model),
        band=error,
        loses=device.allocator(worst.model.spec).deviation,
    )


def _at_moments(ranks: Sequence[RankTerms]) -> Iterable[int]:
    first, *others = (rank.allocations.values() for rank in ranks)
    return map(max, first, *others) if others else first


def worst_rank(ranks: Sequence[RankTerms]) -> RankTerms:
    """The rank with the highest allocated peak."""
    return max(ranks, key=lambda rank: rank.peak[0])


def error_band(spec: RunSpec, backend: Backend, family: Family) -> Band:
    """The error band of a run; the widest one where no measured run backs its mode."""
    found = unmeasured(spec, backend.framework, backend.mode(spec))
    if family.traits.observed:
        found = (*found, "layers without a formula")
    return band(backend.framework, cuda=spec.hardware.device == "cuda", runs_on=backend.runs_on(spec), lacking=found)


def rank_terms(
    spec: RunSpec, *, family: Family, strategies: Iterable[Strategy], backend: Backend, simulate: bool = True
) -> tuple[RankTerms, ...]:
    """All terms of one rank of each pipeline stage."""

    def of(one: RankModel) -> RankTerms:
        every = [*_terms(one, backend)]
        # A reduction's gradients replace another stream's weights, and the next block's moment has its input.
        seen = fullest(each for each in every if each.instant != "reduction") if simulate else ()
        return RankTerms(model=one, terms=tuple(fullest(every)), simulated=tuple(seen))

    return tuple(map(of, _models(views(spec, strategies), spec, family, backend)))


def _models(stages: Iterable[RankView], spec: RunSpec, family: Family, backend: Backend) -> Iterator[RankModel]:
    spec = _offloaded_whole(spec)
    dtypes, engine = backend.dtypes(spec), kept(backend.engine(spec))
    return (rank_model(spec, view, family, dtypes, engine) for view in stages)


def _offloaded_whole(spec: RunSpec) -> RunSpec:
    """The run with all that FSDP2 offloads with parameters: also gradients and moments; on CPU ranks nothing moves."""
    if not spec.parallel.shard or spec.zero.offload_parameters == "none":
        return spec
    where: Offload = "cpu" if spec.hardware.device == "cuda" else "none"
    return replace(spec, zero=replace(spec.zero, offload_parameters=where, offload_optimizer=where))


def _changed(one: RankModel) -> Iterator[MemoryTerm]:
    if one.spec.adapter.name != "none":
        from launcher.estimate.memory import adapted  # Late, as the next one, because few runs need it.

        yield from adapted.temporaries(one)
    if one.engine.rounding is not None:
        from launcher.estimate.memory import rounded

        yield from rounded.temporaries(one)


_PARTS: tuple[Part, ...] = (
    states.parameters,
    _changed,
    states.drawing,
    states.gradients,
    states.master_weights,
    optimizer.optimizer_states,
    optimizer.step_temporaries,
    activations.saved,
    activations.in_transit,
    activations.after_blocks,
    logits.last_norm_backward,
    activations.mask,
    scores.used_again,
    scores.embeddings_again,
    activations.mlp_backward,
    activations.forward_extra,
    scores.scores,
    logits.logits,
    device.workspace,
    device.context,
    device.communicators,
)
_LARGEST: tuple[tuple[Moment, tuple[Part, ...]], ...] = (
    ("idle", (states.parameters, states.master_weights, optimizer.optimizer_states)),
    ("loss_backward", (activations.saved,)),
    ("loss_backward", (states.gradients,)),
    ("loss", (logits.logits,)),
)
"""Moments and parts that alone exceed the card in 19 of 20 runs that do not fit, the fastest to compute first."""

_OTHERS = tuple(part for part in _PARTS if not any(part in parts for _, parts in _LARGEST))


def _terms(one: RankModel, backend: Backend, parts: Iterable[Part] = _PARTS) -> Iterator[MemoryTerm]:
    for part in parts:
        yield from part(one)
    yield from backend.overheads(one)


def _peak(worst: RankTerms, error: Band) -> Peak:
    allocated, moment = worst.peak
    needed = worst.needed(allocated)
    return Peak(
        allocated_bytes=allocated,
        needed_bytes=needed,
        reserved_bytes=worst.reserved,
        device_bytes=worst.reserved + worst.outside_bytes,
        low_bytes=min(allocated, int(needed * error.low)),
        high_bytes=max(needed, ceil(needed * error.high)),
        phase=MOMENTS[moment],
        stage=worst.model.view.stage,
    )


def _rank_peak(rank: RankTerms) -> RankPeak:
    return RankPeak(
        stage=rank.model.view.stage,
        static_bytes=rank.allocated("idle"),
        allocated_bytes=rank.peak[0],
        reserved_bytes=rank.reserved,
    )


def _phases(ranks: Sequence[RankTerms]) -> dict[Phase, int]:
    phases: dict[Phase, int] = dict.fromkeys(PHASES, 0)
    for phase, size in zip(MOMENTS.values(), _at_moments(ranks), strict=True):
        phases[phase] = max(phases[phase], size)
    return phases


def _piles(terms: Sequence[MemoryTerm]) -> Iterator[PileBytes]:
    together: dict[Pile | HostPile, list[MemoryTerm]] = {pile: [] for pile in PILES}
    for term in sorted(terms, key=lambda term: -term.bytes):
        if term.bytes:
            together[term.pile].append(term)
    for pile in PILES:
        if own := together[pile]:
            yield PileBytes.of(pile, own)
