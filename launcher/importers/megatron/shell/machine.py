"""Follows the statements of a script and keeps the commands that it would start.

Where a condition is not known, each of its branches is followed from the same state, and what they leave differing is
marked with the decision. A branch that ends the script before it has trained anything is taken for its error branch.
Each round of a loop is followed, as far as it is known whether there is one.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from launcher.importers.megatron.shell import marks, patterns, tree
from launcher.importers.megatron.shell.builtins import Programs
from launcher.importers.megatron.shell.conditions import NO, YES, Operand, Truth, both, either
from launcher.importers.megatron.shell.follower import Decision, Script
from launcher.importers.megatron.shell.parameters import merged
from launcher.importers.megatron.shell.parser import parse
from launcher.importers.megatron.shell.tree import ShellError

_ROUNDS = 1000  # Rounds of one loop; scripts of trainings count nodes, GPUs or layers.


def follow(
    text: str,
    given: Mapping[str, str],
    trains: Callable[[tuple[str, ...]], bool],
    environment: Mapping[str, str] | None = None,
) -> Script:
    """Follow a script from its ``environment``; raises ShellError where it is none, or asks for too much.

    Of the variables that are ``given`` by the user, ``line_12`` answers the condition in line 12. ``trains`` is true of
    the words of a command that is a training.
    """
    if marks.MARK in text or "\1" in text:
        raise ShellError("it holds control characters")
    machine = Machine(given, trains)
    machine.state.variables |= environment or {}
    try:
        machine.body(parse(marks.placeholders(text, given)))
        machine.written_scripts()
    except RecursionError:
        raise ShellError("it is nested too deeply") from None
    machine.script.variables = machine.state.variables
    return machine.script


def values_in(text: str, given: Mapping[str, str]) -> str:
    """A text with the variables and placeholders put in that it holds; those without a value are marks."""
    text = marks.placeholders(text, given)
    return Machine(given, lambda _words: False).expansion.lines(text) if "$" in text else text


class Machine(Programs):
    """Follows any statement."""

    def statement(self, statement: tree.Statement) -> Truth:
        """Follow one statement."""
        self.budget.step()
        return _BY_KIND[type(statement)](self, statement)

    def _function(self, node: tree.Function) -> Truth:
        self.state.functions[node.name] = node.body
        return YES

    def _group(self, node: tree.Group) -> Truth:
        return self.apart(node.body) if node.apart else self.body(node.body)

    def _pipeline(self, node: tree.Pipeline) -> Truth:
        found = [self.apart((part,)) if len(node.parts) > 1 else self.statement(part) for part in node.parts][-1]
        return found.negated() if node.negated else found

    def _chain(self, node: tree.Chain) -> Truth:
        found = self.statement(node.first)
        for operator, statement in node.rest:
            if self.state.flow:
                break
            follow = partial(self.statement, statement)
            if operator == "&&":
                found = both(found, self._choose(node.line, found, follow, lambda: NO))
            else:
                found = either(found, self._choose(node.line, found, lambda: YES, follow))
        return found

    # Branches.

    def _if(self, node: tree.If, at: int = 0) -> Truth:
        if at == len(node.branches):
            return self.body(node.otherwise)
        line, condition, body = node.branches[at]
        truth = self.body(condition)
        if self.state.flow:
            return truth
        return self._choose(line, truth, partial(self.body, body), partial(self._if, node, at + 1))

    def _choose(self, line: int, truth: Truth, then: Callable[[], Truth], other: Callable[[], Truth]) -> Truth:
        line = self.outer_line or line
        forced = self.given.get(f"line_{line}")
        if forced in {"true", "false"}:
            return then() if forced == "true" else other()
        if truth.value is None:
            return self._either_way(line, truth, [then, other])
        first, second = (then, other) if truth.value else (other, then)
        if not truth.assumed:
            return first()
        before, trained, ended = self.state.copy(), self.trained, self.script.ended
        found = first()
        if self.state.flow == "exit" and self.trained == trained:
            self.state, self.script.ended = before, ended
            return second()
        return found

    def _either_way(self, line: int, truth: Truth, branches: list[Callable[[], Truth]]) -> Truth:
        number = self._decision(line, truth)
        before, under, ended = self.state, self.under, self.script.ended
        self.under = (*under, number)
        states = []
        for branch in branches:
            self.state, trained = before.copy(), self.trained
            branch()
            if self.state.flow not in {"exit", "return"} or self.trained > trained:
                states.append(self.state)
        self.under = under
        if not states:
            return truth
        self.script.ended = ended
        self.budget.spend(60 + 3 * sum(len(state.variables) for state in states))
        self.state, flags = merged(states, f"?{number}") if len(states) > 1 else (states[0], ())
        self.script.decisions[number] = replace(self.script.decisions[number], flags=flags)
        self.state.flow = next((state.flow for state in states if state.flow == "break"), "")
        return Truth(None, truth.names)

    def _decision(self, line: int, truth: Truth) -> int:
        names: list[str] = []
        hints = list(truth.hints)
        for name in truth.names:
            if name.startswith("?"):
                earlier = self.script.decisions[int(name[1:])]
                names += earlier.names
                hints += earlier.hints
                line = line if earlier.names else earlier.line
            else:
                names += marks.variables([name])
        self.script.decisions.append(Decision(line, tuple(dict.fromkeys(names)), tuple(dict.fromkeys(hints))))
        return len(self.script.decisions) - 1

    def _case(self, node: tree.Case) -> Truth:
        text = self.expansion.text(node.word)
        items = [(tuple(self.expansion.pattern(pattern) for pattern in raw), body) for raw, body in node.items]
        if marks.is_known(text):
            for choices, body in items:
                if any(marks.is_known(choice) and patterns.matches(choice, text) for choice in choices):
                    return self.body(body)
            return YES
        names = marks.names(text)
        asked = marks.variables(names)
        hints = [f"{asked[0]}={choice}" for choices, _ in items for choice in choices if len(asked) == 1]
        truth = Truth(None, names, hints=tuple(hint for hint in hints if not set("*?[\\") & set(hint)))
        branches: list[Callable[[], Truth]] = [partial(self.body, body) for _, body in items]
        if not any("*" in choices for choices, _ in items):
            branches.append(lambda: YES)
        return self._either_way(self.outer_line or node.line, truth, branches)

    def _test(self, node: tree.Test) -> Truth:
        return self.judge(map(self._operand, node.words), node.words)

    def _arithmetic(self, node: tree.Arithmetic) -> Truth:
        number = self.parameters.number(self.expansion.lines(node.text))
        return self.counting(Truth(None if number.value is None else bool(number.value), number.names), (node.text,))

    def _operand(self, raw: str) -> Operand:
        return Operand(self.expansion.text(raw), self.expansion.pattern(raw), is_operator=raw[0] not in "'\"$")

    # Loops.

    def _for(self, node: tree.For) -> Truth:
        if node.name in self.given:
            values = [self.given[node.name]]
        elif node.words is None:
            values = list(self.state.positional or ())
        else:
            values = [word for raw in node.words for word in self.expansion.fields(raw)]
        outer = self.loops
        for value in values:
            self.loops = (*outer, (node.name, value)) if len(values) > 1 else outer
            self.parameters.assign(node.name, value)
            self.body(node.body)
            if self._leaves_loop():
                break
        self.loops = outer
        return YES

    def _leaves_loop(self) -> bool:
        flow = self.state.flow
        if flow in {"break", "continue"}:
            self.state.flow = ""
        return flow not in {"", "continue"}

    def _count(self, node: tree.Count) -> Truth:
        start, condition, step = (self.expansion.lines(part) for part in node.head)
        self.parameters.number(start)
        for _ in range(_ROUNDS):
            going = self.parameters.number(condition) if condition.strip() else None
            if going and going.value is None:
                return self._perhaps_a_round(node, Truth(None, going.names))
            if going and not going.value:
                return YES
            self.body(node.body)
            if self._leaves_loop():
                return YES
            self.parameters.number(step)
        raise _endless(node)

    def _while(self, node: tree.While) -> Truth:
        trained = self.trained
        for _ in range(_ROUNDS):
            truth = self.body(node.condition)
            truth = truth.negated() if node.until else truth
            if truth.value is None:
                return self._perhaps_a_round(node, truth)
            if not truth.value or self.state.flow:
                return YES
            self.body(node.body)
            if self._leaves_loop() or self.trained > trained:  # A loop that starts a failed training again.
                return YES
        raise _endless(node)

    def _perhaps_a_round(self, node: tree.Count | tree.While, truth: Truth) -> Truth:
        def one_round() -> Truth:
            found = self.body(node.body)
            self._leaves_loop()
            return found

        return self._either_way(node.line, truth, [one_round, lambda: NO])


def _endless(node: tree.Count | tree.While) -> ShellError:
    return ShellError(f"a loop does not end within {_ROUNDS} rounds (line {node.line})")


_BY_KIND: Mapping[type, Callable[[Machine, Any], Truth]] = {
    tree.Simple: Machine.simple, tree.Chain: Machine._chain, tree.Pipeline: Machine._pipeline, tree.If: Machine._if,
    tree.Test: Machine._test, tree.Arithmetic: Machine._arithmetic, tree.Function: Machine._function,
    tree.Group: Machine._group, tree.Case: Machine._case, tree.For: Machine._for, tree.Count: Machine._count,
    tree.While: Machine._while,
}  # fmt: skip
