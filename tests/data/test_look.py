"""A look at data counts what is small, and estimates what is large with an error that holds the truth."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from launcher.data import look, sampling
from launcher.data.survey import Survey
from launcher.data.unusable import Unusable
from tests.support.helpers import make_spec

type Rows = Sequence[dict[str, str]]


def _rows(count: int) -> Rows:
    """Rows of very different lengths, which change slowly along the file."""
    draw = random.Random(1)
    words = [f"wörd{number}" for number in range(1000)]
    lengths = [draw.randint(1, 40 + number // 50) for number in range(count)]
    return [
        {"text": " ".join(draw.choices(words, k=length)), "id": str(number)} for number, length in enumerate(lengths)
    ]


def _surveyed(*words: str) -> Survey:
    found = look.look(make_spec("model=tiny", *words).data)
    assert found is not None
    return found


def _csv(path: Path, rows: Rows) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "id"])
        writer.writeheader()
        writer.writerows(rows)


def _arrow(path: Path, rows: Rows) -> None:
    table = pa.Table.from_pylist(list(rows))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


def _lines(rows: Rows) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


WRITERS: dict[str, Callable[[Path, Rows], object]] = {
    "x.jsonl": lambda path, rows: path.write_bytes(_lines(rows)),
    "x.json": lambda path, rows: path.write_text(json.dumps(rows)),
    "x.csv": _csv,
    "x.parquet": lambda path, rows: pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=500),
    "x.arrow": _arrow,
    "x.jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress(_lines(rows), mtime=0)),
    "x.jsonl.zst": lambda path, rows: path.write_bytes(zstandard.compress(_lines(rows))),
}
FROM_THE_START = ("x.json", "x.csv", "x.jsonl.gz", "x.jsonl.zst")
"""Of these only the start is seen of a file."""


@pytest.mark.parametrize("name", WRITERS)
def test_small_data_are_counted(name: str, tmp_path: Path) -> None:
    rows = _rows(300)
    WRITERS[name](tmp_path / name, [*rows, rows[0], {"text": " ", "id": "x"}])
    found = _surveyed("data=text", f"data.path={tmp_path}")
    tokens = sum(len(row["text"].encode()) for row in [*rows, rows[0]]) + 1
    assert (found.rows, found.rows_exact, found.whole, found.seen) == (302, True, True, 302)
    assert (found.tokens, found.tokens_error) == (tokens, 0)
    assert (found.empty, found.columns) == (1, ("text", "id"))
    assert found.duplicates == 301 - len({row["text"] for row in rows})


@pytest.mark.parametrize("name", WRITERS)
def test_large_data_are_estimated(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(3000)
    if name in FROM_THE_START:  # Else the start, whose rows are short, would stand for all.
        rows = random.Random(2).sample(rows, len(rows))
    WRITERS[name](tmp_path / name, rows)
    monkeypatch.setattr(sampling, "WHOLE", 1 << 10)
    monkeypatch.setattr(sampling, "_STARTED", 1 << 19)  # Several blocks of Zstandard, of 128 KiB each.
    found = _surveyed("data=text", f"data.path={tmp_path}")
    assert found.tokens is not None
    assert found.rows is not None
    tokens = sum(len(row["text"].encode()) for row in rows)
    assert 0 < found.seen < 3000
    assert not found.whole
    assert 0 < found.tokens_error < found.tokens / 2
    slack = 1.5 * found.tokens_error + (0.1 * tokens if name in FROM_THE_START else 0)
    assert abs(found.tokens - tokens) < slack
    assert found.rows_exact == name.endswith(("parquet", "arrow"))
    assert found.rows == pytest.approx(3000, rel=0 if found.rows_exact else 0.35)


def test_texts_are_sampled_between_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("äöü€" * 9000 * number)
    monkeypatch.setattr(sampling, "WHOLE", 1 << 10)
    found = _surveyed("data=text", f"data.path={tmp_path}")
    assert (found.format, found.files, found.rows, found.rows_exact) == ("text", 4, 4, True)
    assert (found.tokens, found.tokens_error) == (9 * 9000 * 10, 0)
    (tmp_path / "3.txt").write_bytes("äöü€".encode() * 20000 + b"\xff" * 100_000)
    with pytest.raises(Unusable, match=r"3.txt: it is not UTF-8 text \(byte 0xff cannot be decoded\)"):
        _surveyed("data=text", f"data.path={tmp_path}")


def test_a_broken_line_in_the_middle_of_a_large_file_is_found_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = _lines(_rows(3000)).splitlines(keepends=True)
    lines[2000:2200] = [b'{"text": broken, "id": "%b"}\n' % (b"x" * 1000)] * 200
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines))
    monkeypatch.setattr(sampling, "WHOLE", 1 << 10)
    with pytest.raises(Unusable, match=r"broken JSON in line 2\d\d\d: Expecting value at column 10"):
        _surveyed("data=text", f"data.path={tmp_path}/x.jsonl")


def test_a_folder_of_many_files_is_judged_by_some_of_every_suffix(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number}.txt").write_text("text")
    (tmp_path / "100.data").write_text('{"a": 1}\n{"a": 2}\n')
    with pytest.raises(Unusable, match=r"it mixes kinds of files: .*jsonl \(.*100.data\)"):
        _surveyed("data=text", f"data.path={tmp_path}")


def test_token_files_are_counted_and_their_largest_id_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x01\x00\x00\x00" * 1000)
    (tmp_path / "b.bin").write_bytes(b"\x07\x00\x01\x00" * 10)
    found = _surveyed("data=tokens", f"data.path={tmp_path}", "data.token_dtype=uint32")
    assert (found.tokens, found.largest, found.rows) == (1010, 65543, None)
    found = _surveyed("data=tokens", f"data.path={tmp_path}", "data.token_dtype=uint16")
    assert (found.tokens, found.largest) == (2020, 7)
    (tmp_path / "b.bin").write_bytes(b"\x01\x00")
    with pytest.raises(
        Unusable, match=r"not a multiple of the 4 of data.token_dtype=uint32; try data.token_dtype=uint16"
    ):
        _surveyed("data=tokens", f"data.path={tmp_path}", "data.token_dtype=uint32")
