"""A configuration in Python text, or in YAML, JSON or TOML, as plain nested values; nothing is executed.

Python is read as text: keyword arguments of calls whose name says what they configure, and assignments to attributes.
What is no literal, nor the name of one above it, is left open (``???``).
"""

import ast
import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.config.ledger import OPEN
from launcher.importers._python import (
    IMPORTED,
    arguments,
    called,
    called_last,
    calls,
    constants,
    decided,
    literal,
    module_of,
    product,
)
from launcher.importers._reading import content_of, module_beside

_PYTHON = re.compile(r"^(?:from [\w.]+ import |import [\w.]+|def \w+\(|class \w+|@\w+)", re.MULTILINE)


def is_python(text: str) -> bool:
    """True for the text of a Python module."""
    return bool(_PYTHON.search(text))


type Rules = Mapping[str, Callable[[Any], Any]]
"""By the name of a function: how it changes the configuration that is its first argument."""


def read(
    text: str, path: str, name: str, function: str | None, rules: Rules | None = None
) -> tuple[JsonObject, list[str] | None]:
    """The configuration in a file, and notes on Python code that was not followed (None for data formats)."""
    if path.endswith(".py") or (not path.endswith((".toml", ".json")) and is_python(text)):
        followed = StaticEvaluation(text, path, rules)
        return followed.function(function), followed.notes
    return content_of(text, path, name), None


_NUMBERS = {"int": int, "float": float}
_DEEPEST = 8  # Functions that call each other.
_PLAIN = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Assert, ast.Pass, ast.ClassDef)


