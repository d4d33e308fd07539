"""One row of a memory estimate: bytes of one pile, alive at these moments, by this expression, from this source.

The printed formula is the formula: a term is made from one expression over named values, as ``z * (root + 2 * block)``,
and its bytes, its symbols and its numbers all come from that text (``launcher.base.formula``); ``symbols`` is the
names' legend.

Terms that name an instant exclude each other: of the instants of one moment only the fullest counts (``fullest``). So a
backend states what a block's backward pass holds at another instant, in place of what is counted at the fullest of its
MLP, and never has to know what to subtract.
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
"""Piles of a node's host memory: on the CPU the ranks' tensors; then what is offloaded and saved, and processes."""

OUTSIDE_PILES: frozenset[Pile] = frozenset(("context", "communicators"))
"""Piles of the process on the device outside of the caching allocator."""


class MemoryTerm(NamedTuple):
    """Bytes of one pile on one rank; a tuple, since an estimate makes dozens of them."""

    pile: Pile | HostPile  # The pile of the report (docs/contract/documents.md) that it is added to.
    moments: Moments  # When it is alive.
    bytes: int  # The value of the expression, and 0 where that is negative.
    what: str  # Words for it.
    expression: str  # The formula, over names.
    values: Mapping[str, Value]  # The names' values on this rank.
    source: str  # Where the formula stands: a paper's equation, a file of the framework, a trace.
    # Of terms with an instant, those of one instant at a time are alive; without one it is alive at all.
    instant: str = ""

    @property
    def phases(self) -> frozenset[Phase]:
        """The phases in which it is alive at one moment at least."""
        return frozenset(MOMENTS[moment] for moment in self.moments)

    @property
    def formula(self) -> str:
        """Words for it, and its expression with numbers as people say them: ``parameters: 4 x 842.30 M``."""
        return f"{self.what}: {self.with_numbers(formula.said)}"

    @property
    def symbols(self) -> str:
        """The expression as it is printed: ``z x (root + 2 x block)``."""
        return formula.printed(self.expression, lambda name: name)

    @property
    def numbers(self) -> str:
        """The expression with its exact numbers: ``2 x (525,336,576 + 2 x 218,112,000)``."""
        return self.with_numbers(formula.exact)

    def at(self, instant: str) -> "MemoryTerm":
        """The same term, alive at one instant of its moments."""
        return _MADE(MemoryTerm, (*self[:-1], instant))

    def with_numbers(self, said: Callable[[Value], str]) -> str:
        """The expression with each name's value in its place."""
        return formula.printed(self.expression, lambda name: said(self.values[name]))


def term(
    pile: Pile | HostPile, moments: Iterable[Moment], what: str, expression: str, source: str, /, **values: Value
) -> MemoryTerm:
    """A term of a formula, never below zero: ``what`` in words, bytes by ``expression`` of the names of ``values``."""
    size = formula.evaluated(expression, values)
    size = size if type(size) is int else ceil(size)
    alive = moments if type(moments) is frozenset else frozenset(moments)
    return _MADE(MemoryTerm, (pile, alive, size if size > 0 else 0, what, expression, values, source, ""))


_MADE = tuple.__new__  # Makes a :class:`MemoryTerm` in a third of the time of its own call; an estimate makes dozens.


def by_instant(terms: Iterable[MemoryTerm]) -> Mapping[Moment, defaultdict[str, int]]:
    """Bytes of each instant of every moment, those of terms without an instant under none."""
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
    """All terms; those with an instant come last, and only at the moments at which their instant is the fullest."""
    every = list(terms)
    found, competing = [one for one in every if not one.instant], [one for one in every if one.instant]
    first = {moment: max(here, key=here.__getitem__) for moment, here in by_instant(competing).items() if here}
    for one in competing:
        if moments := frozenset(moment for moment in one.moments if first[moment] == one.instant):
            found.append(one._replace(moments=moments))
    return found


def symbols() -> Mapping[str, str]:
    """The legend: each symbol of a formula, once for all of them.

    Single letters are those of the field (arXiv:2205.05198, arXiv:1910.02054); where it has none a word is used. Sizes
    in bytes are of one element and begin with ``z``; words such as ``shard`` count elements, and ``k`` counts bytes.
    """
    legend: Mapping[str, str] = files.own_json(Path(__file__).with_name("symbols.json"))
    return legend
