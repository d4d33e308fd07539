"""A run's data on this machine: making token ids with a progress bar, and previews of conversations by token."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.actions.requests import folder
from launcher.actions.waiting import elapsed
from launcher.base import machine, terminal
from launcher.base.errors import DataError, LauncherError
from launcher.base.files import JsonObject
from launcher.base.terminal import say
from launcher.base.units import count
from launcher.data.unusable import NotHere, PackageMissing
from launcher.preflight import this_machine
from launcher.spec import RunSpec

if TYPE_CHECKING:
    from rich.text import Text

    from launcher.data.encoding import Preview, Token
    from launcher.data.token_folder import TokenFolder


def token_root(spec: RunSpec) -> Path:
    """The cache folder for the run's token ids."""
    from launcher.data import token_folder  # Late, because a check shows previews but makes no token ids.

    return token_folder.root(spec, {**os.environ, **spec.cluster.environment}, folder(), None)


def make_token_ids(spec: RunSpec, *, quiet: bool) -> "tuple[TokenFolder, bool]":
    """Make the token ids of a run's data, or find them; also returns True if they were made just now."""
    from launcher.data.prepare import Progress, prepared  # Late, because numpy takes 0.1 s.

    place, made, began = token_root(spec), False, time.monotonic()
    with nullcontext(lambda text: None) if quiet else elapsed("token ids") as say_now:

        def show(progress: Progress) -> None:
            nonlocal made
            made = True
            megabytes = progress.text_bytes / 1e6
            rate = megabytes / max(time.monotonic() - began, 1e-3)
            text = f"{megabytes:,.0f} MB of text, {rate:,.1f} MB/s, " if megabytes else ""
            say_now(f"token ids: {text}{count(progress.tokens)} tokens")

        waits = f"launch: another process is making the same token ids in {place}; waiting for it"
        found = prepared(spec.data, place, tell=show, waits=lambda: say(waits))
    return found, made


def existing_token_ids(spec: RunSpec) -> "TokenFolder | None":
    """Existing token ids for data or a tokenizer of the Hub; None if there are none or the caches here lack it."""
    from launcher.data import hub, token_folder
    from launcher.data.files import is_on_hub

    data = spec.data
    sets = [each for each in data.sets if is_on_hub(each)]
    if any(hub.commit("dataset", each.path or "", each.revision) is None for each in sets):
        return None
    if not sets and hub.named(data.tokenizer) is None:
        return None
    from launcher.data.prepare import digest_of  # Late, because numpy takes 0.1 s.

    try:
        return token_folder.read(token_root(spec) / digest_of(data))
    except LauncherError:
        return None


_TRAINED = ("black on green", "black on bright_green")
_READ = ("white on grey23", "white on grey37")  # Alternating styles of neighbouring tokens.


def read_previews(spec: RunSpec) -> "list[Preview]":
    """The samples that ``data.preview`` requests; none, with a message, if this machine cannot read them."""
    if not spec.data.preview or not spec.data.is_chat or spec.script is not None:
        return []
    from launcher.data.encoding import previews as of_data

    try:
        return of_data(spec.data.trained[0], spec.sequence_length)
    except (NotHere, PackageMissing) as error:
        why = str(error)
    except ImportError as error:
        why = f"the package {error.name} is not installed for this Python"
    except DataError as error:
        if this_machine.is_meant(spec, machine.facts()):
            raise
        why = str(error)
    say(f"launch: no preview, because this machine cannot read the job's data: {why}")
    return []


def with_previews(document: JsonObject, found: "Sequence[Preview]") -> JsonObject:
    """The document of a check with the samples under ``data``."""
    if not found:
        return document
    return document | {"data": (document.get("data") or {}) | {"preview": [each.as_dict() for each in found]}}


def show_previews(found: "Sequence[Preview]") -> None:
    """Print the samples; without colours the trained tokens are in brackets."""
    if not found:
        return
    from rich.console import Console

    console = Console(file=terminal.raw(sys.stdout), highlight=False, soft_wrap=True)
    coloured = console.color_system is not None
    how = "[black on green]green[/]" if coloured else "in \u27e6 \u27e7"
    for each in found:
        cut = f", {each.cut} more are truncated" if each.cut else ""
        console.print(f"\nrow {each.row}: {len(each.tokens)} tokens{cut}; {each.trained} are trained, {how}")
        console.print(_coloured(each.tokens) if coloured else _bracketed(each.tokens), markup=False)


def _coloured(tokens: "Sequence[Token]") -> "Text":
    from rich.text import Text

    found = Text()
    for number, token in enumerate(tokens):
        found.append(_visible(token.text), (_TRAINED if token.trained else _READ)[number % 2])
    return found


def _bracketed(tokens: "Sequence[Token]") -> str:
    groups = groupby(tokens, lambda token: token.trained)
    runs = ((trained, "".join(token.text for token in run)) for trained, run in groups)
    return "".join(f"\u27e6{_visible(text)}\u27e7" if trained else _visible(text) for trained, text in runs)


def _visible(text: str) -> str:
    return terminal.visible(text).replace("\n", "\u21b5\n")