class StaticEvaluation:
    """The configuration of a text, and sentences about what of it was not followed.

    It follows assignments, calls with keywords and returns. A call is a mapping of its arguments with its name as
    ``class``; a function of the same text that takes part is followed, and so are conditions on known words, and a
    function of a module that lies beside this one which returns a whole configuration. Others, loops and calls that may
    change a configuration in place are named, not followed.
    """

    def __init__(self, text: str, path: str, rules: Rules | None = None) -> None:
        self.notes: list[str] = []
        self._path, self._rules = path, rules or {}
        self._tree = module_of(text, path)
        self._functions = {node.name: node for node in self._tree.body if isinstance(node, ast.FunctionDef)}
        self._constants = IMPORTED | constants(self._tree.body)
        imports = [node for node in self._tree.body if isinstance(node, ast.ImportFrom)]
        self._imports = {each.asname or each.name: (node, each.name) for node in imports for each in node.names}

    def function(self, name: str | None) -> JsonObject:
        """Return the configuration that a function makes: the named one, the only one, or the file's own statements.

        Raises ConfigErrors where there are several functions, or nothing that can be followed.
        """
        public = [each for each in self._functions if not each.startswith("_")]
        made = [each for each in public if _is_whole(ast.unparse(self._functions[each].returns or ast.Name("")))]
        if name is None and len(public) > len(made) == 1:
            public = made  # Others help it.
        if name is None and len(public) == 1 and not any(map(_makes_whole, self._tree.body)):
            name = public[0]
        if name is None and (not public or any(map(_makes_whole, self._tree.body))):
            found = self._made(self._tree.body, dict(self._constants), 0)
        elif name in self._functions:
            found = self._returned(self._functions[name], (), {}, 0)
        else:
            rule = f"it has {'several configurations' if public else 'no function that returns a configuration'}"
            raise ConfigErrors([ConfigError(self._path, name, rule, [f"--set config={each}" for each in public])])
        if not isinstance(found, dict):
            rule = "it makes no configuration whose text can be followed"
            raise ConfigErrors([ConfigError(self._path, name, rule)])
        return found

    def calls(self, endings: Iterable[str]) -> list[JsonObject]:
        """The arguments of every call of one of these classes, wherever it is, with the names above it."""
        names = {**self._constants, **constants([node for node in ast.walk(self._tree) if isinstance(node, ast.stmt)])}
        known = tuple(endings)
        found = (node for node in calls(self._tree) if called(node).rpartition(".")[2] in known)
        return [{"class": called(node).rpartition(".")[2], **arguments(node, names)} for node in found]

    def first(self, ending: str) -> list[Any]:
        """The first argument of every call of this name that is a literal."""
        names = {**self._constants, **constants([node for node in ast.walk(self._tree) if isinstance(node, ast.stmt)])}
        of_name = (node for node in calls(self._tree) if node.args and called_last(node) == ending)
        found = [literal(node.args[0], names) for node in of_name]
        return [value for value in found if isinstance(value, str) and value != OPEN]

    def _returned(
        self, function: ast.FunctionDef, positional: Sequence[Any], given: Mapping[str, Any], depth: int
    ) -> Any:
        said = dict(zip((each.arg for each in function.args.args), positional, strict=False))
        return self._made(function.body, {**self._constants, **self._defaults(function), **said, **given}, depth)

    def _elsewhere(self, name: str, positional: Sequence[Any], given: Mapping[str, Any], depth: int) -> Any:
        """The configuration that a function makes which this text imports; None where no module beside it has it."""
        node, own = self._imports.get(name, (None, ""))
        if node is None or node.module is None or depth >= _DEEPEST:
            return None
        for text, path in module_beside(self._path, node.module, node.level):
            other = StaticEvaluation(text, path, self._rules)
            function = other._functions.get(own)
            if function is None and (found := other._elsewhere(own, positional, given, depth + 1)) is not None:
                return found
            if function is not None and _is_whole(ast.unparse(function.returns or ast.Name(""))):
                found = other._returned(function, positional, given, depth + 1)
                self.notes += [f"{node.module}, {note}" for note in other.notes]
                return found
        return None

    def _imported(self, name: str) -> Any:
        """The literal that a module beside this one gives a name which this text imports."""
        node, own = self._imports.get(name, (None, ""))
        beside = module_beside(self._path, node.module, node.level) if node and node.module else ()
        found = (constants(module_of(text, path).body) for text, path in beside)
        return next((each[own] for each in found if own in each), OPEN)

    def _made(self, body: Sequence[ast.stmt], names: dict[str, Any], depth: int) -> Any:
        waiting = [*body]
        while waiting:
            statement = waiting.pop(0)
            if isinstance(statement, ast.If) and (holds := decided(statement.test, names)) is not None:
                waiting[:0] = statement.body if holds else statement.orelse
                continue
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self._value(statement.value, names, depth)
            self._assign(statement, names, depth)
        whole = [each for each in names.values() if isinstance(each, dict) and _is_whole(str(each.get("class")))]
        return whole[-1] if whole else OPEN

    def _defaults(self, function: ast.FunctionDef) -> dict[str, Any]:
        arguments = function.args
        named = dict(zip([each.arg for each in arguments.args][::-1], arguments.defaults[::-1], strict=False))
        named |= {
            each.arg: value for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
        }
        return {name: literal(value, self._constants) for name, value in named.items()}

    def _assign(self, statement: ast.stmt, names: dict[str, Any], depth: int) -> None:
        if isinstance(statement, ast.FunctionDef):
            names[statement.name] = _of_a_row(statement)
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
            if isinstance(target, ast.Tuple) and all(isinstance(each, ast.Name) for each in target.elts):
                names |= _shared([ast.unparse(each) for each in target.elts], self._value(value, names, depth))
                return
            if isinstance(target, ast.Attribute) and _is_itself(target, value):
                return
            if isinstance(target, ast.Attribute) and _set(names, target, self._value(value, names, depth)):
                return
        self.notes.append(f"line {statement.lineno} is not followed: {ast.unparse(statement).splitlines()[0][:60]}")

    def _value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        if isinstance(node, ast.Call):
            return self._call(node, names, depth)
        if isinstance(node, ast.Name) and node.id not in names and node.id in self._functions:
            return _of_a_row(self._functions[node.id])
        if isinstance(node, ast.Name):
            return copy.deepcopy(names[node.id]) if node.id in names else self._imported(node.id)
        if isinstance(node, ast.Attribute):
            held = self._value(node.value, names, depth)
            if node.attr == "text_config" and isinstance(held, dict) and "from_pretrained" in str(held.get("class")):
                return held  # The text's part of a model that reads images, too.
            return copy.deepcopy(held.get(node.attr, OPEN)) if isinstance(held, dict) else literal(node, names)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(each, names, depth) for each in node.elts]
        if isinstance(node, ast.BinOp):
            return product(node.op, *(self._value(each, names, depth) for each in (node.left, node.right)))
        if isinstance(node, ast.ListComp) and _copies(node):  # Of a list of lists.
            return self._value(node.generators[0].iter, names, depth)
        return literal(node, names)

    def _call(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        name = called(node)
        if name in _NUMBERS and len(node.args) == 1:
            inner = self._value(node.args[0], names, depth)
            return _NUMBERS[name](inner) if type(inner) in (int, float) else OPEN
        if name in ("list", "tuple", "AutoBridge.from_hf_config") and len(node.args) == 1:
            inner = self._value(node.args[0], names, depth)
            return inner if isinstance(inner, dict if name.endswith("config") else list) else OPEN
        if name in ("cast", "typing.cast") and len(node.args) == 2:  # A word for type checkers.
            return self._value(node.args[1], names, depth)
        given = {each.arg: self._value(each.value, names, depth) for each in node.keywords if each.arg}
        positional = [self._value(each, names, depth) for each in node.args]
        if name in self._functions and depth < _DEEPEST:
            return self._returned(self._functions[name], positional, given, depth + 1)
        if name in self._rules and positional:
            return self._rules[name](positional[0])
        if "_common" not in name and (found := self._elsewhere(name, positional, given, depth)) is not None:
            return found  # Those that recipes have in common, such as _pretrain_common, are known by their names.
        if name in ("replace", "dataclasses.replace") and len(positional) == 1:
            return {**positional[0], **given} if isinstance(positional[0], dict) else OPEN
        of_value = not name or isinstance(names.get(name.partition(".")[0]), dict)
        if of_value and isinstance(node.func, ast.Attribute):  # A method of what a call returns, or of its name.
            held = self._value(node.func.value, names, depth)
            return {**held, **given} if isinstance(held, dict) else OPEN
        return {"class": name, **{str(place): each for place, each in enumerate(positional)}, **given}


def _of_a_row(function: ast.FunctionDef) -> Any:
    """The value that a function returns for a row, a column named as ``{question}``; ``???`` beyond one expression."""
    [row, *others], [last, *before] = [*function.args.args, ast.arg("")], function.body[::-1]
    plain = all(isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in before)
    if len(others) != 1 or not plain or not isinstance(last, ast.Return) or last.value is None:
        return OPEN
    return literal(_Columns(row.arg).visit(copy.deepcopy(last.value)), {})


class _Columns(ast.NodeTransformer):
    def __init__(self, row: str) -> None:
        self._row = row

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        column = node.slice.value if isinstance(node.slice, ast.Constant) else None
        of_row = isinstance(node.value, ast.Name) and node.value.id == self._row
        return ast.Constant("{" + column + "}") if of_row and isinstance(column, str) else node


def _copies(node: ast.ListComp) -> bool:
    """True for ``[list(x) for x in y]`` and ``[x for x in y]``."""
    [part, *others], inner = node.generators, node.elt
    if isinstance(inner, ast.Call) and called(inner) in ("list", "tuple") and len(inner.args) == 1:
        inner = inner.args[0]
    return not others and not part.ifs and ast.dump(inner) == ast.dump(part.target).replace("Store", "Load")


def _is_whole(name: str) -> bool:
    return name.endswith(("ConfigContainer", "Trainer.Config")) or name.rpartition("config.")[2] == "Config"


def _makes_whole(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(statement, ast.Assign) and isinstance(value, ast.Call) and _is_whole(called(value))


def _is_itself(target: ast.Attribute, value: ast.expr) -> bool:
    """True for ``x.rate = float(x.rate)``."""
    inner = value.args[0] if isinstance(value, ast.Call) and called(value) in _NUMBERS and value.args else None
    return isinstance(inner, ast.Attribute) and ast.unparse(inner) == ast.unparse(target)


def _shared(names: Sequence[str], value: Any) -> JsonObject:
    whole = value if isinstance(value, list) and len(value) == len(names) else [value] * len(names)
    return {name: copy.deepcopy(part) for name, part in zip(names, whole, strict=True)}


def _set(names: dict[str, Any], target: ast.Attribute, value: Any) -> bool:
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
