"""Colours and type of the charts, in light and in dark; the page's own are in ``page.css``.

Categories are told apart by lightness and dashes as well as by hue. The colours of the eight first categories are those
of Okabe and Ito (2008), "Color Universal Design", which people with any common colour blindness can tell apart; yellow,
which is too light for a line, is left out, and black is grey, so that it is seen on a dark page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#808080")

DASHES = ((1, 0), (6, 3), (2, 2), (8, 3, 2, 3), (12, 4), (4, 4), (10, 2, 2, 2, 2, 2))
"""One for each category: pixels drawn and left out by turns."""

LIMIT = "#c5362c"
"""A capacity, and what is above it: readable on a light and a dark page."""

_FONT = "system-ui, 'DejaVu Sans', sans-serif"


def _config(ink: str, faint: str, edge: str, background: str | None) -> dict[str, Any]:
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


LEAST_WIDTH = 960
"""Pixels of a chart with names beside its bars and figures behind them; a narrower window scrolls it (``page.js``)."""

LIGHT: Mapping[str, Any] = _config("#1d1f23", "#e0e2e6", "#ffffff", "#ffffff")
DARK: Mapping[str, Any] = _config("#e7e9ee", "#3b404a", "#aab0bb", "#16181d")
