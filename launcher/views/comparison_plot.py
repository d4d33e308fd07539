"""``launch compare --plot FILE``: the losses of runs by step and, where steps are of different sizes, by token."""

from __future__ import annotations

from pathlib import Path

from launcher.charts import figure
from launcher.charts.html import joined
from launcher.charts.lines import curves
from launcher.charts.page import Chart, Section, page
from launcher.charts.thin import MOST, thinned
from launcher.views.comparison import Comparison, Side


def write(path: Path, found: Comparison) -> None:
    """Draw the losses into a PNG, an SVG or an HTML file that needs nothing beside it.

    Args:
        path: Where to; its suffix, which ``launcher.charts.figure.check_path`` has let through, decides the format.
        found: The comparison.

    Raises:
        SubmitError: The file cannot be written.
    """
    title, drawn = " and ".join(side.run.id for side in found.sides), charts(found)
    sections = [Section(identity="losses", title="Training loss", parts=drawn)]
    figure.write(path, [title], drawn, lambda: page(title, joined(), sections))


def charts(found: Comparison) -> list[Chart]:
    """One chart by step, and one by token where equal steps are not equal tokens."""
    drawn = [_chart(found, "step", dict.fromkeys(found.sides, 1))]
    if found.at_tokens:
        sizes = {side: side.tokens_per_step for side in found.sides if side.tokens_per_step is not None}
        drawn.append(_chart(found, "tokens", sizes))
    return drawn


def _chart(found: Comparison, along: str, sizes: dict[Side, int]) -> Chart:
    most = max(8, MOST // len(found.sides))
    rows = [
        {along: int(step) * sizes[side], "loss": float(f"{loss:.6g}"), "run": side.run.id}
        for side in found.sides
        if side in sizes
        for step, loss in thinned(side.curve, most)
    ]
    return Chart(
        title=f"Training loss by {along.removesuffix('s')}",
        spec=curves(rows, x=along, y="loss", title="training loss", series="run"),
        said=f"The training loss of {len(found.sides)} runs by {along}.",
        zoom=along,
        log=True,
    )
