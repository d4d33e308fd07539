"""Tests of the shell: ``[ ... ]`` and ``[[ ... ]]``, of which the answer may not be known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from launcher.importers.megatron.shell import marks, patterns
from launcher.importers.megatron.shell.arithmetic import Number
from launcher.importers.megatron.shell.tree import DEEPEST, ShellError

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_TEXTS = {"=", "==", "!=", "=~", "<", ">"}
_OF_FILES = {f"-{letter}" for letter in "abcdefghkprstuwxGLNOS"}


@dataclass(frozen=True, slots=True)
class Truth:
    """The answer of a command or a test.

    Attributes:
        value: None where it is not known.
        names: Of what is not known in it (``marks``).
        assumed: True if the answer holds only where variables without a value are empty.
        hints: Values with which its variables are compared, as ``NAME=VALUE``.
    """

    value: bool | None
    names: tuple[str, ...] = ()
    assumed: bool = False
    hints: tuple[str, ...] = ()

    def negated(self) -> Truth:
        """The other answer."""
        return Truth(None if self.value is None else not self.value, self.names, self.assumed, self.hints)


UNKNOWN = Truth(None)
YES = Truth(True)
NO = Truth(False)
ASSUMED = Truth(True, assumed=True)


def both(left: Truth, right: Truth) -> Truth:
    """The answer of ``&&``."""
    if left.value is False and not left.assumed:
        return left
    if right.value is False and not right.assumed:
        return right
    value = False if left.value is False or right.value is False else left.value and right.value
    if left.value is None or right.value is None:
        value = False if value is False else None
    return Truth(value, (*left.names, *right.names), left.assumed or right.assumed, (*left.hints, *right.hints))


def either(left: Truth, right: Truth) -> Truth:
    """The answer of ``||``."""
    return both(left.negated(), right.negated()).negated()


@dataclass(frozen=True, slots=True)
class Operand:
    """A word of a test: its value, and the pattern that it is on the right of ``==``."""

    text: str
    pattern: str
    is_operator: bool


class Conditions:
    """Reads the words of one test."""

    def __init__(
        self, operands: Iterable[Operand], number: Callable[[str], Number], is_set: Callable[[str], bool | None]
    ) -> None:
        """Take the words, how numbers are read, and which variables are set."""
        self.operands, self.number, self.is_set = list(operands), number, is_set
        self.at, self.depth = 0, 0

    def answer(self) -> Truth:
        """The answer; not known where the words are no test."""
        found = self._or() if self.operands else NO
        return found if self.at == len(self.operands) else Truth(None, self._names())

    def _names(self) -> tuple[str, ...]:
        return tuple(name for operand in self.operands for name in marks.names(operand.text))

    def _is(self, *operators: str) -> bool:
        return self.at < len(self.operands) and (
            self.operands[self.at].is_operator and self.operands[self.at].text in operators
        )

    def _left(self) -> int:
        return len(self.operands) - self.at

    def _or(self) -> Truth:
        found = self._and()
        while self._is("||", "-o"):
            self.at += 1
            found = either(found, self._and())
        return found

    def _and(self) -> Truth:
        found = self._not()
        while self._is("&&", "-a"):
            self.at += 1
            found = both(found, self._not())
        return found

    def _not(self) -> Truth:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ShellError(f"a test is nested deeper than {DEEPEST}")
        if self._is("!") and self._left() > 1:
            self.at += 1
            found = self._not().negated()
        elif self._is("(") and self._left() > 2:
            self.at += 1
            found = self._or()
            self.at += 1 if self._is(")") else 0
        else:
            found = self._primary()
        self.depth -= 1
        return found

    def _primary(self) -> Truth:
        words = self.operands[self.at : self.at + 3]
        if len(words) == 3 and words[1].is_operator and (words[1].text in _TEXTS or words[1].text in _NUMBERS):
            self.at += 3
            return self._compare(words[0], words[1].text, words[2])
        if len(words) > 1 and words[0].is_operator and len(words[0].text) == 2 and words[0].text[0] == "-":
            self.at += 2
            return self._unary(words[0].text, words[1].text)
        if not words:
            return UNKNOWN
        self.at += 1
        return _is_empty(words[0].text).negated()

    def _unary(self, operator: str, text: str) -> Truth:
        if operator in {"-z", "-n"}:
            found = _is_empty(text)
            return found if operator == "-z" else found.negated()
        if operator == "-v":
            is_set = self.is_set(text)
            return Truth(bool(is_set), marks.names(text), assumed=is_set is None)
        return Truth(None, marks.names(text) if operator not in _OF_FILES else ())

    def _compare(self, left: Operand, operator: str, right: Operand) -> Truth:
        names = (*marks.names(left.text), *marks.names(right.text))
        if operator in _NUMBERS:
            numbers = [self.number(operand.text) for operand in (left, right)]
            hints = _hints(left.text, right.text) if operator == "-eq" else ()
            if any(number.value is None for number in numbers):
                return Truth(None, (*names, *numbers[0].names, *numbers[1].names), hints=hints)
            return Truth(_NUMBERS[operator](numbers[0].value or 0, numbers[1].value or 0))
        if operator in {"=", "==", "!="}:
            found = _equal(left, right)
            return found.negated() if operator == "!=" else found
        if not marks.is_known(left.text) or not marks.is_known(right.text):
            return Truth(None, names)
        if operator == "=~":
            return Truth(patterns.search(right.text, left.text))
        return Truth(left.text < right.text if operator == "<" else left.text > right.text)


def _is_empty(text: str) -> Truth:
    """A variable without a value is taken for empty, as in a script that gives it one then."""
    if marks.without(text):
        return NO
    if marks.is_known(text):
        return YES
    names = marks.names(text)
    return Truth(True, names, assumed=True) if marks.is_unset(text) else Truth(None, names)


def _equal(left: Operand, right: Operand) -> Truth:
    if marks.is_known(left.text) and marks.is_known(right.text):
        return Truth(patterns.matches(right.pattern, left.text))
    names = (*marks.names(left.text), *marks.names(right.text))
    are_unset = all(marks.is_known(operand.text) or _may_be_empty(operand.text) for operand in (left, right))
    if are_unset and marks.without(left.text) == marks.without(right.text):  # As in [ "x$X" = x ].
        return Truth(True, names, assumed=True)
    return Truth(None, names, hints=(*_hints(left.text, right.text), *_hints(right.text, left.text)))


def _may_be_empty(text: str) -> bool:
    return all(name[0] not in "~?" for name in marks.names(text)) and bool(marks.names(text))


def _hints(asked: str, value: str) -> tuple[str, ...]:
    """``NAME=VALUE`` where one side of a comparison is one variable."""
    names = marks.variables(marks.names(asked))
    is_one = len(names) == 1 and not marks.without(asked) and marks.is_known(value)
    return (f"{names[0]}={value}",) if is_one and value else ()
