"""Self-contained HTML pages: one file that loads nothing, with charts, a light and a dark style, and a print style.

``page.js`` draws charts with the library's script (:mod:`launcher.charts.library`). The page's content security policy
allows only scripts with known hashes, so that no text from a run could act even if it became markup, and forbids any
connection. Vega evaluates expressions with its interpreter (``ast``), which needs no ``eval``.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.base.errors import ConfigError, ConfigErrors, SubmitError
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.terminal import wrapped
from launcher.charts import library
from launcher.charts.html import Html, details, tag
from launcher.charts.library import DARK, LIGHT

_ZOOMS = (
    ("in", "+", "zoom in"),
    ("out", "\N{MINUS SIGN}", "zoom out"),
    ("left", "\N{LEFTWARDS ARROW}", "earlier"),
    ("right", "\N{RIGHTWARDS ARROW}", "later"),
    ("all", "all", "show everything"),
)
"""Buttons: the action in ``page.js``, the sign on the button, and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart on a page, with its texts."""

    title: str  # Its heading.
    spec: Mapping[str, Any]  # A Vega-Lite specification without ``$schema``, with its rows inside (``data.values``).
    said: str  # What it shows in a sentence or two, for screen readers.
    note: str = ""  # Text below it: what was left out, where the numbers are from.
    # The x-axis field along which it is zoomed; None for no zoom. It needs an interval selection ``brush``
    # (``launcher.charts.lines``). Charts with the same field are zoomed together.
    zoom: str | None = None
    log: bool = False  # True if the y axis can be logarithmic: encodings with ``"scale": {"type": "linear"}``.
    numbers: Html | None = None  # The same data as a table, folded below it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of a page, listed in its table of contents."""

    identity: str  # The element's id, one word.
    title: str  # Its heading.
    parts: Sequence[Chart | Html | str]  # Charts, markup, and texts, which become paragraphs.


def page(title: str, lead: Html, sections: Sequence[Section], *, parts: Sequence[str] = ()) -> str:
    """A whole page; ``lead`` follows its title; ``parts`` are more scripts, run before charts are drawn, and styles."""
    charts: list[JsonObject] = []
    body = [_section(section, charts) for section in sections]
    scripts, styles = ([part for part in parts if part.endswith(kind)] for kind in (".js", ".css"))
    codes = [_code(one) for one in (*([library.script()] if charts else []), *map(_file, scripts), _file("page.js"))]
    head = [
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(codes)),
        tag("title", title),
        *(tag("style", Html(style)) for style in map(_file, ("page.css", *styles))),
    ]
    links = (tag("li", tag("a", section.title, href=f"#{section.identity}")) for section in sections)
    contents = [tag("nav", tag("ul", *links), aria_label="contents")] if len(sections) > 1 else []
    top = tag("header", tag("h1", title), _switch(), lead, *contents)
    inside = tag("body", top, tag("main", *body), *_data(charts), *(tag("script", code) for code in codes))
    return f'<!DOCTYPE html>\n<html lang="en">{tag("head", *head)}{inside}</html>\n'


def _section(section: Section, charts: list[JsonObject]) -> Html:
    parts = (
        _figure(part, charts) if isinstance(part, Chart) else part if isinstance(part, Html) else tag("p", part)
        for part in section.parts
    )
    return tag("section", tag("h2", section.title), *parts, id=section.identity)


