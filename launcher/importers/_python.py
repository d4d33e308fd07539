"""Python of another program read as text: its constants, and the arguments of its calls; nothing is executed.

What is no literal, nor the name of one above it, is left open (``???``).
"""

import ast
import copy
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.config.ledger import OPEN
from launcher.importers._reading import SHOWN


def module_of(text: str, path: str) -> ast.Module:
    """Python text as a tree; raises ConfigErrors where it is none."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        rule = f"this is not Python: {error}"
        raise ConfigErrors([ConfigError(path, text[:SHOWN], rule)]) from None


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
        return product(node.op, literal(node.left, names), literal(node.right, names))
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = [literal(key, names) for key in node.keys if key is not None]
        return OPEN if OPEN in keys else {
            str(key): literal(value, names) for key, value in zip(keys, node.values, strict=True)
        }  # fmt: skip
    if isinstance(node, ast.Subscript):
        held, place = literal(node.value, names), str(literal(node.slice, names))
        return copy.deepcopy(held.get(place, OPEN)) if isinstance(held, dict) else OPEN
    if isinstance(node, ast.Call) and called_last(node) == "join" and isinstance(node.func, ast.Attribute):
        between, found = (literal(each, names) for each in (node.func.value, *node.args[:1]))
        whole = isinstance(between, str) and isinstance(found, list) and all(isinstance(each, str) for each in found)
        return between.join(found) if whole and OPEN not in (between, *found) else OPEN
    if isinstance(node, ast.IfExp) and (holds := decided(node.test, names)) is not None:
        return literal(node.body if holds else node.orelse, names)
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return OPEN
    return value if value is None or isinstance(value, bool | int | float | str) else OPEN


_DTYPES = ("bfloat16", "float16", "float32")
IMPORTED = {"squared_relu": "squared_relu", "DEFAULT_NULL_TOKENIZER_VOCAB_SIZE": 32000}
"""Values of names that recipes of Megatron Bridge 0.6 import from its modules."""


_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_LONGEST = 10_000  # Parts of a list that text multiplies; the deepest models have some 1,000 layers.


def product(kind: ast.operator, left: Any, right: Any) -> Any:
    """The sum, product or quotient of two numbers, and lists and words joined or repeated; ``???`` for any other."""
    compute = _OPERATORS.get(type(kind))
    if type(left) in (list, str) and compute is not None and OPEN not in (left, right):
        joins = type(right) is type(left) and isinstance(kind, ast.Add) and _size(left) + _size(right) <= _LONGEST
        repeats = type(right) is int and isinstance(kind, ast.Mult) and _size(left) * right <= _LONGEST
        return compute(left, right) if joins or repeats else OPEN
    if compute is None or not {type(left), type(right)} <= {int, float} or max(abs(left), abs(right)) > files.LARGEST:
        return OPEN
    if not right and isinstance(kind, ast.Div | ast.FloorDiv):
        return OPEN
    found = compute(left, right)
    if not abs(found) < files.LARGEST:
        return OPEN
    return found if isinstance(found, int) else float(f"{found:.12g}")  # As many digits as one would write.


def _size(value: Any) -> int:
    return sum(map(_size, value)) if isinstance(value, list) else len(value) if isinstance(value, str) else 1


def called(node: ast.Call) -> str:
    """The dotted name that a call calls, as it is written; empty for anything but names."""
    parts_: list[str] = []
    inner: ast.expr = node.func
    while isinstance(inner, ast.Attribute):
        parts_.append(inner.attr)
        inner = inner.value
    return ".".join([inner.id, *reversed(parts_)]) if isinstance(inner, ast.Name) else ""


def called_last(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else called(node)


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


def decided(test: ast.expr, names: Mapping[str, Any]) -> bool | None:
    """The truth of a condition that compares words; None where one of them is not known."""
    if isinstance(test, ast.BoolOp):
        found = [decided(each, names) for each in test.values]
        ends = isinstance(test.op, ast.Or)
        return ends if ends in found else None if None in found else not ends
    if isinstance(test, ast.Call) and called(test) == "isinstance" and ast.unparse(test.args[-1]) == "str":
        value = literal(test.args[0], names)
        return None if value == OPEN else isinstance(value, str)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.IsNot):
        value = literal(test.left, names)
        undecided = value == OPEN or len(test.ops) > 1 or ast.unparse(test.comparators[0]) != "None"
        return None if undecided else (value is None) == isinstance(test.ops[0], ast.Is)
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.In | ast.Eq) or len(test.ops) > 1:
        return None
    lowers = isinstance(test.left, ast.Call) and called_last(test.left) == "lower" and not test.left.args
    word = literal(test.left.func.value if lowers else test.left, names)  # type: ignore[attr-defined]
    other = test.comparators[0]
    several = [literal(each, names) for each in getattr(other, "elts", [other])]
    if not isinstance(word, str) or OPEN in (word, *several):
        return None
    return (word.lower() if lowers else word) in several
