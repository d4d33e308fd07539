"""Simple commands of a script: what the shell does itself, functions, text that is run, and programs."""

from __future__ import annotations

from itertools import pairwise

from launcher.importers.megatron.shell import marks
from launcher.importers.megatron.shell.builtins import Builtins
from launcher.importers.megatron.shell.conditions import ASSUMED, UNKNOWN, YES, Truth
from launcher.importers.megatron.shell.follower import Command, Follower
from launcher.importers.megatron.shell.parser import parse
from launcher.importers.megatron.shell.tree import Heredoc, ShellError, Simple, Statement

_SUCCEED = """
cd mkdir echo printf cat rm cp mv ln touch export module ml conda mamba pip pip3 pushd popd ulimit chmod tee umask sleep
wait date hash alias unalias trap set shopt env hostname ls source . git wget curl tar sync sudo apt-get apt kill pkill
killall nvidia-smi ray pwd dirs enable bind log info warn scontrol logger numactl declare hf huggingface-cli unzip
"""
SUCCEED = frozenset(_SUCCEED.split())
"""Commands that are taken to succeed, so that what follows behind ``||`` is not done."""

_TELL = """
echo printf cat log info warn logger grep sed awk cp mv ls ln rm mkdir touch tee git pip pip3 conda mamba pkill pgrep
kill killall trap alias cd test which wandb tar rsync scp chmod ps find wget curl rg head tail wc sort tr cut
"""
TELL = frozenset(_TELL.split())
"""Commands whose words, whatever they look like, start nothing."""

SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
TAKE_SCRIPTS = SHELLS | {"sbatch", "srun", "ssh", "salloc", "qsub", "docker", "kubectl"}
"""Programs that run what they read."""

SETUP = ("activate", "conda", "profile", "bashrc", "setvars", "modules", "venv", "lmod")
"""In names of files that are sourced: these prepare a machine and hold no argument."""

_DEEPEST = 30
"""Functions and scripts in one another."""


class Programs:
    """Follows simple commands for a machine."""

    def __init__(self, machine: Follower) -> None:
        """Take the machine."""
        self.machine = machine
        self.builtins = Builtins(machine)
        self.written: list[tuple[int, Heredoc]] = []
        self.depth = 0

    def simple(self, node: Simple) -> Truth:
        """Follow a simple command."""
        first = node.words[0] if node.words else ""
        if isinstance(first, str) and self.builtins.declares(first):
            return self.builtins.declare(node)
        fields = [field for raw in node.words if isinstance(raw, str) for field in self.machine.expansion.fields(raw)]
        if not fields:
            for assignment in node.assignments:
                self.builtins.assign(assignment)
            return YES
        before = {item.name: self.machine.state.variables.get(item.name) for item in node.assignments}
        for assignment in node.assignments:
            self.builtins.assign(assignment)
        found = self._command(node, fields)
        for name, value in before.items():
            self.machine.state.variables.pop(name, None)
            if value is not None:
                self.machine.state.variables[name] = value
        return found

    def _command(self, node: Simple, fields: list[str]) -> Truth:
        if fields[0] in self.machine.state.functions:
            return self._call(self.machine.state.functions[fields[0]], tuple(fields[1:]))
        found = self.builtins.run(node, fields)
        return self._external(node, fields) if found is None else found

    def _call(self, body: Statement, words: tuple[str, ...]) -> Truth:
        self._deeper()
        before = self.machine.state.positional
        self.machine.state.positional = words
        self.builtins.local_values.append({})
        found = self.machine.statement(body)
        self.builtins.leave_function()
        self.machine.state.positional = before
        self.machine.state.flow = "" if self.machine.state.flow == "return" else self.machine.state.flow
        self.depth -= 1
        return found

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ShellError(f"functions and scripts are nested deeper than {_DEEPEST}")

    def run_text(self, text: str, line: int, *, apart: bool) -> Truth:
        """Follow text that a command runs, as ``eval`` and ``bash -c`` do."""
        self._deeper()
        outer, self.machine.outer_line = self.machine.outer_line, self.machine.outer_line or line
        try:
            body = parse(text)
        except ShellError:
            body = ()
        found = self.machine.apart(body) if apart else self.machine.body(body)
        self.machine.outer_line = outer
        self.depth -= 1
        return found

    def _external(self, node: Simple, fields: list[str]) -> Truth:
        program = fields[0].rpartition("/")[2]
        if node.heredoc is not None:
            self._heredoc(node, program)
        if program in TELL:
            return ASSUMED if program in SUCCEED else UNKNOWN
        line = self.machine.outer_line or node.line
        if self.machine.trains(tuple(fields)):
            self.machine.trained += 1
        elif nested := _scripts_in(fields):
            for text in nested:
                self.run_text(text, line, apart=True)
            return UNKNOWN
        elif program in SHELLS and len(fields) > 1 and fields[1].endswith(".sh"):
            self.not_read(node.line, fields[1])
        self.machine.script.commands.append(Command(line, tuple(fields), self.machine.under, self.machine.loops))
        return ASSUMED if program in SUCCEED else UNKNOWN

    def not_read(self, line: int, name: str) -> None:
        """Note a file that the script reads in or runs."""
        if not any(word in name.lower() for word in SETUP):
            self.machine.script.not_read.append((self.machine.outer_line or line, marks.plain(name)))

    def _heredoc(self, node: Simple, program: str) -> None:
        if node.heredoc is None or ".py" not in node.heredoc.text:
            return
        if program in TAKE_SCRIPTS:
            self.run_text(self._lines(node.heredoc), node.line, apart=True)
        elif program == "cat":
            self.written.append((node.line, node.heredoc))

    def _lines(self, heredoc: Heredoc) -> str:
        return heredoc.text if heredoc.quoted else self.machine.expansion.lines(heredoc.text)

    def written_scripts(self) -> None:
        """Follow the scripts that this one has written, where it starts no training itself."""
        for line, heredoc in self.written if not self.machine.trained else []:
            self.machine.state.flow = ""
            self.run_text(self._lines(heredoc), line, apart=True)


def _scripts_in(fields: list[str]) -> list[str]:
    """Words that are commands themselves, as behind ``bash -c``."""
    after = [text for before, text in pairwise(fields) if before in {"-c", "-lc", "-xc", "-ic", "-ec"}]
    return after or [text for text in fields[1:] if ".py" in text and any(sign.isspace() for sign in text.strip())]
