"""The time of a step in the figure of ``--plot``: the seconds of each part, one after the other.

Only what the step waits for has a length: the bars end where the step ends. What runs behind it is named beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launcher.base.frozen import dataclass
from launcher.base.units import rounded
from launcher.charts.bars import Piece, bars
from launcher.estimate.speed.result import SpeedEstimate, name_of
from launcher.estimate.speed.terms import StepPart

COLOURS: dict[StepPart, str] = {
    "matrix_products": "#27496d", "attention": "#4d7ea8", "memory_bound": "#7fb0d4", "loss": "#b5d3e7",
    "recompute": "#d3e4f0", "host": "#7d7d7d", "tensor": "#a8480f", "context": "#c25f1c", "expert": "#d9722e",
    "pipeline": "#e8934a", "bubble": "#e6e6e6", "data": "#f2b25c", "optimizer": "#3a8d6b", "offload": "#9b6fae",
    "checkpoint": "#c9b3d6", "waiting": "#b3b3b3",
}  # fmt: skip
"""Computation blue, traffic orange, waiting grey: apart in lightness, too, for those who see fewer hues."""

_LEAST_SHARE = 0.0005  # Share of a step below which a part is no bar: a tenth of a percent would round to none.


def unit(seconds: float) -> tuple[float, str]:
    """The seconds of an axis' unit, and its name."""
    return (1.0, "s") if seconds >= 1 else (1e-3, "ms")


def seconds_text(seconds: float) -> str:
    """Seconds in the unit that suits them, to three digits."""
    of, name = next(((of, name) for of, name in ((1.0, "s"), (1e-3, "ms")) if seconds >= of), (1e-6, "us"))
    return f"{rounded(seconds / of)} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a step."""

    name: str  # As in :data:`COLOURS`.
    exposed: float  # Seconds that the step waits for it.
    hidden: float  # Seconds of it that run behind something else.
    formula: str  # How they were computed.
    source: str  # Where that stands.


def step_parts(speed: SpeedEstimate) -> list[Part]:
    """Parts of a step that are long enough to be seen, in the order of ``PARTS``."""
    found = []
    for part, terms in speed.parts():
        exposed = sum(term.exposed_seconds for term in terms)
        hidden = sum(term.seconds for term in terms) - exposed
        if max(exposed, hidden) >= _LEAST_SHARE * speed.step_seconds:
            formula = " + ".join(term.formula for term in terms)
            source = "; ".join(dict.fromkeys(term.source for term in terms))
            found.append(Part(name=part, exposed=exposed, hidden=hidden, formula=formula, source=source))
    return found


def chart(parts: Sequence[Part], step: float, of: float, title: str) -> dict[str, Any]:
    """A row a part, each from where the one above ends, with its seconds and share behind it; ``of`` is a unit in s."""
    begun, pieces, ends = 0.0, [], {}
    for part in parts:
        name, end = name_of(part.name), begun + part.exposed
        text = f"{seconds_text(part.exposed)}, {part.exposed / step:.1%}"
        text += f" (and {seconds_text(part.hidden)} hidden)" if part.hidden >= _LEAST_SHARE * step else ""
        hover = {"part": name, "takes": text, "formula": part.formula, "source": part.source}
        pieces.append(Piece(row=name, name=name, start=begun / of, end=end / of, hover=hover))
        ends[name, ""] = text
        begun = end
    colours = {name_of(part): colour for part, colour in COLOURS.items()}
    return bars(pieces, colours, title=title, top=1.3 * step / of, ends=ends)
