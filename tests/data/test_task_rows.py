"""Rows of tasks beyond pretraining: their columns, the roles of their messages, and what is said of wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.data import task_rows
from launcher.data.chat import conversation, mapped
from launcher.data.unusable import Unusable
from launcher.preflight import data
from tests.support.helpers import make_spec

PAIR = {"prompt": "2 + 2?", "chosen": " 4", "rejected": " 5, or 6", "source": "a book"}


def written(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.path={path}"


def test_a_row_keeps_the_columns_of_its_task_alone() -> None:
    assert task_rows.read(PAIR, "dpo", 1) == {key: PAIR[key] for key in ("prompt", "chosen", "rejected")}
    assert task_rows.read({"prompt": "a", "completion": "b", "label": 1}, "kto", 1)["label"] is True


def test_messages_get_the_roles_of_chat_templates() -> None:
    row = {
        "chosen": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
        "rejected": '[{"role": "bot", "content": "c"}]',
    }
    found = task_rows.read(row, "reward", 1)
    assert [turn["role"] for turn in found["chosen"]] == ["user", "assistant"]
    assert found["rejected"] == [{"role": "assistant", "content": "c"}]


@pytest.mark.parametrize(
    ("row", "task", "rule"),
    [
        ({"prompt": "a", "chosen": "b"}, "dpo", "row 3 has no rejected; it has prompt, chosen, and task=dpo reads"),
        ({"prompt": "a", "completion": "b", "label": "yes"}, "kto", "row 3 holds 'yes' as its label"),
        ({"chosen": 1, "rejected": 2}, "reward", "row 3 holds int in column chosen"),
        ({"prompt": "a", "chosen": [{"role": "user", "content": "b"}], "rejected": "c"}, "dpo", "text in some of the"),
    ],
)  # fmt: skip
def test_a_row_that_the_task_cannot_use_is_said_with_its_number(row: dict[str, Any], task: str, rule: str) -> None:
    with pytest.raises(Unusable, match=rule):
        task_rows.read(row, task, 3)


def test_a_check_counts_the_tokens_of_the_longest_answer_and_rows_that_the_length_cuts(tmp_path: Path) -> None:
    where = written(tmp_path, PAIR, {**PAIR, "prompt": "x" * 100})
    seen = data.seen(make_spec("task=dpo", "data=rows", where, "train.sequence_length=32"))
    assert seen.errors == ()
    assert seen.survey is not None
    assert seen.survey.samples == ((6 + 8, 6), (100 + 8, 100))
    assert seen.survey.tokens == 122
    [warning] = seen.warnings
    assert warning.rule == "1 of 2 conversations are cut off before their first trained token"
    assert seen.samples == 1, "TRL leaves it out"


@pytest.mark.parametrize("task", ["dpo", "reward"])
def test_pairs_with_equal_answers_are_counted(task: str, tmp_path: Path) -> None:
    """Their loss has no gradient: rejected and chosen are as likely under any model."""
    same = {**PAIR, "rejected": PAIR["chosen"]}
    words = (f"task={task}", "data=rows", written(tmp_path, PAIR, same, same))
    [warning] = data.seen(make_spec(*words)).warnings
    assert warning.rule == "2 of 3 pairs have equal answers, from which nothing is learned"
    crossed = make_spec(*words, "data.columns={prompt:prompt,chosen:chosen,rejected:prompt}")
    assert data.seen(crossed).warnings == (), "columns are those of data.columns"


@pytest.mark.parametrize(("length", "trained", "error"), [(13, 0, True), (14, 1, False), (108, 2, False)])
def test_pairs_that_are_longer_are_none_to_the_trainer_of_rewards(
    length: int, trained: int, error: bool, tmp_path: Path
) -> None:
    """Such a run would end as its trainer has dropped the last row."""
    where = written(tmp_path, PAIR, {**PAIR, "prompt": "x" * 100})
    seen = data.seen(make_spec("task=reward", "data=rows", where, f"train.sequence_length={length}"))
    assert seen.samples == trained
    rules = [each.rule for each in (seen.errors if error else seen.warnings)]
    left_out = [f"{2 - trained} of 2 pairs have a longer answer, and TRL drops these pairs"] if trained < 2 else []
    assert rules == left_out


@pytest.mark.parametrize(
    ("length", "ways"), [(39, None), (38, ["train.sequence_length=39", "task.completion_length=31"])]
)
def test_a_prompt_needs_room_for_its_answer_and_has_no_label_of_its_own(
    length: int, ways: list[str] | None, tmp_path: Path
) -> None:
    where = written(tmp_path, {"prompt": "1234567"}, {"prompt": "123"})
    words = (f"train.sequence_length={length}", "task.completion_length=32", "task.generations=2")
    seen = data.seen(make_spec("task=grpo", "data=rows", "task.rewards=[rewards.length]", where, *words))
    assert seen.errors == ()
    assert [(each.rule, list(each.way_out)) for each in seen.warnings] == (
        [] if ways is None else [("1 of 2 prompts plus an answer are longer, and TRL truncates neither", ways)]
    )


def test_a_check_names_the_tasks_that_the_columns_would_do_for(tmp_path: Path) -> None:
    seen = data.seen(make_spec("task=kto", "data=rows", written(tmp_path, PAIR), "train.micro_batch_size=2"))
    [error] = seen.errors
    assert (error.path, list(error.way_out)) == ("task.name", ["task=dpo", "task=reward"])


def test_a_check_says_what_the_job_would_of_a_label_that_is_text_and_of_a_column_that_is_not_there(
    tmp_path: Path,
) -> None:
    judged = written(tmp_path, {"prompt": "a", "completion": "b", "label": "yes"})
    [error] = data.seen(make_spec("task=kto", "data=rows", judged, "train.micro_batch_size=2")).errors
    assert error.rule == "row 1 holds 'yes' as its label, which must be true or false"
    [error] = data.seen(make_spec("task=dpo", "data=rows", written(tmp_path, {"prompt": "a", "chosen": "b"}))).errors
    assert error.rule == "task=dpo reads the columns chosen, rejected; the data have prompt, chosen, and no rejected"
    assert error.way_out == ()
    [error] = data.seen(make_spec("task=dpo", "data=rows", written(tmp_path))).errors
    assert (error.rule, error.way_out) == ("every file that matches is empty", ())


def test_data_of_another_kind_are_not_looked_at_as_the_rule_of_the_task_refuses_them(tmp_path: Path) -> None:
    found = data.seen(make_spec("model=tiny", "task=dpo", "data=text", written(tmp_path, PAIR)))
    assert (found.survey, found.errors, found.warnings) == (None, (), ())


def test_columns_of_other_names_and_parts_of_columns_become_those_of_a_task() -> None:
    row = {"question": "2 + 2?", "answers": {"text": ["4", "four"]}, "worse": "5", "system": ""}
    columns = {
        "prompt.system": "system",
        "prompt.user": "Q: {question}",
        "chosen.assistant": "answers.text.0",
        "rejected.assistant": "worse",
    }
    found = task_rows.read(mapped(row, columns), "dpo", 1)
    assert found["prompt"] == [{"role": "user", "content": "Q: 2 + 2?"}]
    assert found["chosen"] == [{"role": "assistant", "content": "4"}]
    pair = conversation(mapped(row, {"prompt": "{question} ({worse}?)", "completion": "{answers.text.1}"}), 1, None)
    assert [turn["content"] for turn in pair.messages] == ["2 + 2? (5?)", "four"]
    with pytest.raises(Unusable, match="has no ask; it has the columns question, answers, worse, system"):
        mapped(row, {"prompt": "ask"})
