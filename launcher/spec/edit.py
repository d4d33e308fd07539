"""One setting of a RunSpec changed, read, and written as it is typed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from launcher.spec import RunSpec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_FIELD_OF_KEY = {"async": "asynchronous", "gated": "gate"}


def changed(spec: RunSpec, path: str, value: object) -> RunSpec:
    """The same run with one key set: ``changed(spec, "parallel.tensor", 4)``."""
    return changed_at(spec, {path: value})


def changed_at(spec: RunSpec, settings: Mapping[str, object]) -> RunSpec:
    """The same run with several keys set at once."""
    groups: dict[str, Any] = {}
    for path, value in settings.items():
        group, _, key = path.partition(".")
        groups.setdefault(group, {})[_FIELD_OF_KEY.get(key, key)] = value
    sections = {
        group: keys[""] if "" in keys else replaced(getattr(spec, group), keys) for group, keys in groups.items()
    }
    return replaced(spec, sections)


def replaced[T: DataclassInstance](item: T, values: Mapping[str, Any]) -> T:
    """As ``dataclasses.replace``, in half of its time: a search for ways out changes thousands of specifications."""
    names, read = _fields(type(item))
    return type(item)(**{**dict(zip(names, read(item), strict=True)), **values})


@cache
def _fields(cls: type[DataclassInstance]) -> tuple[tuple[str, ...], Callable[[object], tuple[object, ...]]]:
    names = tuple(field.name for field in fields(cls))
    return names, attrgetter(*names)


def value_at(spec: RunSpec, path: str) -> object:
    """The value of one key."""
    return _getter(path)(spec)


@cache
def _getter(path: str) -> Callable[[RunSpec], object]:
    """The function that reads one key, kept for the keys that rules and neighbours name."""
    return attrgetter(_attribute(path))


def reader(paths: Iterable[str]) -> Callable[[RunSpec], tuple[object, ...]]:
    """A function that reads the values of several keys at once, two at least."""
    return attrgetter(*map(_attribute, paths))


def _attribute(path: str) -> str:
    group, dot, key = path.partition(".")
    return group + dot + _FIELD_OF_KEY.get(key, key)


def override(path: str, value: object) -> str:
    """The setting as it is typed: ``parallel.sequence=true``, ``train.eval_every=null``, ``adapter.targets=[a,b]``."""
    return f"{path}={typed(value)}"


def typed(value: object) -> str:
    """A value as it is typed behind the key of an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(typed(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{typed(item)}" for key, item in value.items()) + "}"
    return str(value)


def applied(spec: RunSpec, text: str) -> RunSpec | None:
    """The run after overrides ``group.key=value`` with plain values; None where one of the words is anything else."""
    settings: dict[str, object] = {}
    for word in text.split():
        path, _, value = word.partition("=")
        if path.count(".") != 1 or not _is_plain(path, value):
            return None
        settings[path] = _read(value)
    return changed_at(spec, settings)


def values(text: str) -> dict[str, object]:
    """The plain values of overrides ``group.key=value`` by key; words of any other kind are passed over."""
    words = (word.partition("=") for word in text.split())
    return {path: _read(value) for path, _, value in words if path.count(".") == 1 and _is_plain(path, value)}


def _is_plain(path: str, value: str) -> bool:
    return not path.startswith("+") and value[:1] not in ("[", "{", "'", '"')


def _read(text: str) -> bool | int | float | str | None:
    constants: dict[str, bool | None] = {"null": None, "true": True, "false": False}
    if text in constants:
        return constants[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
