"""The time of a step in the figure of ``--plot``: the seconds of each part, one after the other.

Only what the step waits for has a length: the bars end where the step ends. What runs behind it is named beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.preflight.speed_line import name_of
from launcher.speed.result import SpeedEstimate
from launcher.speed.terms import StepPart
from launcher.text.units import rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#222222"

COLOURS: dict[StepPart, str] = {
    "matrix_products": "#27496d",
    "attention": "#4d7ea8",
    "memory_bound": "#7fb0d4",
    "loss": "#b5d3e7",
    "recompute": "#d3e4f0",
    "host": "#7d7d7d",
    "tensor": "#a8480f",
    "context": "#c25f1c",
    "expert": "#d9722e",
    "pipeline": "#e8934a",
    "bubble": "#f4f4f4",
    "data": "#f2b25c",
    "optimizer": "#3a8d6b",
    "offload": "#9b6fae",
    "checkpoint": "#c9b3d6",
    "waiting": "#b3b3b3",
}
"""Computation blue, traffic orange, waiting grey or hatched: apart in lightness, too, for those who see fewer hues."""

_LEAST_SHARE = 0.0005
"""Share of a step below which a part is no bar: a tenth of a percent would round to none."""


def unit(seconds: float) -> tuple[float, str]:
    """The seconds of an axis' unit, and its name."""
    return (1.0, "s") if seconds >= 1 else (1e-3, "ms")


def said(seconds: float) -> str:
    """Seconds in the unit that suits them, to three digits."""
    of, name = next(((of, name) for of, name in ((1.0, "s"), (1e-3, "ms")) if seconds >= of), (1e-6, "us"))
    return f"{rounded(seconds / of)} {name}"


def hatched(colour: str) -> dict[str, Any]:
    """How bars of idle time are drawn, so that white is no hole; nothing for other colours."""
    return {"hatch": "////", "edgecolor": "#a8a8a8"} if colour == COLOURS["bubble"] else {}


def shown(speed: SpeedEstimate) -> list[tuple[StepPart, float, float]]:
    """Parts with the seconds that the step waits for and those that are hidden, in the order of ``PARTS``."""
    found = []
    for part, terms in speed.parts():
        exposed = sum(term.exposed_seconds for term in terms)
        hidden = sum(term.seconds for term in terms) - exposed
        if max(exposed, hidden) >= _LEAST_SHARE * speed.step_seconds:
            found.append((part, exposed, hidden))
    return found


def bars(panel: Axes, speed: SpeedEstimate) -> None:
    """Draw a row a part, each from where the one above ends, with its seconds and share beside it."""
    parts, (of, name) = shown(speed), unit(speed.step_seconds)
    begun, step = 0.0, speed.step_seconds
    for row, (part, exposed, hidden) in enumerate(parts):
        colour = COLOURS[part]
        panel.barh(row, exposed / of, 0.72, begun / of, color=colour, linewidth=0, **hatched(colour))
        begun += exposed
        text = f"{said(exposed)}, {exposed / step:.1%}"
        text += f" (and {said(hidden)} hidden)" if hidden >= _LEAST_SHARE * step else ""
        late = begun > 0.7 * step  # A text to the right of a late bar would leave the panel.
        place = ((begun - exposed) if late else begun) / of
        offset = (-4, 0) if late else (4, 0)
        panel.annotate(
            text, (place, row), xytext=offset, textcoords="offset points", va="center", fontsize=9, color=INK,
            ha="right" if late else "left",
        )  # fmt: skip
    panel.set_yticks(range(len(parts)), [name_of(part) for part, _, _ in parts])
    panel.set_ylim(len(parts) - 0.4, -0.6)
    panel.set_xlim(0, step / of)
    panel.set_xlabel(f"time of a step{' on the slowest stage' if len(speed.stages) > 1 else ''}, {name}")
    tidy(panel)


def tidy(panel: Axes) -> None:
    """The grid and frame of the other panels, with time along the bottom."""
    panel.grid(axis="x", color="#e3e3e3", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(length=0)
    panel.spines[["top", "right", "left"]].set_visible(False)
