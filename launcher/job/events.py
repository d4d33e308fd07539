"""``events.jsonl``: the events of a run, one per line, written by the submitting launch, the nodes and rank 0.

A line holds at least ``time``, ``kind``, ``step`` and ``text``, a sentence for a person. Each line is appended in one
write, so processes do not mix theirs. A line holds until another of its kind and ``rank`` is marked ``over``.
:data:`MILESTONES` are the normal stages of every run: they say when it reached which state, and are not news.
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
"""``queued``: submitted; ``running``: on the job's first node; ``start``: the ranks were started, on the ``nodes``;
``save``: a checkpoint is complete, after ``seconds``; ``end``: the attempt ended, with the run's ``state``."""

_END_BYTES = 1 << 18  # Some thousand lines; only the end of a longer file is read.


def add(directory: Path, kind: Kind, text: str, *, step: int | None, over: bool = False, **facts: object) -> None:
    """Append one line; an unwritable folder is ignored, since it must not end a training job.

    ``over`` ends an earlier line of this kind and of the same ``rank``.
    """
    line = {"time": round(time.time(), 3), "kind": kind, "step": step, "text": secret.redacted(text), **facts}
    content = json.dumps({**line, "over": True} if over else line) + "\n"
    with contextlib.suppress(OSError):
        descriptor = files.descriptor(directory / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, content.encode())
        finally:
            os.close(descriptor)


def read(directory: Path) -> list[JsonObject]:
    """The latest complete lines, oldest first."""
    return list(_understood(files.last_lines(directory / FILE, _END_BYTES)))


def news(directory: Path) -> list[JsonObject]:
    """The same without milestones."""
    return [line for line in read(directory) if line["kind"] not in MILESTONES]


def _understood(lines: Iterable[str]) -> Iterable[JsonObject]:
    for content in files.json_objects(lines):
        texts = all(isinstance(content.get(key), str) for key in ("kind", "text"))
        if texts and isinstance(content.get("rank"), int | None):
            yield {**content, "text": secret.redacted(content["text"])}
