"""The plotting library and the style of its charts: Vega-Lite's script for a page, and charts as pictures.

``vl-convert-python`` (the extra ``report``) contains Vega, Vega-Lite and Vega-Embed as one script, and an engine that
runs it. Categories differ in lightness and dashes as well as in hue: the colours of Okabe and Ito (2008) without
yellow, which is too light for a line, and with grey instead of black, which would not show on a dark page.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from launcher.base import package
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject

CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#808080")
DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (12, 4), (4, 4), (10, 2, 2, 2, 2, 2))
"""One per category: lengths in pixels of dashes and gaps in turn."""

LEGEND = {"orient": "top", "symbolType": "square", "columns": 7}
LIMIT = "#c5362c"
"""The colour of a capacity and what exceeds it: readable on a light and a dark page."""

_FONT = "system-ui, 'DejaVu Sans', sans-serif"


def _config(ink: str, faint: str, edge: str, background: str) -> JsonObject:
    text = {"labelColor": ink, "titleColor": ink}
    return {
        "background": background,
        "font": _FONT,
        "mark": {"color": CATEGORIES[0]},
        "view": {"stroke": None},
        "axis": {**text, "gridColor": faint, "domainColor": faint, "tickColor": faint, "labelFontSize": 11},
        "legend": {**text, "labelFontSize": 11, "labelLimit": 320},
        "header": text,
        "title": {"color": ink, "anchor": "start", "fontSize": 13},
        "bar": {"stroke": edge, "strokeWidth": 0.5},
        "text": {"color": ink},
        "rule": {"color": ink},
        "point": {"filled": True, "color": ink},
        "range": {"category": list(CATEGORIES)},
    }


LIGHT: Mapping[str, Any] = _config("#1d1f23", "#e0e2e6", "#ffffff", "#ffffff")
DARK: Mapping[str, Any] = _config("#e7e9ee", "#3b404a", "#aab0bb", "#16181d")


def nominal(field: str, **more: object) -> JsonObject:
    """A Vega-Lite channel for a field of names."""
    return {"field": field, "type": "nominal", **more}


def quantitative(field: str, **more: object) -> JsonObject:
    """A Vega-Lite channel for a field of numbers."""
    return {"field": field, "type": "quantitative", **more}


def coloured(field: str, rows: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> JsonObject:
    """The colour channel for a field of names, with a legend of those that occur, in the colours' order."""
    used = {row[field] for row in rows}
    known = {name: colour for name, colour in colours.items() if name in used}
    scale = {"domain": list(known), "range": list(known.values())}
    return nominal(field, title=None, scale=scale, legend=LEGEND if len(known) > 1 else None)


EXTRA = "report"
_CLIP = re.compile(r"\bclip\d+\b")
_SCALE = 1.5  # PNG pixels per pixel of the drawing, for sharp text on high-resolution screens.


def require(option: str, path: Path) -> None:
    """Raise ConfigErrors, before anything is computed, if an option needs the library and it is not installed."""
    if find_spec("vl_convert") is None:
        rule = "a page or a figure needs vl-convert-python, which is not installed for this Python"
        raise ConfigErrors([ConfigError(option, str(path), rule, [package.install(EXTRA)])])


@cache  # Making the script takes a second.
def script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that sets ``window.vegaEmbed``."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def picture(spec: Mapping[str, Any], kind: Literal["png", "svg"]) -> bytes:
    """A chart as a picture in the light style; the same specification gives the same bytes."""
    import vl_convert

    content, config = json.dumps(spec), dict(LIGHT)
    # ``allowed_base_urls=[]``: nothing may be loaded from a network while a picture is drawn.
    if kind == "svg":
        svg = vl_convert.vegalite_to_svg(content, config=config, allowed_base_urls=[])
        names: dict[str, str] = {}  # Renumbers clip paths, whose numbers Vega continues from the previous drawing.
        return _CLIP.sub(lambda found: names.setdefault(found[0], f"clip{len(names)}"), svg).encode()
    return vl_convert.vegalite_to_png(content, config=config, scale=_SCALE, allowed_base_urls=[])
