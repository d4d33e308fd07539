"""``launch compare --plot FILE``: the losses of runs by step and, where steps are of different sizes, by token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import files
from launcher.errors import SubmitError
from launcher.preflight import plot
from launcher.report.comparison import Comparison, Side
from launcher.text.terminal import in_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PAGE = '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{}</title>\n{}</html>\n'


def write(path: Path, found: Comparison) -> None:
    """Draw the losses into a PNG, an SVG or an HTML file that needs nothing beside it.

    Args:
        path: Where to; its suffix, which ``launcher.preflight.plot.check_path`` has let through, decides the format.
        found: The comparison.

    Raises:
        SubmitError: The file cannot be written.
    """
    drawn, suffix = figure(found), path.suffix.lower()
    content = plot.saved(drawn, "png" if suffix == ".png" else "svg")
    if suffix == ".html":
        svg = content.decode()
        title = in_html(" and ".join(side.run.id for side in found.sides))
        content = _PAGE.format(title, svg[svg.index("<svg") :]).encode()
    try:
        files.write_bytes_atomically(path, content)
    except OSError as error:
        raise SubmitError(f"--plot: {path} cannot be written: {error.strerror}") from None


def figure(found: Comparison) -> Figure:
    """The figure itself: one panel, or two where equal steps are not equal tokens."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(11 if found.at_tokens else 6.5, 4.6), layout="constrained")
    panels: Sequence[Axes] = drawn.subplots(1, 2 if found.at_tokens else 1, sharey=True, squeeze=False)[0]
    panels[0].set_ylabel("training loss")
    _curves(panels[0], found.sides, "step", dict.fromkeys(found.sides, 1))
    if found.at_tokens:
        sizes = {side: side.tokens_per_step for side in found.sides if side.tokens_per_step is not None}
        _curves(panels[1], found.sides, "tokens", sizes)
    drawn.legend(loc="outside upper left", frameon=False, ncols=min(4, len(found.sides)), fontsize=9.5)
    return drawn


def _curves(panel: Axes, sides: Sequence[Side], name: str, sizes: dict[Side, int]) -> None:
    for number, side in enumerate(sides):
        if side in sizes and side.curve:
            label = side.run.id if name == "step" else None
            places = [step * sizes[side] for step, _ in side.curve]
            panel.plot(places, [loss for _, loss in side.curve], color=f"C{number % 10}", linewidth=1.4, label=label)
    panel.set_xlabel(name)
    panel.grid(color="#e3e3e3", linewidth=0.8)
    panel.spines[["top", "right"]].set_visible(False)
