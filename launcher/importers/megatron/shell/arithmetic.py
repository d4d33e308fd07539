"""Arithmetic of the shell: 64-bit integers, names with and without ``$``, and assignments."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from launcher.importers.megatron.shell import marks
from launcher.importers.megatron.shell.tree import ShellError

_DEEPEST = 40
_DIGITS = 20
_TOKEN = re.compile(
    r"\s*(\0[^\0]*\0|0[xX][0-9a-fA-F]+|\d+#\w+|\d+|[A-Za-z_]\w*(?:\[[^\]]*\])?"
    r"|\*\*|<<=|>>=|\+\+|--|&&|\|\||[-+*/%&|^]=|<<|>>|[=!<>]=|[-+*/%<>=!~&|^?:(),]|\S)"
)
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", ">", "<=", ">="),
    ("<<", ">>"),
    ("+", "-"),
)
_LEVELS += (("*", "/", "%"),)
_ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="}
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: -(-a // b) if (a < 0) != (b < 0) else a // b,
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
    "**": lambda a, b: a**b,
}


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number; None where it is not known, with the names to ask for."""

    value: int | None
    names: tuple[str, ...] = ()


def evaluate(text: str, look: Callable[[str], str | None], assign: Callable[[str, Number], None]) -> Number:
    """The value of an expression into which ``$NAME`` has been put already; what is no expression has none."""
    tokens = [match[1] for match in _TOKEN.finditer(text)]
    if not tokens:
        return Number(0)
    reader = _Reader(tokens, look, assign)
    found = reader.comma()
    return found if reader.at == len(tokens) else Number(None, marks.names(text))


class _Reader:
    """A place among the tokens of an expression."""

    def __init__(
        self,
        tokens: list[str],
        look: Callable[[str], str | None],
        assign: Callable[[str, Number], None],
        depth: int = 0,
    ) -> None:
        self.tokens, self.look, self.assign, self.at, self.depth = tokens, look, assign, 0, depth

    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *operators: str) -> str:
        found = self.next()
        if found not in operators or not found:
            return ""
        self.at += 1
        return found

    def comma(self) -> Number:
        found = self.assignment()
        while self.take(","):
            found = self.assignment()
        return found

    def assignment(self) -> Number:
        name = self.next()
        operator = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
        if operator not in _ASSIGN or not (name[:1].isalpha() or name[:1] == "_"):
            return self.choice()
        self.at += 2
        self.deeper()
        found = self.assignment()
        self.depth -= 1
        if operator != "=":
            found = _apply(operator[:-1], self.variable(name), found)
        self.assign(name, found)
        return found

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ShellError(f"arithmetic is nested deeper than {_DEEPEST}")

    def choice(self) -> Number:
        condition = self.binary(0)
        if not self.take("?"):
            return condition
        self.deeper()
        first = self.assignment()
        self.take(":")
        second = self.assignment()
        self.depth -= 1
        if condition.value is None:
            return Number(None, (*condition.names, *first.names, *second.names))
        return first if condition.value else second

    def binary(self, level: int) -> Number:
        if level == len(_LEVELS):
            return self.power()
        found = self.binary(level + 1)
        while operator := self.take(*_LEVELS[level]):
            found = _apply(operator, found, self.binary(level + 1))
        return found

    def power(self) -> Number:
        base = self.unary()
        if not self.take("**"):
            return base
        self.deeper()
        exponent = self.power()
        self.depth -= 1
        return _apply("**", base, exponent)

    def unary(self) -> Number:
        operator = self.take("+", "-", "!", "~", "++", "--")
        if not operator:
            return self.atom()
        self.deeper()
        name = self.next()
        found = self.unary()
        self.depth -= 1
        if operator in {"++", "--"}:
            found = _apply(operator[0], found, Number(1))
            self.assign(name, found)
        elif operator != "+" and found.value is not None:
            return Number({"-": -found.value, "!": int(not found.value), "~": ~found.value}[operator])
        return found

    def atom(self) -> Number:
        token = self.next()
        self.at += 1
        if token == "(":
            self.deeper()
            found = self.comma()
            self.depth -= 1
            self.take(")")
            return found
        if token[:1].isdigit():
            return _number(token)
        if token[:1] == marks.MARK:
            return Number(None, marks.names(token))
        if not (token[:1].isalpha() or token[:1] == "_"):
            return Number(None)
        found = self.variable(token)
        if operator := self.take("++", "--"):
            self.assign(token, _apply(operator[0], found, Number(1)))
        return found

    def variable(self, name: str) -> Number:
        """The value of a name, which may be an expression of its own."""
        text = self.look(name)
        if text is None:
            return Number(None, (name,))
        if text.isdigit():
            return _number(text)
        self.deeper()
        inside = _Reader([match[1] for match in _TOKEN.finditer(text)], self.look, self.assign, self.depth)
        found = inside.comma() if inside.tokens else Number(0)
        self.depth -= 1
        return found if inside.at >= len(inside.tokens) else Number(None, marks.names(text))


def _number(digits: str) -> Number:
    base, separator, rest = digits.partition("#")
    try:
        if len(digits) > _DIGITS:
            return Number(None)
        if separator:
            return Number(int(rest, int(base)))
        return Number(int(digits, 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10))
    except ValueError:
        return Number(None)


def _apply(operator: str, left: Number, right: Number) -> Number:
    """The result within 64 bits; unknown where a part is, and where bash has an error."""
    names = (*left.names, *right.names)
    if left.value is None or right.value is None:
        return Number(None, names)
    if (operator in {"/", "%"} and not right.value) or (operator == "**" and not 0 <= right.value < 64):
        return Number(None, names)
    found = _OPERATORS[operator](left.value, right.value)
    return Number((found + 2**63) % 2**64 - 2**63)
