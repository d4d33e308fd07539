"""One row of an estimate of speed: seconds of one part of a step, by this expression, from this source.

As of memory the printed formula is the formula (``launcher.base.formula``). ``seconds`` is what the part takes,
``exposed_seconds`` what of it nothing else hides: those of all terms add up to the step.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from launcher.base import formula

type StepPart = Literal[
    "matrix_products", "attention", "memory_bound", "loss", "reference", "recompute", "host", "tensor", "context",
    "expert", "pipeline", "bubble", "data", "optimizer", "offload", "checkpoint", "waiting",
]  # fmt: skip

PARTS: tuple[StepPart, ...] = get_args(StepPart.__value__)
COMMUNICATION: tuple[StepPart, ...] = ("tensor", "context", "expert", "pipeline", "data")
"""Parts that are traffic between ranks."""

type Number = int | float


class SpeedTerm(NamedTuple):
    """Seconds of one part of a step on one rank."""

    part: StepPart  # The part that it is added to.
    seconds: float  # The value of the expression.
    exposed_seconds: float  # What of it the step waits for.
    what: str  # Words for it.
    expression: str  # The formula, over names.
    values: Mapping[str, Number]  # The names' values.
    source: str  # Where the formula or the measured table stands.
    bytes: float = 0.0  # Bytes that one rank moves in the step, where it is traffic.
    group: str = ""  # The ranks that it is among, in words.

    @property
    def formula(self) -> str:
        """Words for it, and its expression with numbers."""
        numbers = formula.printed(self.expression, lambda name: formula.said(self.values[name]))
        return f"{self.what}: {numbers}"

    def times(self, factor: float) -> "SpeedTerm":
        """The same term, so many times as long."""
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
    """A term of a formula: ``what`` in words, seconds by ``expression`` over the names of ``values``.

    ``exposed`` are the seconds that the step waits for, by default all of them; ``moved`` are the bytes that one rank
    moves in the step, where it is traffic, among the ranks of ``group``.
    """
    seconds = float(formula.evaluated(expression, values))
    shown = seconds if exposed is None else min(exposed, seconds)
    return _MADE(SpeedTerm, (part, seconds, shown, what, expression, values, source, moved, group))


_MADE = tuple.__new__  # Makes a :class:`SpeedTerm` in a third of the time of its own call; an estimate makes a dozen.


SYMBOLS = {
    "m": "micro-batches of an optimizer step",
    "L": "blocks on this rank",
    "S": "bytes of one micro-batch's activations that are offloaded",
    "P": "parameters of this rank that it is about",
    "P_opt": "parameters of this rank that the optimizer steps",
    "steps": "steps between two checkpoints",
    "p": "pipeline stages",
    "v": "model chunks of a stage, of interleaved schedules",
    "n": "how often in a step: reductions, passes over memory; of a step on the host the ranks that share it",
    "k": "bytes: of a parameter where it stands beside parameters, else of all that is moved",
    "z": "bytes of a parameter",
    # Work and rates.
    "work": "FLOPs of a micro-batch or of the optimizer's step, or bytes of memory that are read and written",
    "rate": "of these what is done in a second: by the card at these shapes, or over PCIe",
    "bandwidth": "bytes a second of the card's memory",
    "share": "share of the bandwidth that such kernels reach",
    "reached": "bytes a second that the collective moves, at this size and among these ranks",
    "idle": "share of the others' time in which the schedule leaves a stage idle",
    "slowest": "by how much of a step the slowest of all GPUs is behind the middle one",
    # Times in seconds.
    "t": "seconds: of a micro-batch, or of a parameter where it stands beside parameters",
    "t_step": "seconds of the step without this wait",
    "t_loss": "seconds of the loss of a micro-batch",
    "t_ahead": "seconds of the forward pass of a micro-batch",
    "t_again": "seconds of what is computed again in a micro-batch, or of gathering one block's parameters again",
    "t_host": "seconds of a micro-batch in which the GPU waits for the host to start kernels",
    "t_others": "seconds of a micro-batch's passes on all other stages",
    "t_send": "seconds of one message to the next stage",
    "t_gather": "seconds of gathering one block's parameters, or all of them for passes without gradients",
    "t_scatter": "seconds of reducing one block's gradients",
}
"""The legend of the formulas of speed; times begin with ``t``.

Single letters are those of the formulas of memory where both have them.
"""
