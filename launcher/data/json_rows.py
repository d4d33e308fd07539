"""Rows of JSON files, read as a stream: one per line, the elements of one list, or one object.

Errors name the file and the line. A list is decoded element by element, so that a file of many gigabytes is not held.
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from launcher.data.opening import LARGEST_ROW, opened, opened_text
from launcher.data.unusable import SKIPPING, BadRows, Unusable

type Row = Mapping[str, object]

_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 16


def lines(path: Path, raw: io.BufferedReader | None = None, bad: BadRows | None = None) -> Iterator[Row]:
    """The rows of a file with one JSON object per line; ``raw`` as for :func:`opened`."""
    with opened(path, raw=raw) as file:
        yield from parsed(_lines(file), path, bad=bad)


def _lines(file: io.BufferedIOBase) -> Iterator[bytes | None]:
    while line := file.readline(LARGEST_ROW):
        too_long = len(line) == LARGEST_ROW and not line.endswith(b"\n")
        yield None if too_long else line
        while too_long and line and not line.endswith(b"\n"):
            line = file.readline(_CHUNK)


def parsed(
    file: Iterable[bytes | None], path: Path, *, first: int | None = 1, bad: BadRows | None = None
) -> Iterator[Row]:
    """The rows of lines, where None is a line that is too long; ``first`` is the first line's number, or None.

    ``bad`` skips a line that is not JSON or not an object; None: it is an error.
    """
    bad = bad or BadRows()
    for number, line in enumerate(file, first or 1):
        content = None if line is None else line.removeprefix(_BOM).strip()
        if content == b"":
            continue
        bad.at(path, "line", None if first is None else number)
        try:
            row = _of_line(content, path, "a line" if first is None else f"line {number}")
        except Unusable as error:
            bad.refuse(error)
        else:
            yield row


def _of_line(content: bytes | None, path: Path, where: str) -> Row:
    if content is None:
        rule = f"{where} is longer than {LARGEST_ROW >> 20} MiB, the limit for a row"
        raise Unusable("data.path", str(path), rule, [SKIPPING])
    try:
        value = json.loads(content)
    except UnicodeDecodeError as error:
        rule = f"{where} is not UTF-8 text (byte {error.start} cannot be decoded)"
        raise Unusable("data.path", str(path), rule, [SKIPPING]) from None
    except (ValueError, RecursionError) as error:
        why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise Unusable("data.path", str(path), f"broken JSON in {where}: {why}", [SKIPPING]) from None
    return _row(value, path, where)


def document(path: Path, raw: io.BufferedReader | None = None, bad: BadRows | None = None) -> Iterator[Row]:
    """The rows of a JSON document: the objects of its list, or of the one list of objects that its object holds."""
    bad = bad or BadRows()
    with opened_text(path, raw, lenient=bad.skips) as text:
        for number, (value, where) in enumerate(_values(text, path), 1):
            bad.at(path, "element", number)
            try:
                row = _row(value, path, where)
            except Unusable as error:
                bad.refuse(error)
            else:
                yield row


def _values(text: TextIO, path: Path) -> Iterator[tuple[object, str]]:
    scan = _Scan(text, path)
    if scan.peek() == "[":
        yield from _elements(scan, path)
        return
    row = _row(scan.value(), path, "the document")
    if scan.peek():
        raise _broken(path, f"line {scan.line}", "there is more after the document")
    inner = [value for value in row.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(inner) != 1:
        yield row, "the document"
        return
    yield from ((value, f"element {number}") for number, value in enumerate(inner[0], 1))


def _elements(scan: "_Scan", path: Path) -> Iterator[tuple[object, str]]:
    scan.skip()
    number = 0
    while scan.peek() != "]":
        if number and scan.peek() != ",":
            raise _broken(path, f"line {scan.line}", "expected ',' or ']' after an element")
        if number:
            scan.skip()
        number += 1
        yield scan.value(), f"element {number}"
    scan.skip()
    if scan.peek():
        raise _broken(path, f"line {scan.line}", "there is more after the list")


def _row(value: object, path: Path, where: str) -> Row:
    if isinstance(value, dict):
        return value
    kinds = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    rule = f'{where} holds {kinds.get(type(value), "null")}, and a row must be an object: {{"text": ...}}'
    raise Unusable("data.path", str(path), rule)


def _broken(path: Path, where: str, why: str) -> Unusable:
    return Unusable("data.path", str(path), f"broken JSON in {where}: {why}")


class _Scan:
    def __init__(self, text: TextIO, path: Path) -> None:
        self._text, self._path = text, path
        self._buffer, self._at, self._lines = "", 0, 0
        self._decoder = json.JSONDecoder()

    @property
    def line(self) -> int:
        """The line number of the current position."""
        return self._lines + self._buffer.count("\n", 0, self._at) + 1

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._buffer) and self._buffer[self._at].isspace():
                self._at += 1
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if not self._more(_CHUNK):
                return ""

    def skip(self) -> None:
        """Skip the character that :meth:`peek` returned."""
        self._at += 1

    def value(self) -> object:
        """The next value; reads on until it is complete."""
        self.peek()
        size = _CHUNK
        while True:
            try:
                value, self._at = self._decoder.raw_decode(self._buffer, self._at)
            except (json.JSONDecodeError, RecursionError) as error:
                if len(self._buffer) - self._at < LARGEST_ROW and self._more(size):
                    size *= 2
                    continue
                if isinstance(error, RecursionError):
                    raise _broken(self._path, f"line {self.line}", "it is nested too deeply") from None
                where = f"line {self._lines + error.lineno}"
                raise _broken(self._path, where, f"{error.msg} at column {error.colno}") from None
            return value

    def _more(self, size: int) -> bool:
        content = self._text.read(size)
        if content:
            self._lines += self._buffer.count("\n", 0, self._at)
            self._buffer, self._at = self._buffer[self._at :] + content, 0
        return bool(content)
