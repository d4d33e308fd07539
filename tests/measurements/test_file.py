"""The file of measured runs: written by many at once, read although parts of it are no rows."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from launcher.base.errors import SubmitError
from launcher.preflight.measured import file
from tests.support.measured_rows import row, written


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert file.load(tmp_path / "none.jsonl") == file.Content(path=tmp_path / "none.jsonl")


def test_a_later_row_of_a_run_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", row(1), row(2), row(1, ratio=0.5), row(1, directory="/elsewhere/run-1"))
    assert file.load(path).rows == (row(2), row(1, ratio=0.5), row(1, directory="/elsewhere/run-1"))
    assert len(path.read_bytes().splitlines()) == 4


def _add(path: Path, first: int) -> None:
    for number in range(first, first + 20):
        file.add(path, row(number))


def test_rows_that_are_written_at_once_are_all_there_and_whole(tmp_path: Path) -> None:
    path, context = tmp_path / "a.jsonl", multiprocessing.get_context("fork")
    writers = [context.Process(target=_add, args=(path, 100 * number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for lost in range(5):  # The file is replaced while they write into it.
        written(path, row(1000 + lost))
        file.forget(path, row(1000 + lost))
    for writer in writers:
        writer.join()
    found = file.load(path)
    assert {each.id for each in found.rows} == {f"run-{100 * n + k}" for n in range(4) for k in range(20)}
    assert not found.unreadable


def test_lines_that_are_no_rows_are_counted_and_stay_and_a_torn_one_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"# my runs\n" + row(1).as_line() + row(2).as_line()[:50])
    file.add(path, row(3))
    found = file.load(path)
    assert ([each.id for each in found.rows], len(found.unreadable)) == (["run-1", "run-3"], 2)
    file.forget(path, row(1))
    assert path.read_bytes() == b"# my runs\n" + row(2).as_line()[:50] + b"\n" + row(3).as_line()
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_of_a_large_file_the_newest_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.jsonl", *(row(number) for number in range(9)))
    monkeypatch.setattr(file, "MOST_ROWS", 3)
    assert [each.id for each in file.load(path).rows] == ["run-6", "run-7", "run-8"]
    monkeypatch.setattr(file, "_MOST_BYTES", 2 * len(row(1).as_line()) + 100)
    assert [each.id for each in file.load(path).rows] == ["run-7", "run-8"], "the line that is cut off is no bad one"
    assert not file.load(path).unreadable


def test_a_file_that_cannot_be_written_or_stays_locked_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="No such file"):
        file.add(tmp_path / "none" / "a.jsonl", row())
    with pytest.raises(SubmitError, match="cannot be written: No such file"):
        file.forget(tmp_path / "a.jsonl", row())
    monkeypatch.setattr(file, "_PATIENCE_S", 0.1)
    path = written(tmp_path / "a.jsonl", row())
    with file._locked(path, 0), pytest.raises(OSError, match="others hold its lock"):
        file.add(path, row(1))


def test_a_row_that_would_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="directory must be a text"):
        file.add(tmp_path / "a.jsonl", row(directory="a\nb"))
    assert not (tmp_path / "a.jsonl").exists()
