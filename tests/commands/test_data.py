"""`launch check` and `launch run` open the data: what they find is said, and what is wrong ends them at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main
from launcher.data import look
from launcher.data.survey import Survey
from launcher.spec import DataSpec

ON = ("model=tiny", "hardware=rtx4090", "cluster.gpus_per_node=1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"row {number} " * 20, "id": number} for number in range(99)]
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, rows[0]]))
    Path("chat.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "a"}]}))
    return tmp_path


def _check(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    assert main(["check", "--json", *ON, *words]) == status
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_check_says_what_the_data_are(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("data=text", "data.path=rows.jsonl", "train.global_batch_size=4", "train.steps=10")
    data = _check(capsys, *words)["data"]
    tokens = sum(len(f"row {number} " * 20) for number in [*range(99), 0])
    samples = (tokens - 1) // 256
    assert data == {
        "format": "JSON lines",
        "files": 1,
        "bytes": Path("rows.jsonl").stat().st_size,
        "columns": ["text", "id"],
        "rows": 100,
        "rows_exact": True,
        "tokens": tokens,
        "tokens_error": 0,
        "vocabulary": 256,
        "samples": samples,
        "steps": samples / 4,
        "epochs": 10 / (samples / 4),
        "conversations": None,
        "seen": {"rows": 100, "empty": 0, "duplicates": 1, "all": True},
    }
    assert main(["check", *ON, *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        f"data: 1 file of JSON lines (text, id), 100 rows, {tokens:,} tokens; an epoch is {samples} samples = "
        f"{samples / 4:.3g} steps; 10 steps are {4000 / samples:.3g}% of that; 1 duplicate of all 100 rows"
    ) in said


def test_conversations_are_looked_at_as_the_samples_that_they_become(capsys: pytest.CaptureFixture[str]) -> None:
    turns = [("q" * 10, "a" * 10), ("q" * 400, "a"), ("q", "a" * 600), ("q", "")]
    rows = [{"prompt": asked, "completion": answered} for asked, answered in turns]
    Path("pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ("data=chat", "data.path=pairs.jsonl", "train.global_batch_size=3", "train.steps=2")
    document = _check(capsys, *words)
    data, said = document["data"], {warning["path"]: warning for warning in document["warnings"]}
    assert (data["rows"], data["samples"], data["steps"], data["epochs"]) == (4, 3, 1.0, 2.0)
    assert data["seen"]["empty"] == 1
    shares = data["conversations"]
    assert (shares["cut"], shares["masked"]) == (2 / 3, 1 / 3)
    assert 0.2 < shares["padding"] < 0.33
    warning = said["train.sequence_length"]
    assert warning["rule"] == "1 of 3 conversations are cut off before their first trained token"
    (way,) = warning["way_out"]
    assert _check(capsys, *words, way, "model.max_position_embeddings=420")["data"]["conversations"]["masked"] == 0
    assert main(["check", *ON, *words]) == 0
    assert "67% of the samples are cut off" in " ".join(capsys.readouterr().out.split())
    Path("pairs.jsonl").write_text(json.dumps(rows[3]))
    document = _check(capsys, *words, status=2)
    assert document["errors"][0]["rule"].startswith("no conversation has a turn to train on")
    Path("pairs.jsonl").write_text("{")
    document = _check(capsys, *words, "data.on_bad_row=skip", status=2)
    assert [(each["rule"], each["way_out"]) for each in document["errors"]] == [
        ("no row can be used", ["data.on_bad_row=error"])
    ]
    Path("pairs.txt").write_text("text")
    document = _check(capsys, "data=chat", "data.path=pairs.txt", status=2)
    assert document["errors"][0]["way_out"] == ["data=text data.path=pairs.txt"]


def test_data_that_nobody_can_look_at_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ("data=synthetic",),
        ("data=huggingface", "data.path=acme/corpus"),
        ("data=tokens", "data.path=t.bin"),
    ):
        Path("t.bin").write_bytes(bytes(4096))
        data = _check(capsys, *words)["data"]
        assert data is None or data["tokens"] == 2048
    assert main(["check", *ON, "data=synthetic"]) == 0
    assert "data:" not in capsys.readouterr().out
    assert main(["check", *ON, "data=huggingface", "data.path=acme/corpus"]) == 0
    said = "data: acme/corpus on the Hugging Face Hub, split train: read only when the job downloads it"
    assert said in " ".join(capsys.readouterr().out.split())
    assert main(["check", "model=tiny", "hardware=a6000", "data=chat", "data.path=on_the_node.jsonl"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "on the Hugging Face Hub" not in printed
    assert "data.path=on_the_node.jsonl: it is not on this machine" in printed


def test_conversations_that_are_all_cut_off_before_an_answer_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "q" * 300, "completion": "a"}] * 3
    Path("long.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    document = _check(capsys, "data=chat", "data.path=long.jsonl", "train.sequence_length=128", status=2)
    (error,) = document["errors"]
    assert error["rule"] == "3 of 3 conversations are cut off before their first trained token"
    (way,) = error["way_out"]
    assert "train.sequence_length" not in {warning["path"] for warning in document["warnings"]}
    _check(capsys, "data=chat", "data.path=long.jsonl", way, "model.max_position_embeddings=512")


@pytest.mark.parametrize(
    ("words", "path", "rule", "ways"),
    [
        (
            ("data=text", "data.path=chat.jsonl"),
            "data.column",
            "row 1 has no such column; it has messages (conversations, which data=chat trains on)",
            ["data=chat data.path=chat.jsonl"],
        ),
        (
            ("data=text", "data.path=rows.jsonl", "data.column=id"),
            "data.column",
            "row 1 holds a number there, not text; as text it would be 0",
            ["data.column=text"],
        ),
        (
            ("data=huggingface", "data.path=broken.jsonl"),
            "data.path",
            "broken JSON in line 2: Expecting value at column 10",
            ["data.on_bad_row=skip"],
        ),
        (
            ("data=tokens", "data.path=medium.txt", "data.token_dtype=uint16"),
            "data.path",
            "medium.txt has 301 bytes, not a multiple of the 2 of data.token_dtype=uint16",
            [],
        ),
        (
            ("data=tokens", "data.path=ids.bin"),
            "model.vocab_size",
            "the data contain token id 28013, but the model's embedding ends below it",
            ["model.vocab_size=28014"],
        ),
        (
            ("data=text", "data.path=short.txt"),
            "data.path",
            "5 tokens are too few: a sample takes 256 tokens plus one",
            ["data=synthetic data.path=null", "train.sequence_length=4"],
        ),
        (
            ("data=text", "data.path=medium.txt", "train.eval_every=5"),
            "data.eval_fraction",
            "the data have 1 samples, and all of them are held out for evaluation",
            ["train.eval_every=null", "data=synthetic data.path=null"],
        ),
    ],
)
def test_what_is_wrong_with_the_data_is_said_in_a_check(
    words: tuple[str, ...], path: str, rule: str, ways: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.jsonl").write_text('{"text": "a"}\n{"text": a}\n')
    Path("short.txt").write_text("short")
    Path("medium.txt").write_text("m" * 301)
    Path("ids.bin").write_bytes(b"mm" * 300)
    document = _check(capsys, *words, status=2)
    assert [(error["path"], error["rule"], error["way_out"]) for error in document["errors"]] == [(path, rule, ways)]
    assert document["verdict"] == "invalid"


def test_a_run_is_stopped_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    here = ("model=tiny", "hardware=auto", "data=text")
    assert main(["run", *here, "data.path=typo.txt"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: data.path=typo.txt: no file matches; data=text reads text, or")
    assert main(["run", *here, "data.path=chat.jsonl"]) == 2
    assert main(["-m", *here, "data.path=chat.jsonl", "train.seed=1,2"]) == 2
    assert "it has messages (conversations, which data=chat trains on)" in " ".join(capsys.readouterr().out.split())
    assert not Path("runs").exists()


def test_a_machine_that_the_run_is_not_for_need_not_have_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    missing = ("data=huggingface", "data.path=/nowhere/x.parquet")
    for words in (("cluster=slurm", *missing), missing):
        document = _check(capsys, *words)
        (found,) = [warning for warning in document["warnings"] if warning["path"] == "data.path"]
        assert found["rule"].endswith("so it was not checked; the job checks it before it builds the model")
    broken = _check(capsys, "cluster=slurm", "data=text", "data.path=chat.jsonl", status=2)
    assert broken["errors"][0]["path"] == "data.column"


def test_what_cannot_be_looked_at_for_want_of_a_package_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    document = _check(capsys, "data=text", "data.path=x.parquet")
    (found,) = [warning for warning in document["warnings"] if warning["path"] == "data.path"]
    assert found["rule"] == "not checked: Parquet and Arrow need pyarrow, not installed for this Python"
    assert found["way_out"] == [f"{sys.executable} -m pip install 'llm-launch[fsdp]'"]


def test_a_tokenizer_with_more_ids_than_the_model_has_rows_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "row": 1, "</s>": 2, "x": 300}, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    Path("words").mkdir()
    words.save("words/tokenizer.json")
    Path("words/tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    given = ("data=text", "data.path=rows.jsonl", "data.tokenizer=words", "model.vocab_size=3")
    document = _check(capsys, *given)
    assert (document["data"]["tokens"], document["data"]["vocabulary"]) == (100 * 40 + 100, 301)
    (found,) = [warning for warning in document["warnings"] if warning["path"] == "model.vocab_size"]
    assert found["rule"] == "data.tokenizer=words has ids up to 300, beyond the model's embedding"
    document = _check(capsys, *given[:3], "model.vocab_size=2", status=2)
    assert document["errors"][0]["rule"] == "the data contain token id 2, but the model's embedding ends below it"
    Path("words/tokenizer.json").write_text("{")
    document = _check(capsys, *given, status=2)
    assert document["errors"][0]["rule"].startswith("it cannot be read as a tokenizer: ")


def test_points_and_sweeps_look_once_at_data_that_they_share(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str | None] = []
    found = look.look

    def counted(data: DataSpec, *task: str) -> Survey | None:
        looked.append(data.path)
        return found(data, *task)

    monkeypatch.setattr(look, "look", counted)
    words = [*ON, "data=text", "data.path=rows.jsonl"]
    points = [json.dumps({"id": seed, "overrides": [*words, f"train.seed={seed}"]}) for seed in range(5)]
    Path("points.jsonl").write_text("\n".join(points))
    assert main(["check", "--points", "points.jsonl"]) == 0
    assert [json.loads(line)["data"]["rows"] for line in capsys.readouterr().out.splitlines()] == [100] * 5
    assert looked == ["rows.jsonl"]
    assert main(["check", "-m", *words, "train.seed=1,2,3"]) == 0
    assert looked == ["rows.jsonl"] * 2


def test_a_look_reads_little_of_many_files_and_of_fifty_gigabytes(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"{json.dumps({'text': 'x' * 1000})}\n".encode()
    with Path("huge.jsonl").open("wb") as file:  # A file with holes, whose lines are where nothing looks for them.
        file.write(line * 64)
        file.truncate(50 * 10**9 // len(line) * len(line))
    Path("many").mkdir()
    for number in range(1000):
        Path(f"many/{number}.txt").write_text(f"{number} " * 500)
    before = read_so_far()
    many = _check(capsys, "data=text", "data.path=many")["data"]
    assert (many["files"], many["tokens_error"]) == (1000, 0)
    assert _check(capsys, "data=text", "data.path=huge.jsonl", status=2)["errors"][0]["path"] == "data.path"
    assert read_so_far() - before < 10**9, "it must not read everything"


def read_so_far() -> int:
    """Bytes that this process has read: the first line of ``/proc/self/io`` (``man 5 proc``)."""
    return int(Path("/proc/self/io").read_text().split()[1])
