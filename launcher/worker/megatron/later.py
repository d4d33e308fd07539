"""Modules that are run only when a name of them is used: imported whole, but only if needed.

``import`` and ``from ... import`` of such a module give a stand-in for it and for each name. A name that is called,
subclassed, asked for an attribute or compared runs the module, and its packages before it as an import would.
"""

import importlib
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType, NoneType
from typing import Any, Union


def put_off(modules: Iterable[str]) -> None:
    """Put the run of these modules and packages off until they are used."""
    sys.meta_path.insert(0, _Finder(tuple(modules)))


def is_on() -> bool:
    """True if modules are put off in this process."""
    return any(isinstance(each, _Finder) for each in sys.meta_path)


def run(module: ModuleType) -> None:
    """Run a module that was put off, after the packages that it is in; any other stays as it is."""
    if not isinstance(module, _Later):
        return
    package = module.__name__.rpartition(".")[0]
    if package in sys.modules:
        run(sys.modules[package])
    if isinstance(module, _Later):  # Its package may have run it.
        own: Any = module
        own.__class__ = ModuleType
        own.__loader__ = own.__spec__.loader = own.__spec__.loader.real
        own.__loader__.exec_module(own)


class _Later(ModuleType):
    def __getattr__(self, key: str) -> Any:
        """Return a stand-in for a name, or the module's own for a name that Python itself asks for."""
        if key == "__path__":  # Asked of each module by ``from ... import``; a package has one without us.
            raise AttributeError(key)
        if key.startswith("__"):
            run(self)
            return getattr(self, key)
        return _Name(self, key)


class _Name:
    def __init__(self, module: ModuleType, key: str) -> None:
        self._later = module, key

    def _real(self) -> Any:
        module, key = self._later
        run(module)
        try:
            return getattr(module, key)
        except AttributeError:
            return importlib.import_module(f"{module.__name__}.{key}")

    def __getattr__(self, key: str) -> Any:
        """Ask the real one; ``typing`` asks each annotation for some that a class has not."""
        if key.startswith("__typing") or key == "__parameters__":
            raise AttributeError(key)
        return getattr(self._real(), key)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._real()(*arguments, **options)

    def __getitem__(self, key: Any) -> Any:
        return self._real()[key]

    def __bool__(self) -> bool:
        return bool(self._real())

    def __eq__(self, other: object) -> bool:
        if other is NoneType or getattr(other, "__module__", None) == "typing":
            return False  # ``typing`` compares each annotation with its own forms, which are nobody else's.
        return bool(self._real() == (other._real() if isinstance(other, _Name) else other))

    __hash__ = object.__hash__

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._real())

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, self._real())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)

    def __or__(self, other: Any) -> Any:
        return Union[self, other]  # noqa: UP007 (it is made of values)

    def __ror__(self, other: Any) -> Any:
        return Union[other, self]  # noqa: UP007 (it is made of values)


class _Loader:
    def __init__(self, real: SourceFileLoader) -> None:
        self.real = real

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make it."""

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing yet."""
        module.__class__ = _Later


class _Finder:
    """Finds the modules that are put off; compiled ones are imported as ever."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self._modules = modules

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module as Python does, not to be run yet."""
        if not any(name == each or name.startswith(f"{each}.") for each in self._modules):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec
