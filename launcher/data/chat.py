"""Conversations: rows of data in the common shapes, as messages with the roles that chat templates know.

A row is a list of messages (``messages`` or ``conversations``, each ``role``/``content`` or ``from``/``value``), or a
question and its answer in two columns (``prompt``/``completion``, ``instruction``/``input``/``output``). The columns
of a row, or ``data.column``, determine its shape. A row with nothing to learn from is skipped and counted; a row of
unknown or invalid shape is an error.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from launcher.base.files import any_json
from launcher.base.frozen import dataclass
from launcher.data.unusable import BadRows, Unusable
from launcher.spec.training import DataSpec

type Message = Mapping[str, Any]

_LISTS = ("messages", "conversations", "conversation")  # Columns of lists of messages.
_TURNS = ({"role", "content"}, {"from", "value"})  # Keys of a message.

PAIRS = (("prompt", "completion"), ("prompt", "response"), ("instruction", "output"), ("instruction", "response"),
         ("question", "answer"))  # fmt: skip
"""Columns of the user's turn and the assistant's."""

_BESIDE = {"instruction": ("input", "context")}
"""Columns whose text is appended to the user's after an empty line (Alpaca's ``input``, Dolly's ``context``)."""

_SHAPES = (
    "messages or conversations (a list of role/content or from/value), prompt/completion, prompt/response, "
    "instruction/input/output, question/answer"
)

