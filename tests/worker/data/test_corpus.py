"""Corpora in one process: what they hold, and what is said of files that hold none."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from launcher.base.errors import DataError
from launcher.data import token_folder
from launcher.saved import checkpoints
from launcher.worker import memory
from launcher.worker.data import batches, counted, open_corpora
from launcher.worker.data.corpus import Synthetic, TokenFiles, split
from launcher.worker.data.order import Position
from launcher.worker.engine import Context
from tests.support.helpers import make_spec


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """A process group of one, as the corpora are opened by all ranks together."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def context(directory: Path, *overrides: str, rank: int = 0) -> Context:
    spec = make_spec("model=tiny", "precision=fp32", "train.sequence_length=16", *overrides)
    device = torch.device("cpu")
    return Context(
        spec=spec, directory=directory, rank=rank, world=spec.gpus, device=device, memory=memory.tracker(device)
    )


def text(folder: Path, **files: bytes) -> str:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.txt").write_bytes(content)
    return f"data.path={folder}"


def _folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]


def test_the_synthetic_rows_follow_from_the_seed_and_can_be_learnt() -> None:
    row = Synthetic(256, 8, seed=3).sample(5)
    assert row.tolist() == Synthetic(256, 8, seed=3).sample(5).tolist()
    assert all((5 * a + 1) % 256 == b for a, b in itertools.pairwise(row))
    assert row.tolist() != Synthetic(256, 8, seed=4).sample(5).tolist()


def test_text_becomes_its_bytes_in_the_order_of_the_files(tmp_path: Path) -> None:
    place = text(tmp_path / "t", a=b"abcdefghijklmnop", b="qrstuvwxyz\u00e4".encode() * 3)
    (found,) = open_corpora(context(tmp_path, "data=text", place))
    assert found.size == (16 + 36 - 1) // 16
    assert bytes(found.sample(0).astype(np.uint8)) == b"abcdefghijklmnopq"
    assert bytes(found.sample(1).astype(np.uint8))[:4] == b"qrst"


def test_a_corpus_is_tokenised_once(tmp_path: Path) -> None:
    place = text(tmp_path / "t", a=b"x" * 64)
    open_corpora(context(tmp_path, "data=text", place))
    (made,) = _folders(tmp_path / "cache")
    before = made.stat().st_mtime_ns
    open_corpora(context(tmp_path, "data=text", place))
    assert [path.stat().st_mtime_ns for path in _folders(tmp_path / "cache")] == [before]


def test_a_cache_folder_is_shared_by_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(token_folder.CACHE, str(tmp_path / "shared"))
    open_corpora(context(tmp_path, "data=text", text(tmp_path / "t", a=b"x" * 64)))
    assert len(_folders(tmp_path / "shared" / "tokens")) == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {},
            "data.path={path}: no file matches; data=text reads text, or rows of JSON lines, JSON, CSV, Parquet or "
            "Arrow with the column data.column; try data=synthetic data.path=null",
        ),
        ({"a": b"", "b": b""}, "data.path={path}: every file that matches is empty; try data=synthetic data.path=null"),
        (
            {"a": b"good", "b": b"\x7fELF\xff\xfe"},
            "data.path={path}/b.txt: it is not UTF-8 text (byte 4 cannot be decoded), nor any of text, JSON lines, "
            "JSON, CSV, Parquet, Arrow, all but the last two also as .gz or .zst; convert text of another encoding, as "
            "by iconv -t UTF-8",
        ),
        (
            {"a": b"zero\0byte"},
            "data.path={path}/a.txt: it contains zero bytes, so it is not text, nor any of text, JSON lines, JSON, "
            "CSV, Parquet, Arrow, all but the last two also as .gz or .zst; token ids are data=tokens; try data=tokens "
            "data.path={path}/a.txt",
        ),
        (
            {"a": b"short"},
            "data.path has 5 tokens in 1 files, but one sample needs 17 (train.sequence_length=16 plus one): "
            "add data or set a shorter length",
        ),
    ],
    ids=["missing", "empty", "binary", "zero", "short"],
)
def test_bad_text_is_named(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    place = text(tmp_path / "t", **files)
    with pytest.raises(DataError) as caught:
        open_corpora(context(tmp_path, "data=text", place))
    assert str(caught.value) == message.format(path=tmp_path / "t")


def test_token_files_are_read_end_to_end(tmp_path: Path) -> None:
    np.arange(20, dtype=np.uint16).tofile(tmp_path / "a.bin")
    np.arange(20, 51, dtype=np.uint16).tofile(tmp_path / "b.bin")
    found = TokenFiles([tmp_path / "a.bin", tmp_path / "b.bin"], "uint16", length=10, vocabulary=100)
    assert found.size == 5
    assert [found.sample(index).tolist() for index in range(5)] == [
        list(range(start, start + 11)) for start in range(0, 50, 10)
    ]


def test_a_token_outside_of_the_vocabulary_is_named(tmp_path: Path) -> None:
    np.arange(40, dtype=np.uint16).tofile(tmp_path / "a.bin")
    found = TokenFiles([tmp_path / "a.bin"], "uint16", length=10, vocabulary=25)
    found.sample(0)
    with pytest.raises(
        DataError, match=r"token id 30, but the model has rows only for ids below model.vocab_size=25: check"
    ):
        found.sample(2)


def test_a_token_file_that_ends_within_a_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"12345")
    with pytest.raises(DataError, match=r"a\.bin has 5 bytes, which is not a multiple of 2 \(uint16\)"):
        TokenFiles([tmp_path / "a.bin"], "uint16", length=1, vocabulary=2**16)


