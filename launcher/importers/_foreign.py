"""A configuration in YAML, JSON or TOML, or arguments in Python text, as plain nested values; nothing is executed.

Python is read as text: keyword arguments of calls whose name says what they configure, and assignments to attributes.
What is no literal, nor the name of one above it, is left open (``???``).
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.config import safe_yaml
from launcher.config.ledger import OPEN

_PYTHON = re.compile(r"^(?:from [\w.]+ import |import [\w.]+|def \w+\(|class \w+|@\w+)", re.MULTILINE)
_SHOWN = 40  # Characters of a text that is not understood in a message.


def is_python(text: str) -> bool:
    """True for the text of a Python module."""
    return bool(_PYTHON.search(text))


def content_of(text: str, path: str, name: str) -> JsonObject:
    """A file's nested values; ``name`` is what its program calls it. Raises ConfigErrors where it is none."""
    text = text.removeprefix("\ufeff")
    if path.endswith(".toml"):
        found = _toml(text, path, name)
    elif path.endswith(".json"):
        found = _json(text, path, name)
    else:
        found = safe_yaml.loads(text, path)
    if not isinstance(found, dict):
        raise ConfigErrors([ConfigError(path, text[:_SHOWN], f"{name} is a mapping of keys, and this is not")])
    return found


def _toml(text: str, path: str, name: str) -> object:
    try:
        found = tomllib.loads(text)
        files.check_plain(found)
    except (ValueError, RecursionError) as error:
        raise ConfigErrors([ConfigError(path, text[:_SHOWN], f"{name} is TOML, and this is not: {error}")]) from None
    return found


def _json(text: str, path: str, name: str) -> object:
    try:
        return files.parse_json(text)
    except (ValueError, RecursionError) as error:
        raise ConfigErrors([ConfigError(path, text[:_SHOWN], f"{name} is JSON, and this is not: {error}")]) from None


def flat(values: Mapping[str, Any], prefix: str = "") -> JsonObject:
    """Every leaf by its dotted path; mappings inside a list are parts, too (``datasets.0.path``)."""
    found: JsonObject = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
            value = {str(place): each for place, each in enumerate(value)}
        found |= flat(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return found


def parts(values: Mapping[str, Any], block: str) -> list[str]:
    """The paths of a list's parts in flat values, in their order: ``datasets.0``, ``datasets.1``."""
    heads = (key.removeprefix(f"{block}.").split(".")[0] for key in values if key.startswith(f"{block}."))
    return [f"{block}.{place}" for place in dict.fromkeys(head for head in heads if head.isdigit())]


def module_of(text: str, path: str) -> ast.Module:
    """Python text as a tree; raises ConfigErrors where it is none."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        rule = f"this is not Python: {error}"
        raise ConfigErrors([ConfigError(path, text[:_SHOWN], rule)]) from None


def constants(statements: list[ast.stmt]) -> dict[str, Any]:
    """Literals that plain assignments give a name."""
    found: dict[str, Any] = {}
    for each in statements:
        target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
        value = getattr(each, "value", None)
        if isinstance(each, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and value is not None:
            found[target.id] = literal(value, found)
    return {name: value for name, value in found.items() if value != OPEN}


def literal(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression of literals and known names; ``???`` for any other."""
    if isinstance(node, ast.Name):
        return names.get(node.id, OPEN)
    if isinstance(node, ast.Attribute):  # torch.bfloat16, IntervalStrategy.STEPS
        return node.attr if node.attr in _DTYPES else OPEN
    if isinstance(node, ast.List | ast.Tuple):
        return [literal(each, names) for each in node.elts]
    if isinstance(node, ast.BinOp):
        return _product(node, names)
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        pairs = zip(node.keys, node.values, strict=True)
        return {str(key.value): literal(value, names) for key, value in pairs if isinstance(key, ast.Constant)}
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return OPEN
    return value if value is None or isinstance(value, bool | int | float | str) else OPEN


_DTYPES = ("bfloat16", "float16", "float32")


def _product(node: ast.BinOp, names: Mapping[str, Any]) -> Any:
    """``8 * 1024`` and ``4096 // 2`` of whole numbers."""
    left, right = literal(node.left, names), literal(node.right, names)
    if type(left) is int and type(right) is int and max(abs(left), abs(right)) < files.LARGEST:
        if isinstance(node.op, ast.Mult) and abs(left * right) < files.LARGEST:
            return left * right
        if isinstance(node.op, ast.FloorDiv) and right:
            return left // right
    return OPEN


def called(node: ast.Call) -> str:
    """The dotted name that a call calls, as it is written; empty for anything but names."""
    parts_: list[str] = []
    inner: ast.expr = node.func
    while isinstance(inner, ast.Attribute):
        parts_.append(inner.attr)
        inner = inner.value
    return ".".join([inner.id, *reversed(parts_)]) if isinstance(inner, ast.Name) else ""


def arguments(node: ast.Call, names: Mapping[str, Any]) -> JsonObject:
    """The keyword arguments of a call; those that are calls are nested values with their name as ``class``."""
    found: JsonObject = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            found["**"] = OPEN
        elif isinstance(keyword.value, ast.Call) and keyword.value.keywords:
            found[keyword.arg] = {"class": called(keyword.value), **arguments(keyword.value, names)}
        elif isinstance(keyword.value, ast.Call) and not keyword.value.args:
            found[keyword.arg] = {"class": called(keyword.value)}
        else:
            found[keyword.arg] = literal(keyword.value, names)
    return found


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Every call in the text, in its order."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    yield from sorted(found, key=lambda node: (node.lineno, node.col_offset))
