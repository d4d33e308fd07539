"""Memory piles as stacked bars: colours, axis unit, and tooltips."""

from collections.abc import Iterator, Mapping

from launcher.base.units import GIB, MIB, gib
from launcher.charts.bars import Segment
from launcher.estimate.memory.breakdown import Column
from launcher.estimate.memory.terms import PILES, Pile

COLOURS: dict[str, str] = {
    "parameters": "#27496d", "gradients": "#4d7ea8", "optimizer states": "#b5d3e7", "master weights": "#7fb0d4",
    "activations": "#d9722e", "logits": "#f2b25c", "gather buffers": "#3a8d6b", "reduce buffers": "#8cc7a1",
    "temporary": "#9b6fae", "workspace": "#c9b3d6", "context": "#7d7d7d", "communicators": "#b3b3b3",
    "fragmentation": "#e6e6e6", "not told apart": "#9aa3ad",
}  # fmt: skip
"""States blue, activations orange, buffers green, memory of the libraries grey."""

OUTSIDE: tuple[Pile, ...] = ("context", "communicators", "fragmentation")
"""Piles that are not allocated by torch."""

TOLD_ELSEWHERE = "not told apart"  # Label of a peak whose piles are unknown.
_LOST = "reserved by the caching allocator but not allocated; released when memory runs short"


def unit_for(top: float) -> tuple[int, str]:
    """The unit of a memory axis: its size in bytes, and its name."""
    return (MIB, "MiB") if top < GIB // 2 else (GIB, "GiB")


def name_of(pile: str) -> str:
    """The display name of a pile."""
    return pile.replace("_", " ")


def of_column(column: Column, row: str, unit: int, *, of: str = "", allocated: bool = False) -> Iterator[Segment]:
    """The pieces of a predicted peak, with formulas and sources; ``allocated`` leaves out what no run measures."""
    piles: dict[str, int] = {}
    hovers: dict[str, dict[str, str]] = {}
    for pile, size in column.piles.items():
        if allocated and pile in OUTSIDE:
            continue
        piles[pile] = size
        found = column.explained(pile)
        source = found.source or "the allocator's loss in measured runs (benchmarks/results/memory.md)"
        hovers[pile] = {"formula": found.formula or _LOST, "source": source}
    yield from of_sizes(piles, row, unit, of=of, hovers=hovers)


def of_sizes(
    piles: Mapping[str, int],
    row: str,
    unit: int,
    *,
    of: str = "",
    hovers: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[Segment]:
    """The segments of a stacked bar, in the order of ``PILES``."""
    below = 0
    order = [*(pile for pile in PILES if pile in piles), *(pile for pile in piles if pile not in PILES)]
    for pile in order:
        size = piles[pile]
        if size <= 0:
            continue
        hover = {"pile": name_of(pile), "size": gib(size), **((hovers or {}).get(pile) or {})}
        if of:
            hover = {"": of, **hover}
        name, start, end = name_of(pile), below / unit, (below + size) / unit
        label = f"{name} {size / unit:.{2 if unit == GIB else 1}f}"
        yield Segment(row=row, of=of, name=name, start=start, end=end, label=label, hover=hover)
        below += size
