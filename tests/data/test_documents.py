"""``data.path`` becomes documents: which files, which column, and what is refused with the words to type instead."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from launcher.data import documents
from launcher.data.chat import PAIRS
from launcher.data.unusable import Unusable
from launcher.spec import DataSpec
from tests.support.helpers import make_spec


def _data(*words: str, source: str = "text") -> DataSpec:
    return make_spec("model=tiny", f"data={source}", *words).data


def _lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _refused(data: DataSpec) -> Unusable:
    with pytest.raises(Unusable) as caught:
        list(documents.documents(data))
    return caught.value


def test_a_column_of_all_files_in_order_is_the_text(tmp_path: Path) -> None:
    _lines(tmp_path / "b.jsonl", [{"text": "3"}, {"text": None}])
    _lines(tmp_path / "a.jsonl", [{"text": "1"}, {"text": ""}, {"text": "2"}])
    (tmp_path / "c.jsonl").touch()
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/x.txt").write_text("hidden files are no data")
    for source in ("text", "huggingface"):
        for path in (tmp_path, tmp_path / "*.jsonl"):
            assert list(documents.documents(_data(f"data.path={path}", source=source))) == ["1", "2", "3"]
    assert [row["text"] for row in documents.table_rows(_data(f"data.path={tmp_path}"))] == ["1", "", "2", "3", None]


def test_a_text_is_one_document_and_the_default_is_python_itself(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.md").write_text("three")
    assert list(documents.documents(_data(f"data.path={tmp_path}"))) == ["one\ntwo\n", "three"]
    assert next(documents.documents(_data())).startswith('"""Record of phased-in incompatible')


def test_the_fingerprint_changes_with_content_and_column(tmp_path: Path) -> None:
    path = _lines(tmp_path / "a.jsonl", [{"text": "1"}])
    first = documents.fingerprint(_data(f"data.path={path}"))
    assert first == documents.fingerprint(_data(f"data.path={path}"))
    assert first != documents.fingerprint(_data(f"data.path={path}", "data.column=other"))
    _lines(path, [{"text": "12"}])
    assert first != documents.fingerprint(_data(f"data.path={path}"))


CHAT = "data=chat data.path={path}"


@pytest.mark.parametrize(
    ("row", "words", "found", "rule", "ways"),
    [
        (
            {"content": "a", "id": 1},
            (),
            "text",
            "row 1 has no such column; it has content, id",
            ["data.column=content"],
        ),
        (
            {"messages": [{"role": "user", "content": "a"}]},
            (),
            "text",
            "row 1 has no such column; it has messages (conversations, which data=chat trains on)",
            [CHAT],
        ),
        (
            {"conversations": [{"from": "human", "value": "a"}], "id": "x"},
            (),
            "text",
            "row 1 has no such column; it has conversations, id (conversations, which data=chat trains on)",
            [f"{CHAT} data.column=conversations", "data.column=id"],
        ),
        (
            {"instruction": "a", "input": "", "output": "b"},
            (),
            "text",
            "row 1 has no such column; it has instruction, input, output (conversations, which data=chat trains on)",
            [CHAT, "data.column=instruction", "data.column=input", "data.column=output"],
        ),
        (
            {"prompt": "a", "completion": "b"},
            (),
            "text",
            "row 1 has no such column; it has prompt, completion (conversations, which data=chat trains on)",
            [CHAT, "data.column=prompt", "data.column=completion"],
        ),
        (
            {"messages": [{"role": "user", "content": "a"}]},
            ("data.column=messages",),
            "messages",
            "row 1 holds messages there, and data.source=text reads text",
            [CHAT],
        ),
        (
            {"tags": ["a"], "body": "b"},
            ("data.column=tags",),
            "tags",
            "row 1 holds a list there, not text; as text it would be ['a']",
            ["data.column=body"],
        ),
        (
            {"label": 3},
            ("data.column=label",),
            "label",
            "row 1 holds a number there, not text; as text it would be 3",
            [],
        ),
    ],
)
def test_rows_without_text_are_refused_with_what_to_type(
    row: Mapping[str, Any], words: tuple[str, ...], found: str, rule: str, ways: list[str], tmp_path: Path
) -> None:
    path = _lines(tmp_path / "x.jsonl", [row])
    finding = _refused(_data(f"data.path={path}", *words)).finding
    assert (finding.path, finding.found, finding.rule) == ("data.column", found, rule)
    assert list(finding.way_out) == [way.format(path=path) for way in ways]


