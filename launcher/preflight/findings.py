"""All errors and warnings of a run, rule by rule: the general rules, then the model family's and the backend's.

Each error's ways out are tried on the specification, and those that lead to another error are dropped.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from types import ModuleType

from launcher import backends
from launcher.base import registry
from launcher.base.errors import ConfigError
from launcher.estimate import families
from launcher.rules import places, sbatch, secrets
from launcher.spec import RunSpec, edit
from launcher.spec.parse import accepts, applied, known_keys

_WAYS_SHOWN = 4
LEFT_OUT_OF_CHANGES = (places, sbatch, secrets)
"""Rules that no neighbour of a valid run breaks, since none changes a name, a path, a variable or Slurm options."""

type Rule = Callable[[RunSpec], Iterable[ConfigError]]


def errors(spec: RunSpec) -> tuple[ConfigError, ...]:
    """All errors of a run, each with the ways out that lead to no other error, if there are any.

    A backend's finding is dropped if a general rule has one with the same key and ways out.
    """
    known = {error.path for error in broken_rules(spec)}
    if not known:
        return ()
    general = [_with_sound_ways(error, spec, known) for error in distinct(_found(_general(), spec))]
    special = [_with_sound_ways(error, spec, known) for error in distinct(backends.of(spec).check(spec))]
    said = {(error.path, error.way_out) for error in general}
    return distinct((*general, *(error for error in special if (error.path, error.way_out) not in said)))


def broken_rules(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of a run, rule by rule, with every way out that a rule offers."""
    yield from _found(_general(), spec)
    yield from backends.of(spec).check(spec)


def broken_by_change(spec: RunSpec) -> Iterator[ConfigError]:
    """Errors of a neighbour of a valid run; the engine's limits come first, since neighbours break these most."""
    return chain(backends.of(spec).check(spec), _found(_of_changes(), spec))


def warnings(spec: RunSpec) -> tuple[ConfigError, ...]:
    """Pitfalls of a valid run that the configuration alone shows."""
    return distinct((*_found(_general(), spec, "warnings"), *backends.of(spec).warnings(spec)))


def _found(modules: tuple[ModuleType, ...], spec: RunSpec, name: str = "check") -> Iterator[ConfigError]:
    for function in _functions(modules, name):
        yield from function(spec)


@cache
def _functions(modules: tuple[ModuleType, ...], name: str) -> tuple[Rule, ...]:
    return tuple(getattr(module, name) for module in modules if hasattr(module, name))


@cache
def _general() -> tuple[ModuleType, ...]:
    return (*modules_of("rules"), *modules_of("strategies"), families)


@cache
def _of_changes() -> tuple[ModuleType, ...]:
    return tuple(module for module in _general() if module not in LEFT_OUT_OF_CHANGES)


@cache
def modules_of(package: str) -> tuple[ModuleType, ...]:
    """All modules of a folder that the registry lists, such as ``rules`` and ``strategies``."""
    return tuple(registry.load(package, name) for name in registry.names(package))


def distinct(found: Iterable[ConfigError]) -> tuple[ConfigError, ...]:
    """Each finding once; several rules may share the check that finds it."""
    kept: dict[tuple[str, str], ConfigError] = {}
    for error in found:
        kept.setdefault((error.path, error.rule), error)
    return tuple(kept.values())


def _with_sound_ways(error: ConfigError, spec: RunSpec, known: set[str]) -> ConfigError:
    """Keep the ways out that end this error and cause no other; if there are none, keep them all."""
    readable = [way for way in error.way_out if is_readable(way)]
    sound = [way for way in readable if _is_sound(way, error, spec, known)]
    return ConfigError(error.path, error.found, error.rule, (sound or readable)[:_WAYS_SHOWN])


def is_readable(way: str) -> bool:
    """False if a way out has a value that its key does not accept, as values from another program's file may be."""
    return all(accepts(path, value) for path, value in edit.values(way).items() if path in known_keys())


def _is_sound(way: str, error: ConfigError, spec: RunSpec, known: set[str]) -> bool:
    """True if an override causes no other error; the choice of an option needs composition and counts as sound."""
    after = applied(spec, way)
    return True if after is None else {left.path for left in broken_rules(after)} <= known - {error.path}
