"""The state of a script, the work that is left for it, and its parameters: ``$NAME`` and ``${...}``."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Protocol

from launcher.base import files
from launcher.importers.megatron.shell import arithmetic, marks, patterns
from launcher.importers.megatron.shell.arithmetic import Number
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

    def copy(self) -> "State":
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
    return len([*takewhile(lambda words: len(set(words)) == 1, zip(*lists, strict=False))])


type Found = str | tuple[str, ...]

_HEAD = re.compile(r"([#!]?)([A-Za-z_]\w*|\d{1,3}|[@*#?$!-])(?:\[([^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\])?")
_DEFAULT = re.compile(r"(:?)([-=+?])(.*)\Z", re.DOTALL)
_CUT = re.compile(r"(##|#|%%|%)(.*)\Z", re.DOTALL)
_REPLACE = re.compile(r"/([/#%]?)((?:[^/\\]|\\.)*)(?:/(.*))?\Z", re.DOTALL)
_SLICE = re.compile(r":(?![-=+?])(.*)\Z", re.DOTALL)
_CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}
_LISTS = {"@", "*"}


class Words(Protocol):
    """Puts values into the words that stand inside of ``${...}``."""

    def text(self, raw: str) -> str:
        """One text."""

    def fields(self, raw: str) -> list[str]:
        """The words that it becomes."""

    def pattern(self, raw: str) -> str:
        """A pattern, in which quoted letters mean themselves."""


class Parameters:
    """Looks variables up, and sets them."""

    def __init__(self, state: State, given: Mapping[str, str], budget: Budget) -> None:
        self.state, self.given, self.budget = state, given, budget

    # Values.

    def value(self, name: str) -> Value | None:
        """The value of a variable: what the script has set, or else what the user gives."""
        if name in self.state.variables:
            return self.state.variables[name]
        return None if name.isdecimal() else self.given.get(name)

    def scalar(self, name: str, index: str | None = None, expand: Callable[[str], str] = str) -> str | None:
        """The text of a variable, or of one element of an array; None where it is not set."""
        if name.isdecimal() or name in _LISTS:
            return self._positional(name)
        value = self.value(name)
        if value is None or isinstance(value, str):
            return value if index in {None, "", "0"} else None
        key = expand(index or "0")
        if isinstance(value, dict):
            unknown = marks.mark(f"${{{name}[{key}]}}", marks.names(key))
            return value.get(key.strip("'\"")) if marks.is_known(key) else unknown
        number = self.number(key)
        if number.value is None:
            return marks.mark(f"${{{name}[{key}]}}", number.names)
        return value[number.value] if -len(value) <= number.value < len(value) else None

    def _positional(self, name: str) -> str | None:
        if self.state.positional is None or not name.isdecimal():
            return None
        number = int(name)
        return self.state.positional[number - 1] if 0 < number <= len(self.state.positional) else None

    def all_of(self, name: str) -> tuple[str, ...] | None:
        """The elements of an array, or the positional parameters."""
        if name in _LISTS:
            return self.state.positional
        value = self.value(name)
        if isinstance(value, dict):
            return tuple(value.values())
        return value if value is None or isinstance(value, tuple) else (value,)

    def number(self, text: str) -> Number:
        """The value of an arithmetic expression."""
        self.budget.spend(len(text))
        return arithmetic.evaluate(text, self._look, self._assign_number)

    def _look(self, name: str) -> str | None:
        name, _, index = name.partition("[")
        return self.scalar(name, index.rstrip("]") or None)

    def _assign_number(self, name: str, number: Number) -> None:
        text = marks.mark(f"${name}", number.names or [f"~{name}"]) if number.value is None else str(number.value)
        if "[" not in name:
            self.assign(name, text)

    def assign(self, name: str, value: Value, *, keeps_given: bool = False) -> None:
        """Set a variable; one that the user gives keeps that value where the file's is a plain one."""
        if keeps_given and name in self.given:
            text = self.given[name]
            self.state.variables[name] = text if isinstance(value, str) else tuple(text.split())
            return
        owned = marks.owned(value, name) if isinstance(value, str) else value
        if isinstance(owned, tuple):
            owned = tuple(marks.owned(text, name) for text in owned)
        self.budget.hold(owned)
        self.state.variables[name] = owned

    # Expansion.

    def plain(self, name: str, *, quoted: bool) -> Found:
        """The value of ``$NAME``."""
        if name in _LISTS:
            return self._list(name, name, quoted=quoted)
        if name == "#":
            return str(len(self.state.positional or ()))
        found = self.scalar(name)
        return self._spent(found) if found is not None else self._unset(name)

    def _spent(self, found: str) -> str:
        self.budget.spend(len(found) // 4)
        return found

    def _unset(self, name: str) -> str:
        """The text of a variable without a value: a mark, or nothing where positional parameters are given."""
        if name.isdecimal() and self.state.positional is not None and name != "0":
            return ""
        asked = [name] if name.isdecimal() or name[0].isalpha() or name[0] == "_" else []
        return marks.mark(f"${name}", asked if name != "0" else [])

    def _list(self, name: str, index: str, *, quoted: bool) -> Found:
        found = self.all_of(name)
        if found is None:
            shown = f"${name}" if name in _LISTS else f"${{{name}[{index}]}}"
            return (marks.mark(shown, [name]),)
        self.budget.spend(sum(map(len, found)) // 4)
        separator = self.value("IFS")
        first = separator[:1] if isinstance(separator, str) else " "
        return first.join(found) if index == "*" and quoted else found

    def braces(self, inside: str, words: Words, *, quoted: bool) -> Found:
        """The value of ``${...}``; a mark where it is of a kind that is not followed."""
        head = _HEAD.match(inside)
        if head is None:
            return marks.mark(f"${{{inside}}}")
        prefix, name, index = head.groups()
        rest = inside[head.end() :]
        if prefix:
            return self._prefixed(prefix, name, index, rest, inside)
        is_list = index in _LISTS or name in _LISTS
        if default := _DEFAULT.match(rest):
            return self._default(name, index, default, words, quoted=quoted)
        if is_list:
            found = self._list(name, index or name, quoted=quoted and not rest)
        else:
            text = self.scalar(name, index, words.text)
            is_unset = index is None or self.value(name) is None
            found = self._spent(text) if text is not None else self._unset(name) if is_unset else ""
        return self._changed(found, rest, inside, words, is_positional=name in _LISTS) if rest else found

    def _prefixed(self, prefix: str, name: str, index: str | None, rest: str, inside: str) -> Found:
        """Lengths, ``${#X}``; keys of arrays, ``${!X[@]}``; and values by a name that is a value, ``${!X}``."""
        shown = f"${{{inside}}}"
        value = self.value(name)
        if rest or (value is None and name not in _LISTS):
            return marks.mark(shown, [name] if name.isidentifier() else [])
        if prefix == "#":
            found = self.all_of(name) if index in _LISTS or name in _LISTS else self.scalar(name, index)
            text = found if isinstance(found, str) else "".join(found or ())
            return str(len(found or ())) if marks.is_known(text) else marks.mark(shown, marks.names(text))
        if index in _LISTS:
            return tuple(value) if isinstance(value, dict) else tuple(map(str, range(len(self.all_of(name) or ()))))
        named = self.scalar(name) or ""
        found = self.scalar(named) if named.isidentifier() else None
        asked = marks.names(named) or ([named] if named.isidentifier() else [])
        return found if isinstance(found, str) else marks.mark(shown, asked)

    def _default(self, name: str, index: str | None, match: re.Match[str], words: Words, *, quoted: bool) -> Found:
        colon, operator, word = match.groups()
        is_list = index in _LISTS or name in _LISTS
        value: Found | None = (self.all_of(name) or None) if is_list else self.scalar(name, index, words.text)
        is_empty = value is None or (bool(colon) and isinstance(value, str) and (not value or marks.is_unset(value)))
        if operator == "+":
            return "" if is_empty else _word(word, words)
        if not is_empty and value is not None:
            return value
        if operator == "?":
            return self._unset(name)
        found = _word(word, words)
        if operator == "=" and isinstance(found, str):
            self.assign(name, found)
        return found

    def _changed(self, found: Found, rest: str, inside: str, words: Words, *, is_positional: bool) -> Found:
        whole = found if isinstance(found, str) else "".join(found)
        unknown = marks.mark(f"${{{inside}}}", marks.names(whole))
        if not marks.is_known(whole):
            return unknown
        if sliced := _SLICE.match(rest):
            return self._sliced(found, sliced[1], unknown, words, is_positional=is_positional)
        self.budget.spend(min(len(whole), patterns.MOST) ** 2 // (1 if rest[0] == "/" else 64))
        change = _change(rest, words)
        texts = [change(text) for text in ([found] if isinstance(found, str) else found)] if change else [None]
        known = tuple(text for text in texts if text is not None)
        if len(known) < len(texts):
            return unknown
        return known[0] if isinstance(found, str) else known

    def _sliced(self, found: Found, text: str, unknown: str, words: Words, *, is_positional: bool) -> Found:
        start, _, length = words.text(text).partition(":")
        first, count = self.number(start), self.number(length) if length.strip() else None
        if first.value is None or (count and count.value is None):
            return unknown
        begin = first.value if first.value >= 0 else max(0, len(found) + first.value)
        begin = max(0, begin - 1) if is_positional else begin
        end = None if count is None or count.value is None else begin + count.value if count.value >= 0 else count.value
        return found[begin:end]


def _word(word: str, words: Words) -> Found:
    return tuple(words.fields(word)) if re.search(r"\[@\]|\$@", word) else words.text(word)


def _change(rest: str, words: Words) -> Callable[[str], str | None] | None:
    if cut := _CUT.match(rest):
        pattern = words.pattern(cut[2])
        at_end, longest = cut[1][0] == "%", len(cut[1]) == 2
        return lambda text: patterns.cut(text, pattern, end=at_end, longest=longest)
    if change := _REPLACE.match(rest):
        kind, pattern, by = change[1], words.pattern(change[2]), words.text(change[3] or "")
        if kind in {"#", "%"}:
            return lambda text: _at_an_end(text, pattern, by, end=kind == "%")
        return lambda text: patterns.replace(text, pattern, by, every=kind == "/")
    return _CASES.get(rest)


def _at_an_end(text: str, pattern: str, by: str, *, end: bool) -> str | None:
    rest = patterns.cut(text, pattern, end=end, longest=True)
    if rest is None or (rest == text and pattern):
        return rest
    return rest + by if end else by + rest
