"""Figures of a command's ``--plot FILE``: the same charts as a page, or below each other as one picture."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError
from launcher.base.files import JsonObject
from launcher.charts import library
from launcher.charts.page import Chart

_SUFFIXES = (".png", ".svg", ".html")

_WIDTH = 980  # Pixels of a picture's charts.
_COLUMNS = 150  # Letters of a line above them.


def check_path(path: Path) -> None:
    """Refuse (ConfigErrors) a suffix that names no format, and a library that lacks, before anything is computed."""
    if path.suffix.lower() not in _SUFFIXES:
        rule = f"the name of a figure ends in {', '.join(_SUFFIXES)}"
        raise ConfigErrors([ConfigError("--plot", str(path), rule, [f"--plot {path.with_suffix('.png')}"])])
    library.require("--plot", path)


def write(path: Path, said: Sequence[str], charts: Sequence[Chart], page: Callable[[], str]) -> None:
    """Write a picture of charts below sentences, or a page: a PNG, an SVG or an HTML file, whole by itself."""
    suffix = path.suffix.lower()
    if suffix == ".html":
        content = page().encode()
    else:
        content = library.picture(drawing(said, charts), "png" if suffix == ".png" else "svg")
    try:
        files.write_bytes_atomically(path, content)
    except OSError as error:
        raise SubmitError(f"--plot: {path} cannot be written: {error.strerror}") from None


def drawing(said: Sequence[str], charts: Sequence[Chart]) -> JsonObject:
    """Charts below each other with their titles and notes, as one specification."""
    lines = [line for sentence in said for line in textwrap.wrap(sentence, _COLUMNS, break_on_hyphens=False)]
    title = {"text": lines, "anchor": "start", "fontWeight": "normal", "fontSize": 13, "offset": 16}
    return {
        "title": title,
        "vconcat": [_titled(chart) for chart in charts],
        "spacing": 28,
        "resolve": {"scale": {"color": "independent", "x": "independent", "y": "independent"}},
        "padding": 14,
    }


def _titled(chart: Chart) -> JsonObject:
    note = textwrap.wrap(chart.note, _COLUMNS, break_on_hyphens=False)
    look = {"anchor": "start", "frame": "group", "fontSize": 13, "subtitleFontSize": 11}
    title = {"text": chart.title, "subtitle": note, **look}
    shown = {key: value for key, value in chart.spec.items() if key != "params"}
    layers = [{key: value for key, value in layer.items() if key != "params"} for layer in shown.get("layer", ())]
    # A picture cannot be pointed at: points that wait for the pointer are left out.
    still = [layer for layer in layers if "condition" not in str(layer.get("encoding", {}).get("opacity"))]
    return {**shown, "layer": still, "width": _WIDTH, "title": title}
