"""``launch plan --plot FILE``: speed against memory of the layouts that were found, with the frontier named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import files
from launcher.errors import SubmitError
from launcher.planner import wording
from launcher.planner.frontier import Frontier
from launcher.planner.result import Layout
from launcher.preflight import plot
from launcher.text.terminal import in_html
from launcher.text.units import GIB, gib, rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PAGE = '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{}</title>\n{}</html>\n'

_ENGINES = {
    "Megatron": ("#27496d", "o"),
    "Megatron-FSDP": ("#7fb0d4", "s"),
    "FSDP": ("#d9722e", "^"),
    "HSDP": ("#f2b25c", "v"),
    "DDP": ("#9b6fae", "D"),
    "DeepSpeed": ("#3a8d6b", "P"),
}
"""Colour and marker, so that either tells an engine."""

_ANOTHER = ("#7d7d7d", "X")

_LEGEND_COLUMNS = 58


def write(path: Path, found: Frontier) -> None:
    """Draw the layouts into a PNG, an SVG or an HTML file that needs nothing beside it.

    Args:
        path: Where to; its suffix, which ``launcher.preflight.plot.check_path`` has let through, decides the format.
        found: The layouts, with speeds.

    Raises:
        SubmitError: The file cannot be written.
    """
    drawn, suffix = figure(found), path.suffix.lower()
    content = plot.saved(drawn, "png" if suffix == ".png" else "svg")
    if suffix == ".html":
        svg = content.decode()
        content = _PAGE.format(in_html(_title(found)), svg[svg.index("<svg") :]).encode()
    try:
        files.write_bytes_atomically(path, content)
    except OSError as error:
        raise SubmitError(f"--plot: {path} cannot be written: {error.strerror}") from None


def figure(found: Frontier) -> Figure:
    """The figure itself: a point for each layout, the fastest for less memory numbered and named beside it."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(12.5, 6.0), layout="constrained")
    panel: Axes = drawn.subplots()
    for engine in dict.fromkeys(wording.engine(each.spec) for each in (*found.fastest, *found.others)):
        _points(panel, engine, [each for each in found.others if wording.engine(each.spec) == engine], faint=True)
        _points(panel, engine, [each for each in found.fastest if wording.engine(each.spec) == engine])
    places = [_place(each) for each in found.fastest]
    panel.step([x for x, _ in places], [y for _, y in places], where="pre", color="#222222", linewidth=1.2, zorder=2)
    for number, place in enumerate(places, 1):
        panel.annotate(str(number), place, xytext=(-4, 7), textcoords="offset points", fontweight="bold", ha="right")
    _axes(panel, found)
    drawn.legend(loc="outside right upper", frameon=False, title="engines", alignment="left")
    drawn.suptitle(_title(found), x=0.012, ha="left", fontsize=11)
    panel.text(1.02, 0.0, _named(found), transform=panel.transAxes, va="bottom", fontsize=9, linespacing=1.4)
    return drawn


def _points(panel: Axes, engine: str, layouts: Sequence[Layout], *, faint: bool = False) -> None:
    colour, marker = _ENGINES.get(engine, _ANOTHER)
    places = [_place(each) for each in layouts]
    panel.scatter(
        [x for x, _ in places], [y for _, y in places], color=colour, marker=marker, s=26 if faint else 58,
        alpha=0.55 if faint else 1.0, label=None if faint else engine, zorder=3,
    )  # fmt: skip


def _place(layout: Layout) -> tuple[float, float]:
    """Memory in GiB, and tokens a second of a GPU."""
    speed = layout.speed
    if speed is None:
        raise AssertionError("a figure of speeds that are not known")
    return (layout.verdict.used_bytes or 0) / GIB, speed.tokens_per_second_per_gpu


def _axes(panel: Axes, found: Frontier) -> None:
    capacity = found.fastest[0].verdict.capacity_bytes
    if capacity is not None:
        panel.axvline(capacity / GIB, color="#b3261e", linestyle=(0, (6, 3)), linewidth=1.8)
        place = (capacity / GIB, panel.get_ylim()[0])
        panel.annotate(
            f"capacity {gib(capacity)}", place, xytext=(-4, 6), textcoords="offset points", color="#b3261e",
            rotation=90, ha="right", va="bottom",
        )  # fmt: skip
    panel.set_xlim(left=0)
    panel.set_xlabel("memory needed on the fullest rank, GiB")
    panel.set_ylabel("tokens/s a GPU, predicted")
    panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    panel.grid(color="#e3e3e3", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _named(found: Frontier) -> str:
    """The layouts of the frontier by their numbers."""
    lines = ["the fastest for less memory"]
    for number, each in enumerate(found.fastest, 1):
        memory, speed = _place(each)
        lines.append(f"{number}  {rounded(speed)} tokens/s, {memory:.1f} GiB")
        lines += wording.filled(wording.layout(each.spec), _LEGEND_COLUMNS, "    ")
    return "\n".join(lines)


def _title(found: Frontier) -> str:
    spec = found.fastest[0].spec
    return (
        f"{spec.model.name}, {spec.gpus} x {spec.hardware.title}: layouts that fit, of"
        f" {spec.global_batch_size:,} sequences of {spec.sequence_length:,} tokens a step"
    )
