"""Samples of data files, spread over the files, in a time that does not grow with their size.

A block is some adjacent rows; its weight is how many bytes on disk it represents. Small data is read whole. Large JSON
lines, text, Parquet and Arrow are also sampled in the middle; of CSV, JSON and compressed files only the start of some
files is read, since nothing else tells where a row begins.
"""

import codecs
import io
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.base import files as regular
from launcher.base.frozen import dataclass
from launcher.data import arrow_rows, documents, formats, json_rows
from launcher.data.formats import Kind, Row
from launcher.data.opening import errors_named, holds_at_most, is_compressed, opened
from launcher.data.unusable import BadRows, Unusable

WHOLE = 4 << 20  # Bytes of data that are read whole.
_UNPACKED = 4 * WHOLE  # Limit on their decompressed bytes.
FILES = 64  # Files, and places in them, that are sampled from larger data.
_PIECE = 1 << 14
_ROWS = 64
_STARTS, _STARTED = 4, 1 << 21  # Files whose start is read, and the total characters of these starts.
_SHORT = 1 << 12
_COUNTED = 1 << 28
_SEEKABLE = ("text", "jsonl")  # Kinds in which a row can be found from any offset: after the next line end.


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Adjacent rows, or one piece of a text."""

    weight: float  # Bytes on disk that it represents.
    rows: Sequence[Row] = ()  # Its rows; none for a text.
    text: str | None = None  # A text; None for rows.
    documents: int  # Whole documents in it.
    places: Sequence[str] = ()  # The file and, if known, the line of each row.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The part of some files that was read."""

    kind: Kind  # The kind of all files.
    weight: float  # Bytes on disk of all data.
    blocks: Sequence[Block]  # What was read.
    whole: bool  # True if the blocks are all of the data.
    rows: int | None  # The number of rows, for texts of documents; None if unknown.
    packed: bool  # True if files are gzip or Zstandard.


