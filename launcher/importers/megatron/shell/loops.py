"""Loops of a script: each round is followed, as far as it is known whether there is one."""

from __future__ import annotations

from launcher.importers.megatron.shell.conditions import NO, YES, Truth
from launcher.importers.megatron.shell.follower import Follower
from launcher.importers.megatron.shell.tree import Body, Count, For, ShellError, While

_ROUNDS = 1000
"""Of one loop."""


class Loops:
    """Follows loops for a machine."""

    def __init__(self, machine: Follower) -> None:
        """Take the machine."""
        self.machine = machine

    def words(self, node: For) -> Truth:
        """Follow ``for name in words``."""
        if node.name in self.machine.given:
            values = [self.machine.given[node.name]]
        elif node.words is None:
            values = list(self.machine.state.positional or ())
        else:
            values = [word for raw in node.words for word in self.machine.expansion.fields(raw)]
        outer = self.machine.loops
        for value in values:
            self.machine.loops = (*outer, (node.name, value)) if len(values) > 1 else outer
            self.machine.parameters.assign(node.name, value)
            self.machine.body(node.body)
            if self._leaves():
                break
        self.machine.loops = outer
        return YES

    def _leaves(self) -> bool:
        """True if a loop ends with this round; ``break`` and ``continue`` have then had their effect."""
        flow = self.machine.state.flow
        if flow in {"break", "continue"}:
            self.machine.state.flow = ""
        return flow not in {"", "continue"}

    def count(self, node: Count) -> Truth:
        """Follow ``for ((start; condition; step))``."""
        start, condition, step = (self.machine.expansion.lines(part) for part in node.head)
        self.machine.parameters.number(start)
        for _ in range(_ROUNDS):
            going = self.machine.parameters.number(condition) if condition.strip() else None
            if going and going.value is None:
                return self.machine.either_way(
                    node.line, Truth(None, going.names), [lambda: self._round(node.body), lambda: NO]
                )
            if going and not going.value:
                return YES
            self.machine.body(node.body)
            if self._leaves():
                return YES
            self.machine.parameters.number(step)
        raise ShellError(f"a loop does not end within {_ROUNDS} rounds (line {node.line})")

    def _round(self, body: Body) -> Truth:
        found = self.machine.body(body)
        self._leaves()
        return found

    def condition(self, node: While) -> Truth:
        """Follow ``while`` and ``until``."""
        trained = self.machine.trained
        for _ in range(_ROUNDS):
            truth = self.machine.body(node.condition)
            truth = truth.negated() if node.until else truth
            if truth.value is None:
                return self.machine.either_way(node.line, truth, [lambda: self._round(node.body), lambda: NO])
            if not truth.value or self.machine.state.flow:
                return YES
            self.machine.body(node.body)
            if self._leaves() or self.machine.trained > trained:  # A loop that starts a failed training again.
                return YES
        raise ShellError(f"a loop does not end within {_ROUNDS} rounds (line {node.line})")
