"""Follows the statements of a script and keeps the commands that it would start.

Where a condition is not known, each of its branches is followed from the same state, and what they leave differing is
marked with the decision. A branch that ends the script before it has trained anything is taken for its error branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from launcher.importers.megatron.shell import marks, patterns
from launcher.importers.megatron.shell.conditions import (
    NO,
    UNKNOWN,
    YES,
    Conditions,
    Operand,
    Truth,
    both,
    either,
)
from launcher.importers.megatron.shell.expansion import Expansion
from launcher.importers.megatron.shell.follower import Decision, Script
from launcher.importers.megatron.shell.loops import Loops
from launcher.importers.megatron.shell.parameters import Parameters
from launcher.importers.megatron.shell.parser import parse
from launcher.importers.megatron.shell.programs import Programs
from launcher.importers.megatron.shell.state import Budget, State, given_positional, merged
from launcher.importers.megatron.shell.substitution import Substitution
from launcher.importers.megatron.shell.tree import (
    Arithmetic,
    Body,
    Case,
    Chain,
    Count,
    For,
    Function,
    Group,
    If,
    Pipeline,
    ShellError,
    Simple,
    Statement,
    Test,
    While,
)


def follow(
    text: str,
    given: Mapping[str, str],
    trains: Callable[[tuple[str, ...]], bool],
    environment: Mapping[str, str] | None = None,
) -> Script:
    """Follow a script.

    Args:
        text: The script.
        given: Variables that the user gives; ``line_12`` answers the condition in line 12.
        trains: True of the words of a command that is a training.
        environment: Variables that are set before the script begins.

    Raises:
        ShellError: It is none, or asks for too much.
    """
    if marks.MARK in text or "\1" in text:
        raise ShellError("it holds control characters")
    machine = Machine(given, trains)
    machine.state.variables |= environment or {}
    try:
        machine.body(parse(marks.placeholders(text, given)))
        machine.programs.written_scripts()
    except RecursionError:
        raise ShellError("it is nested too deeply") from None
    machine.script.variables = machine.state.variables
    return machine.script


def values_in(text: str, given: Mapping[str, str]) -> str:
    """A text with the variables and placeholders put in that it holds; those without a value are marks."""
    text = marks.placeholders(text, given)
    return Machine(given, lambda _words: False).expansion.lines(text) if "$" in text else text


class Machine:
    """A state, and what has been met on the way to it."""

    def __init__(self, given: Mapping[str, str], trains: Callable[[tuple[str, ...]], bool]) -> None:
        """Begin with nothing set but what the user gives."""
        self.given, self.trains, self.budget = given, trains, Budget()
        self.parameters = Parameters(State(positional=given_positional(given)), given, self.budget)
        self.expansion = Expansion(self.parameters, self._substitute)
        self.programs, self.rounds = Programs(self), Loops(self)
        self.script = Script()
        self.under: tuple[int, ...] = ()
        self.loops: tuple[tuple[str, str], ...] = ()
        self.outer_line: int | None = None
        self.trained = 0

    @property
    def state(self) -> State:
        """The state at this place of the script."""
        return self.parameters.state

    @state.setter
    def state(self, state: State) -> None:
        self.parameters.state = state

    def run_text(self, text: str, line: int, *, apart: bool) -> Truth:
        """Follow text that a command runs, as ``eval`` and ``bash -c`` do."""
        return self.programs.run_text(text, line, apart=apart)

    def not_read(self, line: int, name: str) -> None:
        """Note a file that the script reads in or runs."""
        self.programs.not_read(line, name)

    def _substitute(self, inside: str) -> str:
        return Substitution(self.expansion, self.parameters).value(inside)

    # Statements.

    def body(self, body: Body) -> Truth:
        """Follow statements up to one that leaves them."""
        found = YES
        for statement in body:
            found = self.statement(statement)
            if self.state.flow:
                break
        return found

    def statement(self, statement: Statement) -> Truth:
        """Follow one statement."""
        self.budget.step()
        match statement:
            case Simple():
                return self.programs.simple(statement)
            case Chain():
                return self._chain(statement)
            case Pipeline():
                return self._pipeline(statement)
            case If():
                return self._if(statement, 0)
            case Test() | Arithmetic():
                return self._test(statement)
            case Function():
                self.state.functions[statement.name] = statement.body
                return YES
            case Group():
                return self.apart(statement.body) if statement.apart else self.body(statement.body)
            case _:
                return self._compound(statement)

    def _compound(self, statement: Statement) -> Truth:
        match statement:
            case Case():
                return self._case(statement)
            case For():
                return self.rounds.words(statement)
            case Count():
                return self.rounds.count(statement)
            case While():
                return self.rounds.condition(statement)
        return UNKNOWN

    def apart(self, body: Body) -> Truth:
        """A subshell: what it sets is gone behind it."""
        self.budget.spend(len(self.state.variables))
        before, self.state = self.state, self.state.copy()
        found = self.body(body)
        self.state = before
        return found

    def _pipeline(self, node: Pipeline) -> Truth:
        found = [self.apart((part,)) if len(node.parts) > 1 else self.statement(part) for part in node.parts][-1]
        return found.negated() if node.negated else found

    def _chain(self, node: Chain) -> Truth:
        found = self.statement(node.first)
        for operator, statement in node.rest:
            if self.state.flow:
                break

            def follow(statement: Statement = statement) -> Truth:
                return self.statement(statement)

            if operator == "&&":
                found = both(found, self._choose(node.line, found, follow, lambda: NO))
            else:
                found = either(found, self._choose(node.line, found, lambda: YES, follow))
        return found

    def _if(self, node: If, at: int) -> Truth:
        if at == len(node.branches):
            return self.body(node.otherwise)
        line, condition, body = node.branches[at]
        truth = self.body(condition)
        if self.state.flow:
            return truth
        return self._choose(line, truth, lambda: self.body(body), lambda: self._if(node, at + 1))

    def _choose(self, line: int, truth: Truth, then: Callable[[], Truth], other: Callable[[], Truth]) -> Truth:
        """Follow the branch that is taken, or both where that is not known."""
        line = self.outer_line or line
        forced = self.given.get(f"line_{line}")
        if forced in {"true", "false"}:
            return then() if forced == "true" else other()
        if truth.value is None:
            return self.either_way(line, truth, [then, other])
        first, second = (then, other) if truth.value else (other, then)
        if not truth.assumed:
            return first()
        before, trained, ended = self.state.copy(), self.trained, self.script.ended
        found = first()
        if self.state.flow == "exit" and self.trained == trained:
            self.state, self.script.ended = before, ended
            return second()
        return found

    def either_way(self, line: int, truth: Truth, branches: list[Callable[[], Truth]]) -> Truth:
        """Follow each branch from the same state, and go on from what all of them leave."""
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
        """Number a condition; where it hangs on an earlier one it asks for the same."""
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

    def _case(self, node: Case) -> Truth:
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
        branches: list[Callable[[], Truth]] = [lambda body=body: self.body(body) for _, body in items]  # type: ignore[misc]
        if not any("*" in choices for choices, _ in items):
            branches.append(lambda: YES)
        return self.either_way(self.outer_line or node.line, truth, branches)

    def _test(self, node: Test | Arithmetic) -> Truth:
        raws = node.words if isinstance(node, Test) else (node.text,)
        counts = self.state.positional is None and any("$#" in raw for raw in raws)
        if isinstance(node, Arithmetic):
            number = self.parameters.number(self.expansion.lines(node.text))
            found = Truth(None if number.value is None else bool(number.value), number.names)
        else:
            found = Conditions([self._operand(raw) for raw in raws], self.parameters.number, self.is_set).answer()
        return Truth(found.value, found.names, found.assumed or counts, found.hints)

    def _operand(self, raw: str) -> Operand:
        return Operand(self.expansion.text(raw), self.expansion.pattern(raw), is_operator=raw[0] not in "'\"$")

    def is_set(self, name: str) -> bool | None:
        """True if a variable has a value; None where it is assumed to have none."""
        name = name.partition("[")[0]
        return True if self.parameters.value(name) is not None else None
