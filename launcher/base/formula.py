"""Formulas as text: one expression over named values, computed, and printed with its names or its numbers.

The printed formula is the formula. Expressions are compiled once each; their language is names, whole numbers,
``+ - * // /``, ``max``, ``min`` and ``ceil``.
"""

import ast
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any

from launcher.base.units import count

type Value = int | Fraction

_FUNCTIONS: dict[str, object] = {"max": max, "min": min, "ceil": ceil}
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "x",
    ast.Div: "/",
    ast.FloorDiv: "//",
}


def evaluated[T: (Value, float)](expression: str, values: Mapping[str, T]) -> T:
    """The value of an expression. Raises TypeError if there are more or fewer values than names."""
    try:
        result: T = _compiled(expression)(**values)
    except TypeError:
        names = names_in(expression)
        if names == values.keys():
            raise
        raise TypeError(f"{expression} has {len(names)} names, and the values are of {', '.join(values)}") from None
    return result


def printed(expression: str, name: Callable[[str], str]) -> str:
    """An expression as text, each name as ``name`` says it; brackets only where a reader needs them."""
    template, names = _template(expression)
    return template.format_map({each: name(each) for each in names})


@cache
def _compiled(expression: str) -> Callable[..., Any]:
    function: Callable[..., Any] = eval(f"lambda {', '.join(sorted(names_in(expression)))}: {expression}", _FUNCTIONS)
    return function


@cache
def _template(expression: str) -> tuple[str, frozenset[str]]:
    return _printed(_parsed(expression), lambda name: f"{{{name}}}"), names_in(expression)


@cache
def _parsed(expression: str) -> ast.expr:
    """The expression as a tree of what its language allows. Raises AssertionError if it is more than arithmetic."""
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


def exact(value: Value | float) -> str:
    """A number in full; a fraction by both of its numbers, a float to six digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{int(value):,}" if value.denominator == 1 else f"({value.numerator:,} / {value.denominator:,})"


def said(value: Value | float) -> str:
    """A number as people say it: whole below a thousand, then ``842.30 M``; a float to four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{float(value):,.4g}" if value.denominator != 1 else count(int(value))
