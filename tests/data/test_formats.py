"""Files of every format give the same rows, recognised by their content; what is wrong with one is said."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from launcher.data import documents, formats
from launcher.data.unusable import Unusable

ROWS = [{"text": f"row {number}, äöü\n", "source": "a"} for number in range(5)]
JSON_LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS).encode()


def _stream(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def _file(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _csv(path: Path) -> None:
    path.write_text("text,source\n" + "".join(f'"{row["text"]}",a\n' for row in ROWS))


WRITERS: dict[str, Callable[[Path], object]] = {
    "jsonl": lambda path: path.write_bytes(JSON_LINES),
    "json": lambda path: path.write_text(json.dumps(ROWS, indent=2)),
    "json of one object": lambda path: path.write_text(json.dumps({"version": 1, "data": ROWS})),
    "csv": _csv,
    "parquet": lambda path: pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2),
    "arrow": _stream,
    "arrow file": _file,
}
NAMES = {"json of one object": "x.json", "csv": "x.csv"}
"""By content alone, all but these: an object of one line could be the one row of JSON lines, and CSV any text."""


@pytest.mark.parametrize("packed", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", WRITERS)
def test_rows_are_the_same_whatever_the_format(name: str, packed: str, tmp_path: Path) -> None:
    path = tmp_path / NAMES.get(name, "x.dat")
    WRITERS[name](path)
    if packed:
        content, path = path.read_bytes(), path.with_name(f"{path.name}{packed}")
        path.write_bytes(gzip.compress(content, mtime=0) if packed == ".gz" else zstandard.compress(content))
    if packed and name in ("parquet", "arrow", "arrow file"):
        with pytest.raises(Unusable, match="already compressed and cannot be read through gzip or zstd: unpack it"):
            formats.kind_of(path)
        return
    assert formats.kind_of(path) == name.split()[0]
    assert formats.columns(path) == ("text", "source")
    assert list(formats.rows(path)) == ROWS
    assert [row["text"] for row in formats.rows(path, only=["text"])] == [row["text"] for row in ROWS]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.txt", "Once, {there} was"),
        ("x.py", '{"a": 1}["a"]\n'),
        ("x.md", "[a link](x)\n{}"),
        ("x.j2", "{% if x %}\n"),
        ("README", "x,y\n1,2\n"),
        ("x.txt", " \n"),
    ],
)
def test_text_stays_text(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert formats.kind_of(path) == "text"
    assert "".join(documents.pieces(path)) == content
    with pytest.raises(Unusable, match="it is plain text, without rows and columns; try data=text"):
        next(formats.rows(path))


def test_rows_longer_than_what_is_looked_at_are_recognised(tmp_path: Path) -> None:
    long = [{"text": "x" * 200_000}, {"text": "y" * 3_000_000}]
    (tmp_path / "x.txt").write_text("".join(f"{json.dumps(row)}\n" for row in long))
    (tmp_path / "y.txt").write_text(json.dumps(long, indent=1))
    assert [formats.kind_of(tmp_path / name) for name in ("x.txt", "y.txt")] == ["jsonl", "json"]
    assert list(formats.rows(tmp_path / "x.txt")) == list(formats.rows(tmp_path / "y.txt")) == long


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("x.jsonl", b'{"text": "a"}\n\n{"text": b}\n', "broken JSON in line 3: Expecting value at column 10"),
        ("x.jsonl", b'{"text": "a"', "broken JSON in line 1: Expecting ',' delimiter at column 13"),
        ("x.jsonl", b'["a"]\n', 'line 1 holds a list, and a row must be an object: {"text": ...}'),
        ("x.jsonl", b'{"text": "\xff"}\n', "line 1 is not UTF-8 text (byte 10 cannot be decoded)"),
        ("x.json", b'[\n{"text": "a"},\n{"text": }\n]', "broken JSON in line 3: Expecting value at column 10"),
        ("x.json", b'[\n{"text": "a"}\n{"text": "b"}]', "broken JSON in line 3: expected ',' or ']' after an element"),
        ("x.json", b'[{"text": "a"}]\nx', "broken JSON in line 2: there is more after the list"),
        ("x.json", b'[{"text": "a"},\n', "broken JSON in line 2: Expecting value at column 1"),
        ("x.json", b"[1]", "element 1 holds a number, and a row must be an object"),
        ("x.csv", b"text,n\na,1\nb\n", "broken CSV in line 3: 1 fields, and the header has 2"),
        ("x.csv", b"text,text\na,1\n", "its first line must name the columns, each once, and is 'text,text'"),
        ("x.csv", b'text,n\n"a,1\n', "broken CSV in line 2: unexpected end of data"),
        ("x.gz", gzip.compress(JSON_LINES, mtime=0)[:-20], "the compressed file is truncated or damaged"),
        (
            "x.zst",
            zstandard.compress(JSON_LINES)[:-5],
            "the compressed file is truncated or damaged (the file ends before",
        ),
        ("x.zst", zstandard.compress(JSON_LINES) + b"x", "the compressed file is truncated or damaged"),
        ("x.parquet", b"PAR1 and no more", "it cannot be read as Parquet: "),
        ("x.arrow", b"ARROW1 and no more", "it cannot be read as Arrow: "),
        ("x.bin", bytes(range(256)), "it is not UTF-8 text (byte 128 cannot be decoded), nor any of text, JSON lines"),
        (
            "x.bin",
            b"a\0b",
            "it contains zero bytes, so it is not text, nor any of text, JSON lines, JSON, CSV, Parquet",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(name: str, content: bytes, rule: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(Unusable) as caught:
        list(formats.rows(path))
    finding = caught.value.finding
    assert (finding.path, finding.found) == ("data.path", str(path))
    assert finding.rule.startswith(rule)


def test_a_file_that_is_not_there_or_empty_is_no_fault_of_ours(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="it cannot be read: No such file or directory"):
        formats.kind_of(tmp_path / "x")
    with pytest.raises(Unusable, match="it cannot be read: Is a directory"):
        formats.kind_of(tmp_path)
    (tmp_path / "x").touch()
    assert formats.kind_of(tmp_path / "x") == "empty"


@pytest.mark.parametrize(
    ("module", "name", "rule"),
    [
        ("pyarrow", "parquet", "Parquet and Arrow need pyarrow, not installed for this Python"),
        ("zstandard", "zst", "a .zst file needs zstandard, not installed for this Python"),
    ],
)
def test_a_package_that_a_format_needs_is_named(
    module: str, name: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    path = tmp_path / f"x.{name}"
    path.write_bytes(b"PAR1" if name == "parquet" else zstandard.compress(JSON_LINES))
    with pytest.raises(Unusable) as caught:
        formats.columns(path)
    assert caught.value.finding.rule == rule
    assert caught.value.finding.way_out[0].endswith("-m pip install 'llm-launch[fsdp]'")


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("Straße und Höfe\n".encode("latin-1"), False),
        ("Grüße".encode("utf-16"), False),
        (b"".join(n.to_bytes(2, "little") for n in (5, 300, 50_000)), True),
    ],
)
def test_text_of_another_encoding_is_not_taken_for_token_ids(content: bytes, tokens: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    with pytest.raises(Unusable) as caught:
        formats.kind_of(path)
    assert caught.value.finding.way_out == ((f"data=tokens data.path={path}",) if tokens else ())
    assert ("iconv -t UTF-8" in caught.value.finding.rule) is not tokens
