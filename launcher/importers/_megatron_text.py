"""Megatron-LM argument lists as text: shell scripts, YAML and JSON become one mapping of arguments.

A shell script is read, never run (``launcher.importers._shell``); of its commands the training is taken
(``_megatron_command``). A value that only the machine or the environment knows stays as it is typed, and the variables
that it hangs on are named; where such a variable decides which arguments there are, that is an error that asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from launcher import files
from launcher.errors import ConfigError, ConfigErrors
from launcher.importers import _megatron_data
from launcher.importers._megatron_command import (
    batch_environment,
    batch_words,
    choose,
    decided_by,
    launcher_pairs,
    trains,
)
from launcher.importers._megatron_switches import is_switch
from launcher.importers._shell import marks
from launcher.importers._shell.machine import Decision, follow, values_in
from launcher.importers._shell.tree import ShellError

_INTEGER = re.compile(r"[+-]?\d+(_\d+)*\Z", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_CONTINUED = re.compile(r"\\[ \t]+\n")
_FLAG_WITH_BLANK = re.compile(r"--[\w-]+\s+\S")
_DASHED = re.compile(r"-[A-Za-z]")
_LISTED = re.compile(r"[@*]|(ARGS?|OPTS?|OPTIONS?|FLAGS?|EXTRA|PARAMS?|CONFIGS?)\}?\Z", re.IGNORECASE)
_PLACE = re.compile(r"(dir|path|name|file|cache|project|entity|prefix|id|model)\Z|^(save|load|wandb|tensorboard)")
"""Arguments of which a value that hangs on a condition is no more than a value that is not known."""
_COUNTS = ("nnodes", "nproc-per-node")
_LINE = re.compile(r"line_\d+")
_DIGITS = 30
"""Of the largest number that ``files`` lets pass, with underscores; a longer one stays text, which is refused."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as it was spelt, without its dashes; ``True`` where it has no value.

    Attributes:
        spelling: As typed, without the dashes before it.
        value: Numbers and truth from text, a list of several words; ``$NAME`` stands for what has no value.
        words: The words that follow the name, as they are typed.
    """

    spelling: str
    value: Any
    words: tuple[str, ...] = ()


type Arguments = dict[str, Argument]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """An argument list.

    Attributes:
        arguments: Those of the training program, by name with dashes (the last of each wins).
        launcher_arguments: Those of torchrun and of what else starts the program, by name with dashes.
        program: The training program's file or module, where the text names one.
        not_understood: Sentences: variables without a value, words that belong to no argument.
        unset: The variables without a value that an argument holds, by the argument's name.
        not_given: Flags of a YAML or JSON file that are ``false`` or ``null``, as typed, with that value.
        other_keys: Further keys of a YAML or JSON file, by dotted path.
        errors: Why this is no argument list of one run, where its words could be read: a variable decides.
    """

    arguments: Arguments
    launcher_arguments: Arguments = field(default_factory=dict)
    program: str | None = None
    not_understood: tuple[str, ...] = ()
    unset: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    not_given: Mapping[str, Any] = field(default_factory=dict)
    other_keys: Mapping[str, Any] = field(default_factory=dict)
    errors: tuple[ConfigError, ...] = ()


def parse(text: str, path: str, variables: Mapping[str, str] | None = None) -> Parsed:
    """Read an argument list.

    Args:
        text: The file's content.
        path: The file, for messages; its suffix tells YAML and JSON from shell text.
        variables: Values of shell variables that the user gives: the environment for what the file does not set, and
            instead of the value of a plain ``NAME=value`` of the file, as one edits that line.

    Raises:
        ConfigErrors: It is not text of the kind that its suffix promises, or holds no argument.
    """
    given = dict(variables or {})
    start = text.lstrip()[:1]
    is_script = path.endswith((".sh", ".bash", ".slurm", ".sbatch", ".txt"))
    if path.endswith((".json", ".yaml", ".yml")) or (start and start in "{[" and not is_script):
        found = _from_data(_megatron_data.load(text, path), path, given)
    else:
        found = _from_shell(text, path, given)
    _check_numbers((*found.arguments.values(), *found.launcher_arguments.values()), path)
    if not found.arguments and not found.not_given:
        rule = "it holds no argument; they are spelt --num-layers 32"
        raise ConfigErrors([ConfigError(path, text[:40], _with_hint(rule, found)), *found.errors])
    return found


def _with_hint(rule: str, found: Parsed) -> str:
    return "; ".join([rule, *found.not_understood[:4]])


def _check_numbers(found: Iterable[Argument], path: str) -> None:
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


# YAML and JSON.


def _from_data(data: _megatron_data.Data, path: str, given: Mapping[str, str]) -> Parsed:
    words = Words(path, [])
    try:
        variables = {**data.variables, **given}
        if isinstance(data.flags, list):
            words.gather([values_in(word, variables) for word in data.flags])
            return words.parsed(other_keys=data.other)
        for key, value in data.flags.items():
            words.add_value(key, _with_variables(value, variables))
    except ShellError as error:
        raise _not_shell(str(error), path, str(error)) from None
    not_given = {key: value for key, value in data.flags.items() if value is None or value is False}
    return words.parsed(other_keys=data.other, not_given=not_given)


def _with_variables(value: Any, given: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return values_in(value, given)
    return [_with_variables(item, given) for item in value] if isinstance(value, list) else value


# Shell text.


def _not_shell(rule: str, path: str, text: str) -> ConfigErrors:
    return ConfigErrors([ConfigError(path, text[:40], f"this is not shell text: {rule}")])


def _from_shell(text: str, path: str, given: Mapping[str, str]) -> Parsed:
    batch = batch_words(text)
    try:
        if len(text) > files.MOST_OF_A_SCRIPT:
            raise ShellError(f"it is larger than {files.MOST_OF_A_SCRIPT >> 10} KiB")
        text = _CONTINUED.sub("\\\\\n", text.replace("\r\n", "\n"))
        script = follow(text, given, trains, batch_environment(batch))
    except ShellError as error:
        raise _not_shell(str(error), path, text) from None
    training, errors = choose(script, path, given)
    words = Words(path, script.decisions)
    words.errors += [*errors, *_unknown_names(text, path, given)]
    words.sentences += [f"line {line} reads {name}, which is not read here" for line, name in script.not_read]
    if training is not None:
        words.gather(training.words)
        words.launch([*batch, *training.launch])
    elif script.ended is not None:
        words.sentences.append(f"line {script.ended} ends the script before it trains")
    return words.parsed(program=training.program if training else None)


def _unknown_names(text: str, path: str, given: Mapping[str, str]) -> list[ConfigError]:
    """Names that the user gives and that the file does not have."""
    names = set(re.findall(r"[A-Za-z_]\w*", text))
    errors = []
    for name in given:
        if not (name.isdecimal() or name in names or _LINE.fullmatch(name)):
            near = get_close_matches(name, sorted(names), n=1)
            way_out = [f"--set {near[0]}=..."] if near else []
            errors.append(ConfigError(f"{path}: --set {name}", given[name], "the file has no such variable", way_out))
    return errors


class Words:
    """Pairs the words of a command and says what of them is not known."""

    def __init__(self, path: str, decisions: Sequence[Decision]) -> None:
        """Take the file, for messages, and the decisions that marks name."""
        self.path, self.decisions = path, decisions
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
        """Words of which one holds a flag and its value, which argparse would refuse, become two."""
        for word in words:
            if marks.is_known(word) and _FLAG_WITH_BLANK.match(word):
                self.sentences.append(
                    f"{marks.plain(word)!r} is one word, which Megatron-LM refuses: it is taken as several"
                )
                yield from word.split()
            else:
                yield word

    def _follow(self, word: str, name: str, values: list[str]) -> None:
        """Take a word that is no flag: a value, or nobody's."""
        shown = marks.plain(word)
        if not marks.without(word).strip() and not marks.is_known(word) and self._is_loose(shown, name, values):
            self._note(word, shown)
            if shown:
                asked = self._variables(marks.names(word)) or ("1",)
                ways = " ".join("--set 1=..." if name in {"@", "*"} else f"--set {name}=..." for name in asked)
                self.sentences.append(f"{shown}: arguments that the file does not hold: give them with {ways}")
        elif not name or shown.startswith("#"):
            self.sentences.append(f"{shown}: a word that belongs to no argument")
        elif _DASHED.match(shown):
            self.sentences.append(f"{shown}: Megatron-LM has no arguments with one dash")
        else:
            values.append(word)

    @staticmethod
    def _is_loose(shown: str, name: str, values: list[str]) -> bool:
        return (
            not name or not shown or bool(values) or is_switch(_name(marks.plain(name))) or bool(_LISTED.search(shown))
        )

    def _note(self, word: str, flag: str) -> None:
        """Note the decisions of a word under the flag that it is or belongs to."""
        for asked in marks.names(word):
            if asked.startswith("?"):
                self.decided.setdefault(int(asked[1:]), []).append(flag)

    def _close(self, name: str, values: list[str]) -> None:
        words = tuple(map(marks.plain, values))
        spelling = marks.plain(name).removeprefix("--")
        key = _name(spelling)
        value: Any = _typed(words[0] if len(words) == 1 else list(words)) if words else True
        before = self.arguments.get(key)
        if before is not None and before.value != value:
            said = " ".join(before.words) or "as a switch"
            self.sentences.append(f"--{spelling} is given before as well ({said}): the last, as in Megatron-LM, holds")
        self._take(self.arguments, Argument(spelling, value, words), name, values)

    def _take(self, into: Arguments, argument: Argument, name: str, values: Iterable[str], key: str = "") -> None:
        """Enter an argument, and what is not known of it."""
        key, flag = key or _name(argument.spelling), f"--{argument.spelling}"
        values = (name, *values)
        asked = tuple(dict.fromkeys(found for word in values for found in marks.names(word)))
        is_place = bool(_PLACE.search(key)) or into is self.launcher
        into[key] = argument
        self.unset.pop(key, None)
        for word in () if is_place else values:
            self._note(word, flag)
        if any(not marks.is_known(word) for word in values) and (is_place or not all(map(_is_decision, asked))):
            self.unset[key] = self._variables(asked)
            for variable in self.unset[key] if into is self.arguments or key in _COUNTS else ():
                self.holds.setdefault(variable, []).append(flag)

    def _variables(self, asked: Iterable[str]) -> tuple[str, ...]:
        """The variables of names; a condition that none decides is asked for by its line."""
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
            value = (
                marks.plain(text).removeprefix("gpu:").rpartition(":")[2] if spelling == "gres" else marks.plain(text)
            )
            argument = Argument(spelling, _typed(value) if value else True, (marks.plain(text),) if text else ())
            self._take(self.launcher, argument, "", [text], key)

    def add_value(self, key: str, value: Any) -> None:
        """Take a flag of a mapping with its value; one that is false or null is not given."""
        if value is None or value is False:
            return
        values = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]
        argument = Argument(key.lstrip("-"), _typed(_plain(value)), tuple(map(marks.plain, values)))
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
                self.sentences.append(f"--{argument.spelling} {said}: a command's output, which is not asked for here")
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
        """One error for all decisions that the same variables decide."""
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
        """The arguments that a decision decides; those that it leaves away are known to the decision alone."""
        flags = self.decided[number]
        return [flag for flag in flags if flag] + ([] if all(flags) else list(self.decisions[number].flags))


def _flag_and_value(word: str) -> tuple[str, str | None]:
    """A flag, and what is behind its ``=``; both hang on what the whole word hangs on."""
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


def _name(spelling: str) -> str:
    return spelling.lstrip("-").replace("_", "-")


def _typed(value: Any) -> Any:
    """Numbers and truth from text; ``[a b]`` and ``a,b`` stay text, since only the argument knows what they are."""
    if isinstance(value, list | tuple):
        return [_typed(item) for item in value]
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    if _INTEGER.match(value):
        return int(value) if len(value) <= _DIGITS else value
    return float(value) if _NUMBER.match(value) else value
