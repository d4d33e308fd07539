"""A script that is followed, as loops, programs and builtins see it, and the commands that it would start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from launcher.importers.megatron.shell.conditions import Truth
from launcher.importers.megatron.shell.expansion import Expansion
from launcher.importers.megatron.shell.parameters import Parameters
from launcher.importers.megatron.shell.state import State
from launcher.importers.megatron.shell.tree import Body, Statement


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


class Follower(Protocol):
    """Follows statements from a state, and keeps what is met on the way.

    Attributes:
        given: Variables that the user gives.
        trains: True of the words of a command that is a training.
        parameters: Variables of the script.
        expansion: Puts their values into words.
        script: The commands and decisions so far.
        under: Numbers of the decisions that this place stands under.
        loops: Names and values of the loops around this place.
        outer_line: The line of the command whose text is followed; None outside of such a text.
        trained: How many trainings were started.
        state: What is set at this place.
    """

    given: Mapping[str, str]
    trains: Callable[[tuple[str, ...]], bool]
    parameters: Parameters
    expansion: Expansion
    script: Script
    under: tuple[int, ...]
    loops: tuple[tuple[str, str], ...]
    outer_line: int | None
    trained: int
    state: State

    def body(self, body: Body) -> Truth:
        """Follow statements up to one that leaves them."""

    def statement(self, statement: Statement) -> Truth:
        """Follow one statement."""

    def apart(self, body: Body) -> Truth:
        """Follow a subshell: what it sets is gone behind it."""

    def either_way(self, line: int, truth: Truth, branches: list[Callable[[], Truth]]) -> Truth:
        """Follow each branch from the same state, and go on from what all of them leave."""

    def is_set(self, name: str) -> bool | None:
        """True if a variable has a value; None where it is assumed to have none."""

    def run_text(self, text: str, line: int, *, apart: bool) -> Truth:
        """Follow text that a command runs, as ``eval`` and ``bash -c`` do."""

    def not_read(self, line: int, name: str) -> None:
        """Note a file that the script reads in or runs."""
