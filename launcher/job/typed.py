"""Data of a file as a dataclass whose values have the types that it declares, since a file may hold anything."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeAliasType, Union, cast, get_args, get_origin, get_type_hints


def made[Kind](kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """An instance of a dataclass.

    Args:
        kind: The dataclass; its types are numbers, texts, mappings and tuples of these, and other dataclasses.
        values: Its fields.

    Raises:
        TypeError: A value has another type, or a field is missing or unknown.
    """
    hints = _hints(cast("Hashable", kind))
    for name, value in values.items():
        if name not in hints or not _fits(value, hints[name]):
            raise TypeError(f"{kind.__name__}.{name}: {value!r}")
    return kind(**values)


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(cast("type", kind))


def _fits(value: object, hint: Any) -> bool:
    if isinstance(hint, TypeAliasType):
        return _fits(value, hint.__value__)
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inside)
    if origin is Literal:
        return value in inside
    if origin is Mapping:
        return isinstance(value, dict) and all(
            isinstance(key, str) and _fits(each, inside[1]) for key, each in value.items()
        )
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(each, inside[0]) for each in value)
    return hint is Any or _is(value, hint)


def _is(value: object, hint: type) -> bool:
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    if hint is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, NoneType if hint is None else hint)
