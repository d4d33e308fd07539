"""Functions that change, read, refuse and format settings of a RunSpec, and find the nearest values a rule allows."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base import cache as answers
from launcher.base.errors import ConfigError, typed
from launcher.base.files import JsonObject
from launcher.base.package import __version__, shipped
from launcher.spec import RunSpec
from launcher.spec.training import ListItem
from launcher.spec.values import by_identity

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_TRIED = 1 << 13
"""The largest divisor found by trial, and the farthest candidate from a value: numbers may be arbitrarily large, and
the answer must come at once."""

_FIELD_OF_KEY = {"async": "asynchronous", "gated": "gate"}


def changed(spec: RunSpec, path: str, value: object) -> RunSpec:
    """Return the run with one key set: ``changed(spec, "parallel.tensor", 4)``."""
    return changed_at(spec, {path: value})


def changed_at(spec: RunSpec, settings: Mapping[str, object]) -> RunSpec:
    """Return the run with several keys set at once."""
    values = tuple(settings.values())
    sections: dict[str, Any] = {}
    for group, keys, places in _by_group(tuple(settings)):
        own = tuple([values[place] for place in places])
        sections[group] = _group_with(getattr(spec, group), keys, own) if keys[0] else own[-1]
    return _replaced(spec, sections)


@lru_cache(maxsize=1024)
def _by_group(paths: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...]:
    """The groups that some paths name: the fields of each, and their indices among the paths."""
    found: dict[str, dict[str, int]] = {}
    for place, path in enumerate(paths):
        group, _, key = path.partition(".")
        found.setdefault(group, {})[_FIELD_OF_KEY.get(key, key)] = place
    return tuple((group, tuple(keys), tuple(keys.values())) for group, keys in found.items())


def _group_with[T: DataclassInstance](group: T, keys: tuple[str, ...], values: tuple[object, ...]) -> T:
    try:
        found: T = _kept_group(group, keys, values, tuple(map(type, values)))
    except TypeError:  # An unhashable value (list or mapping): one that the group already holds need not be set.
        own = {key: value for key, value in zip(keys, values, strict=True) if getattr(group, key) is not value}
        return _replaced(group, own) if len(own) == len(keys) else _group_with(group, tuple(own), tuple(own.values()))
    return found


@by_identity(most=8192)
def _kept_group(group: Any, keys: tuple[str, ...], values: tuple[object, ...], _types: tuple[type, ...]) -> Any:
    """A group with other values; their types are part of the cache key, since 1 and True are equal."""
    return _replaced(group, dict(zip(keys, values, strict=True)))


def _replaced[T: DataclassInstance](item: T, values: Mapping[str, Any]) -> T:
    """As ``dataclasses.replace``, in a quarter of its time: a search changes specifications a hundred thousand times.

    It writes the slots directly, bypassing the ``__init__`` of a frozen dataclass, which does the same by name.
    """
    kind = type(item)
    names, read, setters = _fields(kind)
    content = [*read(item)]
    for place, value in zip(_places(names, tuple(values)), values.values(), strict=True):
        content[place] = value
    made = object.__new__(kind)
    for write, value in zip(setters, content, strict=True):
        write(made, value)
    return made


@lru_cache(maxsize=1024)
def _places(names: tuple[str, ...], some: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(map(names.index, some))


@cache
def _fields(
    cls: "type[DataclassInstance]",
) -> tuple[tuple[str, ...], Callable[[object], tuple[object, ...]], tuple[Callable[[object, object], None], ...]]:
    """The names of a group's fields, a function that reads them all, and the functions that write each."""
    names = tuple(field.name for field in fields(cls))
    return names, attrgetter(*names), tuple(getattr(cls, name).__set__ for name in names)


def value_at(spec: RunSpec, path: str) -> object:
    """Return the value of one key."""
    return _getter(path)(spec)


@cache
def _getter(path: str) -> Callable[[RunSpec], object]:
    return attrgetter(attribute(path))


def plain(value: object) -> object:
    """Return a key's value as plain data, for an error to show."""
    if isinstance(value, tuple):
        return [item.said if isinstance(item, ListItem) else item for item in value]
    return value


def reader(paths: Iterable[str]) -> Callable[[RunSpec], tuple[object, ...]]:
    """Return a function that reads the values of several keys at once, at least two."""
    return attrgetter(*map(attribute, paths))


def attribute(path: str) -> str:
    """Return the attribute path of a key in RunSpec: ``save.asynchronous`` for ``save.async``."""
    group, dot, key = path.partition(".")
    return group + dot + _FIELD_OF_KEY.get(key, key)


def default(path: str) -> object:
    """Return the value of a key in ``conf/<group>/_base.yaml``, with which it requests nothing."""
    value = _defaults()[path]
    return tuple(value) if isinstance(value, list) else value


@cache
def _defaults() -> JsonObject:
    bases = [f"{shipped('conf')}/{field.name}/_base.yaml" for field in fields(RunSpec) if is_dataclass(field.type)]
    stamps = [os.stat(base).st_mtime_ns for base in bases]  # noqa: PTH116
    found: JsonObject = answers.answer("defaults", [__version__, bases, stamps], lambda: _read_defaults(bases))
    return found


def _read_defaults(bases: Iterable[str]) -> JsonObject:
    import yaml  # Late, because the answer is kept.

    contents = {base.split("/")[-2]: yaml.safe_load(Path(base).read_text()) for base in bases}
    return {f"{group}.{key}": value for group, content in contents.items() for key, value in content.items()}


