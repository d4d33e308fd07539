"""HTML made of tags, in which every text is escaped unless it was made here.

Names of models, paths and messages are a user's, a recipe's or a job's: :func:`tag` escapes what is no :class:`Html`,
so that nothing of them can become markup by being forgotten.
"""

from collections.abc import Iterable, Sequence

from launcher.base.frozen import dataclass
from launcher.base.terminal import in_html

_VOID = frozenset({"input", "meta", "br"})


class Html(str):
    """Markup: the text of tags that were made by :func:`tag`, or that a programmer wrote."""

    __slots__ = ()


def text(value: object) -> Html:
    """Anything as markup: escaped, unless it is markup already."""
    return value if isinstance(value, Html) else Html(in_html(str(value)))


def tag(name: str, *inside: object, **attributes: object) -> Html:
    """An element of texts, which are escaped, and markup.

    In an attribute's name ``_`` stands for ``-``, with one more at the end where Python has the word for itself
    (``class_``); True stands alone, and None and False are left out.
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
    """Texts and markup one after the other."""
    return Html("".join(map(text, parts)))


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table."""

    inside: object  # What it shows, markup or text.
    # True for sentences, which are wrapped and start on the left; False for numbers and single words.
    wide: bool = False


def table(
    heads: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    caption: object = None,
    foot: Iterable[Sequence[object]] = (),
    identity: str | None = None,
) -> Html:
    """A table: a row's first cell is its name; texts and numbers are escaped."""
    parts = [] if caption is None else [tag("caption", caption)]
    if heads:
        parts.append(tag("thead", tag("tr", *(tag("th", head, scope="col") for head in heads))))
    parts.append(tag("tbody", *map(_row, rows)))
    feet = [_row(row) for row in foot]
    parts += [tag("tfoot", *feet)] if feet else []
    # A wide table is scrolled in its own box, which the keyboard reaches.
    return tag("div", tag("table", *parts, id=identity), class_="scrolled", tabindex="0", role="group")


def _row(cells: Sequence[object]) -> Html:
    first, *others = cells
    wrapped = (content if isinstance(content, Cell) else Cell(content) for content in others)
    rest = (tag("td", cell.inside, class_="wide" if cell.wide else None) for cell in wrapped)
    return tag("tr", tag("th", first, scope="row"), *rest)


def items(entries: Iterable[object]) -> Html:
    """A list of sentences."""
    return tag("ul", *(tag("li", entry) for entry in entries))


def details(summary: object, *inside: object, opened: bool = False) -> Html:
    """Markup that is folded away below a summary, unless it is ``opened``."""
    return tag("details", tag("summary", summary), *inside, open=opened)