def test_a_later_row_without_the_column_is_found_too(tmp_path: Path) -> None:
    path = _lines(tmp_path / "x.jsonl", [{"text": "a"}, {"txt": "b"}])
    error = _refused(_data(f"data.path={path}"))
    assert str(error) == "data.column=text: row 2 has no such column; it has txt; try data.column=txt"
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.finding.way_out) == (str(error), ("data.column=txt",))


def test_files_of_several_kinds_are_not_mixed(tmp_path: Path) -> None:
    _lines(tmp_path / "x.jsonl", [{"text": "a"}])
    (tmp_path / "x.txt").write_text("a")
    finding = _refused(_data(f"data.path={tmp_path}")).finding
    assert finding.rule == (
        f"it mixes kinds of files: jsonl ({tmp_path}/x.jsonl), text ({tmp_path}/x.txt); name one kind"
    )
    assert finding.way_out == (f"data.path={tmp_path}/*.jsonl", f"data.path={tmp_path}/*.txt")


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    assert "every file that matches is empty; try data=synthetic data.path=null" in str(
        _refused(_data(f"data.path={tmp_path}/*"))
    )
    assert "no file matches; data=text reads text, or rows of JSON" in str(_refused(_data(f"data.path={tmp_path}/x")))


def test_a_mistyped_path_is_told_with_files_of_nearly_its_name_and_what_it_should_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("chat.jsonl", "chats.jsonl", "pairs.jsonl", "chat l.jsonl"):
        _lines(tmp_path / name, [{"prompt": "a", "completion": "b"}])
    finding = _refused(_data("data.path=./chatt.jsonl", source="chat")).finding
    assert "; data=chat reads conversations (messages, or prompt and completion) of JSON lines" in finding.rule
    assert finding.way_out == ("data.path=./chat.jsonl", "data.path=./chats.jsonl", "data=synthetic data.path=null")
    assert _refused(_data("data.path=nowhere/chat.jsonl", source="rows")).finding.way_out == ()


def test_a_local_path_is_never_asked_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for path in ("./corpus", "data/corpus", "corpus.jsonl", "a/b/c", "/nowhere/at/all", "corpus/train.parquet"):
        error = _refused(_data(f"data.path={path}", source="huggingface"))
        assert "no file matches, and it cannot be a name on the Hugging Face Hub (OWNER/NAME)" in str(error)


def test_the_splits_of_a_folder_are_those_of_its_file_names(tmp_path: Path) -> None:
    for name in ("data/train-00000-of-00001", "data/validation-00000-of-00001", "test"):
        _lines(tmp_path / f"{name}.jsonl", [{"text": name}])
    (tmp_path / "README.md").write_text("# A data set\n")
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "words.py").write_text("import datasets\n")
    for split in ("train", "validation", "test"):
        data = _data(f"data.path={tmp_path}", f"data.split={split}", source="huggingface")
        (text,) = documents.documents(data)
        assert split in text
    finding = _refused(_data(f"data.path={tmp_path}", "data.split=dev", source="huggingface")).finding
    assert (finding.path, finding.found) == ("data.split", "dev")
    assert finding.way_out == ("data.split=test", "data.split=train", "data.split=validation")


def _saved(folder: Path, shards: Sequence[Sequence[str]]) -> None:
    """A folder as ``save_to_disk`` of the package datasets leaves it."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(shards):05d}.arrow" for number in range(len(shards))]
    for name, texts in zip(names, shards, strict=True):
        table = pa.table({"text": texts})
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))


def test_saved_data_sets_are_read_in_their_order(tmp_path: Path) -> None:
    _saved(tmp_path / "one", [["1", "2"], ["3"]])
    _saved(tmp_path / "two/train", [["4"]])
    _saved(tmp_path / "two/dev", [["5"]])
    (tmp_path / "two/dataset_dict.json").write_text(json.dumps({"splits": ["train", "dev"]}))
    for source in ("text", "huggingface"):
        assert list(documents.documents(_data(f"data.path={tmp_path}/one", source=source))) == ["1", "2", "3"]
    two = (f"data.path={tmp_path}/two", "data.split=dev")
    assert list(documents.documents(_data(*two, source="huggingface"))) == ["5"]
    finding = _refused(_data(two[0])).finding
    assert finding.way_out[0] == "data=huggingface data.split=train"
    assert finding.rule.startswith("it is a saved data set with the splits train, dev")


@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_that_conversations_may_have_is_pointed_to_them(pair: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(dict.fromkeys(pair, "a")))
    finding = _refused(_data(f"data.path={tmp_path}/x.jsonl")).finding
    assert finding.way_out[0] == f"data=chat data.path={tmp_path}/x.jsonl"
    assert finding.rule.endswith("(conversations, which data=chat trains on)")
