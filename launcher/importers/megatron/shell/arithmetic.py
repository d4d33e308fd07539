"""Arithmetic of the shell: 64-bit integers, names with and without ``$``, and assignments."""

import operator
import re
from collections.abc import Callable

from launcher.base.frozen import dataclass
from launcher.importers.megatron.shell import marks
from launcher.importers.megatron.shell.tree import DEEPEST, ShellError

_DIGITS = 20  # Digits of a number, of which 64 bits have at most 20.

_TOKEN = re.compile(
    r"\s*(\0[^\0]*\0|0[xX][0-9a-fA-F]+|\d+#\w+|\d+|[A-Za-z_]\w*(?:\[[^\]]*\])?"
    r"|\*\*|<<=|>>=|\+\+|--|&&|\|\||[-+*/%&|^]=|<<|>>|[=!<>]=|[-+*/%<>=!~&|^?:(),]|\S)"
)
_LEVELS = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
"""Operators between two operands, those that bind least first."""

_ASSIGN = {"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "|=", "^="}
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: bool(a or b), "&&": lambda a, b: bool(a and b),
    "|": operator.or_, "^": operator.xor, "&": operator.and_,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63),
    "+": operator.add, "-": operator.sub, "*": operator.mul, "**": operator.pow,
    "/": lambda a, b: -(-a // b) if (a < 0) != (b < 0) else a // b,
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number; None where it is not known, with the names to ask for."""

    value: int | None
    names: tuple[str, ...] = ()


def evaluate(text: str, look: Callable[[str], str | None], assign: Callable[[str, Number], None]) -> Number:
    """The value of an expression into which ``$NAME`` has been put already; none where it is no expression."""
    reader = _Reader(text, look, assign)
    found = reader.whole()
    return found if reader.at == len(reader.tokens) else Number(None, marks.names(text))


class _Reader:
    def __init__(
        self, text: str, look: Callable[[str], str | None], assign: Callable[[str, Number], None], depth: int = 0
    ) -> None:
        self.tokens = [match[1] for match in _TOKEN.finditer(text)]
        self.look, self.assign, self.at, self.depth = look, assign, 0, depth

    def whole(self) -> Number:
        return self.comma() if self.tokens else Number(0)

    def nested(self, read: Callable[[], Number]) -> Number:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ShellError(f"arithmetic is nested deeper than {DEEPEST}")
        found = read()
        self.depth -= 1
        return found

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
        sign = self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ""
        if sign not in _ASSIGN or not (name[:1].isalpha() or name[:1] == "_"):
            return self.choice()
        self.at += 2
        found = self.nested(self.assignment)
        if sign != "=":
            found = _apply(sign[:-1], self.variable(name), found)
        self.assign(name, found)
        return found

    def choice(self) -> Number:
        condition = self.binary(0)
        if not self.take("?"):
            return condition
        first = self.nested(self.assignment)
        self.take(":")
        second = self.nested(self.assignment)
        if condition.value is None:
            return Number(None, (*condition.names, *first.names, *second.names))
        return first if condition.value else second

    def binary(self, level: int) -> Number:
        if level == len(_LEVELS):
            return self.power()
        found = self.binary(level + 1)
        while sign := self.take(*_LEVELS[level]):
            found = _apply(sign, found, self.binary(level + 1))
        return found

    def power(self) -> Number:
        base = self.unary()
        return _apply("**", base, self.nested(self.power)) if self.take("**") else base

    def unary(self) -> Number:
        sign = self.take("+", "-", "!", "~", "++", "--")
        if not sign:
            return self.atom()
        name = self.next()
        found = self.nested(self.unary)
        if sign in {"++", "--"}:
            found = _apply(sign[0], found, Number(1))
            self.assign(name, found)
        elif sign != "+" and found.value is not None:
            return Number({"-": -found.value, "!": int(not found.value), "~": ~found.value}[sign])
        return found

    def atom(self) -> Number:
        token = self.next()
        self.at += 1
        if token == "(":
            found = self.nested(self.comma)
            self.take(")")
            return found
        if token[:1].isdigit():
            return _number(token)
        if token[:1] == marks.MARK:
            return Number(None, marks.names(token))
        if not (token[:1].isalpha() or token[:1] == "_"):
            return Number(None)
        found = self.variable(token)
        if sign := self.take("++", "--"):
            self.assign(token, _apply(sign[0], found, Number(1)))
        return found

    def variable(self, name: str) -> Number:
        """The value of a name, which may be an expression of its own."""
        text = self.look(name)
        if text is None:
            return Number(None, (name,))
        if text.isdigit():
            return _number(text)
        inside = _Reader(text, self.look, self.assign, self.depth + 1)
        found = self.nested(inside.whole)
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


def _apply(sign: str, left: Number, right: Number) -> Number:
    names = (*left.names, *right.names)
    if left.value is None or right.value is None:
        return Number(None, names)
    if (sign in {"/", "%"} and not right.value) or (sign == "**" and not 0 <= right.value < 64):
        return Number(None, names)
    return Number((_OPERATORS[sign](left.value, right.value) + 2**63) % 2**64 - 2**63)
