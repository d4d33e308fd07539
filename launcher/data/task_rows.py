"""Rows for tasks that train on pairs, judged answers or prompts (``data=rows``), as TRL's trainers read them.

A row has the columns of its task (``launcher.spec.task.ROWS``), each a text or a list of messages with the roles of
chat templates; a label is a boolean. Other columns are dropped.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from launcher.data.chat import is_conversation, mapped, messages_of
from launcher.data.documents import table_rows
from launcher.data.unusable import BadRows, Unusable
from launcher.spec import DataSpec
from launcher.spec.training import ROWS

OPTIONAL = ("prompt",)  # If it is missing, TRL uses the common start of both answers (``extract_prompt``).
_LABEL = "label"
_ANSWERS = {"chosen", "rejected", "completion"}


def rows(data: DataSpec, task: str, bad: BadRows | None = None) -> Iterator[dict[str, Any]]:
    """The rows of all files in order; ``bad`` skips rows that the task cannot use."""
    bad = bad or BadRows.of(data)
    for number, row in enumerate(table_rows(data, bad), start=1):
        try:
            found = read(mapped(row, data.columns), task, number)
        except Unusable as error:
            bad.refuse(error)
        else:
            yield found
    bad.require_few()


def read(row: Mapping[str, object], task: str, number: int) -> dict[str, Any]:
    """The task's columns of one row, with its number from 1; Unusable if one is missing or has the wrong type."""
    wanted = ROWS[task]
    missing = [name for name in wanted if row.get(name) is None]
    if missing:
        rule = (
            f"row {number} has no {' and no '.join(missing)}; it has {', '.join(map(str, row))}, and task={task} reads"
            f" {', '.join(wanted)}"
        )
        raise Unusable("data.path", None, rule, other_tasks(row, task))
    names = [*(name for name in OPTIONAL if name not in wanted and row.get(name) is not None), *wanted]
    found = {name: _value(row[name], name, number) for name in names}
    kinds = {isinstance(value, list) for name, value in found.items() if name != _LABEL}
    if len(kinds) > 1:
        rule = f"row {number} holds text in some of the columns {', '.join(names)} and messages in others"
        raise Unusable("data.path", None, rule)
    return found


def sequences(row: Mapping[str, object], number: int) -> Iterator[tuple[object, object]]:
    """The prompt and answer of each sequence of a row, whatever its task; a prompt alone has an empty answer."""
    names = [name for name in ("chosen", "rejected", "completion") if row.get(name) is not None]
    prompt = row.get("prompt")
    first = "" if prompt is None else _value(prompt, "prompt", number)
    for name in names:
        answer = _value(row[name], name, number)
        yield (first if type(first) is type(answer) else type(answer)()), answer
    if not names:
        yield first, type(first)()


def _value(value: object, name: str, number: int) -> object:
    if name == _LABEL:
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise Unusable("data.path", None, f"row {number} holds {value!r} as its label, which must be true or false")
    value = [value] if isinstance(value, Mapping) else value
    if is_conversation(value):
        return messages_of(value, number)
    if isinstance(value, str):
        return value
    rule = f"row {number} holds {type(value).__name__} in column {name}, which must be a text or a list of messages"
    raise Unusable("data.path", None, rule)


def other_tasks(columns: Iterable[str], task: str) -> list[str]:
    """The tasks that rows with such columns fit, using all of their answers."""
    there = set(columns)
    answers = there & _ANSWERS
    fitting = [f"task={name}" for name, wanted in ROWS.items() if name != task and answers <= {*wanted} <= there]
    if there & {"messages", "conversations"} or there >= {"prompt", "completion"}:
        fitting.insert(0, "task=sft data=chat")
    return fitting
