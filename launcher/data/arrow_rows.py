"""Rows of Parquet and Arrow files, by pyarrow, batch by batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from launcher import files, package
from launcher.data.opening import told
from launcher.data.unusable import PackageMissing, Unusable

PARQUET = b"PAR1"
"""First bytes of a Parquet file (Apache Parquet, "File Format")."""

FILE, STREAM = b"ARROW1", b"\xff\xff\xff\xff"
"""Those of an Arrow file ("IPC File Format"), and of an Arrow stream ("Encapsulated message format")."""

_ROWS = 1024
_PLACES = 8


def columns(path: Path) -> tuple[str, ...]:
    """The names of the columns.

    Raises:
        Unusable: The file is broken, or pyarrow is not installed.
    """
    with _open(path) as table:
        schema = table.schema_arrow if _is_parquet(path) else table.schema
        return tuple(schema.names)


def rows(path: Path, only: Sequence[str] | None = None) -> Iterator[Mapping[str, object]]:
    """All rows.

    Args:
        path: The file.
        only: Columns that are wanted; None is all, and so are columns that the file has none of, to tell what it has.

    Raises:
        Unusable: As :func:`columns`.
    """
    with _open(path) as table:
        if _is_parquet(path):
            for batch in table.iter_batches(_ROWS, columns=_there(only, table.schema_arrow.names)):
                yield from batch.to_pylist()
            return
        for batch in _all(path, table):
            chosen = _there(only, table.schema.names)
            whole = batch if chosen is None else batch.select(chosen)
            for start in range(0, whole.num_rows, _ROWS):
                yield from whole.slice(start, _ROWS).to_pylist()


def count(path: Path) -> int:
    """The number of rows, without reading them.

    Raises:
        Unusable: As :func:`columns`.
    """
    with _open(path) as table:
        return int(table.metadata.num_rows) if _is_parquet(path) else sum(batch.num_rows for batch in _all(path, table))


def pieces(
    path: Path, spread: Callable[[Sequence[Any], int], Sequence[Any]], size: int, only: Sequence[str] | None
) -> Iterator[list[Mapping[str, object]]]:
    """Some rows of some places.

    Args:
        path: The file.
        spread: Takes so many of some items.
        size: Rows of one place.
        only: As for :func:`rows`.

    Raises:
        Unusable: As :func:`columns`.
    """
    with _open(path) as table:
        if _is_parquet(path):
            chosen = _there(only, table.schema_arrow.names)
            for group in spread(range(table.num_row_groups), _PLACES):
                for batch in islice(table.iter_batches(size, row_groups=[group], columns=chosen), 1):
                    yield batch.to_pylist()
            return
        chosen = _there(only, table.schema.names)
        for batch in spread([batch for batch in _all(path, table) if batch.num_rows], _PLACES):
            yield (batch if chosen is None else batch.select(chosen)).slice(0, size).to_pylist()


def _all(path: Path, table: Any) -> Iterable[Any]:
    """The batches of an Arrow file or stream, which are mapped and not read."""
    return table if _is_stream(path) else map(table.get_batch, range(table.num_record_batches))


def _there(only: Sequence[str] | None, names: Sequence[str]) -> list[str] | None:
    return [name for name in only or () if name in names] or None


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    """A reader of the file, mapped into memory; what it raises names the file."""
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ImportError:
        rule = "Parquet and Arrow need pyarrow, not installed for this Python"
        raise PackageMissing("data.path", str(path), rule, [package.install(package.TRAINING)]) from None
    with told(path):
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
