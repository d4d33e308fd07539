"""Follows the statements of a script and keeps the commands that it would start.

Where a condition is not known, each of its branches is followed from the same state, and what they leave differing is
marked with the decision. A branch that ends the script before it has trained anything is taken for its error branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from launcher.importers._shell import marks, patterns
from launcher.importers._shell.builtins import Builtins
from launcher.importers._shell.conditions import (
    ASSUMED,
    NO,
    UNKNOWN,
    YES,
    Conditions,
    Operand,
    Truth,
    both,
    either,
)
from launcher.importers._shell.expansion import Expansion
from launcher.importers._shell.parameters import Parameters
from launcher.importers._shell.parser import parse
from launcher.importers._shell.state import Budget, State, given_positional, merged
from launcher.importers._shell.substitution import Substitution
from launcher.importers._shell.tree import (
    Arithmetic,
    Assignment,
    Body,
    Case,
    Chain,
    Count,
    For,
    Function,
    Group,
    Heredoc,
    If,
    Pipeline,
    ShellError,
    Simple,
    Statement,
    Test,
    While,
)
from launcher.importers._shell.words import SETUP, SHELLS, SUCCEED, TAKE_SCRIPTS, TELL

_DEEPEST = 30
"""Functions and scripts in one another."""
_ROUNDS = 1000
"""Of one loop."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program that the script would start.

    Attributes:
        line: Where it stands.
        words: Its words, with marks.
        decisions: The decisions under which it is started.
        loops: Names and values of the loops around it.
    """

    line: int
    words: tuple[str, ...]
    decisions: tuple[int, ...] = ()
    loops: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """A condition that is not known.

    Attributes:
        line: Where it stands.
        names: The variables that decide it; none where the machine does.
        hints: Values with which they are compared, as ``NAME=VALUE``.
        flags: What the values that it decides hold of arguments.
    """

    line: int
    names: tuple[str, ...]
    hints: tuple[str, ...]
    flags: tuple[str, ...] = ()


@dataclass(slots=True)
class Script:
    """What became of a script.

    Attributes:
        commands: Programs that it would start, in order; those that only look or tell are not among them.
        decisions: What the numbers of decisions stand for.
        not_read: Lines and names of files that it reads in.
        ended: The line of the ``exit`` that ends it, if one does.
        variables: What it has set in the end.
    """

    commands: list[Command] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    not_read: list[tuple[int, str]] = field(default_factory=list)
    ended: int | None = None
    variables: Mapping[str, object] = field(default_factory=dict)


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
        machine.body(parse(text))
        machine.written_scripts()
    except RecursionError:
        raise ShellError("it is nested too deeply") from None
    machine.script.variables = machine.state.variables
    return machine.script


def values_in(text: str, given: Mapping[str, str]) -> str:
    """A text with the variables put in that it holds; those without a value are marks."""
    return Machine(given, lambda _words: False).expansion.lines(text) if "$" in text else text


class Machine:
    """A state, and what has been met on the way to it."""

    def __init__(self, given: Mapping[str, str], trains: Callable[[tuple[str, ...]], bool]) -> None:
        """Begin with nothing set but what the user gives."""
        self.given, self.trains, self.budget = given, trains, Budget()
        self.parameters = Parameters(State(positional=given_positional(given)), given, self.budget)
        self.expansion = Expansion(self.parameters, self._substitute)
        self.builtins = Builtins(self)
        self.script = Script()
        self.under: tuple[int, ...] = ()
        self.loops: tuple[tuple[str, str], ...] = ()
        self.written: list[tuple[int, Heredoc]] = []
        self.outer_line: int | None = None
        self.depth, self.trained = 0, 0

    @property
    def state(self) -> State:
        """The state at this place of the script."""
        return self.parameters.state

    @state.setter
    def state(self, state: State) -> None:
        self.parameters.state = state

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
                return self._simple(statement)
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
                return self._apart(statement.body) if statement.apart else self.body(statement.body)
            case _:
                return self._compound(statement)

    def _compound(self, statement: Statement) -> Truth:
        match statement:
            case Case():
                return self._case(statement)
            case For():
                return self._for(statement)
            case Count():
                return self._count(statement)
            case While():
                return self._while(statement)
        return UNKNOWN

    def _apart(self, body: Body) -> Truth:
        """A subshell: what it sets is gone behind it."""
        self.budget.spend(len(self.state.variables))
        before, self.state = self.state, self.state.copy()
        found = self.body(body)
        self.state = before
        return found

    def _pipeline(self, node: Pipeline) -> Truth:
        found = [self._apart((part,)) if len(node.parts) > 1 else self.statement(part) for part in node.parts][-1]
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
        return self._either_way(self.outer_line or node.line, truth, branches)

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

    # Loops.

    def _for(self, node: For) -> Truth:
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
            if self._leaves():
                break
        self.loops = outer
        return YES

    def _leaves(self) -> bool:
        """True if a loop ends with this round; ``break`` and ``continue`` have then had their effect."""
        flow = self.state.flow
        if flow in {"break", "continue"}:
            self.state.flow = ""
        return flow not in {"", "continue"}

    def _count(self, node: Count) -> Truth:
        start, condition, step = (self.expansion.lines(part) for part in node.head)
        self.parameters.number(start)
        for _ in range(_ROUNDS):
            going = self.parameters.number(condition) if condition.strip() else None
            if going and going.value is None:
                return self._either_way(
                    node.line, Truth(None, going.names), [lambda: self._round(node.body), lambda: NO]
                )
            if going and not going.value:
                return YES
            self.body(node.body)
            if self._leaves():
                return YES
            self.parameters.number(step)
        raise ShellError(f"a loop does not end within {_ROUNDS} rounds (line {node.line})")

    def _round(self, body: Body) -> Truth:
        found = self.body(body)
        self._leaves()
        return found

    def _while(self, node: While) -> Truth:
        trained = self.trained
        for _ in range(_ROUNDS):
            truth = self.body(node.condition)
            truth = truth.negated() if node.until else truth
            if truth.value is None:
                return self._either_way(node.line, truth, [lambda: self._round(node.body), lambda: NO])
            if not truth.value or self.state.flow:
                return YES
            self.body(node.body)
            if self._leaves() or self.trained > trained:  # A loop that starts a failed training again.
                return YES
        raise ShellError(f"a loop does not end within {_ROUNDS} rounds (line {node.line})")

    # Commands.

    def _simple(self, node: Simple) -> Truth:
        first = node.words[0] if node.words else ""
        if isinstance(first, str) and self.builtins.declares(first):
            return self.builtins.declare(node)
        fields = [field for raw in node.words if isinstance(raw, str) for field in self.expansion.fields(raw)]
        if not fields:
            for assignment in node.assignments:
                self.builtins.assign(assignment)
            return YES
        before = {item.name: self.state.variables.get(item.name) for item in node.assignments}
        for assignment in node.assignments:
            self.builtins.assign(assignment)
        found = self._command(node, fields)
        for name, value in before.items():
            self.state.variables.pop(name, None)
            if value is not None:
                self.state.variables[name] = value
        return found

    def _command(self, node: Simple, fields: list[str]) -> Truth:
        if fields[0] in self.state.functions:
            return self._call(self.state.functions[fields[0]], tuple(fields[1:]))
        found = self.builtins.run(node, fields)
        return self._external(node, fields) if found is None else found

    def _call(self, body: Statement, words: tuple[str, ...]) -> Truth:
        self._deeper()
        before = self.state.positional
        self.state.positional = words
        self.builtins.local_values.append({})
        found = self.statement(body)
        self.builtins.leave_function()
        self.state.positional = before
        self.state.flow = "" if self.state.flow == "return" else self.state.flow
        self.depth -= 1
        return found

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ShellError(f"functions and scripts are nested deeper than {_DEEPEST}")

    def run_text(self, text: str, line: int, *, apart: bool) -> Truth:
        """Follow text that a command runs, as ``eval`` and ``bash -c`` do."""
        self._deeper()
        outer, self.outer_line = self.outer_line, self.outer_line or line
        try:
            body = parse(text)
        except ShellError:
            body = ()
        found = self._apart(body) if apart else self.body(body)
        self.outer_line = outer
        self.depth -= 1
        return found

    def _external(self, node: Simple, fields: list[str]) -> Truth:
        program = fields[0].rpartition("/")[2]
        if node.heredoc is not None:
            self._heredoc(node, program)
        if program in TELL:
            return ASSUMED if program in SUCCEED else UNKNOWN
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
        return ASSUMED if program in SUCCEED else UNKNOWN

    def not_read(self, line: int, name: str) -> None:
        """Note a file that the script reads in or runs."""
        if not any(word in name.lower() for word in SETUP):
            self.script.not_read.append((self.outer_line or line, marks.plain(name)))

    def _heredoc(self, node: Simple, program: str) -> None:
        if node.heredoc is None or ".py" not in node.heredoc.text:
            return
        if program in TAKE_SCRIPTS:
            self.run_text(self._lines(node.heredoc), node.line, apart=True)
        elif program == "cat":
            self.written.append((node.line, node.heredoc))

    def _lines(self, heredoc: Heredoc) -> str:
        return heredoc.text if heredoc.quoted else self.expansion.lines(heredoc.text)

    def written_scripts(self) -> None:
        """Follow the scripts that this one has written, where it starts no training itself."""
        for line, heredoc in self.written if not self.trained else []:
            self.state.flow = ""
            self.run_text(self._lines(heredoc), line, apart=True)

    def fields_of(self, words: tuple[str | Assignment, ...]) -> list[str]:
        """The words of a command without its arrays."""
        return [text for raw in words if isinstance(raw, str) for text in self.expansion.fields(raw)]


def _scripts_in(fields: list[str]) -> list[str]:
    """Words that are commands themselves, as behind ``bash -c``."""
    after = [text for before, text in pairwise(fields) if before in {"-c", "-lc", "-xc", "-ic", "-ec"}]
    return after or [text for text in fields[1:] if ".py" in text and any(sign.isspace() for sign in text.strip())]
