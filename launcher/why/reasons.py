"""Sentences on which pile grew and why, as far as the reason is known, or on what else happened if none grew."""

from collections.abc import Iterator

from launcher.base.units import gib
from launcher.job.memory import OutOfMemory, PileRow
from launcher.preflight import assess
from launcher.spec import RunSpec
from launcher.why.answer import WayOut
from launcher.why.comparison import EVALUATION, Comparison, PredictedPiles
from launcher.why.growth import Growth
from launcher.why.subject import Subject

_OF_TOKENS = ("activations", "logits", "temporary")


def sentences(
    run: Subject, oom: OutOfMemory, found: Comparison, foreseen: PredictedPiles, grows: Growth | None, kept: int
) -> Iterator[str]:
    """Sentences on the pile that explains the end, its reason as far as known, and the piles that agree."""
    spec = run.spec
    assert spec is not None
    if grows is not None:
        yield from _growth_text(run, grows)
    elif found.kind == "grown":
        yield from _pile_text(spec, oom, found, foreseen, kept)
    elif found.kind == "other_processes":
        yield _others_text(oom)
        yield f"among the run's own piles, {found.rest}"
    elif found.kind == "fragmentation":
        yield _fragmentation_text(oom)
        yield f"among the piles, {found.rest}"
    elif found.kind == "as_predicted":
        yield _as_predicted(run, oom, found)
    else:
        yield from _estimate(run, oom, found, foreseen)


def name(pile: str | None) -> str:
    """A pile's name in a sentence."""
    return "memory" if pile is None else pile.replace("_", " ")


def checked_tokens(spec: RunSpec) -> int:
    """Tokens in a rank's micro-batch that the check assumed."""
    return spec.micro_batch_size * spec.sequence_length // (spec.parallel.context * spec.parallel.ulysses)


def _pile_text(
    spec: RunSpec, oom: OutOfMemory, found: Comparison, foreseen: PredictedPiles, kept: int
) -> Iterator[str]:
    row = found.grown[0]
    with_it = "with the request" if row.pile == found.asked != "temporary" else "measured"
    yield (
        f"{name(row.pile)} exceeded the prediction by {gib(row.grown_bytes)} "
        f"({gib(row.predicted_bytes or 0)} predicted, {gib(row.measured_bytes or 0)} {with_it}); {found.rest}"
    )
    if kept and oom.last is not None:
        yield (
            f"{gib(kept)} of it was already live between steps, after step {oom.last.step}, where none is predicted: "
            "something keeps it from step to step, a leak or a cache, and another layout would only last longer"
        )
    else:
        yield _why(spec, oom, row, foreseen)
    for other in found.grown[1:3]:
        yield f"{name(other.pile)} also exceeded it, by {gib(other.grown_bytes)}"


def _why(spec: RunSpec, oom: OutOfMemory, row: PileRow, foreseen: PredictedPiles) -> str:
    checked = checked_tokens(spec)
    if row.pile in _OF_TOKENS and oom.tokens is not None and oom.tokens > checked:
        return f"the micro-batch had {oom.tokens:,} tokens, and the check assumed {checked:,}"
    if oom.phase == EVALUATION:
        return "an evaluation has its own batch, whose passes the check counts like those of training"
    if oom.phase in ("load", "checkpoint_save"):
        return f"the {oom.phase.replace('_', ' ')} took more than the states that it handles"
    term = foreseen.largest_term(row.pile)
    if term is None:
        return f"the estimate predicts no {name(row.pile)} in this phase"
    return f"the estimate counts {term.formula} ({term.source}); the engine held more"


def _growth_text(run: Subject, grows: Growth) -> Iterator[str]:
    steps = grows.last - grows.first
    yield (
        f"{name(grows.pile)} grew by {gib(grows.grown_bytes)} between steps {grows.first} and {grows.last}, "
        f"{gib(int(grows.bytes_a_step))} in each of {steps}: a leak or a cache, which no layout fixes"
    )
    if run.saved:
        yield f"a resumed run starts without it, from step {run.saved}, and will run into it again"


def _others_text(oom: OutOfMemory) -> str:
    named = ", ".join(
        f"pid {each.get('pid')}{' ' + str(each['name']) if each.get('name') else ''} {gib(int(each.get('bytes') or 0))}"
        for each in oom.others[:3]
    )
    return (
        f"other processes had {gib(oom.others_bytes or 0)} of the device{f' ({named})' if named else ''}, "
        "which the check cannot know"
    )


def _fragmentation_text(oom: OutOfMemory) -> str:
    allocated, reserved = oom.allocated_bytes or 0, oom.reserved_bytes or 0
    return (
        f"the caching allocator had reserved {gib(reserved)}, of which the run used {gib(allocated)}: "
        f"{gib(reserved - allocated)} was in fragments too small for the request"
    )


def _as_predicted(run: Subject, oom: OutOfMemory, found: Comparison) -> str:
    phase = "its peak" if oom.phase is None else f"the {oom.phase.replace('_', ' ')} phase"
    forced = ", and it was started with --force" if run.plan.get("forced") else ""
    has = oom.capacity_bytes or (run.spec.rank_memory_bytes if run.spec is not None else None) or 0
    asked = f"; the request was for {name(found.asked)}" if found.asked is not None else ""
    return (
        f"as predicted: {phase} takes {gib(found.predicted_bytes)}, and a rank has {gib(has)}"
        f"{forced}{asked}; {found.rest}"
    )


def _estimate(run: Subject, oom: OutOfMemory, found: Comparison, foreseen: PredictedPiles) -> Iterator[str]:
    spec = run.spec
    if spec is None:
        return
    phase = "its peak" if oom.phase is None else f"the {oom.phase.replace('_', ' ')} phase"
    has = oom.capacity_bytes or spec.rank_memory_bytes
    of = "" if has is None else f" of {gib(has)}"
    if oom.piles:
        yield f"prediction and measurement agree: {phase} takes {gib(foreseen.total_bytes)}{of}, and {found.rest}"
    else:
        measured = "" if oom.allocated_bytes is None else f", and {gib(oom.allocated_bytes)} were allocated"
        yield f"{phase} was predicted to take {gib(foreseen.total_bytes)}{of}{measured}; the piles were not measured"
    if oom.place == "host":
        used = "" if has is None or oom.free_bytes is None else f"; {gib(has - oom.free_bytes)}{of} were in use"
        yield f"the check counts only tensors{used}: a process limit, libraries or other processes took the rest"
        return
    estimate = assess.estimated(spec)
    band = estimate.peak
    high = band.high_bytes + estimate.outside_bytes
    if has is not None and high > has:
        yield (
            f"the check's error band, {gib(band.low_bytes + estimate.outside_bytes)} to {gib(high)}, contains the "
            "capacity: the run was tight, and the estimate is too low"
        )
    else:
        yield f"the check's error band ends at {gib(high)}, below the capacity: the estimate is too low for this run"


def first_ways(run: Subject, oom: OutOfMemory, found: Comparison, grows: Growth | None) -> Iterator[WayOut]:
    """Ways out that come before any change of the settings."""
    if grows is not None:
        lasts = grows.full_at
        until = "" if lasts is None else f", about {max(1, lasts - grows.first)} steps from there"
        yield run.resume(text=f"{run.from_here()}, and lasts until the device is full again{until}")
    elif found.kind == "other_processes":
        yield run.resume(text=f"once they have ended; {run.from_here()}")