def test_the_end_of_the_corpus_is_held_out() -> None:
    training, held_out = split(Synthetic(256, 4, 1, size=200), 0.1)
    assert (training.size, held_out.size) == (180, 20)
    assert held_out.sample(0).tolist() == Synthetic(256, 4, 1).sample(180).tolist()


def test_a_change_of_any_conversation_is_another_corpus(tmp_path: Path) -> None:
    def identity(name: str, *answers: str) -> dict[str, Any]:
        rows = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}] for answer in answers]
        (tmp_path / name).mkdir()
        place = tmp_path / name / "talk.jsonl"
        place.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
        return batches(context(tmp_path / name, "data=chat", f"data.path={place}")).identity()

    first, second = identity("a", *"bcdefg"), identity("b", *"bxdefg")
    assert [first[key] == second[key] for key in ("samples", "sha256", "all")] == [True, True, False]
    assert identity("c", *"bcdefg") == first
    spec = make_spec("model=tiny")
    assert checkpoints.other_samples(spec, {"corpus": first}, first) is None
    said = checkpoints.other_samples(spec, {"corpus": first}, second)
    assert said is not None
    assert said.startswith("was trained on other data (6 samples here too, but others): data.path=")
    old = {key: first[key] for key in ("samples", "sha256")}
    assert checkpoints.other_samples(spec, {"corpus": old}, second) is None, "an earlier version took no hash of all"
    assert checkpoints.other_samples(spec, {"corpus": first}, old) is None


def test_token_files_and_synthetic_rows_are_known_by_three_samples(tmp_path: Path) -> None:
    assert batches(context(tmp_path, "data=synthetic")).identity().keys() == {"samples", "sha256"}


def test_a_corpus_too_small_to_hold_something_out_is_refused() -> None:
    with pytest.raises(DataError, match=r"the corpus has 1 samples and data.eval_fraction=0.5 holds out 1 of them"):
        split(Synthetic(256, 4, 1, size=1), 0.5)


def test_two_ranks_get_different_rows_which_are_those_of_one(tmp_path: Path) -> None:
    def rows(rank: int, ranks: int) -> list[list[int]]:
        world = (f"cluster.gpus_per_node={ranks}", "parallel=ddp", "train.global_batch_size=4", "data=synthetic")
        found = batches(context(tmp_path, *world, rank=rank)).training(Position(step=2, samples=8), last=3)
        return [row for _, micro_batches in found for tokens in micro_batches for row in tokens.tolist()]

    first, second, both = rows(0, 2), rows(1, 2), rows(0, 1)
    assert len(first) == len(second) == 2
    assert not [row for row in first if row in second]
    assert sorted(first + second) == sorted(both)


def test_tensor_parallel_ranks_get_the_same_rows(tmp_path: Path) -> None:
    world = ("parallel=fsdp_tp", "cluster.gpus_per_node=4", "data=synthetic")
    shares = [next(batches(context(tmp_path, *world, rank=rank)).training(Position(), last=1))[1] for rank in range(4)]
    assert torch.equal(shares[0][0], shares[1][0])
    assert torch.equal(shares[2][0], shares[3][0])
    assert not torch.equal(shares[0][0], shares[2][0])


def test_reading_ahead_changes_nothing(tmp_path: Path) -> None:
    plain, ahead = (
        list(
            batches(context(tmp_path, "data=synthetic", f"data.workers={workers}")).training(
                Position(step=1, samples=8), last=5
            )
        )
        for workers in (0, 2)
    )
    assert [step for step, _ in plain] == [2, 3, 4, 5]
    for (step, rows), (other, same) in zip(plain, ahead, strict=True):
        assert step == other
        assert torch.equal(torch.stack(rows), torch.stack(same))


def test_a_saved_data_set_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"story": ["once upon a time", "there was a launcher"]}).save_to_disk(tmp_path / "d")
    place = ("data=huggingface", f"data.path={tmp_path / 'd'}", "data.column=story")
    (found,) = open_corpora(context(tmp_path, *place))
    assert bytes(found.sample(0).astype(np.uint8)) == b"once upon a timet"
    with pytest.raises(DataError, match=r"data.column=text: row 1 has no such column; it has story"):
        open_corpora(context(tmp_path, *place[:2]))


def test_a_tokenizer_is_read_from_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    words = {"[UNK]": 0, "the": 1, "launcher": 2, "fits": 3}
    content = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    place = text(tmp_path / "t", a=b"the launcher fits the launcher " * 8)
    (found,) = open_corpora(context(tmp_path, "data=text", place, f"data.tokenizer={folder}"))
    assert found.sample(0).tolist()[:5] == [1, 2, 3, 1, 2]


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    place = text(tmp_path / "t", a=b"x" * 64)
    with pytest.raises(DataError, match=r"data.tokenizer=/nowhere: no such folder on this machine"):
        open_corpora(context(tmp_path, "data=text", place, "data.tokenizer=/nowhere"))


def test_no_cache_folder_is_the_default() -> None:
    assert not os.environ.get(token_folder.CACHE), f"unset {token_folder.CACHE} to run the tests"


def test_the_samples_of_an_epoch_are_counted_anew_where_the_data_are_opened(tmp_path: Path) -> None:
    place = text(tmp_path / "t", a=b"x" * (16 * 100 + 1))
    guessed = context(
        tmp_path, place, "train.epochs=2", "train.evals_per_epoch=1", "data.samples=7", "save.per_epoch=3"
    )
    now, corpora = counted(guessed)
    assert corpora is not None
    assert (corpora[0].size, now.spec.data.samples) == (100, 99)
    batch = now.spec.global_batch_size
    assert now.spec.steps == -(-2 * 99 // batch)
    assert (now.spec.eval_every, now.spec.save_every) == (round(99 / batch), round(33 / batch))
    other = context(tmp_path, place)
    assert counted(other) == (other, None)
