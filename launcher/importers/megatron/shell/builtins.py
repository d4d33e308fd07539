"""Commands of the shell itself, as far as they change what it holds."""

from __future__ import annotations

import re
from collections.abc import Callable

from launcher.importers.megatron.shell import marks, patterns
from launcher.importers.megatron.shell.conditions import ASSUMED, NO, UNKNOWN, YES, Conditions, Operand, Truth
from launcher.importers.megatron.shell.follower import Follower
from launcher.importers.megatron.shell.state import Value
from launcher.importers.megatron.shell.tree import Assignment, Simple

_DECLARE = frozenset({"declare", "typeset", "local", "export", "readonly"})
_WORD = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=(.*)\Z", re.DOTALL)
_ELEMENT = re.compile(r"\[([^\]]*)\]=(.*)\Z", re.DOTALL)
_MOST_ELEMENTS = 10_000


class Builtins:
    """Acts on the state of a machine."""

    def __init__(self, machine: Follower) -> None:
        """Take the machine."""
        self.machine = machine
        self.local_values: list[dict[str, Value | None]] = []
        self.known: dict[str, Callable[[Simple, list[str]], Truth]] = {
            ":": lambda _node, _fields: YES,
            "true": lambda _node, _fields: YES,
            "false": lambda _node, _fields: NO,
            "getopts": lambda _node, _fields: NO,
            "exit": self._exit,
            "return": self._leave,
            "break": self._leave,
            "continue": self._leave,
            "set": self._set,
            "shift": self._shift,
            "unset": self._unset,
            "eval": self._eval,
            "source": self._source,
            ".": self._source,
            "let": self._let,
            "[": self._test,
            "test": self._test,
            "read": self._read,
            "mapfile": self._read,
            "readarray": self._read,
        }

    def run(self, node: Simple, fields: list[str]) -> Truth | None:
        """Do a command of the shell; None where it is another program's."""
        known = self.known.get(fields[0])
        return known(node, fields) if known else None

    # Assignments.

    def assign(self, item: Assignment, *, is_map: bool = False) -> None:
        """Do one assignment."""
        machine = self.machine
        before = machine.parameters.value(item.name)
        if isinstance(item.value, tuple):
            value: Value = self._array(item, before, is_map=is_map or isinstance(before, dict))
        else:
            text = machine.expansion.text(item.value)
            value = self._element(item, before, text) if item.index is not None else _added(item, before, text)
        raws = item.value if isinstance(item.value, tuple) else (item.value,)
        mentions = any(re.search(rf"\$\{{?[#!]?{item.name}\b", raw) for raw in raws)
        plain = not (item.append or item.index is not None or mentions)
        machine.parameters.assign(item.name, value, keeps_given=plain)

    def _array(self, item: Assignment, before: Value | None, *, is_map: bool) -> Value:
        expansion = self.machine.expansion
        if is_map:
            found = dict(before) if item.append and isinstance(before, dict) else {}
            for raw in item.value:
                if element := _ELEMENT.match(raw):
                    found[expansion.text(element[1])] = expansion.text(element[2])
            return found
        words: list[str] = []
        for raw in item.value:
            element = _ELEMENT.match(raw)
            words += [expansion.text(element[2])] if element else expansion.fields(raw)
        if not item.append or before is None:
            return tuple(words)
        return (*((before,) if isinstance(before, str) else before), *words)

    def _element(self, item: Assignment, before: Value | None, text: str) -> Value:
        parameters, index = self.machine.parameters, self.machine.expansion.text(item.index or "0")
        if isinstance(before, dict):
            return before | {index: before.get(index, "") * item.append + text}
        words = list(before) if isinstance(before, tuple) else [] if before is None else [before]
        number = parameters.number(index).value
        if number is None or not -len(words) <= number < _MOST_ELEMENTS:
            return (*words, marks.mark(text, [f"~{item.name}"]))
        words += [""] * (number + 1 - len(words))
        words[number] = words[number] * item.append + text
        return tuple(words)

    def declares(self, name: str) -> bool:
        """True if the words of this command are assignments."""
        return name in _DECLARE

    def declare(self, node: Simple) -> Truth:
        """``export``, ``local``, ``declare`` and the like."""
        name = str(node.words[0])
        options = [raw for raw in node.words[1:] if isinstance(raw, str) and raw[0] in "-+"]
        is_map = any("A" in option for option in options)
        for raw in node.words[1:]:
            item = raw if isinstance(raw, Assignment) else self._assignment(raw)
            if isinstance(raw, str) and raw in options:
                continue
            variable = item.name if item else str(raw)
            if name == "local" or (self.local_values and name in {"declare", "typeset"}):
                self._keep(variable)
            if item:
                self.assign(item, is_map=is_map)
            elif name not in {"export", "readonly"} and variable.isidentifier():
                empty: Value = {} if is_map else () if any("a" in option for option in options) else ""
                self.machine.parameters.assign(variable, empty, keeps_given=True)
        return YES

    def _assignment(self, raw: str) -> Assignment | None:
        found = _WORD.match(raw)
        return Assignment(found[1], found[4], found[2], append=bool(found[3])) if found else None

    def _keep(self, name: str) -> None:
        if self.local_values and name not in self.local_values[-1]:
            self.local_values[-1][name] = self.machine.state.variables.get(name)

    def leave_function(self) -> None:
        """Give local variables the values that they had before the function."""
        for name, value in self.local_values.pop().items():
            self.machine.state.variables.pop(name, None)
            if value is not None:
                self.machine.state.variables[name] = value

    # Flow and parameters.

    def _exit(self, node: Simple, _fields: list[str]) -> Truth:
        self.machine.state.flow = "exit"
        self.machine.script.ended = self.machine.outer_line or node.line
        return YES

    def _leave(self, _node: Simple, fields: list[str]) -> Truth:
        self.machine.state.flow = fields[0]
        return NO if fields[1:2] not in ([], ["0"]) and fields[0] == "return" else YES

    def _set(self, _node: Simple, fields: list[str]) -> Truth:
        if "--" in fields:
            self.machine.state.positional = tuple(fields[fields.index("--") + 1 :])
        elif len(fields) > 1 and fields[1][0] not in "-+":
            self.machine.state.positional = tuple(fields[1:])
        return YES

    def _shift(self, _node: Simple, fields: list[str]) -> Truth:
        state = self.machine.state
        count = int(fields[1]) if len(fields) > 1 and fields[1].isdecimal() and len(fields[1]) < 4 else 1
        if state.positional is not None:
            state.positional = state.positional[count:]
        return YES

    def _unset(self, _node: Simple, fields: list[str]) -> Truth:
        for name in fields[1:]:
            if name.isidentifier() and name not in self.machine.given:
                self.machine.state.variables[name] = ""
        return YES

    def _eval(self, node: Simple, fields: list[str]) -> Truth:
        return self.machine.run_text(" ".join(fields[1:]), node.line, apart=False)

    def _source(self, node: Simple, fields: list[str]) -> Truth:
        if len(fields) > 1:
            self.machine.not_read(node.line, fields[1])
        return ASSUMED

    def _let(self, _node: Simple, fields: list[str]) -> Truth:
        values = [self.machine.parameters.number(text).value for text in fields[1:]]
        return Truth(bool(values[-1]) if values and values[-1] is not None else None)

    def _test(self, node: Simple, fields: list[str]) -> Truth:
        words = fields[1:-1] if fields[0] == "[" and fields[-1] == "]" else fields[1:]
        operands = [Operand(text, patterns.escaped(text), is_operator=True) for text in words]
        found = Conditions(operands, self.machine.parameters.number, self.machine.is_set).answer()
        counts = self.machine.state.positional is None and any(
            "$#" in raw for raw in node.words if isinstance(raw, str)
        )
        return Truth(found.value, found.names, found.assumed or counts, found.hints)

    def _read(self, node: Simple, fields: list[str]) -> Truth:
        """What is read has no value; a heredoc that is read whole has one."""
        names = [name for name in fields[1:] if name.isidentifier()]
        whole = node.heredoc is not None and "-d" in fields and len(names) == 1
        for name in names:
            if whole and node.heredoc is not None:
                heredoc = node.heredoc
                text = heredoc.text if heredoc.quoted else self.machine.expansion.lines(heredoc.text)
                self.machine.parameters.assign(name, text.rstrip("\n"))
            else:
                self.machine.parameters.assign(name, marks.mark(f"${name}", [f"~{name}"]), keeps_given=True)
        return UNKNOWN


def _added(item: Assignment, before: Value | None, text: str) -> Value:
    if not item.append or before is None:
        return text
    if isinstance(before, str):
        return before + text
    if isinstance(before, dict):
        return before
    return ("".join(before[:1]) + text, *before[1:])
