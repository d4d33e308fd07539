"""Long texts in pieces: nothing is lost, and the cuts are where a tokenizer cuts, too."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from launcher.data import documents as pieces
from launcher.data.documents import Unfinished
from launcher.data.unusable import Unusable


def cut(path: Path) -> list[str]:
    found = list(pieces.pieces(path))
    assert all(isinstance(piece, Unfinished) for piece in found[:-1])
    assert not isinstance(found[-1], Unfinished)
    return found


@pytest.mark.parametrize("compressed", [False, True])
def test_a_long_text_is_cut_after_single_line_feeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    monkeypatch.setattr(pieces, "SIZE", 64)
    text = (
        "".join(f"l\u00ednea {number} of a text\n{'  indented' if number % 3 else ''}\n\n" for number in range(40))
        + "a\nb"
    )
    path = tmp_path / "t.txt"
    path.write_bytes(gzip.compress(text.encode(), mtime=0) if compressed else text.encode())
    found = cut(path)
    assert len(found) > 10
    assert "".join(found) == text
    whole = "one\ntwo\n\nthree\n" * 40
    path.write_text(whole)
    for left in cut(path)[:-1]:
        assert left.endswith(("one\n", "three\n")), "where two line feeds meet nothing is cut"


def test_a_text_without_lines_is_cut_before_spaces_and_one_without_spaces_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "SIZE", 64)
    path = tmp_path / "t.txt"
    path.write_text("word " * 100)
    assert all(piece.startswith(" ") for piece in cut(path)[1:])
    monkeypatch.setattr(pieces, "_LONGEST", 100)
    path.write_text("x" * 1000)
    assert "".join(cut(path)) == "x" * 1000
    assert len(cut(path)) > 5


def test_a_short_text_is_whole_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text("a\nb")
    assert cut(path) == ["a\nb"]
    for content in (b"ab\0", b"ab\xff", b"ab\xc3"):
        path.write_bytes(content)
        with pytest.raises(Unusable, match=r"data.path=.*t\.txt: it"):
            cut(path)
