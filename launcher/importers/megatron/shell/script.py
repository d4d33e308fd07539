"""What became of a script: the commands that it would start, and what decides between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