def _figure(chart: Chart, charts: list[JsonObject]) -> Html:
    identity = f"chart-{len(charts)}"
    spec = {**chart.spec, "description": chart.said}
    charts.append({"id": identity, "spec": spec, "zoom": chart.zoom, "log": chart.log})
    controls = [tag("label", tag("input", type="checkbox", data_log=identity), " log scale")] if chart.log else []
    controls += [
        tag("button", sign, type="button", data_zoom=name, data_chart=identity, title=title, aria_label=title)
        for name, sign, title in (_ZOOMS if chart.zoom else ())
    ]
    unseen = Html("<noscript><p>The page's own script draws this chart, but scripts are disabled.</p></noscript>")
    return tag(
        "figure",
        tag("figcaption", tag("h3", chart.title), tag("span", *controls, class_="controls")),
        # The keyboard zooms the focused chart: + and -, the arrows, and 0 to show everything.
        tag("div", unseen, class_="drawing", tabindex="0" if chart.zoom else None),
        *([tag("p", chart.note, class_="note")] if chart.note else []),
        *([details("the numbers", chart.numbers)] if chart.numbers is not None else []),
        id=identity,
    )


def _switch() -> Html:
    looks = {"auto": "same as system", "light": "light", "dark": "dark"}
    choices = (tag("option", words, value=name) for name, words in looks.items())
    return tag("label", "look ", tag("select", *choices, id="look"), class_="look")


def _data(charts: Iterable[Mapping[str, Any]]) -> list[Html]:
    blocks = {"charts": list(charts), "looks": {"light": LIGHT, "dark": DARK}}
    return [tag("script", data(content), type="application/json", id=name) for name, content in blocks.items()]


def data(content: object) -> Html:
    """JSON that is safe inside a script element; NaN and the infinities become null."""
    try:
        written = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError:
        written = json.dumps(_finite(content), separators=(",", ":"))
    return Html(written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _finite(content: object) -> object:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and content - content != 0 else content


def _code(script: str) -> Html:
    """A script for a page, with line breaks normalized as a browser does before it computes the hash."""
    plain = script.replace("\r\n", "\n").replace("\r", "\n")
    if "</script" in plain.lower() or "<!--" in plain:
        raise AssertionError("the script would end its own element")
    return Html(plain)


def _policy(codes: Iterable[str]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in codes]
    scripts = " ".join(f"'sha256-{one}'" for one in hashes)
    # Pictures of a chart are saved from the page's own blob and data URLs.
    return f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:"


def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


_SUFFIXES = (".png", ".svg", ".html")
_WIDTH = 980  # Width of the charts in a picture, in pixels.
_COLUMNS = 150  # Line length of the text above them, in characters.


def check_path(path: Path) -> None:
    """Raise ConfigErrors, before anything is computed, for an unknown suffix or a missing library."""
    if path.suffix.lower() not in _SUFFIXES:
        rule = f"the file name must end in {', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"
        raise ConfigErrors([ConfigError("--plot", str(path), rule, [f"--plot {path.with_suffix('.png')}"])])
    library.require("--plot", path)


def write_figure(path: Path, said: Sequence[str], charts: Sequence[Chart], page: Callable[[], str]) -> None:
    """Write a PNG or SVG picture of sentences above charts, or a self-contained HTML page; SubmitError if it fails."""
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
    """One specification of several charts below each other, with their titles and notes."""
    title = {"text": wrapped(said, _COLUMNS), "anchor": "start", "fontWeight": "normal", "fontSize": 13, "offset": 16}
    return {
        "title": title,
        "vconcat": [_titled(chart) for chart in charts],
        "spacing": 28,
        "resolve": {"scale": {"color": "independent", "x": "independent", "y": "independent"}},
        "padding": 14,
    }


def _titled(chart: Chart) -> JsonObject:
    look = {"anchor": "start", "frame": "group", "fontSize": 13, "subtitleFontSize": 11}
    title = {"text": chart.title, "subtitle": wrapped(chart.note, _COLUMNS), **look}
    shown = {key: value for key, value in chart.spec.items() if key != "params"}
    layers = [{key: value for key, value in layer.items() if key != "params"} for layer in shown.get("layer", ())]
    # A picture has no pointer: points that only show under the pointer are left out.
    still = [layer for layer in layers if "condition" not in str(layer.get("encoding", {}).get("opacity"))]
    return {**shown, "layer": still, "width": _WIDTH, "title": title}
