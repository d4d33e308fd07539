"""Simple commands of a script: those of the shell itself, functions, text that is run, and programs."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from launcher.importers.megatron.shell import marks, patterns
from launcher.importers.megatron.shell.conditions import ASSUMED, NO, UNKNOWN, YES, Operand, Truth, answer
from launcher.importers.megatron.shell.follower import Command, Follower
from launcher.importers.megatron.shell.parameters import Value
from launcher.importers.megatron.shell.tree import Assignment, Heredoc, Simple, Statement

DECLARE = frozenset({"declare", "typeset", "local", "export", "readonly"})  # Commands whose words are assignments.
_WORD = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=(.*)\Z", re.DOTALL)
_ELEMENT = re.compile(r"\[([^\]]*)\]=(.*)\Z", re.DOTALL)
_MOST_ELEMENTS = 10_000  # Elements of an array that is set by index; a list of arguments has some hundreds.


class Builtins(Follower):
    """Follows the shell's own commands."""

    def builtin(self, node: Simple, fields: list[str]) -> Truth | None:
        """Follow a command of the shell; None where it is another program's."""
        known = _BUILTINS.get(fields[0])
        return known(self, node, fields) if known else None

    # Assignments.

    def assign(self, item: Assignment, *, is_map: bool = False) -> None:
        """Do one assignment."""
        before = self.parameters.value(item.name)
        if isinstance(item.value, tuple):
            value: Value = self._array(item, before, is_map=is_map or isinstance(before, dict))
        else:
            text = self.expansion.text(item.value)
            value = self._element(item, before, text) if item.index is not None else _added(item, before, text)
        raws = item.value if isinstance(item.value, tuple) else (item.value,)
        mentions = any(re.search(rf"\$\{{?[#!]?{item.name}\b", raw) for raw in raws)
        plain = not (item.append or item.index is not None or mentions)
        self.parameters.assign(item.name, value, keeps_given=plain)

    def _array(self, item: Assignment, before: Value | None, *, is_map: bool) -> Value:
        expansion = self.expansion
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
        index = self.expansion.text(item.index or "0")
        if isinstance(before, dict):
            return before | {index: before.get(index, "") * item.append + text}
        words = list(before) if isinstance(before, tuple) else [] if before is None else [before]
        number = self.parameters.number(index).value
        if number is None or not -len(words) <= number < _MOST_ELEMENTS:
            return (*words, marks.mark(text, [f"~{item.name}"]))
        words += [""] * (number + 1 - len(words))
        words[number] = words[number] * item.append + text
        return tuple(words)

    def declare(self, node: Simple) -> Truth:
        """``export``, ``local``, ``declare`` and the like."""
        name = str(node.words[0])
        options = [raw for raw in node.words[1:] if isinstance(raw, str) and raw[0] in "-+"]
        is_map = any("A" in option for option in options)
        for raw in node.words[1:]:
            item = raw if isinstance(raw, Assignment) else None
            if item is None and (found := _WORD.match(str(raw))):
                item = Assignment(found[1], found[4], found[2], append=bool(found[3]))
            if isinstance(raw, str) and raw in options:
                continue
            variable = item.name if item else str(raw)
            if name == "local" or (self.local_values and name in {"declare", "typeset"}):
                self._keep(variable)
            if item:
                self.assign(item, is_map=is_map)
            elif name not in {"export", "readonly"} and variable.isidentifier():
                empty: Value = {} if is_map else () if any("a" in option for option in options) else ""
                self.parameters.assign(variable, empty, keeps_given=True)
        return YES

    def _keep(self, name: str) -> None:
        if self.local_values and name not in self.local_values[-1]:
            self.local_values[-1][name] = self.state.variables.get(name)

    def restore(self, values: Mapping[str, Value | None]) -> None:
        """Give variables the values that they had before; None unsets one."""
        for name, value in values.items():
            self.state.variables.pop(name, None)
            if value is not None:
                self.state.variables[name] = value

    # Flow and parameters.

    def _exit(self, node: Simple, _fields: list[str]) -> Truth:
        self.state.flow = "exit"
        self.script.ended = self.outer_line or node.line
        return YES

    def _leave(self, _node: Simple, fields: list[str]) -> Truth:
        self.state.flow = fields[0]
        return NO if fields[1:2] not in ([], ["0"]) and fields[0] == "return" else YES

    def _set(self, _node: Simple, fields: list[str]) -> Truth:
        if "--" in fields:
            self.state.positional = tuple(fields[fields.index("--") + 1 :])
        elif len(fields) > 1 and fields[1][0] not in "-+":
            self.state.positional = tuple(fields[1:])
        return YES

    def _shift(self, _node: Simple, fields: list[str]) -> Truth:
        state = self.state
        count = int(fields[1]) if len(fields) > 1 and fields[1].isdecimal() and len(fields[1]) < 4 else 1
        if state.positional is not None:
            state.positional = state.positional[count:]
        return YES

    def _unset(self, _node: Simple, fields: list[str]) -> Truth:
        for name in fields[1:]:
            if name.isidentifier() and name not in self.given:
                self.state.variables[name] = ""
        return YES

    def _eval(self, node: Simple, fields: list[str]) -> Truth:
        return self.run_text(" ".join(fields[1:]), node.line, apart=False)

    def _source(self, node: Simple, fields: list[str]) -> Truth:
        if len(fields) > 1:
            self.not_read(node.line, fields[1])
        return ASSUMED

    def _let(self, _node: Simple, fields: list[str]) -> Truth:
        values = [self.parameters.number(text).value for text in fields[1:]]
        return Truth(bool(values[-1]) if values and values[-1] is not None else None)

    def _test_command(self, node: Simple, fields: list[str]) -> Truth:
        words = fields[1:-1] if fields[0] == "[" and fields[-1] == "]" else fields[1:]
        operands = [Operand(text, patterns.escaped(text), is_operator=True) for text in words]
        return self.judge(operands, (raw for raw in node.words if isinstance(raw, str)))

    def judge(self, operands: Iterable[Operand], raws: Iterable[str]) -> Truth:
        """Answer a test; one that counts positional parameters is assumed where nobody has given them."""
        return self.counting(answer(operands, self.parameters), raws)

    def counting(self, found: Truth, raws: Iterable[str]) -> Truth:
        """Take an answer for assumed where its words count positional parameters that nobody has given."""
        counts = self.state.positional is None and any("$#" in raw for raw in raws)
        return replace(found, assumed=found.assumed or counts)

    def _read(self, node: Simple, fields: list[str]) -> Truth:
        """Set the names that are read: a heredoc that is read whole has a value, anything else is a mark."""
        names = [name for name in fields[1:] if name.isidentifier()]
        if node.heredoc is not None and "-d" in fields and len(names) == 1:
            self.parameters.assign(names[0], self.expansion.heredoc(node.heredoc).rstrip("\n"))
            return UNKNOWN
        for name in names:
            self.parameters.assign(name, marks.mark(f"${name}", [f"~{name}"]), keeps_given=True)
        return UNKNOWN


