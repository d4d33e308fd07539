"""The arguments of a list, read one by one: each that is read is entered in the ledger with the settings that say it.

An argument that is not given has Megatron-LM's default, not ours, because the file is read as Megatron-LM would read
it. Wrong values are collected, so that all come at once, and a value that only the tokenizer or a shell variable knows
is left open rather than guessed.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.base.errors import ConfigError
from launcher.config.ledger import OPEN, Ledger, Settings
from launcher.importers.megatron.arguments import Argument, Arguments, Parsed

_ASIDE = ("cluster.", "data.workers", "save.", "tracking", "train.eval_", "train.log_every", "train.timeout_s")
"""Beginnings of settings without an effect on the maths, the memory and the data of training."""


@dataclass(slots=True)
class ArgumentReader:
    """The arguments and the ledger of all keys, with errors and sentences so far."""

    parsed: Parsed
    path: str
    ledger: Ledger
    errors: list[ConfigError] = field(default_factory=list)
    not_understood: list[str] = field(default_factory=list)
    extra: Settings = field(default_factory=dict)

    @property
    def arguments(self) -> Arguments:
        """The arguments of the training program."""
        return self.parsed.arguments

    def __contains__(self, name: str) -> bool:
        return name in self.arguments

    def key(self, name: str) -> str:
        """The argument's key in the ledger: the flag as it is typed."""
        argument = self.arguments.get(name)
        return f"--{name if argument is None else argument.spelling}"

    def note(self, text: str) -> None:
        """Add a sentence about the file."""
        self.not_understood.append(text)

    def wrong(self, name: str, value: object, rule: str, way_out: list[str] | None = None) -> None:
        """Collect an error; the first of an argument is enough."""
        path = f"{self.path}: {self.key(name)}"
        if all(error.path != path for error in self.errors):
            self.errors.append(ConfigError(path, value, rule, way_out or []))

    def leave(self, name: str, effect: str, *, matters: bool = True) -> None:
        """Enter an argument that the run does not have here."""
        self.ledger.leave(self.key(name), effect, matters=matters)

    def idle(self, why: str, *names: str) -> None:
        """Enter arguments that change nothing of the training."""
        for name in names:
            self.leave(name, f"no effect: {why}", matters=False)

    def keep(self, name: str) -> None:
        """Hand an argument to the engine as it is (``backend.extra``)."""
        argument = self.arguments[name]
        self.ledger.keep(f"--{argument.spelling}")
        self.extra[argument.spelling] = argument.value

    def get(self, name: str, *paths: str, default: Any = None) -> Any:
        """The value, or the default where there is none or a variable in it has no value.

        ``paths`` are the settings that say the argument; without one another reader enters it.
        """
        argument = self.arguments.get(name)
        self.ledger.known.add(f"--{name}")
        if argument is None:
            return default
        if name in self.parsed.unset:
            self._without_value(name, paths)
            return default
        if paths:
            self.ledger.say(self.key(name), *paths)
        return argument.value

    def number(self, name: str, *paths: str, default: Any = None) -> Any:
        """A number, or the default."""
        value = self.get(name, *paths, default=default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            self.wrong(name, value, "is a number")
            return default
        return value

    def count(self, name: str, *paths: str, default: int | None = None) -> Any:
        """A whole number, or the default."""
        value = self.number(name, *paths, default=default)
        if isinstance(value, float):
            self.wrong(name, value, "is a whole number")
            return default
        return value

    def word(self, name: str, *paths: str, default: str | None = None) -> Any:
        """A word, or the default."""
        value = self.get(name, *paths, default=default)
        if value is not None and not isinstance(value, str):
            self.wrong(name, value, "is a word")
            return default
        return value

    def text(self, name: str, *paths: str) -> str | None:
        """The text behind the argument, also where it looks like a number."""
        value = self.get(name, *paths)
        argument = self.arguments.get(name)
        if value is None or argument is None or value is True:
            return None
        return " ".join(argument.words) or str(value)

    def choice(self, name: str, table: Mapping[str, str], *paths: str, default: str) -> str:
        """A word by a table, upper and lower case alike; another one is an error and stands for the default."""
        value = self.word(name, *paths)
        found = default if value is None else {key.lower(): word for key, word in table.items()}.get(value.lower())
        if found is None:
            self.wrong(name, value, f"is one of {', '.join(table)}")
        return found or default

    def size(self, *names: str, says: str) -> Any:
        """A size without which no model follows, by the first of its spellings; ``???`` where there is none."""
        found = [value for name in names if (value := self.count(name, says)) is not None]
        if found and found[0] >= 1:
            return found[0]
        given = next((name for name in names if name in self), names[0])
        unset = self.parsed.unset.get(given)
        if unset is not None:
            rule = f"{_named(unset)}, and the size of the model does not follow without it"
            self.wrong(given, self.arguments[given].value, rule, [f"--set {name}=..." for name in unset])
        else:
            rule = "the size of the model does not follow without it"
            self.wrong(given, found[0] if found else None, rule, [f"--{given} ..."])
        return OPEN

    def switch(self, name: str, *paths: str) -> bool:
        """True if a switch is given; a variable after it is somebody else's."""
        if name not in self.arguments:
            return False
        if name in self.parsed.unset:
            self.ledger.say(self.key(name), *paths)
            return True
        return self.get(name, *paths, default=True) is not False

    def switches(self, names: Iterable[str], *paths: str) -> bool:
        """True if one of several switches is given; each of them is entered."""
        given = [self.switch(name, *paths) for name in names]
        return any(given)

    def words(self, name: str, *paths: str) -> list[Any]:
        """A list, also as the text ``"[a b]"`` of Megatron's own YAML files."""
        value = self.get(name, *paths, default=[])
        return [item for item in value if item is not None] if isinstance(value, list) else split(value)

    def _without_value(self, name: str, paths: tuple[str, ...]) -> None:
        unset = self.parsed.unset[name]
        ways = "".join(f"; --set {variable}=..." for variable in unset)
        if not unset and (path := next((path for path in paths if "." in path), None)):
            ways = f": set {path}"
        aside = bool(paths) and all(path.startswith(_ASIDE) for path in paths)
        effect = f"{_named(unset)}, so that it has the default here{ways}"
        self.leave(name, f"no effect: on training; {effect}" if aside else effect, matters=not aside)


def first[T](values: Iterable[T | None]) -> T | None:
    """The first value that is one."""
    return next((value for value in values if value is not None), None)


def split(value: object) -> list[str]:
    """The words of ``"[a b]"``, ``"a,b"`` or ``"a b"``."""
    return [word for word in re.split(r"[\s,]+", str(value).strip("[] ")) if word]


def _named(unset: tuple[str, ...]) -> str:
    return f"{' and '.join(f'${name}' for name in unset)} has no value" if unset else "its value is not known"


def ledger_of(parsed: Parsed) -> Ledger:
    """Every key of a file: flags of the program and of its launcher as typed, those not given, and other keys."""
    values: dict[str, object] = {}
    for argument in (*parsed.arguments.values(), *parsed.launcher_arguments.values()):
        values.setdefault(f"--{argument.spelling}", argument.value)
    ledger = Ledger({**values, **parsed.not_given, **parsed.other_keys})
    ledger.default(*(key for key in parsed.not_given if key not in values))
    return ledger


def started_by(parsed: Parsed, name: str) -> Argument | None:
    """An argument of torchrun, Slurm or DeepSpeed's launcher whose value is known."""
    return None if name in parsed.unset else parsed.launcher_arguments.get(name)
