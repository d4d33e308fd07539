"""Folders of token ids: whole or absent, made once, and by whom."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from launcher.base.errors import DataError, SubmitError
from launcher.data import documents, prepare, token_folder, tokenizer
from launcher.data.documents import Unfinished
from launcher.data.encoding import Encoded
from launcher.data.prepare import Progress, prepared
from launcher.data.tokenizer import Pieces
from launcher.spec import DataSpec
from tests.support.helpers import make_spec


def texts(folder: Path, *content: str, **settings: str) -> DataSpec:
    """The data of a run on files with these contents."""
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(content):
        (folder / f"{number}.txt").write_text(text)
    words = (f"{key}={value}" for key, value in settings.items())
    return make_spec("model=tiny", "data=text", f"data.path={folder}", *words).data


def test_a_folder_holds_the_ids_and_says_what_they_are(tmp_path: Path) -> None:
    told: list[int] = []
    found = prepared(texts(tmp_path / "t", "ab", "cde"), tmp_path / "cache", tell=lambda at: told.append(at.tokens))
    assert (found.path / "tokens.bin").read_bytes() == b"abcde"
    assert (found.dtype, found.tokens, found.documents, found.text_bytes, found.marked) == ("uint8", 5, 2, 5, False)
    assert told[-1] == 5
    meta = json.loads((found.path / "meta.json").read_text())
    assert meta["made_of"]["path"] == str(tmp_path / "t")
    assert token_folder.read(found.path) == found


def test_the_same_content_is_found_and_other_content_is_not(tmp_path: Path) -> None:
    data, cache, told = texts(tmp_path / "t", "ab"), tmp_path / "cache", list[Progress]()
    first = prepared(data, cache, tell=told.append)
    assert told
    told.clear()
    assert prepared(texts(tmp_path / "t", **{"data.workers": "3"}), cache, tell=told.append) == first
    assert not told, "an equal folder was there"
    (tmp_path / "t" / "0.txt").write_text("abc")
    assert prepared(data, cache).path != first.path


def test_a_document_in_pieces_is_one_document() -> None:
    class Words:
        size: int = 300
        end: int | None = 299
        special: frozenset[int] = frozenset()

        def encode(self, text: str) -> list[int]:
            raise AssertionError("documents are encoded in batches")

        def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
            return [list(text.encode()) for text in texts]

        def pieces(self, texts: Sequence[str]) -> list[Pieces]:
            raise AssertionError("text has no marks")

    pieces = [Unfinished("ab"), "c", "d"]
    progress = Progress()
    data = make_spec("model=tiny", "data=text").data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "documents", lambda *_: iter(pieces))
        found = [list(one.ids) for one in prepare.encoded(data, Words(), progress)]
    assert found == [[97, 98], [99, 299], [100, 299]]
    assert (progress.documents, progress.text_bytes) == (2, 4)


def test_marked_samples_have_their_ends_and_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [Encoded([1, 2, 3], [False, True, True], ended=True), Encoded([4, 5], [False, True], ended=True)]
    monkeypatch.setattr(prepare, "encoded", lambda *_, **__: iter(samples))
    found = prepared(texts(tmp_path / "t", "ab"), tmp_path / "cache")
    assert found.marked
    assert np.fromfile(found.path / "ends.bin", dtype=np.uint64).tolist() == [3, 5]
    assert np.fromfile(found.path / "trained.bin", dtype=np.uint8).tolist() == [0, 1, 1, 0, 1]


def test_of_two_processes_one_makes_the_folder_and_the_other_waits(tmp_path: Path) -> None:
    data, cache = texts(tmp_path / "t", "ab"), tmp_path / "cache"
    cache.mkdir()
    waited = threading.Event()
    with (cache / f"{prepare.digest_of(data)}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(target=prepared, args=(data, cache), kwargs={"waits": waited.set})
        other.start()
        assert waited.wait(300)
        assert token_folder.cache_use(cache).folders == 0
    other.join(300)
    assert token_folder.cache_use(cache).folders == 1


def test_without_locks_the_first_to_finish_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, cache = texts(tmp_path / "t", "ab"), tmp_path / "cache"
    first = prepared(data, cache)

    def none(*arguments: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    answers = iter([None, None])  # It looks before and after it would have the lock, and finds nothing yet.
    monkeypatch.setattr(token_folder, "read", lambda path, read=token_folder.read: next(answers, read(path)))
    assert prepared(data, cache) == first
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [first.digest]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    data, cache = texts(tmp_path / "t", "ab"), tmp_path / "cache"
    half = cache / f"{prepare.digest_of(data)}.node.7.partial"
    half.mkdir(parents=True)
    (half / "tokens.bin").write_bytes(b"a")
    assert token_folder.read(half) is None
    prepared(data, cache)
    assert not half.exists()


def test_an_error_or_an_interruption_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Iterator[str]:
        yield "a" * prepare._BATCH
        raise KeyboardInterrupt

    monkeypatch.setattr(documents, "documents", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared(texts(tmp_path / "t", "ab"), tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SubmitError, match=rf"{tmp_path}/file/cache cannot be written: Not a directory; LAUNCH_CACHE="):
        prepared(texts(tmp_path / "t", "ab"), tmp_path / "file" / "cache")


def test_data_without_text_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "documents", lambda *_: iter([""]))
    with pytest.raises(DataError, match=r"data.path=.*/t: nothing to train on: it contains no text"):
        prepared(texts(tmp_path / "t", "ab"), tmp_path / "cache")


def test_an_error_names_the_key_of_the_data_set(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n')
    data = texts(tmp_path / "t", "ab", **{"data.eval_path": str(tmp_path / "empty.jsonl")})
    with pytest.raises(DataError, match=r"data\.eval_path=.*/empty\.jsonl: nothing to train on"):
        prepared(data, tmp_path / "cache")
    several = "[{name: a, path: b}, {name: c, path: d}]"
    assert texts(tmp_path / "t", **{"data.eval_sets": several}).places == (
        *("data.path", "data.eval_sets.0.path", "data.eval_sets.1.path"),
    )
    mixed = make_spec("model=tiny", "data=text", "data.mix=[{path: a}, {path: b}]", "data.eval_path=c").data
    assert mixed.places == ("data.mix.0.path", "data.mix.1.path", "data.eval_path")
    assert len(mixed.places) == len(mixed.sets)


def test_a_run_reads_the_folder_that_it_began_with(tmp_path: Path) -> None:
    data = texts(tmp_path / "t", "ab")
    found = prepared(data, tmp_path / "cache")
    token_folder.record_folder(tmp_path, data, found)
    time.sleep(0.01)
    (tmp_path / "t" / "0.txt").write_text("abc")
    assert token_folder.recorded_folder(tmp_path, data) == found
    assert token_folder.recorded_folder(tmp_path, texts(tmp_path / "other", "ab")) is None
    token_folder.clear(tmp_path / "cache")
    assert token_folder.recorded_folder(tmp_path, data) is None


def test_the_tokenizer_counts_by_its_files_and_not_by_its_place(tmp_path: Path) -> None:
    names = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_text(name)
        names.append(tokenizer.fingerprint(str(tmp_path / name)))
    assert names[0] == names[1]
    (tmp_path / "b" / "tokenizer.json").write_text("{} ")
    assert tokenizer.fingerprint(str(tmp_path / "b")) != names[0]


def test_a_folder_has_a_hash_of_all_its_ids_and_marks_whatever_type_they_lie_in(tmp_path: Path) -> None:
    def made(name: str, *samples: Encoded, size: int = 256) -> str:
        (folder := tmp_path / name).mkdir()
        with prepare._Writer(folder, size) as writer:
            for sample in samples:
                writer.add(sample)
        return writer.sha256

    first = made("a", Encoded([1, 2, 3], [False, True, True]), Encoded([4, 5], [False, True]))
    assert made("b", Encoded([1, 2, 3], [False, True, True]), Encoded([4, 5], [False, True]), size=2**16) == first
    assert made("c", Encoded([1, 2, 3], [False, True, True]), Encoded([4, 5], [True, True])) != first
    assert made("d", Encoded([1, 2], [False, True]), Encoded([3, 4, 5], [True, False, True])) != first


def test_the_hash_is_of_what_is_trained_on_whatever_a_run_evaluates_on(tmp_path: Path) -> None:
    """So a run goes on from a checkpoint with another data set of evaluations."""
    for name in ("x", "y"):
        texts(tmp_path / name, name)
    words = {place: {"data.eval_path": str(tmp_path / place), "train.eval_every": "1"} for place in ("x", "y")}
    found = [
        prepared(texts(tmp_path / "t", text, **more), tmp_path / "cache")
        for text, more in (("ab", {}), ("ab", words["x"]), ("ab", words["y"]), ("cd", words["y"]))
    ]
    alone, first, second, other = found
    assert alone.sha256 == first.sha256 == second.sha256 != other.sha256
    assert len({each.path for each in found}) == 4


def test_a_folder_of_an_earlier_version_has_no_such_hash(tmp_path: Path) -> None:
    found = prepared(texts(tmp_path / "t", "ab"), tmp_path / "cache")
    assert found.sha256 is not None
    meta = json.loads((found.path / "meta.json").read_text())
    del meta["sha256"]
    (found.path / "meta.json").write_text(json.dumps(meta))
    old = token_folder.read(found.path)
    assert old is not None
    assert old.sha256 is None


def test_an_error_of_one_attempt_leaves_what_the_run_read_before(tmp_path: Path) -> None:
    data = texts(tmp_path / "t", "ab")
    found = prepared(data, tmp_path / "cache")
    token_folder.record_folder(tmp_path, data, found, "1")
    token_folder.record_failure(tmp_path, "the disk is full", "2")
    noted = json.loads((tmp_path / token_folder.POINTER).read_text())
    assert (noted["error"], noted["attempt"]) == ("the disk is full", "2")
    assert token_folder.digest(tmp_path) == found.digest
    assert token_folder.recorded_folder(tmp_path, data) == found
    token_folder.record_folder(tmp_path, data, found, "3")
    assert "error" not in json.loads((tmp_path / token_folder.POINTER).read_text())


def test_what_another_process_makes_now_is_not_cleared(tmp_path: Path) -> None:
    data, cache = texts(tmp_path / "t", "ab"), tmp_path / "cache"
    found = prepared(data, cache)
    name = "0123456789abcdef"
    half = cache / f"{name}.node.7.partial"
    half.mkdir()
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cleared = token_folder.clear(cache)
        assert (cleared.removed.folders, cleared.busy) == (1, 1)
        assert half.is_dir()
        assert not found.path.exists()
        assert (cache / f"{name}.lock").exists()
    assert token_folder.clear(cache).busy == 0
    assert not half.exists()


def test_without_locks_only_whole_folders_are_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = prepared(texts(tmp_path / "t", "ab"), tmp_path / "cache")
    half = tmp_path / "cache" / f"{found.digest}.node.7.partial"
    half.mkdir()

    def none(*arguments: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    assert token_folder.clear(tmp_path / "cache").busy == 1
    assert half.is_dir()
    assert not found.path.exists()


@pytest.mark.parametrize("name", ["", "a/b", "../..", "hö st\x1b", "x" * 300, "a.b.c"])
def test_a_host_may_be_called_anything(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uname = os.uname_result(("Linux", name, "", "", ""))
    monkeypatch.setattr(os, "uname", lambda: uname)
    (tmp_path / "text.txt").write_text("some text")
    found = prepared(make_spec("data=text", f"data.path={tmp_path}/text.txt").data, tmp_path / "cache")
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_dir()] == [found.path]


@pytest.mark.parametrize("text", ["[]", "{}", '{"dtype": 3}', "\x00", "[" * 100_000])
def test_a_folder_whose_facts_are_of_another_shape_is_not_whole(text: str, tmp_path: Path) -> None:
    data = make_spec("data=text", f"data.path={tmp_path}/text.txt").data
    (tmp_path / "text.txt").write_text("some text")
    found = prepared(data, tmp_path / "cache")
    token_folder.record_folder(tmp_path, data, found)
    assert token_folder.recorded_folder(tmp_path, data) == found
    (found.path / token_folder.META).write_text(text)
    assert token_folder.recorded_folder(tmp_path, data) is None
    (tmp_path / token_folder.POINTER).write_text(text)
    assert token_folder.recorded_folder(tmp_path, data) is None
    with pytest.raises(SubmitError, match=r"cannot be written: Directory not empty; .*`launch prepare --clear`"):
        prepared(data, tmp_path / "cache")
