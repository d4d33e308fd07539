"""One row of a memory estimate: bytes of one pile, alive at these moments, by this expression, from this source.

The printed formula is the formula: a term is made from one expression over named values, as ``z * (root + 2 * block)``,
and its bytes, its symbols and its numbers all come from that text. Expressions are compiled once each; their language
is names, whole numbers, ``+ - * // /``, ``max``, ``min`` and ``ceil``; ``memory.symbols`` is the names' legend.

Terms that name an instant exclude each other: of the instants of one moment only the fullest counts (``fullest``). So a
backend states what a block's backward pass holds at another instant, in place of what is counted at the fullest of its
MLP, and never has to know what to subtract.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from math import ceil
from types import CodeType
from typing import Literal, NamedTuple, get_args

from launcher.memory.moments import MOMENTS, Moment, Phase
from launcher.text.units import count

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

type Value = int | Fraction

_FUNCTIONS: dict[str, object] = {"max": max, "min": min, "ceil": ceil}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "x",
    ast.Div: "/",
    ast.FloorDiv: "//",
}


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
    moments: frozenset[Moment]
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
        return f"{self.what}: {self.with_numbers(_said)}"

    @property
    def symbols(self) -> str:
        """The expression as it is printed: ``z x (root + 2 x block)``."""
        return _printed(_parsed(self.expression), lambda name: name)

    @property
    def numbers(self) -> str:
        """The expression with its exact numbers: ``2 x (525,336,576 + 2 x 218,112,000)``."""
        return self.with_numbers(_exact)

    def at(self, instant: str) -> MemoryTerm:
        """The same term, alive at one instant of its moments."""
        return MemoryTerm(*self[:-1], instant)  # A third of the time of ``_replace``; an estimate makes dozens.

    def with_numbers(self, said: Callable[[Value], str]) -> str:
        """The expression with each name's value in its place."""
        return _printed(_parsed(self.expression), lambda name: said(self.values[name]))


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
    code, names = _compiled(expression)
    if len(values) != names:
        raise TypeError(f"{expression} has {names} names, and the values are of {', '.join(values)}")
    size = ceil(eval(code, _FUNCTIONS, values))
    alive = moments if isinstance(moments, frozenset) else frozenset(moments)
    return MemoryTerm(pile, alive, size if size > 0 else 0, what, expression, values, source)


def fullest(terms: Iterable[MemoryTerm]) -> Iterator[MemoryTerm]:
    """All terms, those with an instant at the moments alone at which no other instant takes more."""
    instants: dict[Moment, dict[str, int]] = {}
    competing = []
    for one in terms:
        if not one.instant:
            yield one
            continue
        competing.append(one)
        for moment in one.moments:
            sums = instants.setdefault(moment, {})
            sums[one.instant] = sums.get(one.instant, 0) + one.bytes
    first = {moment: max(sums, key=sums.__getitem__) for moment, sums in instants.items()}
    for one in competing:
        alive = frozenset(moment for moment in one.moments if first[moment] == one.instant)
        if len(alive) == len(one.moments):
            yield one
        elif alive:
            yield one._replace(moments=alive)


@cache
def _compiled(expression: str) -> tuple[CodeType, int]:
    """The expression's code, and how many names it has."""
    return compile(ast.Expression(_parsed(expression)), "<formula>", "eval"), len(names_in(expression))


@cache
def _parsed(expression: str) -> ast.expr:
    """The expression as a tree of what its language allows.

    Raises:
        AssertionError: It holds anything but arithmetic.
    """
    tree = ast.parse(expression, mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name), expression
            assert node.func.id in _FUNCTIONS, expression
        elif isinstance(node, ast.BinOp):
            assert type(node.op) in _OPERATORS, expression
        elif isinstance(node, ast.Constant):
            assert type(node.value) is int, expression
        else:
            assert isinstance(node, (ast.Name, ast.operator, ast.expr_context)), expression
    return tree


def names_in(expression: str) -> frozenset[str]:
    """The names of an expression."""
    names = {node.id for node in ast.walk(_parsed(expression)) if isinstance(node, ast.Name)}
    return frozenset(names - _FUNCTIONS.keys())


def _printed(node: ast.expr, name: Callable[[str], str]) -> str:
    """An expression as text; brackets only where a reader needs them."""
    match node:
        case ast.Name():
            return name(node.id)
        case ast.Constant(value=int(number)):
            return f"{number:,}"
        case ast.Call(func=ast.Name(id=function)):
            return f"{function}({', '.join(_printed(argument, name) for argument in node.args)})"
        case ast.BinOp():
            left, right = _printed(node.left, name), _printed(node.right, name)
            if not isinstance(node.op, (ast.Add, ast.Sub)):
                left, right = _bracketed(left, node.left), _bracketed(right, node.right, strictly=True)
            elif isinstance(node.op, ast.Sub):
                right = _bracketed(right, node.right)
            return f"{left} {_OPERATORS[type(node.op)]} {right}"
        case _:
            raise AssertionError(ast.dump(node))


def _bracketed(text: str, node: ast.expr, *, strictly: bool = False) -> str:
    """A factor or subtrahend: a sum in brackets, and behind a division or product also a division or product."""
    if isinstance(node, ast.BinOp) and (strictly or isinstance(node.op, (ast.Add, ast.Sub))):
        return f"({text})"
    return text


def _exact(value: Value) -> str:
    """A number in full; a fraction by both of its numbers."""
    if value.denominator == 1:
        return f"{int(value):,}"
    return f"({value.numerator:,} / {value.denominator:,})"


def _said(value: Value) -> str:
    """A number as people say it: whole below a thousand, then ``842.30 M``."""
    if value.denominator != 1:
        return f"{float(value):,.4g}"
    return count(int(value))
