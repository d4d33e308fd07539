"""The JSON Schema of a recipe, for editors, from the types that ``parse`` reads and the existing options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from launcher.config.catalog import Catalog
from launcher.spec.bounds import BOUNDS
from launcher.spec.parse import OPEN_NODES, kinds
from launcher.spec.values import Range

_SIMPLE: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": ["string", "number"]},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
}


def recipe_schema(catalog: Catalog) -> dict[str, Any]:
    """The schema (draft 2020-12). It accepts any string as an option, for those of a user's own ``conf/``."""
    keys = {key: {**_of(kind), **_largest(key)} for key, kind in kinds().items()}
    options = {
        group: {"anyOf": [{"enum": list(names)}, {"type": ["string", "integer"]}]}
        for group, names in catalog.groups.items()
        if group != "recipe"
    }
    lists = {key: {"type": "array", "items": value, "minItems": 1} for key, value in {**options, **keys}.items()}
    open_keys: dict[str, Any] = {f"^{node.replace('.', '[.]')}[.]": {} for node in OPEN_NODES}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A recipe of launch",
        "type": "object",
        "required": ["schema", "summary"],
        "additionalProperties": False,
        "properties": {
            "schema": {"const": 1},
            "summary": {"type": "string", "minLength": 1},
            "source": {"type": "string"},
            "choose": {"type": "object", "additionalProperties": False, "properties": options},
            "set": {
                "type": "object",
                "additionalProperties": False,
                "properties": keys,
                "patternProperties": open_keys,
            },
            "sweep": {"type": "object", "additionalProperties": False, "properties": lists},
        },
    }


def _of(kind: Any) -> dict[str, Any]:
    """The schema of one type of the specification."""
    kind = getattr(kind, "__value__", kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return {"anyOf": [_of(alternative) for alternative in arguments]}
    if origin is Annotated:
        return {**_of(arguments[0]), **_range(arguments[1])}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", "items": _of(arguments[0])}
    if origin is Mapping:
        return {"type": "object"}
    if is_dataclass(kind):
        own, hints = fields(kind), get_type_hints(kind, include_extras=True)
        return {
            "type": "object",
            "additionalProperties": False,
            "required": [field.name for field in own if field.default is MISSING],
            "properties": {field.name: _of(hints[field.name]) for field in own},
        }
    return _SIMPLE[kind]


def _largest(key: str) -> dict[str, float]:
    bound = BOUNDS.get(key)
    return {} if bound is None or bound.most is None else {"maximum": bound.most}


def _range(limits: Range) -> dict[str, float]:
    ends = {"minimum": limits.low, "maximum": limits.high}
    return {name: end for name, end in ends.items() if end is not None}
