"""Build HTML from tags; every text is escaped unless this module made it.

Names of models, paths and messages come from users, recipes or jobs: :func:`tag` escapes everything that is not
:class:`Html`, so that no forgotten escape lets them become markup.
"""

from collections.abc import Iterable, Sequence

from launcher.base.frozen import dataclass
from launcher.base.terminal import in_html

_VOID = frozenset({"input", "meta", "br"})


class Html(str):
    """Markup: made by :func:`tag`, or written in this package's source."""

    __slots__ = ()


def text(value: object) -> Html:
    """Any value as markup: escaped, unless it is markup already."""
    return value if isinstance(value, Html) else Html(in_html(str(value)))


def tag(name: str, *inside: object, **attributes: object) -> Html:
    """An element with texts, which are escaped, and markup inside.

    In an attribute's name ``_`` stands for ``-``, and a trailing one is dropped (``class_``, since ``class`` is a
    Python keyword). True gives an attribute without a value; None and False leave it out.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        words.append(word if value is True else f'{word}="{in_html(str(value))}"')
    opened = f"<{' '.join(words)}>"
    return Html(opened if name in _VOID else f"{opened}{joined(*inside)}</{name}>")


def joined(*parts: object) -> Html:
    """Texts, which are escaped, and markup, concatenated."""
    return Html("".join(map(text, parts)))


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table."""

    inside: object  # Its content, markup or text.
    # True for sentences, which are wrapped and left-aligned; False for numbers and single words.
    wide: bool = False


def table(
    heads: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    caption: object = None,
    foot: Iterable[Sequence[object]] = (),
    identity: str | None = None,
) -> Html:
    """A table; a row's first cell is its heading; texts and numbers are escaped."""
    parts = [] if caption is None else [tag("caption", caption)]
    if heads:
        parts.append(tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))))
    parts.append(tag("tbody", *map(_row, rows)))
    feet = [_row(row) for row in foot]
    parts += [tag("tfoot", *feet)] if feet else []
    # A wide table scrolls in its own box, which the keyboard can focus.
    return tag("div", tag("table", *parts, id=identity), class_="scrolled", tabindex="0", role="group")


def _row(cells: Sequence[object]) -> Html:
    first, *others = cells
    wrapped = (content if isinstance(content, Cell) else Cell(content) for content in others)
    rest = (tag("td", cell.inside, class_="wide" if cell.wide else None) for cell in wrapped)
    return tag("tr", tag("th", first, scope="row"), *rest)


def items(entries: Iterable[object]) -> Html:
    """A bulleted list."""
    return tag("ul", *(tag("li", entry) for entry in entries))


def details(summary: object, *inside: object, opened: bool = False) -> Html:
    """Markup folded under a summary, unless ``opened``."""
    return tag("details", tag("summary", summary), *inside, open=opened)
