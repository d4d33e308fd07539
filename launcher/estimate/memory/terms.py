"""One row of a memory estimate: bytes of one pile, alive at these moments, by this expression, from this source.

The printed formula is the formula: a term is made from one expression over named values, as ``z * (root + 2 * block)``,
and its bytes, its symbols and its numbers all come from that text (``launcher.base.formula``); ``memory.symbols`` is
the names' legend.

Terms that name an instant exclude each other: of the instants of one moment only the fullest counts (``fullest``). So a
backend states what a block's backward pass holds at another instant, in place of what is counted at the fullest of its
MLP, and never has to know what to subtract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Literal, NamedTuple, get_args

from launcher.base import formula
from launcher.base.formula import Value
from launcher.estimate.memory.moments import MOMENTS, Moment, Moments, Phase

type Pile = Literal[
    "parameters",
    "gradients",
    "optimizer_states",
    "master_weights",
    "activations",
    "logits",
    "gather_buffers",
    "reduce_buffers",
    "temporary",
    "workspace",
    "context",
    "communicators",
    "fragmentation",
]

PILES: tuple[Pile, ...] = get_args(Pile.__value__)

type HostPile = Literal["tensors", "offloaded", "processes", "readers"]
"""Piles of a node's host memory: on the CPU the ranks' tensors; then what is offloaded, and what processes take."""

OUTSIDE_PILES: frozenset[Pile] = frozenset(("context", "communicators"))
"""Piles of the process on the device outside of the caching allocator."""


class MemoryTerm(NamedTuple):
    """Bytes of one pile on one rank; a tuple, since an estimate makes dozens of them.

    Attributes:
        pile: The pile of the report (docs/contract.md) that it is added to.
        moments: When it is alive.
        bytes: The value of the expression, and 0 where that is negative.
        what: Words for it.
        expression: The formula, over names.
        values: The names' values on this rank.
        source: Where the formula stands: a paper's equation, a file of the framework, a trace.
        instant: Of terms with an instant, those of one instant at a time are alive; without one it is alive at all.
    """

    pile: Pile | HostPile
    moments: Moments
    bytes: int
    what: str
    expression: str
    values: Mapping[str, Value]
    source: str
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

    def at(self, instant: str) -> MemoryTerm:
        """The same term, alive at one instant of its moments."""
        return _MADE(MemoryTerm, (*self[:-1], instant))

    def with_numbers(self, said: Callable[[Value], str]) -> str:
        """The expression with each name's value in its place."""
        return formula.printed(self.expression, lambda name: said(self.values[name]))


def term(
    pile: Pile | HostPile,
    moments: Iterable[Moment],
    what: str,
    expression: str,
    source: str,
    /,
    **values: Value,
) -> MemoryTerm:
    """A term of a formula, never below zero.

    Args:
        pile: The pile that it belongs to.
        moments: When it is alive.
        what: Words for it.
        expression: Bytes over the names of ``values``.
        source: Where the formula stands.
        values: The value of each name of the expression; ``memory.symbols`` has their legend.
    """
    size = formula.evaluated(expression, values)
    size = size if type(size) is int else ceil(size)
    alive = moments if type(moments) is frozenset else frozenset(moments)
    return _MADE(MemoryTerm, (pile, alive, size if size > 0 else 0, what, expression, values, source, ""))


_MADE = tuple.__new__
"""Makes a :class:`MemoryTerm` in a third of the time of its own call; an estimate makes dozens."""


def fullest(terms: Iterable[MemoryTerm]) -> list[MemoryTerm]:
    """All terms, those with an instant at the moments alone at which no other instant takes more."""
    found, competing = [], []
    together: dict[tuple[str, Moments], int] = {}
    for one in terms:
        if one.instant:
            competing.append(one)
            key = one.instant, one.moments
            together[key] = together.get(key, 0) + one.bytes
        else:
            found.append(one)
    alive = _alive(together)
    for one in competing:
        moments = alive[one.instant, one.moments]
        if len(moments) == len(one.moments):
            found.append(one)
        elif moments:
            found.append(one._replace(moments=moments))
    return found


def _alive(together: Mapping[tuple[str, Moments], int]) -> dict[tuple[str, Moments], Moments]:
    """Of bytes by their instant and moments: the moments of each at which its instant is the fullest."""
    sums: dict[Moment, dict[str, int]] = {}
    for (instant, moments), size in together.items():
        for moment in moments:
            here = sums.setdefault(moment, {})
            here[instant] = here.get(instant, 0) + size
    first = {moment: max(here, key=here.__getitem__) for moment, here in sums.items()}
    return {key: frozenset(moment for moment in key[1] if first[moment] == key[0]) for key in together}
