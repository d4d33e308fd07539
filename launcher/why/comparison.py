"""Compares the live piles when memory ran out with the predicted ones, and finds the pile that explains the end.

The request is added to the pile that it was for, unless that is ``temporary``, which is only a guess. The largest
deviation from the prediction explains the end: a pile that grew, other processes, or memory that the allocator had
reserved and could not use. If the prediction itself was above the capacity, it is the pile that was asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Literal

from launcher.base.frozen import dataclass
from launcher.estimate.memory import device
from launcher.estimate.memory.breakdown import allocated_piles
from launcher.estimate.memory.estimate import RankTerms
from launcher.estimate.memory.moments import BLOCK_BACKWARD, FORWARD, LATER_BLOCKS_BACKWARD, MOMENTS, Moments
from launcher.estimate.memory.terms import PILES, MemoryTerm
from launcher.job.memory import OutOfMemory, PileRow
from launcher.preflight import assess, findings
from launcher.spec import RunSpec
from launcher.why.answer import OTHER_PROCESSES

WITHIN = 0.02  # Share of the prediction below which a deviation counts as agreement.

_OPERATIONS = {
    "gather_buffers": ("all_gather", "allgather", "resize"),
    "reduce_buffers": ("reduce_scatter", "all_reduce", "allreduce", "chunk_cat"),
}
"""Parts of the names of operations that allocate collective buffers; FSDP2 resizes storages of gathered parameters."""

_IN_BLOCKS: Moments = BLOCK_BACKWARD | {"forward"}
_BACKWARD_OF: Mapping[int, Moments] = {0: frozenset(("block_backward",)), 1: frozenset(("next_block_backward",))}
"""The moments in the backward pass of the stage's last block, and of the one before it."""

EVALUATION = "evaluation"
"""A phase that the memory model does not have: a forward pass on top of everything live between two steps."""

type Kind = Literal["grown", "other_processes", "fragmentation", "as_predicted", "estimate"]
"""The explanation of an end; ``estimate``: nothing deviates, and the prediction was below the capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPiles:
    """The prediction for the moments at which a rank may have been."""

    # The maximum of each pile over these moments, without memory outside torch's allocator.
    piles: Mapping[str, int]
    terms: tuple[MemoryTerm, ...]  # The terms of that stage that are live at one of them.
    moments: Moments  # These moments.
    total_bytes: int  # The largest sum of piles at one of them.

    def largest_term(self, pile: str) -> MemoryTerm | None:
        """The largest term of a pile, which shows how it was predicted; None if it has none."""
        return max((term for term in self.terms if term.pile == pile), key=lambda term: term.bytes, default=None)


def is_judged(spec: RunSpec) -> bool:
    """True if a run's memory can be estimated: its model is known, and it breaks no rule of this version."""
    return not spec.judges_no_model and next(findings.broken_rules(spec), None) is None


def predict(spec: RunSpec, rank: int | None, phase: str | None, layer: int | None) -> PredictedPiles:
    """The prediction for a rank in a phase (None is any) and layer; for an unknown rank, that of the fullest stage."""
    stages = assess.terms_of(spec)
    if rank is not None:
        stages = tuple(each for each in stages if each.model.view.stage == spec.stage_of(rank)) or stages
    broadly = moments_of(phase)
    best = max(stages, key=lambda each: max(each.allocated(moment) for moment in broadly))
    return _at(best, moments_of(phase, layer, best.model.view.layers))


def between_steps(spec: RunSpec, rank: int | None) -> PredictedPiles:
    """The prediction for a rank between two steps; for an unknown rank, that of the fullest stage."""
    of_rank = [each for each in assess.terms_of(spec) if rank is None or each.model.view.stage == spec.stage_of(rank)]
    return _at(max(of_rank, key=lambda each: each.allocated("idle")), frozenset(("idle",)))


def _at(best: RankTerms, moments: Moments) -> PredictedPiles:
    piles: dict[str, int] = {}
    for moment in moments:
        for pile, size in allocated_piles(best, moment).items():
            piles[pile] = max(piles.get(pile, 0), size)
    return PredictedPiles(
        piles=piles,
        terms=tuple(term for term in best.terms if term.moments & moments),
        moments=moments,
        total_bytes=max(best.allocated(moment) for moment in moments),
    )