def sample(files: Sequence[Path], bad: BadRows, *, only: Sequence[str] | None = None) -> Sample:
    """Sample files, which are not empty and of one kind; ``only`` and ``bad`` as for ``formats.rows``."""
    kind = _kind(files)
    sizes = [path.stat().st_size for path in files]
    packed = any(map(is_compressed, _spread(files, FILES)))
    small = WHOLE if kind != "parquet" and not packed else WHOLE // 8
    whole = len(files) <= 20 * FILES and sum(sizes) <= small and _is_small(files, kind, packed=packed)
    placed = list(zip(files, sizes, strict=True))
    rows = len(files) if kind == "text" else None
    if whole:
        found = [_file(path, kind, size, bad) for path, size in placed]
        rows = sum(block.documents for block in found)
    elif kind in ("parquet", "arrow"):
        found = [block for path, size in _spread(placed, FILES // 4) for block in _of_table(path, size, only, bad)]
        rows = sum(map(arrow_rows.count, files)) if len(files) <= FILES else None
    elif kind in _SEEKABLE and not packed:
        found = [_piece(*place, kind, bad) for place in places(files, sizes)]
    else:
        starts = _spread(placed, _STARTS)
        found = [block for path, size in starts for block in _start(path, kind, size, _STARTED // len(starts), bad)]
    return Sample(kind=kind, weight=float(sum(sizes)), blocks=found, whole=whole, rows=rows, packed=packed)


def _is_small(files: Sequence[Path], kind: Kind, *, packed: bool) -> bool:
    left = _UNPACKED // max(1, len(files))
    if kind not in ("parquet", "arrow"):
        return not packed or all(holds_at_most(path, left) for path in files)
    for path in files:
        seen = 0
        for row in arrow_rows.rows(path, bad=BadRows(skips=True)):
            seen += arrow_rows.size_of(row)
            if seen > left:
                return False
    return True


def _kind(files: Sequence[Path]) -> Kind:
    by_suffix = {path.suffix: path for path in files}
    chosen = files if len(files) <= FILES else [*by_suffix.values(), *_spread(files, FILES)]
    return formats.kind_of_all(chosen)


def _spread[T](items: Sequence[T], count: int) -> list[T]:
    if len(items) <= count:
        return list(items)
    return [items[number * (len(items) - 1) // (count - 1)] for number in range(count)]


def _file(path: Path, kind: Kind, size: int, bad: BadRows) -> Block:
    if kind == "text":
        return _of_text(path, size, bad)
    return _block(size, [(row, bad.place) for row in formats.rows(path, bad=bad)])


def _of_text(path: Path, size: int, bad: BadRows) -> Block:
    bad.at(path, "document", 1)
    try:
        return Block(weight=size, text="".join(documents.pieces(path)), documents=1)
    except Unusable as error:
        bad.refuse(error)
        return Block(weight=size, text="", documents=0)


def _block(weight: float, placed: Sequence[tuple[Row, str]]) -> Block:
    rows, places = [row for row, _ in placed], [place for _, place in placed]
    return Block(weight=weight, rows=rows, documents=len(rows), places=places)


def places(files: Sequence[Path], sizes: Sequence[int]) -> Iterator[tuple[Path, int, int]]:
    """Files, their sizes and offsets, evenly spaced over all of the data laid end to end."""
    total, start, number = sum(sizes), 0, 0
    for path, size in zip(files, sizes, strict=True):
        while number < FILES and (place := (total - 1) * number // (FILES - 1)) < start + size:
            yield path, size, max(0, min(place - start, size - _PIECE))
            number += 1
        start += size


def _piece(path: Path, size: int, offset: int, kind: Kind, bad: BadRows) -> Block:
    with errors_named(path), regular.opened(path) as file:
        file.seek(max(0, offset - 1))
        if offset and kind == "jsonl":
            file.readline()
        start = file.tell() if kind == "jsonl" else offset
        file.seek(start)
        content = file.read(_PIECE)
        if kind == "jsonl":
            content += file.readline()
    if kind == "text":
        bad.at(path, "piece", None)
        try:
            text, whole = _text(content, path, start), int(len(content) >= size)
        except Unusable as error:
            bad.refuse(error)
            text, whole = "", 0
        return Block(weight=len(content), text=text, documents=whole)
    return _block(len(content), _rows(content.splitlines(), path, start, size, bad))


def _text(content: bytes, path: Path, offset: int) -> str:
    while offset and content and content[0] & 0xC0 == 0x80:
        content = content[1:]
    with errors_named(path):
        return codecs.getincrementaldecoder("utf-8")().decode(content)


def _rows(lines: Sequence[bytes], path: Path, offset: int, size: int, bad: BadRows) -> list[tuple[Row, str]]:
    first = None
    try:
        for _ in json_rows.parsed(lines, path, first=None):
            pass
    except Unusable:
        if size <= _COUNTED:
            with regular.opened(path) as file:
                first = file.read(offset).count(b"\n") + 1
    return [(row, bad.place) for row in json_rows.parsed(lines, path, first=first, bad=bad)]


def _of_table(path: Path, size: int, only: Sequence[str] | None, bad: BadRows) -> Iterator[Block]:
    total = arrow_rows.count(path)
    for rows in arrow_rows.pieces(path, _spread, _ROWS, only, bad, WHOLE):
        yield _block(size * len(rows) / total, [(row, f"{path}, a row") for row in rows])


class _Short(io.BufferedReader):
    """A file read in small steps, so that its position tells how much a decompressor has consumed."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(_SHORT if size is None or not 0 <= size <= _SHORT else size)


def _start(path: Path, kind: Kind, size: int, chars: int, bad: BadRows) -> Iterator[Block]:
    with errors_named(path), _Short(io.FileIO(regular.descriptor(path, os.O_RDONLY))) as raw:
        if kind == "text":
            with opened(path, raw=raw) as file:
                text = codecs.getincrementaldecoder("utf-8")().decode(file.read(chars))
            read = min(size, raw.tell())
            for start in range(0, len(text), _PIECE):
                piece = text[start : start + _PIECE]
                yield Block(weight=read * len(piece) / len(text), text=piece, documents=0)
            return
        rows = formats.rows(path, raw=raw, bad=bad)
        groups = list(_groups(((row, bad.place) for row in rows), chars))
        read = size if raw.closed else min(size, raw.tell())  # A reader that reached the end has closed it.
        rows.close()
    for group in groups:
        yield _block(read * len(group) / sum(map(len, groups)), group)


def _groups(rows: Iterator[tuple[Row, str]], chars: int) -> Iterator[list[tuple[Row, str]]]:
    group, seen = list[tuple[Row, str]](), 0
    for row, place in rows:
        group.append((row, place))
        seen += arrow_rows.size_of(row)
        if len(group) == _ROWS or seen >= chars:
            yield group
            group = []
        if seen >= chars:
            return
    if group:
        yield group


def ratio_estimate(total: float, weights: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Estimate of a total from weighted samples, and two standard errors of it.

    With r = sum(y) / sum(x) the variance of r X is about X^2 (1 - f) n / (n - 1) sum((y - r x)^2) / sum(x)^2, where f
    is the part that was sampled. A single sample has no known error: the whole estimate is returned as error.
    """
    sampled, count = sum(weights), len(weights)
    if not sampled:
        return 0.0, 0.0
    ratio = sum(values) / sampled
    if count < 2:
        return total * ratio, total * ratio
    spread = sum((value - ratio * weight) ** 2 for weight, value in zip(weights, values, strict=True))
    left = max(0.0, 1 - sampled / total)
    return total * ratio, 2 * total / sampled * math.sqrt(left * count / (count - 1) * spread)
