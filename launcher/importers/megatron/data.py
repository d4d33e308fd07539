"""Argument lists in YAML and JSON: mappings of flags to values, as in Megatron-LM's functional tests, or words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.config import safe_yaml

_NESTS = ("MODEL_ARGS", "args", "arguments", "model_args")
"""Keys under which a file keeps the arguments: Megatron-LM's functional tests have ``MODEL_ARGS``."""


@dataclass(frozen=True, slots=True)
class Data:
    """What a file holds.

    Attributes:
        flags: Values by flag as typed, or the words of a list.
        other: Further keys by dotted path.
        variables: Values of ``ENV_VARS``, which the arguments may hold.
    """

    flags: Mapping[str, Any] | list[str]
    other: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def load(text: str, path: str) -> Data:
    """Read YAML or JSON.

    Raises:
        ConfigErrors: It is none, or no argument list.
    """
    content = _json(text, path) if path.endswith(".json") or text.lstrip()[:1] in {"{", "["} else None
    if content is None and not path.endswith(".json"):
        content = safe_yaml.loads(text, path)
    if _is_words(content):
        return Data([str(item) for item in content])
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


def _mapping(content: Mapping[str, Any], path: str) -> Data:
    nest = next((key for key in _NESTS if isinstance(content.get(key), Mapping) or _is_words(content.get(key))), None)
    variables = content.get("ENV_VARS")
    known = {str(key): str(value) for key, value in variables.items()} if isinstance(variables, Mapping) else {}
    if nest is not None:
        rest = {key: value for key, value in content.items() if key != nest}
        inside = content[nest]
        flags = (
            [str(word) for word in inside] if isinstance(inside, list) else {str(key): inside[key] for key in inside}
        )
        return Data(flags, dict(_leaves(rest)), known)
    if any(key.startswith("--") for key in content):
        flags = {key: value for key, value in content.items() if key.startswith("--")}
        return Data(flags, dict(_leaves({key: content[key] for key in content if key not in flags})), known)
    _refuse_groups(content, path)
    return Data(content)


def _refuse_groups(content: Mapping[str, Any], path: str) -> None:
    """See that the file is flat: settings in groups are no argument list of any form."""
    groups = [key for key, value in content.items() if isinstance(value, Mapping)]
    if groups:
        found = f"settings in groups: {', '.join(groups[:4])}"
        rule = f"this is {found}, and no argument list of Megatron-LM, whose flags stand under MODEL_ARGS or alone"
        raise ConfigErrors([ConfigError(path, None, rule)])


def _leaves(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
