"""Token ids and their marks: what the assistant says and the end of its turn, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import transformers

from launcher.base.errors import DataError
from launcher.data.chat import conversations
from launcher.data.encoding import Encoded, encode_rows
from launcher.data.template import template
from launcher.data.tokenizer import Tokenizer, tokenizer
from launcher.data.unusable import BadRows
from launcher.spec.training import DataSpec
from tests.support.chat import CHATML, turns, write_tokenizer
from tests.support.helpers import composed_once

ROW = turns("hello?", "world\u00e4", "and <|im_end|> you?", "fine", system="be brief")


def data(**changed: object) -> DataSpec:
    return replace(composed_once("data=chat", "data.path=a.jsonl").data, **changed)  # type: ignore[arg-type]


def encode(asked: DataSpec, *rows: Mapping[str, object]) -> list[Encoded]:
    return list(encode_rows(rows, asked, tokenizer(asked.tokenizer), Counter(), BadRows()))


def parts(words: Tokenizer, one: Encoded) -> list[str]:
    """The trained tokens as text, run by run."""
    assert one.trained is not None
    found, before = [], False
    for number, trained in zip(one.ids, one.trained, strict=True):
        if trained:
            found += [[number]] if not before else []
            found[-1] += [number] if before else []
        before = trained
    decode = getattr(words, "_words", None)
    return [decode.decode(ids) if decode else bytes(ids).decode() for ids in found]


@pytest.mark.parametrize("template", [None, "chatml"])
def test_the_answer_and_its_end_are_trained_and_nothing_else(template: str | None, tmp_path: Path) -> None:
    asked = data(tokenizer=str(write_tokenizer(tmp_path)), template=template)
    [one] = encode(asked, ROW)
    assert parts(tokenizer(asked.tokenizer), one) == ["world\u00e4<|im_end|>", "fine<|im_end|>"]
    [last] = encode(replace(asked, train_on="last"), ROW)
    assert parts(tokenizer(asked.tokenizer), last) == ["fine<|im_end|>"]
    [whole] = encode(replace(asked, train_on="all"), ROW)
    assert whole.trained is not None
    assert all(whole.trained)
    assert list(whole.ids) == list(one.ids)


def test_ids_and_marks_are_those_of_transformers(tmp_path: Path) -> None:
    text = (Path(template.__code__.co_filename).parent / "templates" / "chatml.jinja").read_text()
    folder = write_tokenizer(tmp_path, text)
    words = transformers.AutoTokenizer.from_pretrained(folder)
    expected = words.apply_chat_template(ROW["messages"], return_dict=True, return_assistant_tokens_mask=True)
    [one] = encode(data(tokenizer=str(folder)), ROW)
    assert list(one.ids) == list(expected["input_ids"])
    assert [int(mark) for mark in one.trained or ()] == list(expected["assistant_masks"])


def test_bytes_are_marked_by_the_characters_that_they_are_of() -> None:
    [one] = encode(data(), ROW)
    assert parts(tokenizer("bytes"), one) == ["world\u00e4\n\n", "fine\n\n"]
    assert bytes(one.ids).decode().startswith("system: be brief\n\nuser: hello?\n\nassistant: world\u00e4\n\nuser: ")


@pytest.mark.parametrize(
    "row",
    [
        turns("a", "b"),
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"messages": '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]'},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "model", "content": "b"}]},
        {"prompt": "a", "completion": "b"},
        {"prompt": "a", "response": "b"},
        {"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]},
        {"instruction": "a", "input": "", "output": "b"},
        {"text": "ignored", "instruction": "a", "context": None, "response": "b"},
    ],
)
def test_the_common_shapes_are_one_conversation(row: dict[str, object]) -> None:
    [one] = conversations([row], data(), Counter(), BadRows())
    assert list(one.messages) == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def test_input_stands_below_the_instruction_and_system_before_all() -> None:
    row = {"system": "be brief", "instruction": "add", "input": "1 1", "output": "2", "tools": '[{"name": "f"}]'}
    [one] = conversations([row], data(), Counter(), BadRows())
    assert [(message["role"], message["content"]) for message in one.messages] == [
        ("system", "be brief"),
        ("user", "add\n\n1 1"),
        ("assistant", "2"),
    ]
    assert one.tools == [{"name": "f"}]


def test_the_column_that_is_named_comes_first() -> None:
    row = {"messages": [], "chosen": turns("a", "b")["messages"]}
    [one] = conversations([row], data(column="chosen"), Counter(), BadRows())
    assert len(one.messages) == 2


def test_rows_with_nothing_to_learn_from_are_skipped_and_counted() -> None:
    rows: list[Mapping[str, object]] = [
        {"messages": []},
        {"messages": None},
        turns("a"),
        turns("a", " "),
        turns("a", "b"),
    ]
    skipped: Counter[str] = Counter()
    assert len(list(conversations(rows, data(), skipped, BadRows()))) == 1
    assert skipped == {"without messages": 2, "without an assistant's turn": 1, "whose assistant says nothing": 1}
    assert len(list(conversations(rows, data(train_on="all"), Counter(), BadRows()))) == 3


@pytest.mark.parametrize(
    ("row", "column", "message"),
    [
        (
            {"a": 1, "b": 2},
            "text",
            "data.path: row 1 has the columns a, b; data=chat reads messages or conversations (a list",
        ),
        ({"a": 1, "b": 2}, "c", "data.column=c: row 1 has no such column; it has a, b; try data.column=text"),
        (
            {"messages": "hi"},
            "text",
            "row 1 holds 'hi' in column messages, which is not a list of messages; try data=text data.",
        ),
        ({"messages": ["hi"]}, "text", "row 1 has 'hi' among its messages; each is role and content, or from"),
        (
            {"messages": [{"role": "narrator", "content": ""}]},
            "text",
            "row 1 has a message whose role is 'narrator'; the",
        ),
        ({"messages": [{"content": ""}]}, "text", "row 1 has a message whose role is None; the roles are system, "),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "text",
            "row 1 has a message whose content is 3; only text is",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}], "tools": "f"},
            "text",
            "row 1 holds 'f' in column tools, which is",
        ),
        (turns("a"), "text", "data.path=a.jsonl: no conversation is left to train on: rows skipped: 1 without an"),
    ],
)
def test_a_row_that_cannot_be_understood_is_an_error(row: dict[str, object], column: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        list(conversations([row], data(column=column), Counter(), BadRows()))
    assert message in str(caught.value)


def test_no_rows_are_an_error() -> None:
    with pytest.raises(DataError, match="no conversation is left to train on: there are no rows"):
        list(conversations([], data(), Counter(), BadRows()))


def test_white_space_of_an_answer_without_special_tokens_is_trained(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text(CHATML.replace("<|im_end|>", ""))
    asked = data(tokenizer=str(write_tokenizer(tmp_path / "t")), template=str(own))
    [one] = encode(asked, turns("a", "b"))
    assert parts(tokenizer(asked.tokenizer), one) == ["b\n"]
