"""Megatron-LM argument lists: shell scripts, YAML and JSON become one mapping of arguments.

A shell script is read, never run (``launcher.importers.megatron.shell``); of its commands the training is taken
(``command``). A value that only the machine or the environment knows stays as it is typed, and the variables
that it hangs on are named; where such a variable decides which arguments there are, that is an error that asks for it.
"""

import re
from collections.abc import Mapping
from dataclasses import field
from difflib import get_close_matches
from typing import Any, TypeGuard

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.frozen import dataclass
from launcher.config import safe_yaml
from launcher.config.ledger import leaves
from launcher.importers.megatron.arguments import Parsed, check_numbers
from launcher.importers.megatron.command import batch_environment, batch_words, choose, trains
from launcher.importers.megatron.shell import marks
from launcher.importers.megatron.shell.machine import follow, values_in
from launcher.importers.megatron.shell.tree import ShellError
from launcher.importers.megatron.words import Words

_CONTINUED = re.compile(r"\\[ \t]+\n")
_ASSIGNED = re.compile(r"(?<![\w$.-])([A-Za-z_]\w*)(?:\[\w*\])?\+?=(?=([^\n;]{0,400}))")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_LINE = re.compile(r"line_\d+")
_NESTS = ("MODEL_ARGS", "args", "arguments", "model_args")
"""Keys under which a file keeps the arguments: Megatron-LM's functional tests have ``MODEL_ARGS``."""


def parse(text: str, path: str, variables: Mapping[str, str] | None = None) -> Parsed:
    """Read an argument list: YAML or JSON by its suffix, else shell text; raises ConfigErrors without an argument.

    ``variables`` are the user's values of shell variables: the environment for what the file does not set, and instead
    of the value of a plain ``NAME=value`` of the file, as one edits that line.
    """
    given = dict(variables or {})
    start = text.lstrip()[:1]
    is_script = path.endswith((".sh", ".bash", ".slurm", ".sbatch", ".txt"))
    if path.endswith((".json", ".yaml", ".yml")) or (start and start in "{[" and not is_script):
        found = _from_data(_load(text, path), path, given)
    else:
        found = _from_shell(text, path, given)
    check_numbers((*found.arguments.values(), *found.launcher_arguments.values()), path)
    if not found.arguments and not found.not_given:
        rule = "; ".join(["it holds no argument; they are spelt --num-layers 32", *found.not_understood[:4]])
        raise ConfigErrors([ConfigError(path, text[:40], rule), *found.errors])
    return found


# YAML and JSON.


def _from_data(data: "_Data", path: str, given: Mapping[str, str]) -> Parsed:
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
    words = Words(path, script.decisions, _assigned(text))
    words.errors += [*errors, *_unknown_names(text, path, given)]
    words.sentences += [f"line {line} reads {name}, which is not read here" for line, name in script.not_read]
    if training is not None:
        words.gather(training.words)
        words.launch([*batch, *training.launch])
    elif script.ended is not None:
        words.sentences.append(f"line {script.ended} ends the script before it trains")
    return words.parsed(program=training.program if training else None)


def _assigned(text: str) -> set[str]:
    found = _ASSIGNED.finditer(_COMMENT.sub("", text))
    return {match[1] for match in found if not re.search(rf"\$\{{?{match[1]}\b", match[2])}


def _unknown_names(text: str, path: str, given: Mapping[str, str]) -> list[ConfigError]:
    names = {*re.findall(r"[A-Za-z_]\w*", text), *marks.placeholder_names(text)}
    errors = []
    for name in given:
        if not (name.isdecimal() or name in names or _LINE.fullmatch(name)):
            near = get_close_matches(name, sorted(names), n=1)
            way_out = [f"--set {near[0]}=..."] if near else []
            errors.append(ConfigError(f"{path}: --set {name}", given[name], "the file has no such variable", way_out))
    return errors


@dataclass(frozen=True, slots=True)
class _Data:
    flags: Mapping[str, Any] | list[str]  # Values by flag as typed, or the words of a list.
    other: Mapping[str, Any] = field(default_factory=dict)  # Further keys by dotted path.
    variables: Mapping[str, str] = field(default_factory=dict)  # Values of ``ENV_VARS``, which the arguments may hold.


def _load(text: str, path: str) -> _Data:
    content = _json(text, path) if path.endswith(".json") or text.lstrip()[:1] in {"{", "["} else None
    if content is None and not path.endswith(".json"):
        content = safe_yaml.loads(text, path)
    if _is_words(content):
        return _Data([str(item) for item in content])
    if not isinstance(content, Mapping):
        rule = "an argument list is a mapping of arguments to values, or a list of words"
        raise ConfigErrors([ConfigError(path, "nothing" if content is None else str(content)[:40], rule)])
    return _mapping({str(key): value for key, value in content.items()}, path)


def _json(text: str, path: str) -> object:
    try:
        return files.parse_json(text)
    except ValueError as error:
        raise ConfigErrors([ConfigError(path, text[:40], f"this is not JSON: {error}")]) from None


def _is_words(content: object) -> TypeGuard[list[str | int | float]]:
    return isinstance(content, list) and all(isinstance(item, str | int | float) for item in content)


def _mapping(content: Mapping[str, Any], path: str) -> _Data:
    nest = next((key for key in _NESTS if isinstance(content.get(key), Mapping) or _is_words(content.get(key))), None)
    variables = content.get("ENV_VARS")
    known = {str(key): str(value) for key, value in variables.items()} if isinstance(variables, Mapping) else {}
    if nest is not None:
        rest = {key: value for key, value in content.items() if key != nest}
        inside = content[nest]
        is_list = isinstance(inside, list)
        flags = [str(word) for word in inside] if is_list else {str(key): inside[key] for key in inside}
        return _Data(flags, leaves(rest), known)
    if any(key.startswith("--") for key in content):
        flags = {key: value for key, value in content.items() if key.startswith("--")}
        return _Data(flags, leaves({key: content[key] for key in content if key not in flags}), known)
    _refuse_groups(content, path)
    return _Data(content)


def _refuse_groups(content: Mapping[str, Any], path: str) -> None:
    groups = [key for key, value in content.items() if isinstance(value, Mapping)]
    if groups:
        found = f"settings in groups: {', '.join(groups[:4])}"
        rule = f"this is {found}, and no argument list of Megatron-LM, whose flags stand under MODEL_ARGS or alone"
        raise ConfigErrors([ConfigError(path, None, rule)])
