"""One row of a memory estimate: the bytes of one pile, the moments at which they are alive, a formula and its source.

The printed formula is the one that was evaluated: a term is made from one expression over named values, such as
``z * (root + 2 * block)``, and its bytes, symbols and numbers all come from that text (``launcher.base.formula``).
``symbols`` is the legend of the names.

Terms that name different instants of a moment exclude each other: only the fullest instant of a moment counts
(``fullest``). So a backend can state what a block's backward pass holds at another instant than the fullest of its
MLP, without knowing what to subtract.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import ceil
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from launcher.base import files, formula
from launcher.base.formula import Value
from launcher.estimate.memory.moments import MOMENTS, Moment, Moments, Phase

type Pile = Literal[
    "parameters", "gradients", "optimizer_states", "master_weights", "activations", "logits", "gather_buffers",
    "reduce_buffers", "temporary", "workspace", "context", "communicators", "fragmentation",
]  # fmt: skip

PILES: tuple[Pile, ...] = get_args(Pile.__value__)

type HostPile = Literal["tensors", "offloaded", "loading", "saving", "processes", "readers"]
"""Piles of a node's host memory: tensors of CPU ranks, offloaded states, copies of a load or save, and processes."""

OUTSIDE_PILES: frozenset[Pile] = frozenset(("context", "communicators"))
"""Piles that the process holds on the device outside the caching allocator."""


class MemoryTerm(NamedTuple):
    """Bytes of one pile on one rank; a tuple, since an estimate makes dozens of them."""

    pile: Pile | HostPile  # The pile of the report (docs/contract/documents.md) that it is added to.
    moments: Moments  # When it is alive.
    bytes: int  # The value of the expression; 0 where that is negative.
    what: str  # A description in words.
    expression: str  # The formula, over names.
    values: Mapping[str, Value]  # The names' values on this rank.
    source: str  # Where the formula comes from: a paper's equation, a file of the framework, a trace.
    # The instant of its moments at which it is alive; empty for a term that is alive at all of them.
    instant: str = ""

    @property
    def phases(self) -> frozenset[Phase]:
        """The phases in which it is alive for at least one moment."""
        return frozenset(MOMENTS[moment] for moment in self.moments)

    @property
    def formula(self) -> str:
        """The description and the expression with rounded numbers: ``parameters: 4 x 842.30 M``."""
        return f"{self.what}: {self.with_numbers(formula.short_text)}"

    @property
    def symbols(self) -> str:
        """The expression as it is printed: ``z x (root + 2 x block)``."""
        return formula.printed(self.expression, lambda name: name)

    @property
    def numbers(self) -> str:
        """The expression with its exact numbers: ``2 x (525,336,576 + 2 x 218,112,000)``."""
        return self.with_numbers(formula.exact_text)

    def at(self, instant: str) -> "MemoryTerm":
        """Return the same term, alive only at one instant of its moments."""
        return _MADE(MemoryTerm, (*self[:-1], instant))

    def with_numbers(self, said: Callable[[Value], str]) -> str:
        """Return the expression with each name replaced by its value, as ``said`` formats it."""
        return formula.printed(self.expression, lambda name: said(self.values[name]))


def term(
    pile: Pile | HostPile, moments: Iterable[Moment], what: str, expression: str, source: str, /, **values: Value
) -> MemoryTerm:
    """Return a formula's term, never below zero: ``what`` in words, bytes by ``expression`` over ``values``."""
    size = formula.evaluated(expression, values)
    size = size if type(size) is int else ceil(size)
    alive = moments if type(moments) is frozenset else frozenset(moments)
    return _MADE(MemoryTerm, (pile, alive, size if size > 0 else 0, what, expression, values, source, ""))


_MADE = tuple.__new__  # Makes a :class:`MemoryTerm` in a third of the time of its own call; an estimate makes dozens.


def by_instant(terms: Iterable[MemoryTerm]) -> Mapping[Moment, defaultdict[str, int]]:
    """Bytes of each instant of every moment; those of terms without an instant are under ``""``."""
    together: dict[tuple[str, Moments], int] = {}
    for one in terms:
        key = one.instant, one.moments
        together[key] = together.get(key, 0) + one.bytes
    sums: dict[Moment, defaultdict[str, int]] = {moment: defaultdict(int) for moment in MOMENTS}
    for (instant, moments), size in together.items():
        for moment in moments:
            sums[moment][instant] += size
    return sums


def fullest(terms: Iterable[MemoryTerm]) -> list[MemoryTerm]:
    """All terms, those with an instant last and only at the moments at which their instant is the fullest."""
    every = list(terms)
    found, competing = [one for one in every if not one.instant], [one for one in every if one.instant]
    first = {moment: max(here, key=here.__getitem__) for moment, here in by_instant(competing).items() if here}
    for one in competing:
        if moments := frozenset(moment for moment in one.moments if first[moment] == one.instant):
            found.append(one._replace(moments=moments))
    return found


def symbols() -> Mapping[str, str]:
    """The legend: each symbol once for all memory formulas.

    Single letters are those of the field (arXiv:2205.05198, arXiv:1910.02054), words stand in where it has none. Sizes
    in bytes of one element begin with ``z``; words such as ``shard`` count elements, and ``k`` counts bytes.
    """
    legend: Mapping[str, str] = files.own_json(Path(__file__).with_name("symbols.json"))
    return legend
