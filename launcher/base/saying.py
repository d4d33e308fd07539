"""Messages to a person: on stderr, so that stdout holds the result alone, or to the program that uses the API."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from launcher.base import terminal


def say(text: str) -> None:
    """Give a message to a person: on stderr, so that stdout holds the result alone, unless the API hears it."""
    _hears.get()(text)


def asked(question: str) -> str:
    """Ask the person at the terminal, on stderr; the line that is typed, without its end."""
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def _on_stderr(text: str) -> None:
    print(terminal.visible(text), file=sys.stderr)  # noqa: T201 - Rich may show it, beside a progress bar.


_hears: ContextVar[Callable[[str], None]] = ContextVar("hears", default=_on_stderr)
"""Who hears the messages: of each thread of its own, since a program may check in several."""


def is_heard_on_stderr() -> bool:
    """True if messages go to stderr, and not to a program that uses the API."""
    return _hears.get() is _on_stderr


@contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Give the messages of :func:`say` to a listener."""
    token = _hears.set(listener)
    try:
        yield
    finally:
        _hears.reset(token)
