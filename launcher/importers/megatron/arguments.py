"""Arguments of a Megatron-LM argument list, as they stand in the text and with the values that they have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass

_INTEGER = re.compile(r"[+-]?\d+(_\d+)*\Z", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_DIGITS = 30
"""Of the largest number that ``files`` lets pass, with underscores; a longer one stays text, which is refused."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as it was spelt, without its dashes; ``True`` where it has no value."""

    spelling: str  # As typed, without the dashes before it.
    value: Any  # Numbers and truth from text, a list of several words; ``$NAME`` stands for what has no value.
    words: tuple[str, ...] = ()  # The words that follow the name, as they are typed.


type Arguments = dict[str, Argument]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """An argument list."""

    arguments: Arguments  # Those of the training program, by name with dashes (the last of each wins).
    # Those of torchrun and of what else starts the program, by name with dashes.
    launcher_arguments: Arguments = field(default_factory=dict)
    program: str | None = None  # The training program's file or module, where the text names one.
    not_understood: tuple[str, ...] = ()  # Sentences: variables without a value, words that belong to no argument.
    # The variables without a value that an argument holds, by the argument's name.
    unset: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Flags of a YAML or JSON file that are ``false`` or ``null``, as typed, with that value.
    not_given: Mapping[str, Any] = field(default_factory=dict)
    other_keys: Mapping[str, Any] = field(default_factory=dict)  # Further keys of a YAML or JSON file, by dotted path.
    # Why this is no argument list of one run, where its words could be read: a variable decides.
    errors: tuple[ConfigError, ...] = ()


def name_of(spelling: str) -> str:
    """The name of an argument, with dashes however it is spelt."""
    return spelling.lstrip("-").replace("_", "-")


def names_table(rows: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Names by what they have in common, from rows of names between blanks."""
    return {key: names_in(names) for key, names in rows.items()}


def names_in(text: str) -> tuple[str, ...]:
    """Names between blanks."""
    return tuple(text.split())


class ByName[T]:
    """Values by the names of arguments; a name that ends in ``*`` is a beginning, and the longest counts."""

    def __init__(self, pairs: Iterable[tuple[str, T]]) -> None:
        self._whole = dict(pairs)
        beginnings = [(name[:-1], value) for name, value in self._whole.items() if name.endswith("*")]
        self._beginnings = sorted(beginnings, key=lambda pair: -len(pair[0]))

    def get(self, name: str) -> T | None:
        """The value of a name; None where there is none."""
        if name in self._whole:
            return self._whole[name]
        return next((value for start, value in self._beginnings if name.startswith(start)), None)


def typed(value: Any) -> Any:
    """Numbers and truth from text; ``[a b]`` and ``a,b`` stay text, since only the argument knows what they are."""
    if isinstance(value, list | tuple):
        return [typed(item) for item in value]
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if _INTEGER.match(value):
        return int(value) if len(value) <= _DIGITS else value
    return float(value) if _NUMBER.match(value) else value


def check_numbers(found: Iterable[Argument], path: str) -> None:
    """See whether the numbers, which stand as text in all of these files, keep within the limits."""
    errors = []
    for argument in found:
        values = argument.value if isinstance(argument.value, list) else [argument.value]
        try:
            files.check_numbers(map(_as_number, values))
        except ValueError as error:
            errors.append(ConfigError(f"{path}: --{argument.spelling}", None, str(error)))
    if errors:
        raise ConfigErrors(errors)


def _as_number(value: object) -> object:
    is_number = isinstance(value, str) and _INTEGER.match(value)
    return files.integer(value.replace("_", "")) if is_number and isinstance(value, str) else value
