"""Statements of a shell script; words are kept as they stand in the text, with their quotes."""

from dataclasses import dataclass

DEEPEST = 40  # Statements, quotes, tests or sums in one another, far below Python's own limit of calls.


class ShellError(ValueError):
    """The text is no shell script, or asks for more than a reader should do."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """``name=value``, ``name+=value``, ``name[index]=value`` or, where the value is a tuple, ``name=( ... )``."""

    name: str
    value: str | tuple[str, ...]
    index: str | None = None
    append: bool = False


@dataclass(slots=True)
class Heredoc:
    """The lines behind ``<<``; nothing is put into them where the delimiter is quoted."""

    delimiter: str
    quoted: bool
    text: str = ""


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with the assignments before it; arrays stand among the words of ``declare`` and its like."""

    line: int
    assignments: tuple[Assignment, ...]
    words: tuple[str | Assignment, ...]
    heredoc: Heredoc | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands that are joined by ``|``."""

    parts: "tuple[Statement, ...]"
    negated: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """Statements that are joined by ``&&`` and ``||``."""

    line: int
    first: "Statement"
    rest: "tuple[tuple[str, Statement], ...]"


@dataclass(frozen=True, slots=True)
class If:
    """``if`` with its ``elif``: lines, conditions and bodies; then ``else``."""

    branches: "tuple[tuple[int, Body, Body], ...]"
    otherwise: "Body"


@dataclass(frozen=True, slots=True)
class Case:
    """``case`` with the patterns and the body of each item."""

    line: int
    word: str
    items: "tuple[tuple[tuple[str, ...], Body], ...]"


@dataclass(frozen=True, slots=True)
class For:
    """``for name in words``; without words it is the positional parameters."""

    line: int
    name: str
    words: tuple[str, ...] | None
    body: "Body"


@dataclass(frozen=True, slots=True)
class Count:
    """``for ((start; condition; step))``."""

    line: int
    head: tuple[str, str, str]
    body: "Body"


@dataclass(frozen=True, slots=True)
class While:
    """``while`` or ``until``."""

    line: int
    condition: "Body"
    body: "Body"
    until: bool


@dataclass(frozen=True, slots=True)
class Function:
    """``name() { ... }``."""

    name: str
    body: "Statement"


@dataclass(frozen=True, slots=True)
class Group:
    """``{ ... }`` or, apart, ``( ... )``."""

    body: "Body"
    apart: bool


@dataclass(frozen=True, slots=True)
class Test:
    """``[[ ... ]]``."""

    line: int
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """``(( ... ))``."""

    line: int
    text: str


type Statement = Simple | Pipeline | Chain | If | Case | For | Count | While | Function | Group | Test | Arithmetic
type Body = tuple[Statement, ...]
