"""Formulas as text: an expression over named values that can be evaluated, and printed with names or numbers.

The same text is evaluated and printed. Expressions are compiled once each; the language is names, integers,
``+ - * // /``, ``max``, ``min`` and ``ceil``.
"""

import ast
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any

from launcher.base.units import count

type Value = int | Fraction

_FUNCTIONS: dict[str, object] = {"max": max, "min": min, "ceil": ceil}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv)


def evaluated[T: (Value, float)](expression: str, values: Mapping[str, T]) -> T:
    """Return the value of an expression. Raises TypeError if there are more or fewer values than names."""
    try:
        result: T = _compiled(expression)(**values)
    except TypeError:
        names = names_in(expression)
        if names == values.keys():
            raise
        raise TypeError(f"{expression} has {len(names)} names, and the values are of {', '.join(values)}") from None
    return result


def printed(expression: str, name: Callable[[str], str]) -> str:
    """Return an expression as text, with each name replaced by ``name`` and only the necessary parentheses."""
    template, names = _template(expression)
    return template.format_map({each: name(each) for each in names})


@cache
def _compiled(expression: str) -> Callable[..., Any]:
    function: Callable[..., Any] = eval(f"lambda {', '.join(sorted(names_in(expression)))}: {expression}", _FUNCTIONS)
    return function


@cache
def _template(expression: str) -> tuple[str, frozenset[str]]:
    text, names = ast.unparse(_parsed(expression)).replace(" * ", " x "), names_in(expression)
    return re.sub(r"\w+", lambda found: _word(found[0], names), text), names


def _word(word: str, names: frozenset[str]) -> str:
    return f"{{{word}}}" if word in names else f"{int(word):,}" if word.isdecimal() else word


@cache
def _parsed(expression: str) -> ast.expr:
    """The syntax tree of an expression. Raises AssertionError if it is not in the language."""
    tree = ast.parse(expression, mode="eval").body
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name), expression
            assert node.func.id in _FUNCTIONS, expression
        elif isinstance(node, ast.BinOp):
            assert isinstance(node.op, _OPERATORS), expression
        elif isinstance(node, ast.Constant):
            assert type(node.value) is int, expression
        else:
            assert isinstance(node, (ast.Name, ast.operator, ast.expr_context)), expression
    return tree


def names_in(expression: str) -> frozenset[str]:
    """Return the names in an expression."""
    names = {node.id for node in ast.walk(_parsed(expression)) if isinstance(node, ast.Name)}
    return frozenset(names - _FUNCTIONS.keys())


def exact_text(value: Value | float) -> str:
    """Return a number in full; a fraction as numerator and denominator, a float with six digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{int(value):,}" if value.denominator == 1 else f"({value.numerator:,} / {value.denominator:,})"


def short_text(value: Value | float) -> str:
    """Return a number in short form: in full below a thousand, then ``842.30 M``; a float with four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{float(value):,.4g}" if value.denominator != 1 else count(int(value))
