"""Command substitution: nothing is run, so that only what bash itself would say has a value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from launcher.importers.megatron.shell import marks
from launcher.importers.megatron.shell.parser import parse
from launcher.importers.megatron.shell.tree import Pipeline, ShellError, Simple, Statement

if TYPE_CHECKING:
    from launcher.importers.megatron.shell.expansion import Expansion
    from launcher.importers.megatron.shell.parameters import Parameters

_SHOWN = 60
_COST = 40
"""Characters that cost as much as it does to read one command."""
_SUM = re.compile(r"[\d\s()*/%+-]+\Z")


class Substitution:
    """Finds the value of ``$(echo ...)``, ``$(expr ...)``, ``$(echo ... | bc)`` and ``$(cat <<EOF ...)``."""

    def __init__(self, expansion: Expansion, parameters: Parameters) -> None:
        """Take what puts values into words."""
        self.expansion, self.parameters = expansion, parameters

    def value(self, inside: str) -> str:
        """What the command would write, or a mark."""
        self.parameters.budget.spend(len(inside) + _COST)
        shown = marks.mark("$(" + " ".join(marks.plain(inside).split())[:_SHOWN] + ")")
        try:
            body = parse(inside)
        except ShellError:
            return shown
        found = self._of(body[0]) if len(body) == 1 else None
        return shown if found is None else found.rstrip("\n")

    def _of(self, statement: Statement) -> str | None:
        if isinstance(statement, Pipeline) and len(statement.parts) == 2 and not statement.negated:
            first, second = statement.parts
            is_sum = isinstance(second, Simple) and second.words == ("bc",)
            return self._sum(self._of(first)) if is_sum else None
        if not isinstance(statement, Simple) or statement.assignments or not statement.words:
            return None
        name = statement.words[0]
        if name == "cat" and statement.heredoc is not None:
            heredoc = statement.heredoc
            return heredoc.text if heredoc.quoted else self.expansion.lines(heredoc.text)
        if name == "getopt" and self.parameters.state.positional is None:
            return "--"  # No option is given, so that the script's own values stand.
        if name not in {"echo", "expr"}:
            return None
        words = [text for raw in statement.words[1:] if isinstance(raw, str) for text in self.expansion.fields(raw)]
        text = " ".join(words[1:] if words[:1] in (["-n"], ["-e"]) else words)
        return text if name == "echo" else self._sum(text)

    def _sum(self, text: str | None) -> str | None:
        if text is None or not _SUM.match(marks.without(text)):
            return None
        found = self.parameters.number(text)
        return str(found.value) if found.value is not None else marks.mark(f"$(({text}))", found.names)