def refused(spec: RunSpec, paths: str, rule: str, *ways: str, first: Iterable[str] = ()) -> Iterator[ConfigError]:
    """Yield an error for each of ``paths`` (separated by spaces) that is not at its default.

    The ways out are ``first``, then the default, then ``ways``.
    """
    for path, read, neutral in _with_defaults(paths):
        if (value := read(spec)) != neutral:
            yield ConfigError(path, plain(value), rule, [*first, override(path, neutral), *ways])


@cache
def _with_defaults(paths: str) -> tuple[tuple[str, Callable[[RunSpec], object], object], ...]:
    return tuple((path, _getter(path), default(path)) for path in paths.split())


def override(path: str, value: object) -> str:
    """Return the setting as typed: ``parallel.sequence=true``, ``train.eval_every=null``, ``adapter.targets=[a,b]``."""
    return f"{path}={typed(value)}"


def changed_back(before: RunSpec, after: RunSpec, paths: Iterable[str], rule: str) -> ConfigError:
    """Return the error for those of ``paths`` that changed although they must not; the way out sets them all back."""
    changed = [path for path in paths if value_at(before, path) != value_at(after, path)]
    way_out = [" ".join(override(path, value_at(before, path)) for path in changed)]
    return ConfigError(changed[0], value_at(after, changed[0]), rule, way_out)


def addition(path: str, value: object) -> str:
    """Return a new key of an open mapping as typed: ``+backend.extra.tf32=true``."""
    return f"+{override(path, value)}"


def values(text: str) -> dict[str, object]:
    """Return the plain values of overrides ``group.key=value`` by key, skipping words of any other form."""
    words = (word.partition("=") for word in text.split() if word[:1] != "+")
    plain = (
        (path, value) for path, _, value in words if path.count(".") == 1 and value[:1] not in ("[", "{", "'", '"')
    )
    return {path: _read(value) for path, value in plain}


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


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors in ascending order; of a number beyond 2^26 only small ones and their cofactors."""
    small = [candidate for candidate in range(1, min(math.isqrt(number), _TRIED) + 1) if number % candidate == 0]
    return tuple(sorted({*small, *(number // candidate for candidate in small)}))


def multiples_around(number: int, step: int, count: int = 2) -> list[int]:
    """Return positive multiples of ``step`` on both sides of ``number``, at most ``count`` on each."""
    below = number // step * step
    return [multiple for turn in range(1 - count, count + 1) if (multiple := below + turn * step) > 0]


def nearest(
    spec: RunSpec, path: str, candidates: Iterable[int], legal: Callable[[RunSpec], bool], limit: int = 8
) -> Iterator[str]:
    """Yield overrides of ``path`` for which ``legal`` holds, the nearest to the current value first."""
    value = value_at(spec, path)
    here = value if isinstance(value, int) else 0
    if isinstance(candidates, range):
        candidates = range(max(candidates.start, here - _TRIED), min(candidates.stop, here + _TRIED))
    ordered = sorted(set(candidates) - {here}, key=lambda candidate: (abs(candidate - here), candidate))
    found = (candidate for candidate in ordered if legal(changed(spec, path, candidate)))
    yield from (override(path, candidate) for candidate in islice(found, limit))


def length_key(spec: RunSpec) -> str:
    """Return the key that sets the run's length: ``train.steps``, ``train.tokens`` or ``train.epochs``."""
    if spec.train.epochs is not None:
        return "train.epochs"
    return "train.steps" if spec.train.tokens is None else "train.tokens"


def length_value(spec: RunSpec) -> float:
    """Return the value of the key that sets the run's length."""
    return spec.train.epochs or spec.train.tokens or spec.steps


def length_text(spec: RunSpec) -> str:
    """Return the run's length in words, for use within a sentence."""
    key = length_key(spec)
    said = f"{key}={length_value(spec):.15g}"
    return said if key == "train.steps" else f"the {spec.steps:,} steps of {said}"


def length_override(spec: RunSpec, steps: int) -> str:
    """Return the setting that gives the run this many steps, with the key that sets its length now."""
    if spec.train.epochs is not None:
        return f"train.epochs={math.ceil(1000 * steps * spec.train.epochs / spec.steps) / 1000:g}"
    return f"{length_key(spec)}={steps if spec.train.tokens is None else steps * spec.tokens_per_step}"


def warm_up(spec: RunSpec) -> tuple[str, float]:
    """Return the key that sets the length of warm-up, and its value."""
    optimizer = spec.optimizer
    if optimizer.warmup_ratio is None:
        return "optimizer.warmup_steps", optimizer.warmup_steps
    return "optimizer.warmup_ratio", optimizer.warmup_ratio


def warm_up_override(spec: RunSpec, steps: int) -> str:
    """Return the setting that makes warm-up take ``steps``, or at most that if it is a share of the schedule."""
    key, _ = warm_up(spec)
    share = math.floor(1e4 * steps / spec.optimizer.schedule_steps(spec.steps)) / 1e4
    return override(key, steps if key == "optimizer.warmup_steps" else share)


def with_micro_batches(spec: RunSpec, count: int) -> RunSpec:
    """Return the run with ``count`` micro-batches of the same size per step, and the global batch that results."""
    batch = count * spec.micro_batch_size * spec.data_degree
    own = {"train.micro_batch_size": spec.micro_batch_size, "train.gradient_accumulation": None}
    return changed_at(spec, {**own, "train.global_batch_size": batch})
