"""Simple commands of a script: builtins, functions, text that is run, and programs."""

from __future__ import annotations

import re
from itertools import pairwise

from launcher.importers.megatron.shell.builtins import DECLARE, Builtins
from launcher.importers.megatron.shell.conditions import ASSUMED, UNKNOWN, YES, Truth
from launcher.importers.megatron.shell.follower import Command
from launcher.importers.megatron.shell.tree import Heredoc, Simple, Statement

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
    """Words that are commands themselves, as behind ``bash -c``."""
    after = [text for before, text in pairwise(fields) if before in {"-c", "-lc", "-xc", "-ic", "-ec"}]
    return after or [text for text in fields[1:] if ".py" in text and any(sign.isspace() for sign in text.strip())]
