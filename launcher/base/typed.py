"""Conversion of plain data to the types that a dataclass declares, with readers derived from the types.

User input is read leniently (``50e9`` is an integer), files of this program strictly: the caller supplies readers of
integers, numbers and texts (:class:`Scalars`); everything else is the same. Messages are also up to the caller.
"""

import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeAliasType,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

type Reader = Callable[[Any], tuple[bool, Any]]
"""Reads a value: returns True if it fits the type, and the converted value."""

_MOST = 1 << 63  # No count, size, process id or step is as large.


class Scalars(NamedTuple):
    """Readers of scalar types, and of a value that may be anything."""

    whole: Reader
    number: Reader
    text: Reader
    anything: Reader
    closed: bool = False  # True if an object with unknown keys is refused.


class Limit(Protocol):
    """A limit on the values of a type: the second part of ``Annotated[kind, limit]``."""

    def holds(self, value: Any) -> bool:
        """True if a value of the type respects the limit."""

    def words(self, kind: str) -> str:
        """Return the type in words, with the limit."""


class Fault(NamedTuple):
    """A value that does not fit its type."""

    path: str
    found: object
    kind: Any  # The type; None if the key is missing.


class Unfit(ValueError):
    """Data that does not fit a type, with all of its faults."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self.faults = faults
        super().__init__("; ".join(f"{fault.path}: {fault.found!r}" for fault in faults))


def is_whole(value: object) -> TypeGuard[int]:
    """True for an integer that fits in 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST


def is_number(value: object) -> TypeGuard[float]:
    """True for a finite number."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


WRITTEN = Scalars(
    whole=lambda value: (is_whole(value), value),
    number=lambda value: (is_number(value), value),
    text=lambda value: (isinstance(value, str), value),
    anything=lambda value: (True, value),
)
"""For files that this program wrote: every value has exactly its type."""


def read[Kind](kind: type[Kind], content: object) -> Kind:
    """Return an instance of a dataclass from plain data, with lists for tuples; unknown keys are ignored.

    Its types are numbers, texts, literals, mappings, tuples and other dataclasses. Raises Unfit if values are missing
    or do not fit.
    """
    every: Any = kind
    accepted, value = reader(every)(content)
    if not accepted:
        raise Unfit(tuple(_faults(kind, content, "")))
    found: Kind = value
    return found


@cache
def reader(kind: Any, scalars: Scalars = WRITTEN) -> Reader:
    """Return the reader of a type; for a union, the first alternative that accepts a value is used."""
    kind = bare(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _any_of([reader(alternative, scalars) for alternative in arguments])
    if origin is Annotated:
        return _limited(reader(arguments[0], scalars), arguments[1])
    if origin is Literal:
        return lambda value: (type(value) is str and value in arguments, value)
    if origin is tuple:
        is_list = arguments[-1] is Ellipsis
        return _items_of([reader(each, scalars) for each in arguments if each is not Ellipsis], repeated=is_list)
    if origin is Mapping:
        return _mapping_of(None if arguments[1] is Any else reader(arguments[1], scalars), scalars)
    if is_dataclass(kind):
        return _object_of(kind, scalars)
    readers = {
        type(None): lambda value: (value is None, None),
        int: scalars.whole,
        float: scalars.number,
        str: scalars.text,
        Any: scalars.anything,
    }
    return readers.get(kind, lambda value: (type(value) is kind, value))


def bare(kind: Any) -> Any:
    """Return the type behind its aliases."""
    while isinstance(kind, TypeAliasType):
        kind = kind.__value__
    return kind


def describe(kind: Any, words: Mapping[Any, str]) -> str:
    """Return a type in words; ``words`` gives those of types without alternatives or limits, and of mappings."""
    kind = bare(kind)
    if (known := words.get(kind)) is not None:
        return known
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(alternative, words) for alternative in arguments)
    if origin is Annotated:
        limit: Limit = arguments[1]
        return limit.words(describe(arguments[0], words))
    if origin is Literal:
        return "one of " + ", ".join(str(item) for item in arguments)
    return f"a list, each {describe(arguments[0], words)}" if origin is tuple else words[Mapping]


def _any_of(readers: list[Reader]) -> Reader:
    def read(value: Any) -> tuple[bool, Any]:
        for reader in readers:
            accepted, result = reader(value)
            if accepted:
                return True, result
        return False, None

    return read


def _limited(reader: Reader, limit: Limit) -> Reader:
    def read(value: Any) -> tuple[bool, Any]:
        accepted, result = reader(value)
        return (accepted and limit.holds(result)), result

    return read


def _items_of(readers: list[Reader], *, repeated: bool) -> Reader:
    def read(value: Any) -> tuple[bool, Any]:
        if not isinstance(value, list | tuple) or not (repeated or len(value) == len(readers)):
            return False, None
        every = readers * len(value) if repeated else readers
        items = [reader(item) for reader, item in zip(every, value, strict=True)]
        return all(accepted for accepted, _ in items), tuple(result for _, result in items)

    return read


def _mapping_of(reader: Reader | None, scalars: Scalars) -> Reader:
    def read(value: Any) -> tuple[bool, Any]:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return False, None
        if reader is None:
            return scalars.anything(value)
        items = {key: reader(item) for key, item in value.items()}
        return all(accepted for accepted, _ in items.values()), {key: result for key, (_, result) in items.items()}

    return read


def _object_of(kind: Any, scalars: Scalars) -> Reader:
    readers = {name: reader(hint, scalars) for name, hint in _hints(kind).items()}
    required = _required(kind)

    def read(value: Any) -> tuple[bool, Any]:
        if not isinstance(value, Mapping) or not all(name in value for name in required):
            return False, None
        if scalars.closed and not value.keys() <= readers.keys():
            return False, None
        items = {name: reader(value[name]) for name, reader in readers.items() if name in value}
        accepted = all(accepted for accepted, _ in items.values())
        return accepted, kind(**{name: result for name, (_, result) in items.items()}) if accepted else None

    return read


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


@cache
def _required(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING)


def _faults(kind: Any, content: object, prefix: str) -> Iterator[Fault]:
    """Every value of a dataclass that is missing or does not fit; an inner dataclass is reported value by value."""
    if not isinstance(content, Mapping):
        yield Fault(prefix.rstrip("."), content, kind)
        return
    for name in _required(kind):
        if name not in content:
            yield Fault(prefix + name, None, None)
    for name, hint in _hints(kind).items():
        if name in content and not reader(hint)(content[name])[0]:
            inner = bare(hint)
            yield from (
                _faults(inner, content[name], f"{prefix}{name}.")
                if is_dataclass(inner)
                else [Fault(prefix + name, content[name], hint)]
            )
