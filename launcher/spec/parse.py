"""Parsing of a mapping into a RunSpec, or all of its errors at once, each with its path. ``to_dict`` is the inverse.

The types of the dataclasses in ``spec`` are the schema: this module reads them and holds no list of keys.
"""

import marshal
import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import asdict, fields, is_dataclass
from functools import cache, lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from launcher.base import registry
from launcher.base.errors import ConfigError, raise_any
from launcher.base.files import LARGEST
from launcher.base.terminal import CONTROL
from launcher.base.typed import Reader, Scalars, bare, describe, reader
from launcher.base.units import bytes_of, count_of, seconds_of
from launcher.spec import RunSpec, bounds, edit
from launcher.spec.training import PART_KEYS, DataStage, EvalSet, MixPart, ProfileSpec

MISSING = "???"  # OmegaConf's marker for a mandatory value that is not set.
OPEN_NODES = ("backend.extra", "cluster.extra", "cluster.environment", "data.columns", "data.special_tokens",
              "data.template_values", "model.extra", "model.rope_parameters")  # fmt: skip
"""The nodes below which a user may add any key."""

_WITHOUT_REFERENCES = 2
"""The version of marshal's format in which equal data gives equal bytes, and ``1``, ``1.0`` and ``true`` differ."""

_KEY_OF_FIELD = {"asynchronous": "async", "gate": "gated"}
_WORDS = {
    int: "an integer",
    float: "a number",
    str: "a single line of text",
    bool: "true or false",
    type(None): "null",
    Mapping: "a mapping of names to values",
    MixPart: f"{{path: a, weight: 1}}, optionally with {', '.join(PART_KEYS[1:])}",
    DataStage: "{after_tokens: 0, weights: [1, 0.5]}",
    EvalSet: f"{{name: code, path: a}}, optionally with {', '.join(PART_KEYS[1:])}",
    ProfileSpec: "{start: 10, steps: 3, ranks: [0]}, of which only start is required,",
}
_LISTS: Mapping[type, str] = {
    MixPart: "[{path:a,weight:1},{path:b,weight:1}]",
    DataStage: "[{weights:[1,0]},{after_tokens:1000000,weights:[1,1]}]",
    EvalSet: "[{name:code,path:a},{name:math,path:b}]",
}
_MODULES = {key: package for package, key in registry.KEYS.items()}


def parse(config: Mapping[str, object]) -> RunSpec:
    """Return the run's specification. Raises ConfigErrors with every error found in keys, types and ranges."""
    errors: list[ConfigError] = []
    spec = _dataclass(RunSpec, config, "", errors)
    raise_any(errors)
    if not isinstance(spec, RunSpec):
        raise AssertionError("a configuration without errors is a RunSpec")
    return spec


def to_dict(spec: RunSpec) -> dict[str, object]:
    """Return the configuration as plain data, such that ``parse(to_dict(spec)) == spec``."""

    def renamed(value: object) -> object:
        if isinstance(value, dict):
            return {_KEY_OF_FIELD.get(key, key): renamed(item) for key, item in value.items()}
        return list(value) if isinstance(value, tuple) else value

    result = renamed(asdict(spec))
    if not isinstance(result, dict):
        raise AssertionError("a RunSpec is a mapping")
    return result


@cache
def known_keys() -> frozenset[str]:
    """Return every key that a configuration may set: ``model.family``, ..., ``script``."""
    return frozenset(kinds())


@cache
def kinds() -> Mapping[str, Any]:
    """Return the type of every key."""
    return dict(_kinds(RunSpec, ""))


def accepts(path: str, value: object) -> bool:
    """True if a value fits a key's type, range and bounds; rules are not checked."""
    if path not in kinds():
        return False
    accepted, result = _reader_of(path)(value)
    return accepted and bounds.wrong(path, result) is None


def applied(spec: RunSpec, text: str) -> RunSpec | None:
    """Return the run after overrides ``group.key=value``, each read as its key's type; None if any word is not one."""
    settings = edit.values(text)
    if len(settings) < len(text.split()) or not settings.keys() <= known_keys():
        return None
    read = {path: _reader_of(path)(value) for path, value in settings.items()}
    if not all(accepted for accepted, _ in read.values()):
        return None
    return edit.changed_at(spec, {path: value for path, (_, value) in read.items()})


