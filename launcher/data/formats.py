"""Formats of data files, recognised by their content: rows of tables, or plain text.

The first bytes identify Parquet and Arrow, and the first value identifies JSON. Only the suffix separates CSV from text
and broken JSON from text (``.csv``, ``.tsv``, ``.json``, ``.jsonl``, ``.ndjson``, also with ``.gz`` or ``.zst`` added).
"""

import codecs
import csv
import io
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal, TextIO

from launcher.data import arrow_rows, json_rows
from launcher.data.opening import LARGEST_ROW, is_compressed, opened, opened_text
from launcher.data.unusable import SKIPPING, BadRows, Unusable

type Kind = Literal["text", "jsonl", "json", "csv", "parquet", "arrow", "empty"]
"""The kind of a file's content; ``empty`` is a file of zero bytes."""

type Row = Mapping[str, object]

READ = "text, JSON lines, JSON, CSV, Parquet, Arrow, all but the last two also as .gz or .zst"
"""The kinds that can be read, for messages."""

_START = 1 << 16
_MAGIC: dict[bytes, Kind] = {arrow_rows.PARQUET: "parquet", arrow_rows.FILE: "arrow", arrow_rows.STREAM: "arrow"}
_SUFFIXES: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "csv"}
_OBJECT = re.compile(r'\s*\{\s*("(?:[^"\\]|\\.)*"\s*:|\})')
_LIST = re.compile(r'\s*\[\s*(\{\s*["}]|\]\s*$)')
_ROWS_LOOKED_AT = 100


def kind_of(path: Path) -> Kind:
    """The kind of a file's content."""
    with opened(path) as file:
        start = file.read(_START)
    if not start:
        return "empty"
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    if kind is not None:
        if is_compressed(path):
            rule = f"{kind.capitalize()} is already compressed and cannot be read through gzip or zstd: unpack it"
            raise Unusable("data.path", str(path), rule)
        return kind
    named = suffix(path) in _SUFFIXES  # The suffix says rows: the reader of the rows reports a bad one.
    return _kind_of_text(_decoded(start, path, lenient=named), suffix(path), whole=len(start) < _START)


def kind_of_all(files: Sequence[Path]) -> Kind:
    """The kind of the files' content; Unusable if they mix kinds."""
    seen: dict[Kind, Path] = {}
    for path in files:
        seen.setdefault(kind_of(path), path)
    seen.pop("empty", None)
    if len(seen) > 1:
        some = ", ".join(f"{kind} ({path})" for kind, path in seen.items())
        endings = sorted({path.suffix for path in seen.values()})
        ways = [f"data.path={path.parent}/*{path.suffix}" for path in seen.values()] if len(endings) > 1 else []
        raise Unusable("data.path", str(files[0].parent), f"it mixes kinds of files: {some}; name one kind", ways)
    return next(iter(seen), "empty")


def suffix(path: Path) -> str:
    """The suffix of a file, ignoring the one of its compression."""
    suffixes = [part.lower() for part in path.suffixes if part.lower() not in (".gz", ".zst")]
    return suffixes[-1] if suffixes else ""


def _decoded(start: bytes, path: Path, *, lenient: bool) -> str:
    fault, ways = "it contains zero bytes, so it is not text", [f"data=tokens data.path={path}"]
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")("replace" if lenient else "strict").decode(start)
    except UnicodeDecodeError as error:
        fault = f"it is not UTF-8 text (byte {error.start} cannot be decoded)"
    else:
        if "\0" not in text:
            return text
    way = "token ids are data=tokens"
    if b"\0" not in start or start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # No small token id.
        way, ways = "convert text of another encoding, as by iconv -t UTF-8", []
    raise Unusable("data.path", str(path), f"{fault}, nor any of {READ}; {way}", ways)


