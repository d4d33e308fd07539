"""Small files that hold gigabytes are looked at within a limit of memory; a row beyond all measure is named."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.data import arrow_rows, formats, json_rows, opening
from launcher.data.unusable import BadRows, Unusable

pa = pytest.importorskip("pyarrow")
zstandard = pytest.importorskip("zstandard")

MIB = 2**20
MEMORY = 2**31
"""Bytes of address space of a check; each bomb is 4 GiB or more as text."""


def _zst(path: Path, mebibytes: int = 4096) -> None:
    with zstandard.open(path, "wb") as file:
        for _ in range(mebibytes):
            file.write(b"a" * MIB)


def _gz(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(b"one line of text\n" * 65_536)


def _zst_lines(path: Path) -> None:
    line = b'{"text": "' + b"a" * (64 * MIB) + b'"}\n'
    with zstandard.open(path, "wb") as file:
        for _ in range(64):
            file.write(line)


def _table() -> object:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 50_000, type=pa.int32()), pa.array(["x" * 100_000]))
    return pa.table({"text": texts})


def _parquet(path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(_table(), path, row_group_size=50_000)


def _arrow(path: Path) -> None:
    from pyarrow import ipc

    table = _table()
    options = ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as file, ipc.new_file(file, table.schema, options=options) as writer:  # type: ignore[attr-defined]
        writer.write_table(table)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.txt.zst", _zst),
        ("a.txt.gz", _gz),
        ("a.jsonl.zst", _zst_lines),
        ("a.parquet", _parquet),
        ("a.arrow", _arrow),
    ],
)
def test_a_check_looks_at_a_bomb_within_its_memory(name: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / name)
    assert (tmp_path / name).stat().st_size < 8 * MIB
    words = [
        str(Path(sys.executable).with_name("launch")),
        "check",
        "model=tiny",
        "hardware=cpu",
        "data=text",
        f"data.path={name}",
    ]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "FITS" in done.stdout


def test_a_line_longer_than_a_row_may_be_is_named_and_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rows, "LARGEST_ROW", MIB)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "' + "b" * 3 * MIB + '"}\n{"text": "c"}\n')
    with pytest.raises(Unusable, match="line 2 is longer than 1 MiB, the limit for a row"):
        list(formats.rows(path))
    bad = BadRows(skips=True)
    assert [row["text"] for row in formats.rows(path, bad=bad)] == ["a", "c"]
    assert (bad.count, len(bad.named)) == (1, 1)


def test_a_line_of_csv_longer_than_a_row_may_be_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LARGEST_ROW", MIB)
    path = tmp_path / "a.csv"
    path.write_text("text\na\n" + "b" * 3 * MIB + "\nc\n")
    with pytest.raises(Unusable, match="line 3 is longer than 1 MiB, the limit for a row"):
        list(formats.rows(path))


def test_a_zstandard_frame_comes_out_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.zst"
    _zst(path, 512)
    with path.open("rb") as file:
        pieces = opening._decompressed(file, zstandard)
        assert max(len(next(pieces)) for _ in range(4)) < 128 * MIB
    assert opening.holds_at_most(path, 512 * MIB)
    assert not opening.holds_at_most(path, 512 * MIB - 1)


def test_the_size_of_a_row_is_that_of_all_its_texts() -> None:
    assert arrow_rows.size_of({"messages": [{"role": "user", "content": "x" * 100}] * 3}) > 300
    assert arrow_rows.size_of({"text": "x" * 100, "id": 3}) == 100 + 4 + 2 + 8
