"""A ``dataclass`` decorator for frozen classes that takes a third of the time to define one.

``dataclasses`` compiles six functions for every frozen class: 0.7 ms with CPython 3.12 and 3.13, a quarter of a
``launch check`` in total. Here only ``__init__`` is compiled, once for all classes with the same number of fields; the
other five are shared. The behavior is the same (tests/base/test_frozen.py).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import cache
from operator import attrgetter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, cast

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
            inherited: Any = defined.__hash__
            if inherited is not None and inherited is not object.__hash__:
                own.add("__hash__")  # An inherited one: ``Hashed`` caches the hash.
        if slots:
            methods |= _PICKLED
        for name, method in methods.items():
            if name not in own:
                setattr(found, name, method)
        return found

    if not frozen:
        raise TypeError("launcher.base.frozen is for frozen classes: use dataclasses.dataclass")
    return made if cls is None else made(cls)


def _initialiser(cls: Any) -> Callable[..., None]:
    """The ``__init__`` of a class, which takes its fields in order, and ``kw_only`` fields only by name."""
    order = sorted(fields(cls), key=lambda field: bool(field.kw_only))
    makes = tuple(number for number, field in enumerate(order) if field.default_factory is not MISSING)
    by_name = sum(bool(field.kw_only) for field in order)
    names = {_placeholder(number): field.name for number, field in enumerate(order)}
    shape = _shape(len(order), makes)
    code = shape.replace(
        co_argcount=1 + len(order) - by_name,
        co_kwonlyargcount=by_name,
        co_varnames=tuple(names.get(name, name) for name in shape.co_varnames),
        co_consts=tuple(names.get(value, value) if isinstance(value, str) else value for value in shape.co_consts),
        co_qualname=f"{cls.__qualname__}.__init__",
    )
    factories = {f"_make_{number}_": order[number].default_factory for number in makes}
    found: Any = FunctionType(code, {"_set_": _set, "_MISSING_": MISSING, **factories}, "__init__")
    given = [(field, MISSING if number in makes else field.default) for number, field in enumerate(order)]
    optional = [
        (field, value) for field, value in given if value is not MISSING or field.default_factory is not MISSING
    ]
    found.__defaults__ = tuple(value for field, value in optional if not field.kw_only) or None
    found.__kwdefaults__ = {field.name: value for field, value in optional if field.kw_only} or None
    return cast(Callable[..., None], found)


def _placeholder(number: int) -> str:
    return f"_field_{number}_"


@cache
def _shape(size: int, makes: tuple[int, ...]) -> CodeType:
    """The compiled ``__init__`` of classes with ``size`` fields; ``makes`` are those with a default factory."""
    names = [_placeholder(number) for number in range(size)]
    values = [
        f"_make_{number}_() if {name} is _MISSING_ else {name}" if number in makes else name
        for number, name in enumerate(names)
    ]
    body = [f"_set_(self, {name!r}, {value})" for name, value in zip(names, values, strict=True)]
    known: dict[str, Any] = {}
    exec(f"def __init__({', '.join(['self', *names])}):\n " + "\n ".join(body or ["pass"]), known)
    return cast(CodeType, known["__init__"].__code__)


@cache
def _compared(cls: Any) -> Callable[[object], object]:
    return _values_of(field.name for field in fields(cls) if field.compare)


@cache
def _hashed(cls: Any) -> Callable[[object], object]:
    return _values_of(field.name for field in fields(cls) if (field.compare if field.hash is None else field.hash))


def _values_of(names: Any) -> Callable[[object], object]:
    names = tuple(names)
    return attrgetter(*names) if names else lambda _: ()


def _equal(self: Any, other: object) -> Any:
    if self is other:
        return True
    cls: Any = type(self)
    values = _compared(cls)
    return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_hashed(self.__class__)(self))


def _text(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_change(self: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in fields(self)]


def _restore(self: Any, state: list[object]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        _set(self, field.name, value)


_METHODS = {"__repr__": _text, "__setattr__": _refuse_change, "__delattr__": _refuse_deletion}
_COMPARED = {"__eq__": _equal, "__hash__": _hash}
_PICKLED = {"__getstate__": _state, "__setstate__": _restore}

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _frozen
