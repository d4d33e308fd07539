"""The predictions of a row: as formulas alone say it, and with the constants that the package ships."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from benchmarks.speed import baselines
from benchmarks.speed.row import Row
from launcher.base import registry
from launcher.estimate.memory.estimate import estimate as memory
from launcher.estimate.speed import calibration
from launcher.estimate.speed.calibration import Constant
from launcher.estimate.speed.card import Card
from launcher.estimate.speed.estimate import estimate, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Shares of runs in the bands of constants that are fitted anew without what is like them; of one run 0 or 1."""

    within: float | None = None  # Of the run's own stack, without the runs of its model.
    checked: float | None = None  # As ``launch check`` says it, without the runs of its source.
    unseen: float | None = None  # As if nobody had measured its framework, without the runs of its source.


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A row with its predictions, in tokens a second and GPU.

    Attributes:
        row: The measured run.
        raw: No constant applied.
        predicted: With the package's constant for its framework and GPU.
        constant: That constant, with its band.
        memory_bytes: The worst rank needs so many by our estimate: of two equal predictions the smaller is picked.
        crowding: That as a share of the card's memory; None where its size is not known.
        parts: Exposed seconds of a step by part, no constant applied.
        others: The answers of the baselines that have one.
        held_out: Whether it lies in bands that were made without it.
    """

    row: Row
    raw: float
    predicted: float
    constant: Constant
    memory_bytes: int
    crowding: float | None
    parts: dict[str, float]
    others: dict[str, float]
    held_out: HeldOut = HeldOut()


def judged(row: Row) -> Judged | str:
    """The predictions of a row that has a specification, or why there is none."""
    spec, backend = row.spec, row.backend
    if spec is None or backend is None:
        raise AssertionError("a row without a specification is left out")
    if (reason := unknown(spec, backend)) is not None:
        return reason
    family = registry.load("families", spec.model.family)
    strategies = [registry.load("strategies", name) for name in registry.names("strategies")]
    peak = memory(spec, family=family, strategies=strategies, backend=backend).peak
    capacity = spec.hardware.memory_bytes
    crowding = peak.needed_bytes / capacity if capacity else None
    found = estimate(spec, family=family, strategies=strategies, backend=backend, crowding=crowding)
    if found is None:
        return "the model of speed gives no answer"
    factor, speed = found.constant, found.tokens_per_second_per_gpu
    return Judged(
        row=row,
        raw=speed / factor.value,
        predicted=speed,
        constant=factor,
        memory_bytes=peak.needed_bytes,
        crowding=crowding,
        parts={part: factor.value * sum(term.exposed_seconds for term in terms) for part, terms in found.parts()},
        others=dict(_others(row)),
    )


def constant_of(item: Judged, tables: calibration.Tables | None = None) -> Constant:
    """The constant for a row's framework and GPU that the package has now, or by other tables."""
    row = item.row
    related = row.backend.executes.related if row.backend is not None else ()
    return chosen(tables, row.framework, row.card, related, experts=row.moe)


def chosen(
    tables: calibration.Tables | None, framework: str, card: Card, related: tuple[str, ...], *, experts: bool
) -> Constant:
    """The constant of a framework on a GPU by these tables; by the package's where there are none."""
    if tables is None:
        return calibration.constant(framework, card, related, experts=experts)
    return calibration.chosen(tables, framework, card, related, experts=experts)


def _others(row: Row) -> Iterator[tuple[str, float]]:
    for name in baselines.names():
        if answer := baselines.load(name).predict(row):
            yield name, answer


def all_judged(rows: Iterable[Row], *, host_constants: bool = True) -> Iterator[Judged | Row]:
    """Each row with its predictions; one that is left out as a row that says why.

    Args:
        rows: The rows.
        host_constants: False to predict without what was chosen on measured rows (``fitted`` of ``frameworks.yaml``).
    """
    for row in rows:
        if row.backend is not None and not host_constants:
            row = replace(row, backend=row.backend.without_fitted())
        if row.left_out is not None:
            yield row
            continue
        try:
            found = judged(row)
        except (ArithmeticError, AssertionError, LookupError, ValueError) as error:
            found = f"the estimate fails: {type(error).__name__} {error}"
        yield found if isinstance(found, Judged) else replace(row, left_out=found)
