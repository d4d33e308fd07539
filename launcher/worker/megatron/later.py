"""Modules that are imported but not executed: their names may be imported, and any use of them is an error.

``import`` and ``from ... import`` of such a module give empty classes, which annotations and unions accept. If one is
called, inspected, tested or subclassed, the module is needed after all.
"""

import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, NoReturn


def put_off(modules: Iterable[str]) -> None:
    """Import these modules and packages without executing them from now on."""
    sys.meta_path.insert(0, _Finder(tuple(modules)))


def is_on() -> bool:
    """True if this process imports some modules without executing them."""
    return any(isinstance(each, _Finder) for each in sys.meta_path)


class _Name(type):
    """The class of stand-ins for names of a module that was not executed."""

    def __new__(cls, name: str, bases: tuple[type, ...], content: dict[str, Any]) -> "_Name":
        if bases:
            raise NameError(f"{name} inherits from a class whose module was not executed")
        return super().__new__(cls, name, bases, content)

    def __getattr__(cls, key: str) -> Any:
        if key.startswith("__"):  # Python and ``typing`` look up optional dunder attributes on every class.
            raise AttributeError(key)
        return cls._used()

    def _used(cls, *_: object, **__: object) -> NoReturn:
        raise NameError(f"{cls.__module__}.{cls.__name__} is used, but its module was not executed")

    __call__ = __bool__ = __getitem__ = __iter__ = __instancecheck__ = __subclasscheck__ = _used


class _Later(ModuleType):
    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        setattr(self, key, _Name(key, (), {"__module__": self.__name__}))
        return vars(self)[key]


class _Finder:
    """Finds and creates modules that are not executed; compiled ones are imported as usual."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module as Python does, with a loader that does not execute it."""
        if not any(name == each or name.startswith(f"{each}.") for each in self._modules):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = self  # type: ignore[assignment]
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create an empty module."""
        return _Later(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do not execute the module."""