def _added(item: Assignment, before: Value | None, text: str) -> Value:
    if not item.append or before is None:
        return text
    if isinstance(before, str):
        return before + text
    if isinstance(before, dict):
        return before
    return ("".join(before[:1]) + text, *before[1:])


_BUILTINS: Mapping[str, Callable[[Builtins, Simple, list[str]], Truth]] = {
    **dict.fromkeys((":", "true"), lambda _self, _node, _fields: YES),
    **dict.fromkeys(("false", "getopts"), lambda _self, _node, _fields: NO),
    "exit": Builtins._exit,
    **dict.fromkeys(("return", "break", "continue"), Builtins._leave),
    "set": Builtins._set,
    "shift": Builtins._shift,
    "unset": Builtins._unset,
    "eval": Builtins._eval,
    **dict.fromkeys(("source", "."), Builtins._source),
    "let": Builtins._let,
    **dict.fromkeys(("[", "test"), Builtins._test_command),
    **dict.fromkeys(("read", "mapfile", "readarray"), Builtins._read),
}


# Programs.


_SUCCEED = frozenset(re.findall(r"\S+", """
cd mkdir echo printf cat rm cp mv ln touch export module ml conda mamba pip pip3 pushd popd ulimit chmod tee umask sleep
wait date hash alias unalias trap set shopt env hostname ls source . git wget curl tar sync sudo apt-get apt kill pkill
killall nvidia-smi ray pwd dirs enable bind log info warn scontrol logger numactl declare hf huggingface-cli unzip
"""))  # fmt: skip
"""Commands that are taken to succeed, so that what follows behind ``||`` is not done."""

