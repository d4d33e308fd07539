"""``dataclass`` for frozen classes, in a third of the time that it takes to define one.

``dataclasses`` writes and compiles six functions for every frozen class, one after another: 0.7 ms a class with
CPython 3.12 and 3.13. A ``launch check`` defines a hundred of them, which was a quarter of its time. Here ``__init__``
alone is compiled; classes share the other five. What they do is the same (tests/base/test_frozen.py), and so is all
that type checkers and ``fields``, ``replace``, ``asdict``, ``copy`` and ``pickle`` see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

_set = object.__setattr__


def _frozen(cls: type | None = None, /, *, eq: bool = True, frozen: bool, slots: bool = False, **options: Any) -> Any:
    """Make a frozen dataclass with the arguments of :func:`dataclasses.dataclass`."""

    def made(defined: type) -> Any:
        own = {name for name, value in vars(defined).items() if value is not None}
        found: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, **options)(defined)
        found.__init__ = _initialiser(found)
        methods = dict(_METHODS)
        if eq:
            methods |= _COMPARED
        if slots:
            methods |= _PICKLED
        for name, method in methods.items():
            if name not in own:
                setattr(found, name, method)
        return found

    if not frozen:
        raise TypeError("launcher.base.frozen is for frozen classes: take dataclasses.dataclass")
    return made if cls is None else made(cls)


def _initialiser(cls: Any) -> Callable[..., None]:
    """The ``__init__`` of a class, which takes its fields in order, those that are ``kw_only`` by name alone."""
    known: dict[str, Any] = {"_set_": _set, "_MISSING_": MISSING}
    by_place, by_name, body = ["self"], list[str](), list[str]()
    for number, field in enumerate(fields(cls)):
        parameter, value = _parameter(field, f"_default_{number}_", known)
        (by_name if field.kw_only else by_place).append(parameter)
        body.append(f"_set_(self, {field.name!r}, {value})")
    parameters = ", ".join([*by_place, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({parameters}):\n " + "\n ".join(body or ["pass"]), known)
    found: Callable[..., None] = known["__init__"]
    found.__qualname__ = f"{cls.__qualname__}.__init__"
    return found


def _parameter(field: Field[Any], default: str, known: dict[str, Any]) -> tuple[str, str]:
    """The parameter of a field, and its value in the body; a default is put among the ``known`` names."""
    name = field.name
    if field.default is not MISSING:
        known[default] = field.default
        return f"{name}={default}", name
    if field.default_factory is not MISSING:
        known[default] = field.default_factory
        return f"{name}=_MISSING_", f"{default}() if {name} is _MISSING_ else {name}"
    return name, name


@cache
def _compared(cls: Any) -> Callable[[object], object]:
    return _values_of(field.name for field in fields(cls) if field.compare)


@cache
def _hashed(cls: Any) -> Callable[[object], object]:
    return _values_of(field.name for field in fields(cls) if (field.compare if field.hash is None else field.hash))


def _values_of(names: Any) -> Callable[[object], object]:
    """The function that reads these fields; of one field the value itself, of none a constant."""
    names = tuple(names)
    return attrgetter(*names) if names else lambda _: ()


def _equal(self: Any, other: object) -> Any:
    """True for an instance of the same class with equal fields."""
    if self is other:
        return True
    cls: Any = type(self)
    values = _compared(cls)
    return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    """The hash of the fields."""
    return hash(_hashed(self.__class__)(self))


def _text(self: Any) -> str:
    """The class with its fields, as they are given to make it."""
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_change(self: object, name: str, value: object) -> None:
    """Raise the error of a frozen class."""
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    """Raise the error of a frozen class."""
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    """The values of the fields, for ``pickle``."""
    return [getattr(self, field.name) for field in fields(self)]


def _restore(self: Any, state: list[object]) -> None:
    """Take the values of the fields."""
    for field, value in zip(fields(self), state, strict=True):
        _set(self, field.name, value)


_METHODS = {"__repr__": _text, "__setattr__": _refuse_change, "__delattr__": _refuse_deletion}
_COMPARED = {"__eq__": _equal, "__hash__": _hash}
_PICKLED = {"__getstate__": _state, "__setstate__": _restore}

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _frozen
