"""Samples of conversations on the terminal, token by token, with what of them is trained (``data.preview``)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from launcher.base import machine, terminal
from launcher.base.errors import DataError
from launcher.base.terminal import say
from launcher.data.unusable import NotHere, PackageMissing
from launcher.preflight import this_machine
from launcher.spec import RunSpec

if TYPE_CHECKING:
    from rich.text import Text

    from launcher.data.encoding import Preview, Token

_TRAINED = ("black on green", "black on bright_green")
_READ = ("white on grey23", "white on grey37")
"""Styles of neighbouring tokens, by turns."""


def previews(spec: RunSpec) -> list[Preview]:
    """The samples that ``data.preview`` asks for; none, and a message, where this machine cannot read them.

    Raises:
        DataError: The data cannot be used, and the run is for this machine.
    """
    if not spec.data.preview or not spec.data.marked or spec.script is not None:
        return []
    from launcher.data.encoding import previews as of_data

    try:
        return of_data(spec.data, spec.sequence_length)
    except (NotHere, PackageMissing) as error:
        why = str(error)
    except ImportError as error:
        why = f"the package {error.name} is not installed for this Python"
    except DataError as error:
        if this_machine.is_meant(spec, machine.facts()):
            raise
        why = str(error)
    say(f"launch: no preview, since this machine cannot read the job's data: {why}")
    return []


def as_json(document: dict[str, Any], found: Sequence[Preview]) -> dict[str, Any]:
    """The document of a check with the samples under ``data``."""
    if not found:
        return document
    return document | {"data": (document.get("data") or {}) | {"preview": [each.as_dict() for each in found]}}


def show(found: Sequence[Preview]) -> None:
    """Print the samples; without colours what is trained stands in brackets."""
    if not found:
        return
    from rich.console import Console

    console = Console(file=terminal.raw(sys.stdout), highlight=False, soft_wrap=True)
    coloured = console.color_system is not None
    how = "[black on green]green[/]" if coloured else "in \u27e6 \u27e7"
    for each in found:
        cut = f", {each.cut} more are cut off" if each.cut else ""
        console.print(f"\nrow {each.row}: {len(each.tokens)} tokens{cut}; {each.trained} are trained, {how}")
        console.print(_coloured(each.tokens) if coloured else _bracketed(each.tokens), markup=False)


def _coloured(tokens: Sequence[Token]) -> Text:
    from rich.text import Text

    found = Text()
    for number, token in enumerate(tokens):
        found.append(_visible(token.text), (_TRAINED if token.trained else _READ)[number % 2])
    return found


def _bracketed(tokens: Sequence[Token]) -> str:
    runs = (
        (trained, "".join(token.text for token in run)) for trained, run in groupby(tokens, lambda token: token.trained)
    )
    return "".join(f"\u27e6{_visible(text)}\u27e7" if trained else _visible(text) for trained, text in runs)


def _visible(text: str) -> str:
    return terminal.visible(text).replace("\n", "\u21b5\n")
