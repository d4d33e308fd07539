"""One row of a speed estimate: the seconds of one part of a step, a formula and its source."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from launcher.base import files, formula

type StepPart = Literal[
    "matrix_products", "attention", "memory_bound", "loss", "reference", "recompute", "host", "tensor", "context",
    "expert", "pipeline", "bubble", "data", "optimizer", "offload", "checkpoint", "waiting",
]  # fmt: skip

PARTS: tuple[StepPart, ...] = get_args(StepPart.__value__)
COMMUNICATION: tuple[StepPart, ...] = ("tensor", "context", "expert", "pipeline", "data")
"""Parts that are communication between ranks."""

type Number = int | float


class SpeedTerm(NamedTuple):
    """Seconds of one part of a step on one rank."""

    part: StepPart  # The part that it is added to.
    seconds: float  # The value of the expression.
    exposed_seconds: float  # The seconds of it that nothing hides, so that the step waits.
    what: str  # A description in words.
    expression: str  # The formula, over names.
    values: Mapping[str, Number]  # The names' values.
    source: str  # Where the formula or the measured table comes from.
    bytes: float = 0.0  # Bytes that one rank moves in a step, for communication.
    group: str = ""  # The ranks that communicate, in words.

    @property
    def formula(self) -> str:
        """The description and the expression with numbers."""
        numbers = formula.printed(self.expression, lambda name: formula.short_text(self.values[name]))
        return f"{self.what}: {numbers}"

    def times(self, factor: float) -> "SpeedTerm":
        """Return the same term, ``factor`` times as long."""
        seconds, exposed = self.seconds * factor, self.exposed_seconds * factor
        return SpeedTerm(
            self.part, seconds, exposed, self.what, self.expression, self.values, self.source, self.bytes, self.group
        )


def term(
    part: StepPart,
    what: str,
    expression: str,
    source: str,
    /,
    *,
    exposed: float | None = None,
    moved: float = 0.0,
    group: str = "",
    **values: Number,
) -> SpeedTerm:
    """Return the term that a formula gives: ``what`` in words, seconds by ``expression`` over the names in ``values``.

    ``exposed`` are the seconds that the step waits for, by default all of them; for communication, ``moved`` are the
    bytes that one rank moves in the step among the ranks of ``group``.
    """
    seconds = float(formula.evaluated(expression, values))
    shown = seconds if exposed is None else min(exposed, seconds)
    return _MADE(SpeedTerm, (part, seconds, shown, what, expression, values, source, moved, group))


_MADE = tuple.__new__  # Makes a :class:`SpeedTerm` in a third of the time of its own call; an estimate makes a dozen.


def symbols() -> Mapping[str, str]:
    """The legend of the speed formulas; times begin with ``t``.

    Single letters mean the same as in the memory formulas where both use them.
    """
    legend: Mapping[str, str] = files.own_json(Path(__file__).with_name("symbols.json"))
    return legend