_ROLES = {
    "system": "system",
    "developer": "developer",
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bot", "model"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}
"""A role as data sets write it, mapped to the one that chat templates use."""

_ASSISTANT = "assistant"
_UNSET = "text"  # The default of ``data.column``, which is meant for text: a row of messages seldom has it.


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of one row; ``row`` is its number in the data, from 1; ``place`` is its file and line."""

    messages: Sequence[Message]
    row: int
    tools: Sequence[object] | None = None
    place: str = ""

    @property
    def answers(self) -> list[int]:
        """The indices of the assistant's turns."""
        return [place for place, message in enumerate(self.messages) if message["role"] == _ASSISTANT]


def conversations(
    rows: Iterable[Mapping[str, object]], data: DataSpec, skipped: Counter[str], bad: BadRows
) -> Iterator[Conversation]:
    """The conversations of rows, each a mapping from column to value; Unusable if none is left.

    ``skipped`` counts rows with nothing to learn from, by reason; ``bad`` skips rows of invalid shape, and the reader
    of the rows tells it where they are.
    """
    found = 0
    for number, row in enumerate(rows, start=1):
        try:
            one = conversation(mapped(row, data.columns), number, data.column, bad.place if bad.skips else "")
        except Unusable as error:
            bad.refuse(error)
            continue
        reason = empty(one, data.train_on)
        if reason is None:
            found += 1
            yield one
        else:
            skipped[reason] += 1
    if not found:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        rule = f"no conversation is left to train on: {f'rows skipped: {reasons}' if reasons else 'there are no rows'}"
        raise Unusable("data.path", data.path, rule, ["data.train_on=all"] if skipped else [])


_FIELD = re.compile(r"\{([\w -]+(?:\.[\w -]+)*)\}")  # {column}, {column.key}, {column.0}
_KEPT = ("system", "tools", "label")  # Columns of a row that stay when ``data.columns`` maps others.


def mapped(row: Mapping[str, object], columns: Mapping[str, str] | None) -> Mapping[str, object]:
    """A row with the columns that ``data.columns`` derives from it.

    ``prompt: question`` copies a column, ``prompt: "Q: {question}"`` is a text, ``prompt.user: question`` a message.
    """
    if not columns:
        return row
    made: dict[str, Any] = {name: row[name] for name in _KEPT if name in row}
    for name, text in columns.items():
        column, _, role = name.partition(".")
        if role == "system" and text not in row:
            continue  # Often only some rows have a system message.
        value = _FIELD.sub(lambda found: str(_at(row, found[1])), text) if "{" in text else _at(row, text)
        if not role:
            made[column] = value
        elif value not in (None, ""):
            made[column] = [*made.get(column, ()), {"role": role, "content": value}]
    return made


def _at(row: Mapping[str, object], path: str) -> object:
    value: Any = row
    for part in path.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (LookupError, TypeError, ValueError):
            rule = f"a row has no {path}; it has the columns {', '.join(map(str, row)) or 'none'}"
            raise Unusable("data.columns", path, rule) from None
    return "" if value is None else value


def is_conversation(value: object) -> bool:
    """True for a list of messages, as ``{"role", "content"}`` or ``{"from", "value"}``, or such a list as JSON text."""
    found = _from_json(value)
    first = found[0] if isinstance(found, list) and found else None
    return isinstance(first, dict) and any(turn <= first.keys() for turn in _TURNS)


def messages_of(value: object, number: int) -> list[Message]:
    """The messages of a list, or of a list as JSON text, with the roles of chat templates; ``number`` is the row's."""
    found = _from_json(value)
    return [_message(each, number) for each in found] if isinstance(found, list) else []


def empty(conversation: Conversation, train_on: str) -> str | None:
    """Why there is nothing to learn from a conversation; None if there is something."""
    if not conversation.messages:
        return "without messages"
    if train_on == "all":
        return None
    if not conversation.answers:
        return "without an assistant's turn"
    said = [conversation.messages[place] for place in conversation.answers]
    if not any(str(message["content"]).strip() or message.get("tool_calls") for message in said):
        return "whose assistant says nothing"
    return None


def conversation(row: Mapping[str, object], number: int, column: str | None, place: str = "") -> Conversation:
    """One row, with its number from 1, as a conversation by ``data.column``; ``place`` is its file and line."""
    messages = [_message(each, number) for each in _messages(row, number, column)]
    system = row.get("system")
    if isinstance(system, str) and system.strip() and messages and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return Conversation(tuple(messages), number, _tools(row.get("tools"), number), place)


def _messages(row: Mapping[str, object], number: int, column: str | None) -> Sequence[object]:
    if column not in (None, _UNSET):
        if column not in row:
            rule = f"row {number} has no such column; it has {', '.join(map(str, row)) or 'none'}"
            raise Unusable("data.column", column, rule, ["data.column=text", *_columns_of_lists(row)])
        return _list(row, number, column)
    for name in _LISTS:
        if name in row:
            return _list(row, number, name)
    for asked, answered in PAIRS:
        if asked in row and answered in row:
            return _pair(row, asked, answered)
    rule = f"has the columns {', '.join(map(str, row)) or 'none'}; data=chat reads {_SHAPES}"
    pairs = ["task=dpo data=rows"] if row.keys() >= {"chosen", "rejected"} else []
    raise _error(number, rule, [*pairs, *_columns_of_lists(row), *_columns_of_text(row)])


def _columns_of_lists(row: Mapping[str, object]) -> list[str]:
    return [f"data.column={name}" for name, value in row.items() if isinstance(value, list)][:3]


def _columns_of_text(row: Mapping[str, object]) -> list[str]:
    return [f"data=text data.column={name}" for name, value in row.items() if isinstance(value, str)][:2]


def _list(row: Mapping[str, object], number: int, column: str) -> Sequence[object]:
    if row[column] is None:
        return []
    found = _from_json(row[column])
    if isinstance(found, list):
        return found
    rule = f"holds {_short(row[column])} in column {column}, which is not a list of messages"
    raise _error(number, rule, [*_columns_of_lists(row), *_columns_of_text(row)])


def _from_json(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return any_json(value)
    except ValueError:
        return value


def _pair(row: Mapping[str, object], asked: str, answered: str) -> list[object]:
    question, answer = row[asked], row[answered]
    beside = [row[name] for name in _BESIDE.get(asked, ()) if str(row.get(name) or "").strip()]
    if isinstance(question, str) and beside:
        question = "\n\n".join([question, *map(str, beside)])
    parts = {"instruction": row[asked], "input": "\n\n".join(map(str, beside))} if beside else {}
    turns: list[object] = []
    for role, value in (("user", question), (_ASSISTANT, answer)):
        if isinstance(value, list):
            turns += value
        elif value is not None:
            turns.append({"role": role, "content": value} | (parts if role == "user" else {}))
    return turns


def _message(message: object, number: int) -> Message:
    """A message with ``role`` and ``content``; other keys, such as ``tool_calls``, are left to the template."""
    if not isinstance(message, Mapping):
        raise _error(number, f"has {_short(message)} among its messages; each is role and content, or from and value")
    said = {key: value for key, value in message.items() if value is not None and key not in ("from", "value")}
    role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
    if str(role).lower() not in _ROLES:
        known = ", ".join(_ROLES)
        raise _error(number, f"has a message whose role is {_short(role)}; the roles are {known}")
    return {**said, "role": _ROLES[str(role).lower()], "content": _text(content, number)}


def _text(content: object, number: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise _error(number, f"has a message whose content is {_short(content)}; only text is trained")
    return "".join(map(str, texts))


def _tools(value: object, number: int) -> Sequence[object] | None:
    found = _from_json(value)
    if not found:
        return None
    if not isinstance(found, list):
        raise _error(number, f"holds {_short(value)} in column tools, which is not a list; leave the column out")
    return found


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _error(number: int, rule: str, way_out: Sequence[str] = ()) -> Unusable:
    return Unusable("data.path", None, f"row {number} {rule}", way_out)
