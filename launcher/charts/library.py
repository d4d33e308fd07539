"""The plotting library: the script of Vega-Lite for a page, and the same charts as pictures without a browser.

``vl-convert-python`` (BSD-3-Clause, the extra ``report``) carries Vega, Vega-Lite and Vega-Embed as one script, and an
engine that runs it, so that neither npm nor a network is needed. It is imported where something is drawn and nowhere
else: planning works without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from launcher.base import package
from launcher.base.errors import ConfigError, ConfigErrors
from launcher.charts.look import LIGHT

EXTRA = "report"

_CLIP = re.compile(r"\bclip\d+\b")

_SCALE = 1.5
"""Pixels of a PNG for each of the drawing's, for sharp text on screens of today."""


def require(option: str, path: Path) -> None:
    """Refuse what needs the library where it is not installed, before anything is computed.

    Args:
        option: That asks for it, for the message.
        path: Its value.

    Raises:
        ConfigErrors: It is not installed.
    """
    if find_spec("vl_convert") is None:
        rule = "a page or a figure needs vl-convert-python, which is not installed for this Python"
        raise ConfigErrors([ConfigError(option, str(path), rule, [package.install(EXTRA)])])


@cache  # To make the script takes a second.
def script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that sets ``window.vegaEmbed``."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def picture(spec: Mapping[str, Any], kind: Literal["png", "svg"]) -> bytes:
    """A chart as a picture in the light look; the same specification gives the same bytes."""
    import vl_convert

    content, config = json.dumps(spec), dict(LIGHT)
    # Nothing may be loaded from a network while a picture is drawn.
    if kind == "svg":
        return _numbered(vl_convert.vegalite_to_svg(content, config=config, allowed_base_urls=[])).encode()
    return vl_convert.vegalite_to_png(content, config=config, scale=_SCALE, allowed_base_urls=[])


def _numbered(svg: str) -> str:
    """Number the clip paths as they come: Vega counts on from one drawing to the next."""
    names: dict[str, str] = {}
    return _CLIP.sub(lambda found: names.setdefault(found[0], f"clip{len(names)}"), svg)
