"""Files are whole or not at all, and what is read keeps within the limits."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.base import files
from launcher.cli import main


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow beyond a few bytes, as on a disk that is full."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_leaves_the_old_file_and_no_half_of_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_atomically(path, {"old": 1})
    old = path.read_bytes()
    with full_disk(), pytest.raises(OSError, match="File too large"):
        files.write_atomically(path, {"new": "x" * 1000})
    with full_disk(), pytest.raises(OSError, match="File too large"):
        files.write_new(tmp_path / "folder" / "b", b"x" * 1000)
    assert path.read_bytes() == old
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ["a.json"]


def test_a_new_file_is_never_written_over_another(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)  # With a temporary name that is longer it would be too long.
    files.write_new(path, b"one")
    with pytest.raises(FileExistsError):
        files.write_new(path, b"two")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"one"]


def test_on_a_full_disk_check_answers_and_a_recipe_is_not_half_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("launcher.base.machine.disk_free", lambda folder: 0)
    with full_disk():
        assert main(["check", "model=tiny", "--json"]) == 3
        assert main(["recipe", "save", "mine", "model=tiny"]) == 2, "whose it is cannot be recorded, which comes first"
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["verdict"] == "does_not_fit"
    assert document["disk"]["capacity_bytes"] == 0
    assert "the record of trust cannot be written" in " ".join(err.split())
    assert not [each for each in (tmp_path / "recipes").iterdir() if each.is_file()]


def test_json_is_read_within_the_limits() -> None:
    deep = "[" * 13 + "]" * 13
    for text, rule in (
        (deep, "it is nested deeper than 12"),
        ("[" * 200_000, "it is nested deeper than 12"),
        ("1e999", "inf is not a finite number"),
        ("[NaN]", "nan is not a finite number"),
        (str(2**64 + 1), "18446744073709551617 does not fit in 64 bits"),
        ("9" * 5000, "a number of 5000 digits, does not fit in 64 bits"),
        (" " * (files.MOST_BYTES + 1), "it is larger than 1 MiB"),
    ):
        with pytest.raises(ValueError, match=rule):
            files.parse_json(text)
    assert files.parse_json(f'{{"a": [-{2**63}, 1.5], "b": {deep[1:12]}{deep[-12:-1]}}}')["a"] == [-(2**63), 1.5]


def test_a_record_of_another_shape_is_none(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for text in ("[]", "3", "{", "[" * 200_000, '{"a":' * 13 + "1" + "}" * 13, "\udcff"):
        path.write_bytes(text.encode(errors="surrogateescape"))
        assert files.read_json(path) is None
    path.write_text('{"a": NaN}')
    assert files.read_json(path) is not None
