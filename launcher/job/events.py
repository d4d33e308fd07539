"""``events.jsonl``: what befell a run, a line each, by the launch that submitted it, the nodes and rank 0 alike.

A line holds at least ``time``, ``kind``, ``step`` and ``text``, a sentence for a person. Lines are appended in one
write each, so processes do not mix theirs. What a line says holds until one of its kind and ``rank`` says that it is
``over``. The :data:`MILESTONES` are the way of every run: they tell when it was what, and are no news of it.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

from launcher.base import files, secret
from launcher.base.files import JsonObject

FILE = "events.jsonl"

type Milestone = Literal["queued", "running", "start", "save", "end"]
type Kind = Literal[
    Milestone, "hang", "restart", "straggler", "spike", "rollback", "memory_growth", "bad_rows", "skipped", "profile",
    "patience",
]  # fmt: skip

type FailureKind = Literal["error", "out_of_memory", "rank_killed", "hang", "nan", "disk"]
"""The cause of a failure, in a rank's ``error.rank<r>.json``; ``error`` is any other."""

type EndCause = Literal[FailureKind, "time_limit", "preempted"]
"""The cause of an end, in ``state.json`` and by Slurm's state of a job."""

MILESTONES: frozenset[Milestone] = frozenset(get_args(Milestone.__value__))
"""``queued``: submitted; ``running``: the job's first node has it; ``start``: the ranks are started, on the ``nodes``;
``save``: a checkpoint has its name, after so many ``seconds``; ``end``: the attempt has, with the run's ``state``."""

_END_BYTES = 1 << 18  # Some thousand lines: of a longer file only the end is read.


def add(directory: Path, kind: Kind, text: str, *, step: int | None, over: bool = False, **facts: object) -> None:
    """Append one line; a folder that cannot be written is no reason to end a job that trains.

    ``over`` ends an earlier line of this kind and of the same ``rank``.
    """
    line = {"time": round(time.time(), 3), "kind": kind, "step": step, "text": secret.hidden(text), **facts}
    content = json.dumps({**line, "over": True} if over else line) + "\n"
    with contextlib.suppress(OSError):
        descriptor = files.descriptor(directory / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, content.encode())
        finally:
            os.close(descriptor)


def read(directory: Path) -> list[JsonObject]:
    """The newest lines that are whole, oldest first."""
    return list(_understood(files.last_lines(directory / FILE, _END_BYTES)))


def news(directory: Path) -> list[JsonObject]:
    """The same without the way of every run."""
    return [line for line in read(directory) if line["kind"] not in MILESTONES]


def _understood(lines: Iterable[str]) -> Iterable[JsonObject]:
    for content in files.json_objects(lines):
        texts = all(isinstance(content.get(key), str) for key in ("kind", "text"))
        if texts and isinstance(content.get("rank"), int | None):
            yield {**content, "text": secret.hidden(content["text"])}
