"""The words of a command as arguments: pairs of flags and values, and what of them is not known."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from launcher.base.errors import ConfigError
from launcher.config.ledger import OPEN
from launcher.importers.megatron.arguments import SWITCHES, Argument, Arguments, Parsed, name_of, typed
from launcher.importers.megatron.command import decided_by, launcher_pairs
from launcher.importers.megatron.shell import marks
from launcher.importers.megatron.shell.follower import Decision

_BEGINNINGS = ("disable-", "enable-", "no-", "use-", "log-", "overlap-", "reset-")
_WITH_VALUE = frozenset({"no-weight-decay-cond-type", "log-interval", "log-level", "log-memory-interval"})
_FLAG_WITH_BLANK = re.compile(r"--[\w-]+\s+\S")
_DASHED = re.compile(r"-[A-Za-z]")
_LISTED = re.compile(r"[@*]|(ARGS?|OPTS?|OPTIONS?|FLAGS?|EXTRA|PARAMS?|CONFIGS?)\}?\Z", re.IGNORECASE)
_PLACE = re.compile(r"(dir|path|name|file|cache|project|entity|prefix|id|model)\Z|^(save|load|wandb|tensorboard)")
"""Arguments of which a value that hangs on a condition is no more than a value that is not known."""
_OPEN = (("",), (OPEN,))  # Words of an argument whose value the file leaves open.
_COUNTS = ("nnodes", "nproc-per-node")
_LINE = re.compile(r"line_\d+")


class Words:
    """Pairs the words of a command and says what of them is not known."""

    def __init__(self, path: str, decisions: Sequence[Decision], assigned: Collection[str] = ()) -> None:
        """Take the file, for messages, the decisions that marks name, and the variables that the file assigns."""
        self.path, self.decisions, self.assigned = path, decisions, assigned
        self.arguments: Arguments = {}
        self.launcher: Arguments = {}
        self.unset: dict[str, tuple[str, ...]] = {}
        self.holds: dict[str, list[str]] = {}
        self.decided: dict[int, list[str]] = {}
        self.sentences: list[str] = []
        self.errors: list[ConfigError] = []

    def gather(self, words: Iterable[str]) -> None:
        """Pair each ``--name`` with the words that follow it up to the next."""
        name, values = "", list[str]()
        for word in [*self._split(words), "--"]:  # The last one closes the argument before it.
            if not marks.plain(word).startswith("--"):
                self._follow(word, name, values)
                continue
            if name:
                self._close(name, values)
            name, value = _flag_and_value(word)
            values = [] if value is None else [value]

    def _split(self, words: Iterable[str]) -> Iterator[str]:
        for word in words:
            if marks.is_known(word) and _FLAG_WITH_BLANK.match(word):
                joined = f"{marks.plain(word)!r} is one word, which Megatron-LM refuses"
                self.sentences.append(f"{joined}: it is taken as several")
                yield from word.split()
            else:
                yield word

    def _follow(self, word: str, name: str, values: list[str]) -> None:
        shown = marks.plain(word)
        is_unknown = not marks.without(word).strip() and not marks.is_known(word)
        if is_unknown and (not name or not shown or values or _LISTED.search(shown) or _is_switch(name)):
            self._note(word, shown)
            asked = self._variables(marks.names(word)) or ("1",)
            asked = tuple(name for name in asked if name not in self.assigned)
            ways = " ".join("--set 1=..." if name in {"@", "*"} else f"--set {name}=..." for name in asked)
            if shown and asked:
                self.sentences.append(f"{shown}: arguments that the file does not hold: give them with {ways}")
        elif not name or shown.startswith("#"):
            self.sentences.append(f"{shown}: a word that belongs to no argument")
        elif _DASHED.match(shown):
            self.sentences.append(f"{shown}: Megatron-LM has no arguments with one dash")
        else:
            values.append(word)

    def _note(self, word: str, flag: str) -> None:
        for asked in marks.names(word):
            if asked.startswith("?"):
                self.decided.setdefault(int(asked[1:]), []).append(flag)

    def _close(self, name: str, values: list[str]) -> None:
        words = tuple(map(marks.plain, values))
        spelling = marks.plain(name).removeprefix("--")
        key = name_of(spelling)
        value: Any = typed(words[0] if len(words) == 1 else list(words)) if words else True
        before = self.arguments.get(key)
        if before is not None and before.value != value:
            said = " ".join(before.words) or "as a switch"
            self.sentences.append(f"--{spelling} is given before as well ({said}): the last, as in Megatron-LM, holds")
        self._take(self.arguments, Argument(spelling, value, words), name, values)

    def _take(self, into: Arguments, argument: Argument, name: str, values: Iterable[str], key: str = "") -> None:
        key, flag = key or name_of(argument.spelling), f"--{argument.spelling}"
        values = (name, *values)
        asked = tuple(dict.fromkeys(found for word in values for found in marks.names(word)))
        is_place = bool(_PLACE.search(key)) or into is self.launcher
        into[key] = argument
        self.unset.pop(key, None)
        if argument.words in _OPEN:
            self.unset[key] = ()
            return
        for word in () if is_place else values:
            self._note(word, flag)
        if any(not marks.is_known(word) for word in values) and (is_place or not all(map(_is_decision, asked))):
            self.unset[key] = self._variables(asked)
            for variable in self.unset[key] if into is self.arguments or key in _COUNTS else ():
                self.holds.setdefault(variable, []).append(flag)

    def _variables(self, asked: Iterable[str]) -> tuple[str, ...]:
        found: list[str] = []
        for name in asked:
            if _is_decision(name):
                decision = self.decisions[int(name[1:])]
                found += decision.names or [f"line_{decision.line}"]
            else:
                found.append(name.lstrip("~"))
        return tuple(dict.fromkeys(found))

    def launch(self, words: Iterable[str]) -> None:
        """Take the arguments of launchers; the last of each is the nearest to the program."""
        for key, spelling, text in launcher_pairs(words):
            shown = marks.plain(text)
            value = shown.removeprefix("gpu:").rpartition(":")[2] if spelling == "gres" else shown
            argument = Argument(spelling, typed(value) if value else True, (shown,) if text else ())
            self._take(self.launcher, argument, "", [text], key)

    def add_value(self, key: str, value: Any) -> None:
        """Take a flag of a mapping with its value; one that is false or null is not given."""
        if value is None or value is False:
            return
        values = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]
        argument = Argument(key.lstrip("-"), typed(_plain(value)), tuple(map(marks.plain, values)))
        self._take(self.arguments, argument, "", values)

    def parsed(
        self,
        *,
        program: str | None = None,
        not_given: Mapping[str, Any] | None = None,
        other_keys: Mapping[str, Any] | None = None,
    ) -> Parsed:
        """Put everything together."""
        for variable, flags in self.holds.items():
            held = ", ".join(dict.fromkeys(flags))
            answers = " or ".join(f"--set {variable}={answer}" for answer in ("true", "false"))
            self.sentences.append(
                f"the condition in {variable.replace('_', ' ')} decides {held} and asks the machine: {answers}"
                if _LINE.fullmatch(variable)
                else f"${variable} of {held} has no value: give it with --set {variable}=..."
            )
        for name, argument in (self.arguments | self.launcher).items():
            if self.unset.get(name) == ():
                said = " ".join(argument.words)
                is_open = argument.words in _OPEN
                why = "the file leaves it open" if is_open else "a command's output, which is not asked for here"
                self.sentences.append(f"--{argument.spelling} {said}: {why}")
        return Parsed(
            arguments=self.arguments,
            launcher_arguments=self.launcher,
            program=program,
            not_understood=tuple(dict.fromkeys(self.sentences)),
            unset=self.unset,
            not_given=not_given or {},
            other_keys=other_keys or {},
            errors=(*self.errors, *self._decisions()),
        )

    def _decisions(self) -> Iterator[ConfigError]:
        grouped: dict[object, list[int]] = {}
        for number in self.decided:
            decision = self.decisions[number]
            grouped.setdefault(decision.names or decision.line, []).append(number)
        for numbers in grouped.values():
            flags = [flag for number in numbers for flag in self._flags(number)]
            effect = f"decides {', '.join(dict.fromkeys(flags))}" if flags else "decides which arguments there are"
            first = self.decisions[numbers[0]]
            alike = [found for found in self.decisions if first.names and found.names == first.names]
            hints = [hint for decision in alike for hint in decision.hints]
            yield decided_by([self.decisions[number] for number in numbers], self.path, effect, hints)

    def _flags(self, number: int) -> list[str]:
        flags = self.decided[number]
        others = self.decisions[number].flags
        named = [flag for flag in flags if flag]
        return named if all(flags) and not set(flags) & set(others) else [*named, *others]


def _flag_and_value(word: str) -> tuple[str, str | None]:
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name, value if equals else None
    asked = marks.names(word)
    name, equals, value = marks.plain(word).partition("=")
    return marks.mark(name, asked), marks.mark(value, asked) if equals else None


def _is_decision(name: str) -> bool:
    return name.startswith("?")


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return marks.plain(value) if isinstance(value, str) else value


def _is_switch(flag: str) -> bool:
    name = name_of(marks.plain(flag))
    return name in SWITCHES or (name.startswith(_BEGINNINGS) and name not in _WITH_VALUE)
