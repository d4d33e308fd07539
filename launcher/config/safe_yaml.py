"""YAML from someone else, read as plain data: no tags, no aliases, one value a key, within the limits of ``files``.

``yaml.safe_load`` alone still expands aliases (a kilobyte can become gigabytes), takes the last of two equal keys,
recurses as deep as the text does, and takes a time that grows with the square of a number to base 60.
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
"""Numbers to base 60 of YAML 1.1 (yaml.org/type/int, yaml.org/type/float), without quotes."""

_IS_BASE_60 = "is a number to base 60 in YAML 1.1: quote it where it is text"
_LONGEST = 40  # Characters of a number; those of a float with all of its digits are 24.


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
        raise _error(where, None, f"it cannot be read: {unreadable(error)}", files.near(path)) from None
    return loads(text, where)


def loads(text: str, where: str, *, foreign: bool = False) -> object:
    """Read text as :func:`load` does; ``where`` names it in errors.

    Of another program's text (``foreign``) aliases and merged mappings (``<<``) are read, too, within the limits, and a
    key that is a number or a switch is the text that it is written as.
    """
    import yaml  # Late, because most commands read no YAML.

    loader = _loader(_construct_foreign if foreign else _construct_mapping)
    nodes = _Nodes(where, plain=True, aliases=foreign)
    try:
        for event in yaml.parse(text, Loader=loader):
            nodes.count(event)
        return _plain(yaml.load(text, Loader=loader), where, where)
    except (yaml.YAMLError, ValueError) as error:
        raise _error(where, None, f"it is not YAML: {said(error)}") from None


def require_bounded(path: Path) -> None:
    """See that a file which another reader expands stays within the limits, aliases put in; YAML it need not be.

    Raises ConfigErrors: It is too large or too deep, or holds a number to base 60, which takes long to read.
    """
    import yaml

    try:
        nodes = _Nodes(str(path))
        for event in yaml.parse(files.read_text(path), Loader=_loader(_construct_mapping)):
            nodes.count(event)
    except files.Refused as error:  # Hydra would pass a pipe over, and take the shipped option of its name.
        raise _error(str(path), None, f"it cannot be read: {unreadable(error)}") from None
    except (yaml.YAMLError, OSError, UnicodeDecodeError):
        return  # Its reader says so; a link to nowhere is of interest only where it is chosen.
    except ValueError as error:
        raise _error(str(path), None, f"it cannot be read: {error}") from None


class _Nodes:
    """The nodes of a document as its events come, within the limits; an alias counts as all that it stands for.

    ``plain`` refuses tags, and aliases unless ``aliases`` are read.
    """

    def __init__(self, where: str, *, plain: bool = False, aliases: bool = False) -> None:
        self._where, self._is_plain, self._aliases = where, plain, aliases or not plain
        self._total = 0
        self._begun: list[tuple[str | None, int]] = []
        self._sizes: dict[str, int] = {}

    def count(self, event: "Event") -> None:
        """Take one event in."""
        from yaml import events

        anchor = getattr(event, "anchor", None)
        line = f"{self._where}: line {event.start_mark.line + 1 if event.start_mark else '?'}"
        if not self._aliases and anchor is not None:
            raise _error(line, anchor, "anchors and aliases are not read")
        if self._is_plain and (tag := getattr(event, "tag", None)):
            raise _error(line, tag, "tags are not read: it is plain data")
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
            raise _error(line, None, f"it holds more than {files.MOST_NODES:,} values, its aliases put in")
        if isinstance(event, events.ScalarEvent) and _is_long_number(event):
            raise _error(line, f"{event.value[:_LONGEST]}...", f"no number has more than {_LONGEST} characters")
        if isinstance(event, events.ScalarEvent) and event.implicit[0] and _BASE_60.fullmatch(event.value):
            rule = f"{event.value} {_IS_BASE_60}, as in '{event.value}'"  # Its reader would take 24:00:00 for 86400.
            raise _error(line, event.value, rule)


def _is_long_number(event: Any) -> bool:
    """True for digits without quotes, also to base 60, whose reading takes a time that grows with their square."""
    return event.implicit[0] and len(event.value) > _LONGEST and not event.value.strip("0123456789:_+-.")


def said(error: Exception) -> str:
    """The message of YAML's reader, in one line and without its name for a text that it was handed."""
    return " ".join(str(error).split()).replace(' in "<unicode string>"', "")


def _loader(construct_mapping: Callable[..., dict[object, object]]) -> Any:
    """The safe loader, in C where there is one, with ``1e-5`` read as the number that YAML 1.2 says it is."""
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
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is not text", key_node.start_mark)
        value = self.construct_object(value_node, deep=True)
        if key in content and repr(content[key]) != repr(value):  # By their text, because 1 == 1.0 == True.
            rule = f"the key {key!r} has one value in line {lines[key]} and another in line {line}"
            raise yaml.constructor.ConstructorError(None, None, rule, key_node.start_mark)
        content[key], lines[key] = value, lines.get(key, line)
    return content


def _construct_foreign(self: Any, node: Any, deep: bool = False) -> dict[object, object]:
    from yaml import ScalarNode

    own = sum(key.tag != "tag:yaml.org,2002:merge" for key, _ in node.value)
    self.flatten_mapping(node)  # Puts the pairs that << merges before its own, which win.
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
        raise _error(path, None, f"{str(value)[:_LONGEST]} is beyond 64 bits, which no setting is")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise _error(path, str(value), "a date or binary is not read: quote it as text")


def _error(where: str, found: object, rule: str, ways: Iterable[str] = ()) -> ConfigErrors:
    return ConfigErrors([ConfigError(where, found, rule, ways)])
