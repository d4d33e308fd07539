"""Megatron-LM argument lists as text: shell scripts, YAML and JSON become one mapping of arguments.

A shell script is read, never run: it is split into commands as a shell would, plain assignments are remembered and put
in for ``$NAME`` and ``${NAME:-default}``, and the words of every command that has arguments are taken, whether they
stand in an array, in a variable or behind ``torchrun``. Loops, conditions and command substitution are not followed;
a variable that the file does not set stays as it is, and the reader of its argument says so.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher import files
from launcher.config import safe_yaml
from launcher.errors import ConfigError, ConfigErrors

_PUNCTUATION = "();&|<>\n"
_COMMENT = re.compile(r"\s#")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)\Z", re.DOTALL)
# A default is looked for over so many letters: without an end each brace would be followed to the end of the text.
_VARIABLE = re.compile(r"\$\{(\w{1,100})(?::?-([^}]{0,256}))?\}|\$(\w+)")
_STANDALONE = re.compile(r"\$(\{?\w+(\[@\]|\[\*\])?\}?|@|\*)\Z")
_LIST = re.compile(r"\$([@*]|\{\w+\[[@*]\]\})\Z")
_INTEGER = re.compile(r"[+-]?\d+\Z", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_NAME = re.compile(r"\$\{?(\w+)")
_LAUNCHER = ("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port")
_DIGITS = 20
"""Of the largest number that ``files`` lets pass; a longer one stays text, which :func:`_check_numbers` refuses."""
_NESTS = ("MODEL_ARGS", "args", "arguments")
"""Keys under which a file keeps the arguments: Megatron-LM's functional tests have ``MODEL_ARGS``."""


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
        variables: Values of shell variables that the user gives.

    Raises:
        ConfigErrors: It is not text of the kind that its suffix promises, or holds no argument.
    """
    start = text.lstrip()[:1]
    unknown: list[str] = []
    if path.endswith(".json") or (start in "{[" and start):
        found = _from_data(_load_json(text, path), path)
    elif path.endswith((".yaml", ".yml")):
        found = _from_data(safe_yaml.loads(text, path), path)
    else:
        given = "".join(f"{name}={shlex.quote(value)}\n" for name, value in (variables or {}).items())
        found, unknown = _from_shell(given + text, path)
    _check_numbers(found, path)
    if not found:
        rule = "it holds no argument; they are spelt --num-layers 32"
        raise ConfigErrors([ConfigError(path, text[:40], rule)])
    launch = {name: found.pop(name) for name in _LAUNCHER if name in found}
    unset = {name: tuple(_NAME.findall(str(item.value))) for name, item in found.items() if "$" in str(item.value)}
    return Parsed(arguments=found, launcher_arguments=launch, not_understood=tuple(unknown), unset=unset)


def _load_json(text: str, path: str) -> object:
    try:
        return files.parse_json(text)
    except ValueError as error:
        raise ConfigErrors([ConfigError(path, text[:40], f"this is not JSON: {error}")]) from None


def _check_numbers(found: Arguments, path: str) -> None:
    """See whether the numbers, which stand as text in all of these files, keep within the limits."""
    errors = []
    for argument in found.values():
        values = argument.value if isinstance(argument.value, list) else [argument.value]
        try:
            files.check_numbers(map(_as_number, values))
        except ValueError as error:
            errors.append(ConfigError(f"{path}: --{argument.spelling}", None, str(error)))
    if errors:
        raise ConfigErrors(errors)


def _as_number(value: object) -> object:
    is_number = isinstance(value, str) and _INTEGER.match(value)
    return files.integer(value) if is_number and isinstance(value, str) else value


def _from_data(content: object, path: str) -> Arguments:
    if isinstance(content, list) and all(isinstance(item, str | int | float) for item in content):
        return _gather([str(item) for item in content])[0]
    if not isinstance(content, Mapping):
        rule = "an argument list is a mapping of arguments to values, or a list of words"
        raise ConfigErrors([ConfigError(path, "nothing" if content is None else str(content)[:40], rule)])
    nested = next((content[key] for key in _NESTS if isinstance(content.get(key), Mapping)), content)
    return {
        _name(str(key)): Argument(str(key).lstrip("-"), _typed(value))
        for key, value in nested.items()
        if value is not None and value is not False
    }


def _from_shell(text: str, path: str) -> tuple[Arguments, list[str]]:
    variables = _Variables()
    lists: set[str] = set()
    found: Arguments = {}
    unknown: list[str] = []
    try:
        if len(text) > files.MOST_OF_A_SCRIPT:
            raise ValueError(f"it is larger than {files.MOST_OF_A_SCRIPT >> 10} KiB")
        for command in _commands(text):
            words = _arguments_of(command, variables, lists)
            pairs, loose = _gather([word for word in words if _reference(word) not in lists])
            found |= pairs
            unknown += loose
    except ValueError as error:
        raise ConfigErrors([ConfigError(path, text[:40], f"this is not shell text: {error}")]) from None
    return found, [f"{word}: arguments that the file does not hold" for word in dict.fromkeys(unknown)]


def _commands(text: str) -> Iterator[list[str]]:
    """Split into commands; the words of an array, ``NAME=( ... )``, are a command of their own, named first."""
    lines = [_without_comment(line) for line in text.splitlines()]
    joined = re.sub(r"\\\s*\n", " ", "\n".join(lines) + "\n")
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    command: list[str] = []
    array, substitution = False, 0
    for token in lexer:
        if not token or token.strip(_PUNCTUATION):
            command += [] if substitution else [token]
            continue
        for mark in token:
            if mark == "(" and (substitution or (command and command[-1].endswith("$"))):
                substitution += 1
            elif mark == ")" and substitution:
                substitution -= 1
            elif mark == "(":
                array = True
            elif not (substitution or (array and mark == "\n")):
                array = False
                yield command
                command = []
    yield command


def _without_comment(line: str) -> str:
    """The line without a comment, which is the whole of it or stands behind a space and the last quote."""
    if line.lstrip().startswith("#"):
        return ""
    comment = _COMMENT.search(line, max(line.rfind("'"), line.rfind('"')) + 1)
    return line if comment is None else line[: comment.start()]


def _arguments_of(command: list[str], variables: _Variables, lists: set[str]) -> list[str]:
    """Take assignments in; return the other words, or those of a list of arguments, with variables put in."""
    words = [variables.put_into(word) for word in command]
    if words and words[0] in ("export", "local", "declare", "readonly"):
        words.pop(0)
    found: list[str] = []
    while words and (match := _ASSIGNMENT.match(words[0])):
        name, value = match.groups()
        words.pop(0)
        if "--" in value or (not value and words):
            lists.add(name)
            found += [word for part in _commands(value) for word in part]
        elif "$" not in value:
            variables.values[name] = value
    found += words
    return found if any(word.startswith("--") or word.endswith(".py") for word in found) else []


@dataclass(slots=True)
class _Variables:
    """The variables that a file sets, and how much may yet be put in for them: each can double the one before."""

    values: dict[str, str] = field(default_factory=dict)
    left: int = files.MOST_OF_A_SCRIPT

    def put_into(self, word: str) -> str:
        """The word with the variables that are known."""
        return _VARIABLE.sub(self._value, word)

    def _value(self, match: re.Match[str]) -> str:
        text = self.values.get(match[1] or match[3], match[2] if match[2] is not None else match[0])
        self.left -= len(text)
        if self.left < 0:
            raise ValueError(f"its variables come to more than {files.MOST_OF_A_SCRIPT >> 10} KiB")
        return text


def _reference(word: str) -> str | None:
    """The name of the variable that a whole word stands for."""
    return re.sub(r"\W", "", word) if _STANDALONE.match(word) else None


def _gather(words: Iterable[str]) -> tuple[Arguments, list[str]]:
    """Pair each ``--name`` with the words that follow it up to the next; say which variables stand on their own."""
    found: Arguments = {}
    loose: list[str] = []
    name, values = "", list[str]()
    for word in [*words, "--"]:  # The last one closes the argument before it.
        if word.startswith("--") or word.endswith(".py"):
            if name:
                found[_name(name)] = Argument(
                    name, _typed(values[0] if len(values) == 1 else values) if values else True
                )
            name, equals, rest = word.removeprefix("--").partition("=") if word.startswith("--") else ("", "", "")
            values = [rest] if equals else []
        elif _LIST.match(word) or (_STANDALONE.match(word) and (values or not name)):
            loose.append(word)
        else:
            values.append(word)
    return found, loose


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