def moments_of(phase: str | None, layer: int | None = None, layers: Sequence[int] = ()) -> Moments:
    """The possible moments of a rank in a phase, and in block ``layer`` of its stage's ``layers`` if known."""
    if phase == EVALUATION:
        found: Moments = FORWARD
    else:
        found = frozenset(moment for moment, its in MOMENTS.items() if phase in (None, its))
    if layer is None:
        return found or frozenset(MOMENTS)
    inside = found & _IN_BLOCKS or found or frozenset(MOMENTS)
    if phase != "backward" or layer not in layers:
        return inside
    return (
        found & _BACKWARD_OF.get(len(layers) - 1 - layers.index(layer), _earlier_blocks(layers.index(layer))) or inside
    )


def _earlier_blocks(index: int) -> Moments:
    """The moments in the backward pass of a block before the stage's last two, by its index in the stage."""
    if index > 1:
        return LATER_BLOCKS_BACKWARD - {"first_layer_backward"}
    return frozenset(("second_layer_backward",) if index else ("first_layer_backward",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Predicted and measured piles of one moment, and what explains the end."""

    kind: Kind  # What explains the end.
    pile: str | None  # The pile that explains it.
    asked: str | None  # The pile that the request was for.
    rows: tuple[PileRow, ...]  # The piles, including the request.
    predicted_bytes: int  # The largest sum predicted for these moments.

    @property
    def grown(self) -> tuple[PileRow, ...]:
        """Rows significantly above their prediction, the largest difference first."""
        rows = [row for row in self.rows if row.grown_bytes > WITHIN * self.predicted_bytes]
        return tuple(sorted(rows, key=lambda row: -row.grown_bytes))

    @property
    def rest(self) -> str:
        """How well the other rows agree with their prediction, in percent of the predicted sum, as a clause."""
        others = [row for row in self.rows if row.pile != self.pile and row.measured_bytes is not None]
        above = max((row.grown_bytes for row in others), default=0)
        below = min((row.grown_bytes for row in others if row.pile in PILES and row.pile != "fragmentation"), default=0)
        percent = max(2, ceil(100 * max(above, 0) / max(1, self.predicted_bytes)))
        if -below <= WITHIN * self.predicted_bytes:
            return f"the rest is within {percent}% of the total"
        return f"no other pile is above its prediction by more than {percent}% of the total"


def compare(spec: RunSpec, predicted: PredictedPiles, oom: OutOfMemory) -> Comparison:
    """Compare a device that ran out of memory with the prediction for the moments at which the rank may have been."""
    oom = replace(oom, piles=measured_piles(oom))
    asked = asked_for(predicted, oom)
    measured = dict(oom.piles)
    if measured and asked is not None and asked != "temporary":
        measured[asked] = measured.get(asked, 0) + (oom.requested_bytes or 0)
    if asked == "logits" and oom.phase != "backward":  # On a GPU only logits saved by autograd are attributed.
        unnamed = measured.get("temporary", 0) - predicted.piles.get("temporary", 0)
        named = max(0, min(unnamed, predicted.piles.get("logits", 0) - measured.get("logits", 0)))
        measured |= {"logits": measured.get("logits", 0) + named, "temporary": measured.get("temporary", 0) - named}
    rows = [*_rows(predicted.piles, measured), *_beside(spec, oom)]
    found = Comparison(
        kind="as_predicted", pile=asked, asked=asked, rows=tuple(rows), predicted_bytes=predicted.total_bytes
    )
    kind, pile = _explained(spec, found, oom)
    return replace(found, kind=kind, pile=pile)


def named(found: Comparison, pile: str) -> Comparison:
    """The comparison explained by a pile that grows from step to step."""
    return replace(found, kind="grown", pile=pile)


def asked_for(predicted: PredictedPiles, oom: OutOfMemory) -> str | None:
    """The pile that a request was for: of several, the one furthest below its prediction; None if unknown."""
    operation = oom.operation or ""
    for pile, words in _OPERATIONS.items():
        if any(word in operation for word in words):
            return pile
    lacks = {pile: size - oom.piles.get(pile, 0) for pile, size in predicted.piles.items()}
    if oom.phase == "optimizer":
        states = predicted.piles.get("optimizer_states", 0)
        return "optimizer_states" if lacks.get("optimizer_states", 0) > WITHIN * states else "temporary"
    if oom.phase == "load":
        return _most(lacks, predicted.piles, oom) or "parameters"
    if oom.phase == "checkpoint_save":
        return "temporary"
    place = (oom.phase, oom.layer is not None)
    if place not in _OF_A_PASS:
        return None
    piles, otherwise = _OF_A_PASS[place]
    if operation.startswith("aten.empty"):  # Memory that is filled later: a buffer, not a result.
        return _most(lacks, _BUFFERS, oom) or otherwise
    return _most(lacks, piles, oom) or otherwise


_BUFFERS = ("gather_buffers", "reduce_buffers")
_OF_A_PASS: Mapping[tuple[str | None, bool], tuple[Sequence[str], str]] = {
    ("forward", True): (("activations",), "activations"),
    ("forward", False): (("logits", "gather_buffers"), "logits"),
    ("evaluation", True): (("activations",), "activations"),
    ("evaluation", False): (("logits", "gather_buffers"), "logits"),
    ("backward", True): ((*_BUFFERS, "gradients"), "temporary"),
    ("backward", False): (("logits", *_BUFFERS, "gradients"), "temporary"),
}
"""The piles requested in a pass, inside and outside a block, and the fallback if none of them is short by so much."""


def _most(lacks: Mapping[str, int], piles: Iterable[str], oom: OutOfMemory) -> str | None:
    pile = max(piles, key=lambda pile: lacks.get(pile, 0), default=None)
    enough = (1 - WITHIN) * max(1, oom.requested_bytes or 1)
    return pile if pile is not None and lacks.get(pile, 0) >= enough else None


def measured_piles(oom: OutOfMemory) -> dict[str, int]:
    """Live bytes by pile, as recorded at the end, else from the rank's last record of that phase."""
    last = None if oom.last is None or oom.phase is None else oom.last.phases.get(oom.phase)
    if oom.piles or last is None:
        return dict(oom.piles)
    found = dict(last.piles)
    if oom.tokens and oom.last is not None and oom.last.tokens:
        for pile in ("activations", "logits"):
            found[pile] = found.get(pile, 0) * oom.tokens // oom.last.tokens
    rest = (oom.allocated_bytes or 0) - sum(found.values())
    return found if rest <= 0 else {**found, "temporary": found.get("temporary", 0) + rest}


def _rows(predicted: Mapping[str, int], measured: Mapping[str, int]) -> list[PileRow]:
    names: list[str] = [name for name in PILES if name in predicted or name in measured]
    names += [name for name in measured if name not in PILES]
    return [
        PileRow(
            pile=name,
            predicted_bytes=predicted.get(name, 0),
            measured_bytes=measured.get(name, 0) if measured else None,
        )
        for name in names
    ]


def _beside(spec: RunSpec, oom: OutOfMemory) -> list[PileRow]:
    rows = []
    if oom.reserved_bytes is not None and oom.allocated_bytes is not None:
        expected = int(device.allocator(spec).needed * oom.allocated_bytes)
        lost = max(0, oom.reserved_bytes - oom.allocated_bytes)
        rows.append(PileRow(pile="fragmentation", predicted_bytes=expected, measured_bytes=lost))
    if oom.others_bytes is not None:
        rows.append(PileRow(pile=OTHER_PROCESSES, predicted_bytes=0, measured_bytes=oom.others_bytes))
    return rows


def _explained(spec: RunSpec, found: Comparison, oom: OutOfMemory) -> tuple[Kind, str | None]:
    capacity = oom.capacity_bytes or spec.rank_memory_bytes
    lacked = 0 if capacity is None else found.predicted_bytes - capacity
    worst = found.grown[0] if found.grown else None
    if worst is None or worst.grown_bytes < lacked:
        return ("as_predicted" if lacked > 0 else "estimate"), found.asked
    if worst.pile == "fragmentation":
        return "fragmentation", worst.pile
    if worst.pile == OTHER_PROCESSES:
        return "other_processes", worst.pile
    return "grown", worst.pile
