"""Rows that cannot be used: an error, or left out, counted and named, in every format and wherever data are read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from launcher.cli import main
from launcher.data import documents, look, sampling, unusable
from launcher.data.prepare import prepared
from launcher.data.token_folder import TokenFolder, settings
from launcher.data.unusable import BadRows, Unusable
from launcher.job import events
from launcher.spec.training import DataSpec
from tests.support.chat import turns
from tests.support.helpers import composed_once, make_spec

GOOD = [{"text": f"a text of some length, number {number}"} for number in range(30)]
BROKEN = b'{"text": "cut o'
RUN = ["model=tiny", "hardware=cpu", "precision=fp32", "cluster.gpus_per_node=1", "train.sequence_length=16"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAUNCH_CACHE", str(tmp_path / "cache"))


def data(*words: str) -> DataSpec:
    return composed_once(*words).data


def json_lines(*odd: bytes) -> bytes:
    lines = [json.dumps(row).encode() for row in GOOD]
    return b"\n".join([*lines[:3], *odd, *lines[3:]]) + b"\n"


def json_list(*odd: object) -> bytes:
    return json.dumps([*GOOD[:3], *odd, *GOOD[3:]], indent=1).encode()


def table(*odd: bytes) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([["text", "id"], *([row["text"], number] for number, row in enumerate(GOOD))])
    lines = text.getvalue().encode().splitlines()
    return b"\n".join([*lines[:4], *odd, *lines[4:]]) + b"\n"


def arrow(kind: str) -> bytes:
    """A column of text with bytes in its fourth row that are none."""
    texts = [row["text"].encode() for row in GOOD]
    array = pyarrow.array([*texts[:3], b"\xff\xfe", *texts[3:]], pyarrow.binary()).view(pyarrow.string())
    rows = pyarrow.table({"text": array})
    sink = pyarrow.BufferOutputStream()
    if kind == "parquet":
        parquet.write_table(rows, sink)
    else:
        with ipc.new_file(sink, rows.schema) as file:
            file.write_table(rows)
    return bytes(sink.getvalue())


CASES: dict[str, tuple[str, Callable[[], bytes], str, str]] = {
    "broken JSON": ("a.jsonl", lambda: json_lines(BROKEN), "line 4", "broken JSON in line 4: Unterminated string"),
    "no object": ("a.jsonl", lambda: json_lines(b"[1]"), "line 4", "line 4 holds a list, and a row must be an object"),
    "other columns": ("a.jsonl", lambda: json_lines(b'{"body": "x"}'), "line 4", "it has no such column; it has body"),
    "another type": ("a.jsonl", lambda: json_lines(b'{"text": [1]}'), "line 4", "it holds a list there, not text"),
    "no UTF-8": ("a.jsonl", lambda: json_lines(b'{"text": "\xff"}'), "line 4", "line 4 is not UTF-8 text (byte 10"),
    "half a pair": ("a.jsonl", lambda: json_lines(b'{"text": "\\ud800"}'), "line 4", "it holds bytes or escapes there"),
    "element": ("a.json", lambda: json_list(1), "element 4", "element 4 holds a number, and a row must be an object"),
    "element's type": ("a.json", lambda: json_list({"text": 1}), "element 4", "it holds a number there, not text"),
    "element's bytes": (
        "a.json",
        lambda: json_list({"text": "EFBF"}).replace(b"EFBF", b"\xef\xbf"),
        "element 4",
        "it holds bytes or escapes there",
    ),
    "fields": ("a.csv", lambda: table(b"one"), "line 5", "broken CSV in line 5: 1 fields, and the header has 2"),
    "quotes": ("a.csv", lambda: table(b'"a"b,1'), "line 5", "broken CSV in line 5: ',' expected after '\"'"),
    "bytes of a field": ("a.csv", lambda: table(b"\xff,1"), "line 5", "it holds bytes or escapes there"),
    "parquet": ("a.parquet", lambda: arrow("parquet"), "row 4", "it has a text that is not UTF-8 (byte 0xff"),
    "arrow": ("a.arrow", lambda: arrow("arrow"), "row 4", "it has a text that is not UTF-8 (byte 0xff"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bad_row_is_an_error_or_is_left_out_and_named_by_file_line_and_reason(name: str) -> None:
    file, content, place, reason = CASES[name]
    Path(file).write_bytes(content())
    strict = data(f"data.path={file}")
    with pytest.raises(Unusable):
        list(documents.documents(strict))
    with pytest.raises(Unusable):
        look.look(strict)
    skipping = data(f"data.path={file}", "data.on_bad_row=skip")
    bad = BadRows.of(skipping)
    assert list(documents.documents(skipping, bad)) == [row["text"] for row in GOOD]
    survey = look.look(skipping)
    assert survey is not None
    for found in (bad, survey.bad):
        assert (found.count, found.rows) == (1, 31)
        assert found.named[0].startswith(f"{Path(file).resolve()}, {place}: {reason}") or found.named[0].startswith(
            f"{file}, {place}: {reason}"
        )
    assert survey.seen == 30


def test_a_document_that_is_no_text_is_left_out_as_a_whole() -> None:
    for number in range(12):
        Path(f"{number}.txt").write_text(f"text {number} " * 100_000)
    Path("3.txt").write_bytes(b"text " * 100_000 + b"\xff")
    skipping = data("data.path=*.txt", "data.on_bad_row=skip")
    bad = BadRows.of(skipping)
    whole = "".join(documents.documents(skipping, bad))
    assert "text 2 " in whole
    assert "text text" not in whole
    assert (bad.count, bad.rows) == (1, 12)
    assert bad.named == [f"{Path('3.txt')}, document 1: it is not UTF-8 text (byte 0xff cannot be decoded)"]


def chat(*odd: object) -> None:
    rows = [turns(f"question {number}", "answer") for number in range(20)]
    text = "\n".join(json.dumps(row) for row in [*rows[:3], *odd, *rows[3:]])
    Path("a.jsonl").write_text(text + "\n")


@pytest.mark.parametrize(
    ("row", "words", "reason"),
    [
        ({"messages": [{"role": "wizard", "content": "x"}]}, (), "it has a message whose role is 'wizard'"),
        ({"messages": "no list"}, (), "it holds 'no list' in column messages, which is not a list"),
        ({"body": "x"}, (), "it has the columns body; data=chat reads"),
        (turns("stop", "x"), ("data.template=own.jinja",), "it: the template own.jinja fails: TemplateError: no stop"),
        (turns("\ud800", "x"), (), "it holds bytes or escapes that are not UTF-8"),
    ],
)
def test_a_conversation_that_cannot_be_used_is_left_out_and_named(
    row: object, words: Sequence[str], reason: str
) -> None:
    Path("own.jinja").write_text(
        "{% if messages[0].content == 'stop' %}{{ raise_exception('no stop') }}{% endif %}"
        "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}{{ 'assistant' if add_generation_prompt }}"
    )
    chat(row, {"messages": []})
    asked = ("data=chat", "data.path=a.jsonl", *words)
    with pytest.raises(Unusable):
        prepared(data(*asked), Path("strict"))
    skipping = data(*asked, "data.on_bad_row=skip")
    folder = prepared(skipping, Path("tokens"))
    survey = look.look(skipping)
    assert survey is not None
    assert folder.documents == 20
    assert folder.left_out == {"without messages": 1}, "nothing to learn from is no fault"
    for found in (folder.bad_rows, survey.bad):
        assert (found.count, found.rows) == (1, 22)
        assert found.named[0].startswith(f"a.jsonl, line 4: {reason}")


def test_a_quote_that_is_never_closed_counts_for_all_that_it_takes_with_it() -> None:
    lines = [b"text,id", *(b"a text,%d" % number for number in range(30))]
    Path("a.csv").write_bytes(b"\n".join([*lines[:4], b'"never closed,1', *lines[4:]]) + b"\n")
    with pytest.raises(Unusable, match=r"28 of 31 rows cannot be used, which is more than 5%"):
        list(documents.documents(data("data.path=a.csv", "data.on_bad_row=skip")))


@pytest.mark.parametrize(("good", "bad", "passes"), [(1, 10, True), (10, 11, False), (380, 20, True), (380, 21, False)])
def test_more_than_ten_and_more_than_a_twentieth_are_too_many(good: int, bad: int, passes: bool) -> None:
    Path("a.jsonl").write_bytes(
        b'{"text": "some text of a row"}\n' * good + BROKEN + b"\n" + (BROKEN + b"\n") * (bad - 1)
    )
    skipping = data("data.path=a.jsonl", "data.on_bad_row=skip")
    for read in (lambda: list(documents.documents(skipping)), lambda: look.look(skipping)):
        if passes:
            assert read()
            continue
        with pytest.raises(Unusable) as caught:
            read()
        finding = caught.value.finding
        assert (finding.path, finding.found) == ("data.on_bad_row", "skip")
        assert finding.rule.startswith(f"{bad} of {good + bad} rows cannot be used, which is more than 5%, too many")
        assert f"a.jsonl, line {good + 1}: broken JSON" in finding.rule


def test_endless_bad_rows_end_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unusable, "_EARLIEST", 1000)
    Path("a.jsonl").write_bytes((BROKEN + b"\n") * 5000)
    bad = BadRows(skips=True)
    with pytest.raises(Unusable, match="51 of 51 rows cannot be used"):
        list(documents.documents(data("data.path=a.jsonl", "data.on_bad_row=skip"), bad))


def test_large_files_are_sampled_past_their_bad_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b'{"text": "%b"}' % (b"word " * 200)] * 3000
    lines[2000] = BROKEN
    Path("a.jsonl").write_bytes(b"\n".join(lines))
    monkeypatch.setattr(sampling, "WHOLE", 1 << 10)
    monkeypatch.setattr(sampling, "_PIECE", 1 << 17)
    survey = look.look(data("data.path=a.jsonl", "data.on_bad_row=skip"))
    assert survey is not None
    assert survey.bad.count
    assert set(survey.bad.named) == {
        "a.jsonl, line 2001: broken JSON in line 2001: Unterminated string starting at at column 10"
    }


def answered(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    assert main([*words, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.usefixtures("without_torch")
def test_every_verb_names_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("a.jsonl").write_bytes(json_lines(BROKEN))
    words = [*RUN, "data.path=a.jsonl", "train.steps=2", "run.directory=runs/a"]
    errors = answered(capsys, "check", *words, status=2)["errors"]
    assert "data.on_bad_row=skip" in errors[0]["way_out"]
    words.append("data.on_bad_row=skip")
    named = "a.jsonl, line 4: broken JSON in line 4"
    said = f"1 of 31 rows cannot be used and are skipped: {named}"
    checked = answered(capsys, "check", *words)
    assert checked["data"]["bad_rows"]["rows"] == 1
    [warning] = [each for each in checked["warnings"] if each["path"] == "data.on_bad_row"]
    assert warning["rule"].startswith(said)
    made = answered(capsys, "prepare", *words)["prepare"]["folder"]["bad_rows"]
    assert (made["rows"], made["of"]) == (1, 31)
    assert made["named"][0].startswith(named)
    assert main(["run", *words]) == 0
    shown = capsys.readouterr()
    assert said in " ".join(shown.out.split())
    assert [line["kind"] for line in events.news(tmp_path / "runs" / "a")] == ["bad_rows"]
    [run] = answered(capsys, "status", "runs/a")["runs"]
    assert said in run["reason"]


def test_token_ids_of_before_the_key_are_those_of_its_default_and_of_no_other(tmp_path: Path) -> None:
    Path("a.jsonl").write_bytes(json_lines())
    strict, skipping = data("data.path=a.jsonl"), data("data.path=a.jsonl", "data.on_bad_row=skip")
    assert "on_bad_row" not in settings(strict)
    assert settings(skipping)["on_bad_row"] == "skip"
    folders: list[TokenFolder] = [prepared(each, tmp_path / "ids") for each in (strict, skipping)]
    assert folders[0].path != folders[1].path
    assert folders[0].sha256 == folders[1].sha256
    assert make_spec("data=text").hash != make_spec("data=text", "data.on_bad_row=skip").hash


def test_what_is_written_down_of_bad_rows_is_read_back_and_nothing_else() -> None:
    found = BadRows(True, 20, 3, ["a, line 1: x"])
    assert BadRows.read(found.as_dict()) == found
    assert BadRows.read({"rows": "many"}) == BadRows.read(None) == BadRows()
    assert found.sentences == "3 of 20 rows cannot be used and are skipped: a, line 1: x (and 2 more)"


def test_the_key_is_refused_nowhere_and_said_to_be_idle_where_there_are_no_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answered(capsys, "check", *RUN, "data=synthetic", "data.on_bad_row=skip")
    [warning] = [each for each in found["warnings"] if each["path"] == "data.on_bad_row"]
    assert warning["rule"] == "used only when rows hold text or messages"
