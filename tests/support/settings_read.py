"""Settings that a program reads, found in its source: accesses such as ``spec.train.steps``, and their aliases."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import get_type_hints

from launcher.spec import RunSpec
from launcher.spec import run as run_module

_ROOT = Path(run_module.__file__).parent.parent.parent
_PLANNING = ("check", "overheads", "translate", "obstacles", "models", "__init__")
"""Modules of a backend's package that its worker does not use."""


def keys_read_by(entry: str, backend: str) -> frozenset[str]:
    """Keys read by the module ``entry`` and by its imports from this project, as far as their source shows."""
    modules = _modules(entry, backend)
    assert len(modules) > 5, "the worker is made of several modules"
    parts = [_read(path) for path in modules.values()]
    if any("transformers_config" in part.attributes for part in parts):
        parts += [_facts(function) for function in _classes_of_families()]
    found = {key for part in parts for key in part.keys}
    if f"launcher.backends.{backend}.dtypes" in modules:  # That module reads the formats by name.
        found |= {f"precision.{field.name}" for field in fields(_groups()["precision"])}
    attributes = frozenset().union(*(part.attributes for part in parts))
    return frozenset(found.union(*(keys for name, keys in _properties().items() if name in attributes)))


@dataclass(frozen=True)
class _Facts:
    """The keys that a piece of source reads, and the names of all attributes that it reads."""

    keys: frozenset[str]
    attributes: frozenset[str]


def _facts(tree: ast.AST) -> _Facts:
    attributes = frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return _Facts(frozenset(_keys(tree)), attributes)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _read(path: Path) -> _Facts:
    return _facts(_parsed(path))


def _classes_of_families() -> Iterator[ast.FunctionDef]:
    """The families' ``transformers_config`` functions, and those that they use."""
    trees = [_parsed(path) for path in sorted((_ROOT / "launcher" / "estimate" / "families").glob("*.py"))]
    found = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    classes = [function for function in found if function.name == "transformers_config"]
    parts = {node.attr for function in classes for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    parts |= {node.id for function in classes for node in ast.walk(function) if isinstance(node, ast.Name)}
    yield from (function for function in found if function in classes or function.name in parts)


def _modules(entry: str, backend: str) -> dict[str, Path]:
    """Source files of the entry module and of its imports from the worker, from data and from its own backend."""
    seen: dict[str, Path] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name in seen or not _belongs(name, backend):
            continue
        path = _ROOT.joinpath(*name.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if path.is_file():
            seen[name] = path
            waiting += _imports(_parsed(path))
    return seen


def _belongs(name: str, backend: str) -> bool:
    own = f"launcher.backends.{backend}."
    worker = (
        name.startswith(("launcher.worker.", "launcher.data."))
        or name == "launcher.job.torchrun"
        or name == "launcher.estimate.rank.formats"
    )
    return worker or (name.startswith(own) and name.removeprefix(own) not in _PLANNING)


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("launcher"):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("launcher."))


@cache
def _groups() -> dict[str, type]:
    hints = get_type_hints(RunSpec)
    return {field.name: hints[field.name] for field in fields(RunSpec) if is_dataclass(hints[field.name])}


def _keys(tree: ast.AST) -> Iterator[str]:
    """Keys read as ``<anything>.group.key``, or as ``name.key`` of a name assigned from, or annotated as, a group."""
    names = {group: group for group in _groups()} | dict(_aliases(tree))
    of_group = {group: {field.name for field in fields(kind)} for group, kind in _groups().items()}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", None)
        group = owner if owner in _groups() and isinstance(node.value, ast.Attribute) else names.get(owner or "")
        if group is not None and node.attr in of_group[group]:
            yield f"{group}.{node.attr}"
        if node.attr in ("script", "script_args"):
            yield node.attr


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    classes = {kind.__name__: group for group, kind in _groups().items()}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name) and node.annotation.id in classes:
            yield node.arg, classes[node.annotation.id]
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple):
            yield from _assigned(node.targets[0], node.value)


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, str]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for part, item in zip(target.elts, value.elts, strict=False):
            yield from _assigned(part, item)
    elif isinstance(target, ast.Name) and isinstance(value, ast.Attribute) and value.attr in _groups():
        yield target.id, value.attr


@cache
def _properties() -> dict[str, frozenset[str]]:
    """Keys behind each property of the specification, including those of properties that it uses."""
    trees = [ast.parse(path.read_text()) for path in Path(run_module.__file__).parent.glob("*.py")]
    direct: dict[str, set[str]] = {}
    uses: dict[str, set[str]] = {}
    of_class = {kind.__name__: group for group, kind in _groups().items()} | {"RunSpec": ""}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef) and node.name in of_class:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name != "hash":
                    direct[item.name], uses[item.name] = _of_property(item, of_class[node.name])
    for _ in direct:
        for name, others in uses.items():
            direct[name] |= {key for other in others for key in direct.get(other, ())}
    return {name: frozenset(keys) for name, keys in direct.items()}


def _of_property(function: ast.FunctionDef, group: str) -> tuple[set[str], set[str]]:
    attributes = [node for node in ast.walk(function) if isinstance(node, ast.Attribute)]
    of_self = {node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "self"}
    keys = set(_keys(function))
    if group:
        keys |= {f"{group}.{name}" for name in of_self if name in {field.name for field in fields(_groups()[group])}}
    return keys, of_self | {node.attr for node in attributes}
