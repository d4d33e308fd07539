"""A script while it is followed: its state, the commands that it would start, and what decides between them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from launcher.importers.megatron.shell import marks
from launcher.importers.megatron.shell.conditions import YES, Truth
from launcher.importers.megatron.shell.expansion import Expansion
from launcher.importers.megatron.shell.parameters import Budget, Parameters, State, Value, given_positional
from launcher.importers.megatron.shell.parser import parse
from launcher.importers.megatron.shell.tree import Body, Heredoc, ShellError, Statement

_DEEPEST = 30  # Functions and scripts in one another, far below Python's own limit of calls.
_SETUP = ("activate", "conda", "profile", "bashrc", "setvars", "modules", "venv", "lmod")
"""In names of files that are sourced: these prepare a machine and hold no argument."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program that the script would start."""

    line: int  # Where it stands.
    words: tuple[str, ...]  # Its words, with marks.
    decisions: tuple[int, ...] = ()  # The decisions under which it is started.
    loops: tuple[tuple[str, str], ...] = ()  # Names and values of the loops around it.


@dataclass(frozen=True, slots=True)
class Decision:
    """A condition that is not known."""

    line: int  # Where it stands.
    names: tuple[str, ...]  # The variables that decide it; none where the machine does.
    hints: tuple[str, ...]  # Values with which they are compared, as ``NAME=VALUE``.
    flags: tuple[str, ...] = ()  # Arguments in the values that it decides.


@dataclass(slots=True)
class Script:
    """The outcome of a script."""

    # Programs that it would start, in order; those that only look or tell are not among them.
    commands: list[Command] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)  # Conditions that are not known, by the numbers in marks.
    not_read: list[tuple[int, str]] = field(default_factory=list)  # Lines and names of files that it reads in.
    ended: int | None = None  # The line of the ``exit`` that ends it, if one does.
    variables: Mapping[str, object] = field(default_factory=dict)  # Its variables in the end.


class Follower(ABC):
    """Follows statements from a state; its heirs know commands, loops and branches."""

    def __init__(self, given: Mapping[str, str], trains: Callable[[tuple[str, ...]], bool]) -> None:
        self.given, self.trains, self.budget = given, trains, Budget()
        self.parameters = Parameters(State(positional=given_positional(given)), given, self.budget)
        self.expansion = Expansion(self.parameters)
        self.script = Script()
        self.under: tuple[int, ...] = ()  # Numbers of the decisions that this place stands under.
        self.loops: tuple[tuple[str, str], ...] = ()  # Names and values of the loops around this place.
        self.outer_line: int | None = None  # Of the command whose text is followed; None outside of such a text.
        self.trained = 0  # How many trainings were started.
        self.depth = 0  # How many functions and texts are around this place.
        # Values before each function around this place, of the variables that are local to it.
        self.local_values: list[dict[str, Value | None]] = []
        self.written: list[tuple[int, Heredoc]] = []  # Scripts that ``cat`` has written, with their lines.

    @property
    def state(self) -> State:
        """The state at this place of the script."""
        return self.parameters.state

    @state.setter
    def state(self, state: State) -> None:
        self.parameters.state = state

    @abstractmethod
    def statement(self, statement: Statement) -> Truth:
        """Follow one statement."""

    def body(self, body: Body) -> Truth:
        """Follow statements up to one that leaves them."""
        found = YES
        for statement in body:
            found = self.statement(statement)
            if self.state.flow:
                break
        return found

    def apart(self, body: Body) -> Truth:
        """Follow a subshell, which leaves the state as it was."""
        self.budget.spend(len(self.state.variables))
        before, self.state = self.state, self.state.copy()
        found = self.body(body)
        self.state = before
        return found

    def run_text(self, text: str, line: int, *, apart: bool) -> Truth:
        """Follow text that a command runs, as ``eval`` and ``bash -c`` do."""
        self.deeper()
        outer, self.outer_line = self.outer_line, self.outer_line or line
        try:
            body = parse(text)
        except ShellError:
            body = ()
        found = self.apart(body) if apart else self.body(body)
        self.outer_line = outer
        self.depth -= 1
        return found

    def deeper(self) -> None:
        """Enter a function or a text; ``depth -= 1`` leaves it."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise ShellError(f"functions and scripts are nested deeper than {_DEEPEST}")

    def not_read(self, line: int, name: str) -> None:
        """Note a file that the script reads in or runs."""
        if not any(word in name.lower() for word in _SETUP):
            self.script.not_read.append((self.outer_line or line, marks.plain(name)))
