"""A reader of untrusted YAML as plain data: no tags, no aliases, one value per key, within the limits of ``files``.

``yaml.safe_load`` by itself still expands aliases (a kilobyte can become gigabytes), takes the last of two equal keys,
recurses as deep as the text does, and needs time quadratic in the length of a base-60 number.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors, unreadable

if TYPE_CHECKING:
    from yaml.events import Event

_FLOAT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+\Z")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
"""Unquoted base-60 numbers of YAML 1.1 (yaml.org/type/int, yaml.org/type/float)."""

_IS_BASE_60 = "is a base-60 number in YAML 1.1: if it is text, quote it"
_LONGEST = 40  # The most characters of a number; a float with all of its digits has 24.


def load(path: Path) -> object:
    """Read a file as plain data.

    Returns:
        Mappings with text keys, lists, text, numbers, booleans and None.

    Raises:
        ConfigErrors: It cannot be read, is too large or too deep, or holds more than plain data.
    """
    where = str(path)
    try:
        text = files.read_text(path)
    except (OSError, ValueError) as error:
        raise _error(where, None, f"it cannot be read: {unreadable(error)}", files.similar_paths(path)) from None
    return loads(text, where)


def loads(text: str, where: str, *, foreign: bool = False) -> object:
    """Read text as :func:`load` does; ``where`` names it in errors.

    In another program's text (``foreign``), aliases and merged mappings (``<<``) are also accepted, within the limits,
    and a key that is a number or a boolean is read as text.
    """
    import yaml  # Imported late: most commands read no YAML.

    loader = _loader(_construct_foreign if foreign else _construct_mapping)
    nodes = _Nodes(where, plain=True, aliases=foreign)
    try:
        for event in yaml.parse(text, Loader=loader):
            nodes.count(event)
        return _plain(yaml.load(text, Loader=loader), where, where)
    except (yaml.YAMLError, ValueError) as error:
        message = " ".join(str(error).split()).replace(' in "<unicode string>"', "")
        spaces = ": YAML indents with spaces, not tabs" if re.search(r"^ *\t", text, re.MULTILINE) else ""
        raise _error(where, None, f"it is not valid YAML: {message}{spaces}") from None


def require_bounded(path: Path) -> None:
    """Check that a file for another YAML reader stays within the limits with its aliases expanded.

    Raises ConfigErrors: It is too large or deep, or holds a base-60 number, slow to parse. Invalid YAML passes.
    """
    import yaml

    try:
        nodes = _Nodes(str(path))
        for event in yaml.parse(files.read_text(path), Loader=_loader(_construct_mapping)):
            nodes.count(event)
    except files.Refused as error:  # Hydra would skip a pipe and use the shipped option of the same name.
        raise _error(str(path), None, f"it cannot be read: {unreadable(error)}") from None
    except (yaml.YAMLError, OSError, UnicodeDecodeError):
        return  # Its reader reports it; a broken link matters only if it is chosen.
    except ValueError as error:
        raise _error(str(path), None, f"it cannot be read: {error}") from None


class _Nodes:
    """Counts the nodes of a document event by event against the limits; an alias counts as all that it expands to.

    ``plain`` refuses tags, and also aliases unless ``aliases`` is set.
    """

    def __init__(self, where: str, *, plain: bool = False, aliases: bool = False) -> None:
        self._where, self._is_plain, self._aliases = where, plain, aliases or not plain
        self._total = 0
        self._begun: list[tuple[str | None, int]] = []
        self._sizes: dict[str, int] = {}

    def count(self, event: "Event") -> None:
        """Count one event; raises ConfigErrors if a limit is exceeded."""
        from yaml import events

        anchor = getattr(event, "anchor", None)
        line = f"{self._where}: line {event.start_mark.line + 1 if event.start_mark else '?'}"
        if not self._aliases and anchor is not None:
            raise _error(line, anchor, "anchors and aliases are not allowed")
        if self._is_plain and (tag := getattr(event, "tag", None)):
            raise _error(line, tag, "tags are not allowed: the file must be plain data")
        self._total += self._sizes.get(str(anchor), 1) if isinstance(event, events.AliasEvent) else 1
        if isinstance(event, events.CollectionStartEvent):
            self._begun.append((anchor, self._total))
        elif isinstance(event, events.CollectionEndEvent):
            name, before = self._begun.pop()
            if name is not None:
                self._sizes[name] = self._total - before + 1
        if len(self._begun) > files.DEEPEST:
            raise _error(line, None, f"it is nested deeper than {files.DEEPEST}")
        if self._total > files.MOST_NODES:
            raise _error(line, None, f"it holds more than {files.MOST_NODES:,} values, with aliases expanded")
        if isinstance(event, events.ScalarEvent) and _is_long_number(event):
            raise _error(line, f"{event.value[:_LONGEST]}...", f"a number may have at most {_LONGEST} characters")
        if isinstance(event, events.ScalarEvent) and event.implicit[0] and _BASE_60.fullmatch(event.value):
            rule = f"{event.value} {_IS_BASE_60}, as in '{event.value}'"  # PyYAML would read 24:00:00 as 86400.
            raise _error(line, event.value, rule)


def _is_long_number(event: Any) -> bool:
    """True for a long unquoted number, also in base 60: parsing takes time quadratic in its digits."""
    return event.implicit[0] and len(event.value) > _LONGEST and not event.value.strip("0123456789:_+-.")


def _loader(construct_mapping: Callable[..., dict[object, object]]) -> Any:
    """The safe loader, in C if available, which reads ``1e-5`` as a number, as YAML 1.2 does."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("Loader", (base,), {"construct_mapping": construct_mapping})
    loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))
    return loader


def _construct_mapping(self: Any, node: Any, deep: bool = False) -> dict[object, object]:
    import yaml

    content: dict[object, object] = {}
    lines: dict[object, int] = {}
    for key_node, value_node in node.value:
        key, line = self.construct_object(key_node, deep=deep), key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} must be text", key_node.start_mark)
        value = self.construct_object(value_node, deep=True)
        if key in content and repr(content[key]) != repr(value):  # Compared as text, because 1 == 1.0 == True.
            rule = f"the key {key!r} has one value in line {lines[key]} and another in line {line}"
            raise yaml.constructor.ConstructorError(None, None, rule, key_node.start_mark)
        content[key], lines[key] = value, lines.get(key, line)
    return content


def _construct_foreign(self: Any, node: Any, deep: bool = False) -> dict[object, object]:
    from yaml import ScalarNode

    own = sum(key.tag != "tag:yaml.org,2002:merge" for key, _ in node.value)
    self.flatten_mapping(node)  # Puts pairs merged by << before the mapping's own, which take precedence.
    pairs, found = node.value, dict[object, object]()
    for key, _ in pairs:
        key.tag = "tag:yaml.org,2002:str" if isinstance(key, ScalarNode) else key.tag
    for node.value in [[pair] for pair in pairs[: len(pairs) - own]] + [pairs[len(pairs) - own :]]:
        found |= _construct_mapping(self, node, deep)
    node.value = pairs
    return found


def _plain(value: object, path: str, where: str) -> object:
    if isinstance(value, dict):
        return {key: _plain(item, f"{path}: {key}", where) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, path, where) for item in value]
    if type(value) is int and abs(value) > files.LARGEST:
        raise _error(path, None, f"{str(value)[:_LONGEST]} must fit in 64 bits, as every setting does")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise _error(path, str(value), "dates and binary data are not allowed: quote it as text")


def _error(where: str, found: object, rule: str, ways: Iterable[str] = ()) -> ConfigErrors:
    return ConfigErrors([ConfigError(where, found, rule, ways)])