def _kind_of_text(text: str, ending: str, *, whole: bool) -> Kind:
    named = _SUFFIXES.get(ending, "text")
    if _LIST.match(text):
        return "json"
    if not _OBJECT.match(text):
        return named
    first, newline, rest = text.lstrip().partition("\n")
    if _is_object(first):
        several = bool(rest.strip()) or not whole
        return "jsonl" if named != "json" or several else "json"
    if not newline and not whole:  # The first row is longer than what was read.
        return "json" if named == "json" else "jsonl"
    if named in ("json", "jsonl"):
        return named
    return "json" if not whole or _is_object(text) else named


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def rows(
    path: Path, *, only: Sequence[str] | None = None, raw: io.BufferedReader | None = None, bad: BadRows | None = None
) -> Generator[Row]:
    """The rows of a table, one by one; Unusable for plain text.

    ``only`` are the wanted columns, for formats that can skip the others; ``raw`` as for ``opening.opened``; ``bad``
    skips or refuses what is not a row, and is told where each row is. None: such a row is an error.
    """
    kind = kind_of(path)
    if kind == "jsonl":
        yield from json_rows.lines(path, raw, bad)
    elif kind == "json":
        yield from json_rows.document(path, raw, bad)
    elif kind == "csv":
        yield from _csv(path, raw, bad or BadRows())
    elif kind in ("parquet", "arrow"):
        yield from arrow_rows.rows(path, only, bad)
    elif kind == "text":
        raise Unusable("data.path", str(path), "it is plain text, without rows and columns", ["data=text"])


def columns(path: Path, bad: BadRows | None = None) -> tuple[str, ...]:
    """The names of the columns; in JSON, of the first hundred rows that ``bad`` accepts, or of fewer large ones."""
    kind = kind_of(path)
    if kind in ("parquet", "arrow"):
        return arrow_rows.columns(path)
    found, seen = dict[str, None](), 0
    for row in islice(rows(path, bad=bad), _ROWS_LOOKED_AT):
        found |= dict.fromkeys(row)
        seen += arrow_rows.size_of(row)
        if seen > LARGEST_ROW // 16:
            break
    return tuple(found)


def delimiter(header: str) -> str:
    """The delimiter of a CSV file: comma, semicolon, tab or bar, whichever its header contains most."""
    return max(",;\t|", key=header.count)


def _csv(path: Path, raw: io.BufferedReader | None, bad: BadRows) -> Iterator[Row]:
    csv.field_size_limit(LARGEST_ROW)  # A document in a field can exceed csv's limit of 128 KiB.
    with opened_text(path, raw, newline="", lenient=bad.skips) as text:
        content = _csv_lines(text, path)
        first = next(content, "")
        (names,) = csv.reader([first], delimiter=delimiter(first))
        if len(set(names)) < len(names) or not all(names):
            rule = f"its first line must name the columns, each once, and is {first.strip()[:80]!r}"
            raise Unusable("data.path", str(path), rule)
        reader = csv.reader(content, delimiter=delimiter(first), strict=True)
        begins = reader.line_num
        while (found := _csv_fields(reader, path)) is not None:
            lines, begins = reader.line_num - begins, reader.line_num
            if not found:
                continue
            bad.at(path, "line", reader.line_num + 1)
            try:
                if isinstance(found, Unusable):
                    raise found
                row = _csv_row(names, found, path, reader.line_num + 1)
            except Unusable as error:
                bad.refuse(error, rows=max(1, lines))  # An unclosed quote swallows all that follows.
            else:
                yield row


def _csv_lines(text: TextIO, path: Path) -> Iterator[str]:
    number = 0
    while line := text.readline(LARGEST_ROW):
        number += 1
        if len(line) == LARGEST_ROW and not line.endswith(("\n", "\r")):
            rule = f"line {number} is longer than {LARGEST_ROW >> 20} MiB, the limit for a row"
            raise Unusable("data.path", str(path), rule)
        yield line


def _csv_fields(reader: Iterator[list[str]], path: Path) -> list[str] | Unusable | None:
    try:
        return next(reader, None)
    except csv.Error as error:
        line = getattr(reader, "line_num", 0) + 1
        return Unusable("data.path", str(path), f"broken CSV in line {line}: {error}", [SKIPPING])


def _csv_row(names: Sequence[str], fields: Sequence[str], path: Path, line: int) -> Row:
    if len(fields) != len(names):
        rule = f"broken CSV in line {line}: {len(fields)} fields, and the header has {len(names)}"
        raise Unusable("data.path", str(path), rule, [SKIPPING])
    return dict(zip(names, fields, strict=True))