@cache
def _reader_of(path: str) -> Reader:
    return _reader(kinds()[path])


def _kinds(cls: type, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, field in _schema(cls).items():
        if field.reader is None:
            yield from _kinds(field.kind, f"{prefix}{key}.")
        else:
            yield prefix + key, _kind_of_module(prefix + key) if prefix + key in _MODULES else field.kind


def _kind_of_module(path: str) -> Any:
    return Literal[registry.names(_MODULES[path])]


def closest(word: str, candidates: Iterator[str] | tuple[str, ...] | list[str]) -> list[str]:
    """Return up to three candidates that ``word`` resembles, best first."""
    import difflib  # Imported late: only mistakes need it.

    return difflib.get_close_matches(word, list(candidates), n=3, cutoff=0.6)


class _Field(NamedTuple):
    """One field of a group: its key as the user types it, its type, its default and the reader of its values."""

    name: str
    key: str
    kind: Any
    default: Any
    reader: Reader | None  # None for a group of keys.


@cache
def _schema(cls: type) -> dict[str, _Field]:
    """The fields of a group by key; cached, since a configuration has some 170 values."""
    hints = get_type_hints(cls, include_extras=True)
    found = (_field(field.name, bare(hints[field.name]), _default(field)) for field in fields(cls))
    return {field.key: field for field in found}


def _default(field: Any) -> Any:
    return field.default if field.default_factory is NO_DEFAULT else field.default_factory()


def _field(name: str, kind: Any, default: Any) -> _Field:
    is_group = isinstance(kind, type) and is_dataclass(kind)
    return _Field(name, _KEY_OF_FIELD.get(name, name), kind, default, None if is_group else _reader(kind))


def _dataclass(cls: type, config: object, prefix: str, errors: list[ConfigError]) -> object:
    if not isinstance(config, Mapping):
        errors.append(ConfigError(prefix.rstrip("."), config, "a group of keys is expected here"))
        return None
    schema = _schema(cls)
    for key in config:
        if key not in schema:
            near = [f"{prefix}{name}={_text(config[key])}" for name in closest(str(key), list(schema))]
            errors.append(ConfigError(f"{prefix}{key}", config[key], "there is no such key", near))
    values = {}
    for key, field in schema.items():
        value = config.get(key, MISSING)
        if key not in config and field.default is not NO_DEFAULT:
            values[field.name] = field.default  # A record of an older version lacks the key.
        elif value == MISSING:
            errors.append(ConfigError(prefix + key, None, "must be set", [f"{prefix}{key}=..."]))
        elif field.reader is None:
            values[field.name] = _group(field.kind, value, f"{prefix}{key}.", errors)
        elif prefix + key in _MODULES:
            values[field.name] = _module(value, prefix + key, errors)
        else:
            values[field.name] = _value(field.kind, field.reader, value, prefix + key, errors)
    return cls(**values) if not errors else None


def _value(kind: Any, reader: Reader, value: object, path: str, errors: list[ConfigError]) -> object:
    accepted, result = reader(value)
    if not accepted:
        errors.append(_wrong(kind, value, path))
    elif (found := bounds.wrong(path, result)) is not None:
        errors.append(ConfigError(path, result, *found))
    return result


def _group(cls: type, config: Any, prefix: str, errors: list[ConfigError]) -> object:
    """One group of keys; equal groups are parsed once, since the points of a sweep share most of theirs."""
    try:
        content = marshal.dumps(config, _WITHOUT_REFERENCES)
    except ValueError:  # Not only plain data: an error, or a subclass of a plain type.
        return _dataclass(cls, config, prefix, errors)
    group, found = _read_once(cls, content, prefix)
    errors.extend(found)
    return group


@lru_cache(maxsize=1024)
def _read_once(cls: type, content: bytes, prefix: str) -> tuple[object, tuple[ConfigError, ...]]:
    errors: list[ConfigError] = []
    return _dataclass(cls, marshal.loads(content), prefix, errors), tuple(errors)


def _module(value: object, path: str, errors: list[ConfigError]) -> object:
    kind = _kind_of_module(path)
    accepted, result = _reader(kind)(value)
    if accepted:
        errors.extend(registry.faults(_MODULES[path], result))
    else:
        errors.append(_wrong(kind, value, path))
    return result


def _wrong(kind: Any, value: object, path: str) -> ConfigError:
    if isinstance(value, int | float) and LARGEST < abs(value) < math.inf:
        return ConfigError(path, value, "must fit in 64 bits, as every setting does")
    ways = _way_out(kind, value, path) or _usual(path)
    return ConfigError(path, _plain(value), f"must be {describe(kind, _WORDS)}", ways)


def ways_out(path: str, value: object) -> tuple[str, ...]:
    """Return overrides of a key to replace a value that it does not accept: near ones, else its default."""
    return _wrong(kinds()[path], value, path).way_out


def _usual(path: str) -> list[str]:
    try:
        return [edit.override(path, value)] if (value := edit.default(path)) != MISSING else []
    except KeyError:  # Not a key of conf/, but a part of a key's value.
        return []


def _reader(kind: Any) -> Reader:
    return reader(kind, _TYPED)


def _integer(value: Any) -> tuple[bool, Any]:
    if type(value) is float and value.is_integer():
        value = int(value)  # So that 50e9 can be typed for bytes.
    return type(value) is int and abs(value) <= LARGEST, value


def _number(value: Any) -> tuple[bool, Any]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (True, float(value)) if abs(value) <= LARGEST else (False, value)
    return False, value


def _name(value: Any) -> tuple[bool, Any]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return True, str(value)  # A name such as run.name=7 arrives as a number.
    return type(value) is str and not CONTROL.search(value), value


def _anything(value: Any) -> tuple[bool, Any]:
    return not any(map(CONTROL.search, texts(value))), _plain(value)


_TYPED = Scalars(whole=_integer, number=_number, text=_name, anything=_anything, closed=True)
"""Readers of values as users type them."""


def texts(value: object) -> Iterator[str]:
    """Yield every text in plain data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts([*value, *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _way_out(kind: Any, value: object, path: str) -> list[str]:
    kind = bare(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return [way for alternative in arguments for way in _way_out(alternative, value, path)][:3]
    if isinstance(kind, type) and issubclass(kind, ProfileSpec):
        return [f"{path}={{start:10,steps:3,ranks:[0]}}", f"{path}=null"]
    if origin is tuple and arguments[0] in _LISTS:
        return [f"{path}={_LISTS[arguments[0]]}"]
    if origin is tuple and isinstance(value, str):
        return [f"{path}=[{value}]"]
    if origin is Literal:
        if value == "dualpipe":
            return [f"{path}=dualpipe_v parallel.virtual_pipeline=2", f"{path}=zero_bubble"]
        near = closest(str(value).lower(), [str(item) for item in arguments])
        return [f"{path}={item}" for item in near or list(arguments)[:4]]
    if origin is Annotated and isinstance(value, int | float) and not isinstance(value, bool):
        low, high, usual = arguments[1].low, arguments[1].high, arguments[1].usual
        end = low if low is not None and value < low else high if high is not None and value > high else None
        if usual is not None and value >= (high or 0):
            return [f"{path}={usual:g}"]
        return [f"{path}={end:g}"] if end is not None and (end == 0 or abs(end) >= 1) else []
    if origin is Annotated and isinstance(value, str):
        number = _number_in(value, path.rpartition("_")[2])
        return [] if number is None else [f"{path}={number}"]
    return [f"{path}=true", f"{path}=false"] if kind is bool else []


def _number_in(text: str, unit: str) -> int | None:
    """Convert a text to a number in the key's unit, the last word of its name: bytes, min, s, or a count."""
    if unit == "bytes":
        return bytes_of(text)
    if unit not in ("min", "s"):
        return count_of(text)
    if text.strip().isdigit():  # A bare number in quotes is already in the key's unit.
        return int(text)
    seconds = seconds_of(text)
    return seconds if seconds is None or unit == "s" else -(-seconds // 60)


def _text(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
