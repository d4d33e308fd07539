"""The state of a script: variables, positional parameters and functions, and the work that is left for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from launcher.base import files
from launcher.importers.megatron.shell import marks
from launcher.importers.megatron.shell.tree import ShellError, Statement

type Value = str | tuple[str, ...] | dict[str, str]

_PIECES = re.compile(r"(?:[^\s\0]|\0[^\0]*\0)+|\s+")
_MOST_FLAGS = 12  # Arguments in a message about one decision.

_MOST_WORK = 3 << 18
"""Characters that a script may read or write, in about a second; a script of a training needs some thousands."""

_STATEMENT = 30  # Characters that cost as much as one statement does.


@dataclass(slots=True)
class State:
    """Values are never changed in place, so that a copy of the mappings is a copy of the state."""

    variables: dict[str, Value] = field(default_factory=dict)
    positional: tuple[str, ...] | None = None  # ``$1`` and so on; None where nobody has given them.
    functions: dict[str, Statement] = field(default_factory=dict)
    flow: str = ""  # Where statements are left: ``exit``, ``return``, ``break``, ``continue``.

    def copy(self) -> State:
        """The same state, which can go another way."""
        return replace(self, variables=dict(self.variables), functions=dict(self.functions))


@dataclass(slots=True)
class Budget:
    """The work that is left: each variable can double the one before, and each loop runs another."""

    left: int = _MOST_WORK

    def spend(self, characters: int) -> None:
        """Count work in characters that are read or written."""
        self.left -= characters
        if self.left < 0:
            raise ShellError("it takes more steps than a list of arguments should")

    def step(self) -> None:
        """Count one statement."""
        self.spend(_STATEMENT)

    def hold(self, value: Value) -> None:
        """Count a value, and refuse one that is too long."""
        size = sum(map(len, value)) + len(value) if not isinstance(value, str) else len(value)
        if size > files.MOST_OF_A_SCRIPT:
            raise ShellError(f"its variables come to more than {files.MOST_OF_A_SCRIPT >> 10} KiB")
        self.spend(size)


def given_positional(given: Mapping[str, str]) -> tuple[str, ...] | None:
    """The positional parameters among what the user gives by number."""
    numbers = [int(name) for name in given if name.isdecimal() and 0 < len(name) < 3 and int(name) > 0]
    if not numbers:
        return None
    return tuple(given.get(name, marks.mark(f"${name}", [name])) for name in map(str, range(1, max(numbers) + 1)))


def merged(states: list[State], decision: str) -> tuple[State, tuple[str, ...]]:
    """The last of several states that a decision is between, with what differs marked; and the flags that differ."""
    found = states[-1].copy()
    flags: list[str] = []
    for name in dict.fromkeys(name for state in states for name in state.variables):
        values = [state.variables.get(name) for state in states]
        if any(value != values[-1] for value in values):
            found.variables[name] = _decided(values, decision)
            flags += _flags(values)
    return found, tuple(dict.fromkeys(flags))


def _flags(values: list[Value | None]) -> list[str]:
    """Words that begin like arguments and are not in every value."""
    held = [marks.plain(value if isinstance(value, str) else " ".join(value or ())).split() for value in values]
    words = dict.fromkeys(word for words in held for word in words if word.startswith("--"))
    return [word for word in words if not all(word in words for words in held)][:_MOST_FLAGS]


def _decided(values: list[Value | None], decision: str) -> Value:
    last = next(value for value in reversed(values) if value is not None)
    if isinstance(last, str):
        texts = [_PIECES.findall(value) for value in values if isinstance(value, str)]
        same = _common(texts) if len(texts) == len(values) else 0
        ending = marks.decided("".join(texts[-1][same:]), decision)
        return "".join(texts[-1][:same]) + (" " if same == len(texts[-1]) else "") + ending
    if isinstance(last, dict):
        return {key: marks.decided(text, decision) for key, text in last.items()}
    lists = [value for value in values if isinstance(value, tuple)]
    same = _common(lists) if len(lists) == len(values) else 0
    rest = [marks.decided(text, decision) for text in last[same:]]
    return (*last[:same], *(rest or [marks.mark("", [decision])]))


def _common(lists: Iterable[Sequence[str]]) -> int:
    """The number of words at the beginning that are the same in all."""
    return len([*takewhile(lambda words: len(set(words)) == 1, zip(*lists, strict=False))])
