"""Text on its way to a person: characters that act on a terminal are made visible, whatever file they come from.

The commands run under :func:`guarded`, so that whatever they print passes here; colours and progress bars of our own go
to :func:`raw`. Messages go to stderr (:func:`say`), or to the program that uses the Python API.
"""

import contextlib
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TextIO, cast

from launcher.base.errors import Unwritable

_ACTING = (
    r"\x7f-\x9f"  # DEL, and the controls of ISO 6429 in one byte (C1)
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Bidi_Control of Unicode (PropList.txt)
    r"\u2028\u2029"  # line and paragraph separator
    r"\ud800-\udfff"  # halves of a character, and bytes of a name that is not UTF-8
)
CONTROL = re.compile(rf"[\x00-\x1f{_ACTING}]")
"""Characters that no name, path or shell line holds: a line break would end a line of the batch script."""

_UNSEEN = re.compile(rf"[\x00-\x08\x0b-\x1f{_ACTING}]")
"""Those of them that no text of ours holds: all but the tab and the line feed."""


_UNSEEN_BUT_COLOURS = rf"(\x1b\[[0-9;]*[mAK]|[\r\b])|{_UNSEEN.pattern}"


def visible(text: str) -> str:
    r"""The text with acting characters written out, as in ``\x1b`` and ``\u202e``."""
    return _UNSEEN.sub(_written_out, text)


def coloured(text: str) -> str:
    """The text that a user's program prints while it is followed: of what acts its colours and progress bars stay."""
    return re.sub(_UNSEEN_BUT_COLOURS, lambda match: match[1] or _written_out(match), text)


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def in_html(text: str) -> str:
    """Text for a page, where bidirectional controls act as on a terminal."""
    from html import escape  # Late, because few commands make a page.

    return escape(visible(text))


def as_json(document: object) -> str:
    """A document in one line of ASCII, in which no character acts."""
    return json.dumps(document).replace("\x7f", "\\u007f")


class _Guarded:
    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        if isinstance(stream, io.TextIOWrapper):  # A terminal that is not of UTF-8 shows the others written out, too.
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write text."""
        try:
            return self.stream.write(visible(text))
        except OSError as error:
            self.failed(error)
            return len(text)

    def flush(self) -> None:
        """Push it out."""
        try:
            self.stream.flush()
        except OSError as error:
            self.failed(error)

    def failed(self, error: OSError) -> None:
        """Say that the answer cannot be written, by Unwritable; a reader who has gone is a BrokenPipeError."""
        silence(self.stream)
        if isinstance(error, BrokenPipeError):
            raise error
        raise Unwritable(f"the answer cannot be written to stdout: {error.strerror or error}") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _GuardedMessages(_Guarded):
    """A guarded stream of messages, which are dropped where it cannot be written."""

    def failed(self, error: OSError) -> None:
        """Go on in silence."""
        silence(self.stream)


def silence(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere: the interpreter would try to write it again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Let all that is printed meanwhile pass through :func:`visible`. Raises Unwritable if stdout is closed."""
    with contextlib.ExitStack() as stack:
        # In this order: a file that is opened gets the number of a closed stream, and later all that is meant for it.
        sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115
        messages = sys.stderr or stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123
        stack.enter_context(contextlib.redirect_stderr(cast("TextIO", _GuardedMessages(raw(messages)))))
        if sys.stdout is None:
            raise Unwritable("stdout is closed and the answer has no place: >/dev/null is for one that nobody wants")
        stack.enter_context(contextlib.redirect_stdout(cast("TextIO", _Guarded(raw(sys.stdout)))))
        yield


def raw(stream: TextIO) -> TextIO:
    """The stream itself, for colours and progress bars of our own; texts of others go there by :func:`visible`."""
    return stream.stream if isinstance(stream, _Guarded) else stream


def show_fault(kind: type[BaseException], fault: BaseException, trace: Any) -> None:
    """Print a traceback as ``sys.excepthook`` does; its texts may be a file's, and pass :func:`visible`."""
    import traceback  # Late, because only a fault needs it.

    if sys.stderr is not None:
        sys.stderr.write(visible("".join(traceback.format_exception(kind, fault, trace))))


def pasteable(words: Iterable[str]) -> str:
    """Words for a shell, one a line; in double quotes where a word holds single ones, as texts of overrides do."""
    plain = re.compile(r'[^"$`!\\]*')
    quoted = (f'"{word}"' if "'" in word and plain.fullmatch(word) else shlex.quote(word) for word in words)
    return " \\\n  ".join(quoted)


def width(widest: int = 100) -> int:
    """Columns of the terminal, at most so many; 80 where there is none, or it does not know."""
    try:
        return min(widest, os.get_terminal_size(sys.stdout.fileno()).columns or 80)
    except (OSError, ValueError, AttributeError):  # It may be closed, or never have been there.
        return 80


def say(text: str) -> None:
    """Give a message to a person: on stderr, so that stdout holds the result alone, unless the API hears it."""
    _hears.get()(text)


def ask_person(question: str) -> str:
    """Ask the person at the terminal, on stderr; the line that is typed, without its end."""
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def _on_stderr(text: str) -> None:
    print(visible(text), file=sys.stderr)  # noqa: T201 - Rich may show it, beside a progress bar.


_hears: ContextVar[Callable[[str], None]] = ContextVar("hears", default=_on_stderr)
"""Who hears the messages: of each thread of its own, since a program may check in several."""


def is_heard_on_stderr() -> bool:
    """True if messages go to stderr, and not to a program that uses the API."""
    return _hears.get() is _on_stderr


@contextlib.contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Give the messages of :func:`say` to a listener."""
    token = _hears.set(listener)
    try:
        yield
    finally:
        _hears.reset(token)


def wrapped(text: str | Iterable[str], columns: int, first: str = "", rest: str = "") -> list[str]:
    """Break a paragraph, or each of several, into lines, with an indent of its first one and of the others.

    No word is broken, so that a path or a setting that is longer than the ``columns`` can be copied.
    """
    import textwrap  # Late, because a document needs none.

    wrapper = textwrap.TextWrapper(columns, first, rest, break_on_hyphens=False, break_long_words=False)
    return [line for each in ([text] if isinstance(text, str) else text) for line in wrapper.wrap(each)]


def filled(parts: Iterable[str], columns: int, between: str, first: str = "", rest: str = "") -> list[str]:
    """Break parts with a mark between them into lines that end behind a mark; indents as of :func:`wrapped`."""
    hard = "\N{NO-BREAK SPACE}"
    whole = f"{between.rstrip().replace(' ', hard)} ".join(part.replace(" ", hard) for part in parts)
    return [line.replace(hard, " ") for line in wrapped(whole, columns, first, rest)]
