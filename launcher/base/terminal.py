"""Terminal output: control characters in any text are escaped before they reach the terminal.

Commands run under :func:`guarded`, so that all their output passes through here; launch's own colors and progress bars
go to :func:`raw`. Messages go to stderr (:func:`say`), or to the program that uses the Python API.
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
"""Characters that no name, path or shell line may contain: a line break would end a line of the batch script."""

_UNSEEN = re.compile(rf"[\x00-\x08\x0b-\x1f{_ACTING}]")
"""Control characters that launch never prints: all except tab and line feed."""


_UNSEEN_BUT_COLOURS = rf"(\x1b\[[0-9;]*[mAK]|[\r\b])|{_UNSEEN.pattern}"


def visible(text: str) -> str:
    r"""Return the text with control characters escaped, as in ``\x1b`` and ``\u202e``."""
    return _UNSEEN.sub(_written_out, text)


def coloured(text: str) -> str:
    """Return a user program's output with control characters escaped, except colors and progress bars."""
    return re.sub(_UNSEEN_BUT_COLOURS, lambda match: match[1] or _written_out(match), text)


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def in_html(text: str) -> str:
    """Return text escaped for HTML and, as for a terminal, with bidirectional controls escaped."""
    from html import escape  # Imported late: few commands make a page.

    return escape(visible(text))


def as_json(document: object) -> str:
    """Return a document as JSON on one line of ASCII without control characters."""
    return json.dumps(document).replace("\x7f", "\\u007f")


class _Guarded:
    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        if isinstance(stream, io.TextIOWrapper):  # A terminal without UTF-8 shows other characters escaped, too.
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write text."""
        try:
            return self.stream.write(visible(text))
        except OSError as error:
            self.failed(error)
            return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        try:
            self.stream.flush()
        except OSError as error:
            self.failed(error)

    def failed(self, error: OSError) -> None:
        """Raise Unwritable, or BrokenPipeError if the reader of a pipe has closed it."""
        silence(self.stream)
        if isinstance(error, BrokenPipeError):
            raise error
        raise Unwritable(f"the output cannot be written to stdout: {error.strerror or error}") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _GuardedMessages(_Guarded):
    """A guarded stream of messages, which are dropped if it cannot be written."""

    def failed(self, error: OSError) -> None:
        """Drop all further output."""
        silence(self.stream)


def silence(stream: TextIO) -> None:
    """Discard a stream's buffered output, which the interpreter would try to write again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Pass all output of the block through :func:`visible`. Raises Unwritable if stdout is closed."""
    with contextlib.ExitStack() as stack:
        # In this order: an opened file takes the descriptor of a closed stream, and then all output meant for it.
        sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115
        messages = sys.stderr or stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123
        stack.enter_context(contextlib.redirect_stderr(cast("TextIO", _GuardedMessages(raw(messages)))))
        if sys.stdout is None:
            raise Unwritable("stdout is closed: to discard the output, use >/dev/null")
        stack.enter_context(contextlib.redirect_stdout(cast("TextIO", _Guarded(raw(sys.stdout)))))
        yield


def raw(stream: TextIO) -> TextIO:
    """Return the stream itself, for launch's own colors and progress bars; other texts need :func:`visible` first."""
    return stream.stream if isinstance(stream, _Guarded) else stream


def show_fault(kind: type[BaseException], fault: BaseException, trace: Any) -> None:
    """Print a traceback as ``sys.excepthook`` does, but through :func:`visible`, since it may quote files."""
    import traceback  # Imported late: only a bug needs it.

    if sys.stderr is not None:
        sys.stderr.write(visible("".join(traceback.format_exception(kind, fault, trace))))


def pasteable(words: Iterable[str]) -> str:
    """Return words quoted for a shell, one per line; in double quotes if a word contains single quotes."""
    plain = re.compile(r'[^"$`!\\]*')
    quoted = (f'"{word}"' if "'" in word and plain.fullmatch(word) else shlex.quote(word) for word in words)
    return " \\\n  ".join(quoted)


def width(widest: int = 100) -> int:
    """Return the terminal's columns, at most ``widest``; 80 without a terminal, or if it does not report them."""
    try:
        return min(widest, os.get_terminal_size(sys.stdout.fileno()).columns or 80)
    except (OSError, ValueError, AttributeError):  # stdout may be closed or missing.
        return 80


def say(text: str) -> None:
    """Print a message on stderr, so that stdout has only the result, or pass it to the API's listener."""
    _hears.get()(text)


def ask_person(question: str) -> str:
    """Ask the user on stderr; return the typed line, stripped."""
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def _on_stderr(text: str) -> None:
    print(visible(text), file=sys.stderr)  # noqa: T201 - Rich may show it, beside a progress bar.


_hears: ContextVar[Callable[[str], None]] = ContextVar("hears", default=_on_stderr)
"""The listener for messages, per thread, since a program may check in several."""


def is_heard_on_stderr() -> bool:
    """True if messages go to stderr and not to a program that uses the API."""
    return _hears.get() is _on_stderr


@contextlib.contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Pass the messages of :func:`say` to a listener within the block."""
    token = _hears.set(listener)
    try:
        yield
    finally:
        _hears.reset(token)


def wrapped(text: str | Iterable[str], columns: int, first: str = "", rest: str = "") -> list[str]:
    """Wrap a paragraph, or each of several, into lines, with prefixes for the first line and for the rest.

    Words are not broken, so that a path or a setting longer than ``columns`` can be copied.
    """
    import textwrap  # Imported late: a JSON document does not need it.

    wrapper = textwrap.TextWrapper(columns, first, rest, break_on_hyphens=False, break_long_words=False)
    return [line for each in ([text] if isinstance(text, str) else text) for line in wrapper.wrap(each)]


def filled(parts: Iterable[str], columns: int, between: str, first: str = "", rest: str = "") -> list[str]:
    """Join parts with a separator and wrap them into lines that break after one; prefixes as in :func:`wrapped`."""
    hard = "\N{NO-BREAK SPACE}"
    whole = f"{between.rstrip().replace(' ', hard)} ".join(part.replace(" ", hard) for part in parts)
    return [line.replace(hard, " ") for line in wrapped(whole, columns, first, rest)]
