"""Tests of the shell: ``[ ... ]`` and ``[[ ... ]]``, of which the answer may not be known."""

import operator
from collections.abc import Callable, Iterable, Sequence

from launcher.base.frozen import dataclass
from launcher.importers.megatron.shell import marks, patterns
from launcher.importers.megatron.shell.parameters import Parameters
from launcher.importers.megatron.shell.tree import DEEPEST, ShellError

_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge,
}  # fmt: skip
_TEXTS = {"=", "==", "!=", "=~", "<", ">"}
_OF_FILES = {f"-{letter}" for letter in "abcdefghkprstuwxGLNOS"}


@dataclass(frozen=True, slots=True)
class Truth:
    """The answer of a command or a test."""

    value: bool | None  # None where it is not known.
    names: tuple[str, ...] = ()  # Of what is not known in it (``marks``).
    assumed: bool = False  # True if the answer holds only where variables without a value are empty.
    hints: tuple[str, ...] = ()  # Values with which its variables are compared, as ``NAME=VALUE``.

    def negated(self) -> "Truth":
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


def answer(operands: Iterable[Operand], parameters: Parameters) -> Truth:
    """Answer a test; not known where its words are none."""
    test = _Test([*operands], parameters)
    found = test.either() if test.operands else NO
    if test.at == len(test.operands):
        return found
    return Truth(None, tuple(name for operand in test.operands for name in marks.names(operand.text)))


class _Test:
    def __init__(self, operands: Sequence[Operand], parameters: Parameters) -> None:
        self.operands, self.parameters = operands, parameters
        self.at, self.depth = 0, 0

    def stands(self, *operators: str) -> bool:
        here = self.operands[self.at] if self.at < len(self.operands) else None
        return here is not None and here.is_operator and here.text in operators

    def either(self) -> Truth:
        found = self.both()
        while self.stands("||", "-o"):
            self.at += 1
            found = either(found, self.both())
        return found

    def both(self) -> Truth:
        found = self.negation()
        while self.stands("&&", "-a"):
            self.at += 1
            found = both(found, self.negation())
        return found

    def negation(self) -> Truth:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ShellError(f"a test is nested deeper than {DEEPEST}")
        if self.stands("!") and len(self.operands) - self.at > 1:
            self.at += 1
            found = self.negation().negated()
        elif self.stands("(") and len(self.operands) - self.at > 2:
            self.at += 1
            found = self.either()
            self.at += 1 if self.stands(")") else 0
        else:
            found = self.primary()
        self.depth -= 1
        return found

    def primary(self) -> Truth:
        words = self.operands[self.at : self.at + 3]
        if len(words) == 3 and words[1].is_operator and (words[1].text in _TEXTS or words[1].text in _NUMBERS):
            self.at += 3
            return self.compare(words[0], words[1].text, words[2])
        if len(words) > 1 and words[0].is_operator and len(words[0].text) == 2 and words[0].text[0] == "-":
            self.at += 2
            return self.unary(words[0].text, words[1].text)
        if not words:
            return UNKNOWN
        self.at += 1
        return _is_empty(words[0].text).negated()

    def unary(self, operator: str, text: str) -> Truth:
        if operator in {"-z", "-n"}:
            found = _is_empty(text)
            return found if operator == "-z" else found.negated()
        if operator == "-v":
            is_set = self.parameters.value(text.partition("[")[0]) is not None
            return Truth(is_set, marks.names(text), assumed=not is_set)
        return Truth(None, marks.names(text) if operator not in _OF_FILES else ())

    def compare(self, left: Operand, operator: str, right: Operand) -> Truth:
        names = (*marks.names(left.text), *marks.names(right.text))
        if operator in _NUMBERS:
            numbers = [self.parameters.number(operand.text) for operand in (left, right)]
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
    unknown = [marks.names(operand.text) for operand in (left, right) if not marks.is_known(operand.text)]
    are_unset = all(names and all(name[0] not in "~?" for name in names) for names in unknown)
    if are_unset and marks.without(left.text) == marks.without(right.text):  # As in [ "x$X" = x ].
        return Truth(True, names, assumed=True)
    return Truth(None, names, hints=(*_hints(left.text, right.text), *_hints(right.text, left.text)))


def _hints(asked: str, value: str) -> tuple[str, ...]:
    names = marks.variables(marks.names(asked))
    is_one = len(names) == 1 and not marks.without(asked) and marks.is_known(value)
    return (f"{names[0]}={value}",) if is_one and value else ()
