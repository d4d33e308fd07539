"""``check --points``: many runs judged in one go, by as many processes as there are CPUs, answered in order.

The ways out of a point are single changes: pairs and chains of them take ten times as long as all the rest, and
``check`` looks for them where one point is asked about.
"""

from __future__ import annotations

import json
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import batched, chain
from pathlib import Path

from launcher import machine
from launcher.commands._common import assessed, folder
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.data import look
from launcher.errors import ConfigError, ConfigErrors, unreadable
from launcher.preflight.fixes import search_singles
from launcher.preflight.report import as_json, invalid_as_json
from launcher.preflight.verdict import VerdictName

_TOGETHER = 16
"""Points that a process takes at a time: enough to make the way to it short, few enough to share them out evenly."""

_PROCESSES = 16
"""The most processes: each takes the memory of an interpreter."""

_look = look.Remembered()
"""Many points share their data, which are looked at once."""

type Answer = tuple[VerdictName, str]
"""The verdict, and the answer's line of JSON."""

type _Line = tuple[int, str]


def answers(path: Path) -> Iterator[Answer]:
    """Answer every line in order; a bad point is an answer, not a crash.

    The first points are answered here, so that few of them need no other process.

    Raises:
        ConfigErrors: The file cannot be read.
    """
    facts, catalog = machine.facts(), Catalog(folder=folder())
    _look.forget()
    batches = batched(_lines(path), _TOGETHER)
    for batch in batches:
        yield from _answered(batch, facts, catalog)
        if facts.cpus > 1 and (following := next(batches, None)):
            yield from _shared_out(chain((following,), batches), facts, catalog)


def _lines(path: Path) -> Iterator[_Line]:
    try:
        with path.open(encoding="utf-8") as lines:
            yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        rule = f"the file cannot be read: {unreadable(error)}"
        raise ConfigErrors([ConfigError("--points", str(path), rule)]) from None


def _shared_out(batches: Iterable[tuple[_Line, ...]], facts: machine.Machine, catalog: Catalog) -> Iterator[Answer]:
    """Answers by several processes, with no more batches under way than keep them busy."""
    from concurrent.futures import Future, ProcessPoolExecutor  # Late, because one point needs none.

    workers = min(facts.cpus, _PROCESSES)
    with ProcessPoolExecutor(workers, initializer=_leave_interrupts_to_the_first) as pool:
        waiting = deque[Future[list[Answer]]]()
        for batch in batches:
            waiting.append(pool.submit(_answered, batch, facts, catalog))
            if len(waiting) > 2 * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _leave_interrupts_to_the_first() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _answered(batch: Iterable[_Line], facts: machine.Machine, catalog: Catalog) -> list[Answer]:
    return [_answer(line, number, facts, catalog) for number, line in batch]


def _answer(line: str, number: int, facts: machine.Machine, catalog: Catalog) -> Answer:
    try:
        point = json.loads(line)
        identity, overrides = point["id"], point["overrides"]
        if not isinstance(overrides, list) or not all(isinstance(text, str) for text in overrides):
            raise TypeError
    except (ValueError, TypeError, KeyError):
        rule = 'a point is {"id": ..., "overrides": ["group=option", ...]}'
        errors = [ConfigError(f"line {number}", line.strip(), rule)]
        return "invalid", json.dumps({"id": _identity(line), **invalid_as_json(errors)})
    try:
        document = as_json(
            assessed(request(overrides, facts=facts, catalog=catalog), search=search_singles, looking=_look)
        )
    except ConfigErrors as error:
        document = invalid_as_json(error.errors)
    return document["verdict"], json.dumps({"id": identity, **document})


def _identity(line: str) -> object:
    """The id of a line that is not a whole point, if it has one: its answer is then still found."""
    try:
        return json.loads(line).get("id")
    except (ValueError, AttributeError):
        return None
