"""Rows of Parquet and Arrow files, read by pyarrow batch by batch."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from launcher.base import files
from launcher.data.opening import errors_named
from launcher.data.unusable import BadRows, Unusable, importing

PARQUET = b"PAR1"  # First bytes of a Parquet file (Apache Parquet, "File Format").
FILE, STREAM = b"ARROW1", b"\xff\xff\xff\xff"
"""First bytes of an Arrow file ("IPC File Format"), and of an Arrow stream ("Encapsulated message format")."""

_ROWS = 1024
_AT_ONCE = 16
"""Rows converted to Python at once: a dictionary-encoded long text makes each row of a small file large."""

_PLACES = 8

type _Numbered = tuple[int | None, Mapping[str, object]]  # A row and its number, from 1; None if unknown.


def columns(path: Path) -> tuple[str, ...]:
    """The names of the columns."""
    with _open(path) as table:
        schema = table.schema_arrow if _is_parquet(path) else table.schema
        return tuple(schema.names)


def rows(path: Path, only: Sequence[str] | None = None, bad: BadRows | None = None) -> Iterator[Mapping[str, object]]:
    """All rows; ``bad`` skips a row with a text that is not UTF-8 (None: it is an error).

    ``only`` are the wanted columns; if the file has none of them, all are read, so that an error can list them.
    """
    bad, first = bad or BadRows(), 1
    with _open(path) as table:
        for batch in _batches(path, table, only):
            for number, row in _of_batch(batch, path, first, bad):
                bad.at(path, "row", number)
                yield row
            first += batch.num_rows


def _batches(path: Path, table: Any, only: Sequence[str] | None) -> Iterator[Any]:
    if _is_parquet(path):
        yield from table.iter_batches(_ROWS, columns=_there(only, table.schema_arrow.names))
        return
    chosen = _there(only, table.schema.names)
    for batch in _all(path, table):
        whole = batch if chosen is None else batch.select(chosen)
        yield from (whole.slice(start, _ROWS) for start in range(0, whole.num_rows, _ROWS))


def _of_batch(batch: Any, path: Path, first: int | None, bad: BadRows) -> Iterator[_Numbered]:
    """The rows of a batch with their numbers, some at a time, or one by one if these cannot be read together."""
    for start in range(0, batch.num_rows, _AT_ONCE):
        some, at = batch.slice(start, _AT_ONCE), None if first is None else first + start
        try:
            found = some.to_pylist()
        except UnicodeDecodeError:
            if not bad.skips:
                raise
            yield from _one_by_one(some, path, at, bad)
        else:
            yield from ((None if at is None else at + place, row) for place, row in enumerate(found))


def _one_by_one(batch: Any, path: Path, first: int | None, bad: BadRows) -> Iterator[_Numbered]:
    for place in range(batch.num_rows):
        number = None if first is None else first + place
        try:
            [row] = batch.slice(place, 1).to_pylist()
        except UnicodeDecodeError as error:
            bad.at(path, "row", number)
            byte = f"byte 0x{error.object[error.start]:02x} cannot be decoded"
            bad.refuse(Unusable("data.path", str(path), f"it has a text that is not UTF-8 ({byte})"))
        else:
            yield number, row


def count(path: Path) -> int:
    """The number of rows, without reading them."""
    with _open(path) as table:
        return int(table.metadata.num_rows) if _is_parquet(path) else sum(batch.num_rows for batch in _all(path, table))


def pieces(
    path: Path,
    spread: Callable[[Sequence[Any], int], Sequence[Any]],
    size: int,
    only: Sequence[str] | None,
    bad: BadRows,
    most: int,
) -> Iterator[list[Mapping[str, object]]]:
    """Rows sampled from some places of a file, ``size`` from each; ``only`` and ``bad`` as for :func:`rows`.

    ``spread`` selects that many of some items; reading at a place stops after ``most`` bytes of text.
    """
    with _open(path) as table:
        for batch in _some_batches(path, table, spread, size, only):
            found, seen = list[Mapping[str, object]](), 0
            for _, row in _of_batch(batch, path, None, bad):
                found.append(row)
                seen += size_of(row)
                if seen > most:
                    break
            bad.rows += len(found)
            yield found


def size_of(value: object) -> int:
    """Approximate bytes of a row, or of a value in it, as text."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(str(key)) + size_of(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    return 8


def _some_batches(
    path: Path, table: Any, spread: Callable[[Sequence[Any], int], Sequence[Any]], size: int, only: Sequence[str] | None
) -> Iterator[Any]:
    if _is_parquet(path):
        chosen = _there(only, table.schema_arrow.names)
        for group in spread(range(table.num_row_groups), _PLACES):
            yield from islice(table.iter_batches(size, row_groups=[group], columns=chosen), 1)
        return
    chosen = _there(only, table.schema.names)
    for batch in spread([batch for batch in _all(path, table) if batch.num_rows], _PLACES):
        yield (batch if chosen is None else batch.select(chosen)).slice(0, size)


def _all(path: Path, table: Any) -> Iterable[Any]:
    return table if _is_stream(path) else map(table.get_batch, range(table.num_record_batches))


def _there(only: Sequence[str] | None, names: Sequence[str]) -> list[str] | None:
    return [name for name in only or () if name in names] or None


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    with importing("data.path", str(path), "Parquet and Arrow need pyarrow"):
        import pyarrow
        from pyarrow import ipc, parquet
    with errors_named(path):
        try:
            if _is_parquet(path):
                with parquet.ParquetFile(path, memory_map=True) as table:
                    yield table
                return
            with pyarrow.memory_map(str(path)) as file:
                yield ipc.open_stream(file) if _is_stream(path) else ipc.open_file(file)
        except pyarrow.ArrowException as error:
            rule = f"it cannot be read as {'Parquet' if _is_parquet(path) else 'Arrow'}: {error}"
            raise Unusable("data.path", str(path), rule) from None


def _is_parquet(path: Path) -> bool:
    return _starts(path, PARQUET)


def _is_stream(path: Path) -> bool:
    return _starts(path, STREAM)


def _starts(path: Path, magic: bytes) -> bool:
    with files.opened(path) as file:
        return file.read(len(magic)) == magic
