"""Configurations that are Python functions or calls, followed as text: assignments, calls with keywords and returns.

Nothing is executed. A call is a mapping of its arguments with its name as ``class``; a function of the same text that
takes part is followed. Conditions, loops and calls that may change a configuration in place are named, not followed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.config.ledger import OPEN
from launcher.importers import _foreign

_DEEPEST = 8  # Functions that call each other.
_PLAIN = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Assert, ast.Pass, ast.ClassDef)


class Followed:
    """The configuration of a text, and sentences about what of it was not followed."""

    def __init__(self, text: str, path: str) -> None:
        self.notes: list[str] = []
        self._path = path
        self._tree = _foreign.module_of(text, path)
        self._functions = {node.name: node for node in self._tree.body if isinstance(node, ast.FunctionDef)}
        self._constants = _foreign.constants(self._tree.body)

    def function(self, name: str | None) -> JsonObject:
        """What the function of this name returns or makes, or the only one there is, or a text without functions.

        Raises:
            ConfigErrors: There are several functions, or nothing that can be followed.
        """
        public = [each for each in self._functions if not each.startswith("_")]
        if name is None and len(public) == 1:
            name = public[0]
        if name is None and not public:
            found = self._made(self._tree.body, dict(self._constants), 0)
        elif name in self._functions:
            found = self._returned(self._functions[name], {}, 0)
        else:
            rule = f"it has {'several configurations' if public else 'no function that returns a configuration'}"
            raise ConfigErrors([ConfigError(self._path, name, rule, [f"--set config={each}" for each in public])])
        if not isinstance(found, dict):
            rule = "it makes no configuration whose text can be followed"
            raise ConfigErrors([ConfigError(self._path, name, rule)])
        return found

    def calls(self, endings: Iterable[str]) -> list[JsonObject]:
        """The arguments of every call of one of these classes, wherever it is, with the names above it."""
        names = {
            **self._constants,
            **_foreign.constants([node for node in ast.walk(self._tree) if isinstance(node, ast.stmt)]),
        }
        known = tuple(endings)
        found = (node for node in _foreign.calls(self._tree) if _foreign.called(node).rpartition(".")[2] in known)
        return [
            {"class": _foreign.called(node).rpartition(".")[2], **_foreign.arguments(node, names)} for node in found
        ]

    def first(self, ending: str) -> list[Any]:
        """The first argument of every call of this name that is a literal."""
        names = {
            **self._constants,
            **_foreign.constants([node for node in ast.walk(self._tree) if isinstance(node, ast.stmt)]),
        }
        calls = (node for node in _foreign.calls(self._tree) if node.args and _called_last(node) == ending)
        found = [_foreign.literal(node.args[0], names) for node in calls]
        return [value for value in found if isinstance(value, str) and value != OPEN]

    def _returned(self, function: ast.FunctionDef, given: Mapping[str, Any], depth: int) -> Any:
        return self._made(function.body, {**self._constants, **self._defaults(function), **given}, depth)

    def _made(self, body: Sequence[ast.stmt], names: dict[str, Any], depth: int) -> Any:
        """What statements return, else the last whole configuration among their names."""
        for statement in body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self._value(statement.value, names, depth)
            self._assign(statement, names, depth)
        whole = [each for each in names.values() if isinstance(each, dict) and _is_whole(each)]
        return whole[-1] if whole else OPEN

    def _defaults(self, function: ast.FunctionDef) -> dict[str, Any]:
        """Arguments that have a default."""
        arguments = function.args
        named = dict(zip([each.arg for each in arguments.args][::-1], arguments.defaults[::-1], strict=False))
        named |= {
            each.arg: value for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
        }
        return {name: _foreign.literal(value, self._constants) for name, value in named.items()}

    def _assign(self, statement: ast.stmt, names: dict[str, Any], depth: int) -> None:
        """Take one statement in."""
        if isinstance(statement, _PLAIN) or (
            isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        ):
            return
        value = getattr(statement, "value", None)
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if isinstance(statement, ast.Assign | ast.AnnAssign) and len(targets) == 1 and value is not None:
            target = targets[0]
            if isinstance(target, ast.Name):
                names[target.id] = self._value(value, names, depth)
                return
            if isinstance(target, ast.Attribute) and _set(names, target, self._value(value, names, depth)):
                return
        self.notes.append(f"line {statement.lineno} is not followed: {ast.unparse(statement).splitlines()[0][:60]}")

    def _value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        """An expression: a call as a mapping, an attribute of one, or a literal."""
        if isinstance(node, ast.Call):
            return self._call(node, names, depth)
        if isinstance(node, ast.Name):
            return copy.deepcopy(names[node.id]) if node.id in names else OPEN
        if isinstance(node, ast.Attribute):
            held = self._value(node.value, names, depth)
            return copy.deepcopy(held.get(node.attr, OPEN)) if isinstance(held, dict) else _foreign.literal(node, names)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(each, names, depth) for each in node.elts]
        return _foreign.literal(node, names)

    def _call(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        name = _foreign.called(node)
        given = {each.arg: self._value(each.value, names, depth) for each in node.keywords if each.arg}
        if name in self._functions and depth < _DEEPEST:
            positional = zip((each.arg for each in self._functions[name].args.args), node.args, strict=False)
            said = {argument: self._value(value, names, depth) for argument, value in positional}
            return self._returned(self._functions[name], {**said, **given}, depth + 1)
        of_value = not name or isinstance(names.get(name.partition(".")[0]), dict)
        if of_value and isinstance(node.func, ast.Attribute):  # A method of what a call returns, or of its name.
            held = self._value(node.func.value, names, depth)
            return {**held, **given} if isinstance(held, dict) else OPEN
        return {
            "class": name,
            **{str(place): self._value(each, names, depth) for place, each in enumerate(node.args)},
            **given,
        }


def _is_whole(value: Mapping[str, Any]) -> bool:
    return str(value.get("class")).endswith(("ConfigContainer", "Trainer.Config"))


def _called_last(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else _foreign.called(node)


def _set(names: dict[str, Any], target: ast.Attribute, value: Any) -> bool:
    """Set an attribute of a configuration; False where its root is none."""
    path: list[str] = []
    inner: ast.expr = target
    while isinstance(inner, ast.Attribute):
        path.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name) or not isinstance(names.get(inner.id), dict):
        return False
    held = names[inner.id]
    for part in path[:0:-1]:
        if not isinstance(held.get(part), dict):
            held[part] = {}
        held = held[part]
    held[path[0]] = value
    return True
