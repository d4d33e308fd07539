"""Files as byte streams, decompressed on the fly if their first bytes say gzip or Zstandard."""

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from launcher.base import files
from launcher.base.errors import unreadable
from launcher.data.unusable import Unusable, importing

GZIP, ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # First bytes: RFC 1952, section 2.3.1, and RFC 8878, section 3.1.1.

LARGEST_ROW = 1 << 28
"""Bytes of the largest row of a file; a longer one counts as broken, or as a decompression bomb."""

_CHUNK = 1 << 17
_FED = 1 << 11
"""Bytes passed to Zstandard at once: it can expand them some 32,000 times, all in one piece."""


@contextlib.contextmanager
def opened(path: Path, *, raw: io.BufferedReader | None = None) -> Iterator[io.BufferedIOBase]:
    """The content of a file; read errors inside the ``with`` block name the file.

    ``raw`` is the same file, opened by a caller that tracks how much of it was read.
    """
    with errors_named(path), contextlib.ExitStack() as stack:
        file = raw if raw is not None else stack.enter_context(files.opened(path))
        start = file.read(len(ZSTANDARD))
        file.seek(0)
        if start.startswith(GZIP):
            from gzip import GzipFile  # Late, because a check seldom reads a compressed file.

            yield stack.enter_context(GzipFile(fileobj=file))
        elif start == ZSTANDARD:
            yield io.BufferedReader(_Frames(file, path))
        else:
            yield file


@contextlib.contextmanager
def opened_text(
    path: Path, raw: io.BufferedReader | None = None, *, newline: str | None = None, lenient: bool = False
) -> Iterator[io.TextIOWrapper]:
    """The content of a file as text, like :func:`opened`; ``newline`` as for ``open``; a byte order mark is skipped.

    With ``lenient`` a byte that is not UTF-8 becomes half of a surrogate pair, which marks its row as bad.
    """
    errors = "surrogateescape" if lenient else "strict"
    with opened(path, raw=raw) as content:
        file = cast(io.BufferedReader, content)
        with io.TextIOWrapper(file, "utf-8-sig", errors=errors, newline=newline) as text:
            yield text


def _damage() -> tuple[type[Exception], ...]:
    import gzip
    import zlib

    return EOFError, zlib.error, gzip.BadGzipFile


@contextlib.contextmanager
def errors_named(path: Path) -> Iterator[None]:
    """Turn the errors of a reader into an :class:`Unusable` that names the file."""
    try:
        yield
    except _damage() as error:
        rule = f"the compressed file is truncated or damaged ({error}): copy or create it again"
        raise Unusable("data.path", str(path), rule) from None
    except UnicodeDecodeError as error:
        place = f"byte 0x{error.object[error.start]:02x} cannot be decoded"
        raise Unusable("data.path", str(path), f"it is not UTF-8 text ({place})") from None
    except OSError as error:
        raise Unusable("data.path", str(path), f"it cannot be read: {unreadable(error)}") from None


def holds_at_most(path: Path, size: int) -> bool:
    """True if the decompressed content of a file is at most ``size`` bytes."""
    with opened(path) as file:
        while size >= 0 and (chunk := file.read(min(_CHUNK, size + 1))):
            size -= len(chunk)
    return size >= 0


def is_compressed(path: Path) -> bool:
    """True if a file is gzip or Zstandard by its first bytes."""
    with errors_named(path), files.opened(path) as file:
        start = file.read(len(ZSTANDARD))
    return start.startswith(GZIP) or start == ZSTANDARD


class _Frames(io.RawIOBase):
    """Zstandard frames end to end as one stream; the package's own reader ends silently at a truncated file."""

    def __init__(self, file: io.BufferedIOBase, path: Path) -> None:
        with importing("data.path", str(path), "a .zst file needs zstandard"):
            import zstandard
        self._chunks = _decompressed(file, zstandard)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _decompressed(file: io.BufferedIOBase, zstandard: Any) -> Iterator[bytes]:
    decoder = None
    while chunk := file.read(_FED):
        while chunk:
            decoder = decoder or zstandard.ZstdDecompressor().decompressobj()
            try:
                content = decoder.decompress(chunk)
            except zstandard.ZstdError as error:
                raise EOFError(str(error)) from None
            if content:
                yield content
            chunk = decoder.unused_data if decoder.eof else b""
            decoder = None if decoder.eof else decoder
    if decoder is not None:
        raise EOFError("the file ends before its last frame does")