_TELL = frozenset(re.findall(r"\S+", """
echo printf cat log info warn logger grep sed awk cp mv ls ln rm mkdir touch tee git pip pip3 conda mamba pkill pgrep
kill killall trap alias cd test which wandb tar rsync scp chmod ps find wget curl rg head tail wc sort tr cut
"""))  # fmt: skip
"""Commands whose words, whatever they look like, start nothing."""

SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
TAKE_SCRIPTS = SHELLS | {"sbatch", "srun", "ssh", "salloc", "qsub", "docker", "kubectl"}
"""Programs that run what they read."""


class Programs(Builtins):
    """Follows simple commands: builtins, functions, and programs with the scripts among their words."""

    def simple(self, node: Simple) -> Truth:
        """Follow a simple command."""
        if node.words and node.words[0] in DECLARE:
            return self.declare(node)
        fields = [field for raw in node.words if isinstance(raw, str) for field in self.expansion.fields(raw)]
        before = {item.name: self.state.variables.get(item.name) for item in node.assignments}
        for assignment in node.assignments:
            self.assign(assignment)
        if not fields:
            return YES
        found = self._command(node, fields)
        self.restore(before)
        return found

    def _command(self, node: Simple, fields: list[str]) -> Truth:
        if fields[0] in self.state.functions:
            return self._call(self.state.functions[fields[0]], tuple(fields[1:]))
        found = self.builtin(node, fields)
        return self._external(node, fields) if found is None else found

    def _call(self, body: Statement, words: tuple[str, ...]) -> Truth:
        self.deeper()
        before, self.state.positional = self.state.positional, words
        self.local_values.append({})
        found = self.statement(body)
        self.restore(self.local_values.pop())
        self.state.positional = before
        self.state.flow = "" if self.state.flow == "return" else self.state.flow
        self.depth -= 1
        return found

    def _external(self, node: Simple, fields: list[str]) -> Truth:
        program = fields[0].rpartition("/")[2]
        if node.heredoc is not None and ".py" in node.heredoc.text:
            self._heredoc(node.heredoc, node.line, program)
        found = ASSUMED if program in _SUCCEED else UNKNOWN
        if program in _TELL:
            return found
        line = self.outer_line or node.line
        if self.trains(tuple(fields)):
            self.trained += 1
        elif nested := _scripts_in(fields):
            for text in nested:
                self.run_text(text, line, apart=True)
            return UNKNOWN
        elif program in SHELLS and len(fields) > 1 and fields[1].endswith(".sh"):
            self.not_read(node.line, fields[1])
        self.script.commands.append(Command(line, tuple(fields), self.under, self.loops))
        return found

    def _heredoc(self, heredoc: Heredoc, line: int, program: str) -> None:
        if program in TAKE_SCRIPTS:
            self.run_text(self.expansion.heredoc(heredoc), line, apart=True)
        elif program == "cat":
            self.written.append((line, heredoc))

    def written_scripts(self) -> None:
        """Follow the scripts that this one has written, where it starts no training itself."""
        for line, heredoc in self.written if not self.trained else []:
            self.state.flow = ""
            self.run_text(self.expansion.heredoc(heredoc), line, apart=True)


def _scripts_in(fields: list[str]) -> list[str]:
    after = [text for before, text in pairwise(fields) if before in {"-c", "-lc", "-xc", "-ic", "-ec"}]
    return after or [text for text in fields[1:] if ".py" in text and any(sign.isspace() for sign in text.strip())]
