"""``check --points``: check many runs at once, with one process per CPU, and answer in order.

A point's ways out are single changes: searching pairs and chains of changes takes ten times as long as all the rest,
and ``check`` does it for a single run.
"""

import os
import select
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.actions.requests import compose_run, folder, judge_run
from launcher.base import files, machine, terminal
from launcher.base.errors import ConfigError, ConfigErrors, DataError, unreadable
from launcher.config.catalog import Catalog
from launcher.config.request import CommandLine
from launcher.data import look
from launcher.data.unusable import as_errors
from launcher.preflight.assess import Assessment, as_json, invalid_as_json
from launcher.preflight.assess_here import Judging
from launcher.preflight.fixes import search_singles
from launcher.preflight.measured.known import Measured
from launcher.preflight.verdict import VerdictName

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

_TOGETHER = 16
"""Points per batch sent to a worker process: enough to amortize the round trip, few enough to balance the load."""

_PROCESSES = 16  # Limit on processes: each takes the memory of an interpreter.
_CHUNK = 1 << 16  # Bytes per read: the capacity of a Linux pipe (pipe(7)).
_LONGEST = 200  # Longest excerpt of a line quoted in a message, in characters.
_look = look.SurveyCache()  # Many points share their data, which is surveyed once.

type Answer = tuple[VerdictName, str]
"""The verdict, and the JSON line of the answer."""

type _Line = tuple[int, bytes | None]
"""The line's number and content; None if it is too long."""

type _Batch = list[_Line]


def answers(path: Path, own: Measured | None = None) -> Iterator[Answer]:
    """Answer every line of a file, a pipe (``/dev/fd/63``) or ``-``, in order; a bad point is an answer, not a crash.

    The first points are answered in this process, so that a few need no other; so are points that arrive one by one
    from a program that waits for each answer. Raises ConfigErrors if the file cannot be read.
    """
    facts = machine.facts()
    answer = partial(_answer_batch, facts=facts, catalog=Catalog(folder=folder()), own=own)
    _look.forget()
    try:
        opened = files.descriptor(Path("/dev/stdin") if str(path) == "-" else path, os.O_RDONLY, handed=True)
        with FileIO(opened) as file, ExitStack() as stack:
            lines, pool = _Lines(file), None
            yield from answer(lines.take(_TOGETHER))
            while batch := lines.take(_TOGETHER):
                if facts.cpus == 1 or len(batch) < _TOGETHER:
                    yield from answer(batch)
                else:
                    pool = pool or stack.enter_context(_processes(facts.cpus))
                    yield from _share_out(batch, lines, pool, answer)
    except OSError as error:
        rule = f"the file cannot be read: {unreadable(error)}"
        ways = [f"--points {other}" for other in files.similar_paths(path)]
        raise ConfigErrors([ConfigError("--points", str(path), rule, ways)]) from None


class _Lines:
    """Lines of a file or pipe as they arrive; a line that is too long is kept only as a placeholder."""

    def __init__(self, file: FileIO) -> None:
        self._file, self._number, self._rest, self._ended = file, 0, b"", False
        self._found = deque[_Line]()
        self._is_too_long = False

    def take(self, most: int) -> _Batch:
        """Up to ``most`` available lines, waiting for at least one; empty at the end."""
        while not self._found and not self._ended:
            self._read()
        return [self._found.popleft() for _ in range(min(most, len(self._found)))]

    def ready(self) -> bool:
        """True if a line is available without waiting."""
        while not self._found and not self._ended and select.select([self._file], [], [], 0)[0]:
            self._read()
        return bool(self._found)

    def _read(self) -> None:
        data = self._file.read(_CHUNK)
        self._ended = not data
        *whole, self._rest = (self._rest + data).split(b"\n")
        if self._ended and (self._rest or self._is_too_long):
            whole, self._rest = [*whole, self._rest], b""
        for line in whole:
            self._number += 1
            if self._is_too_long or len(line) > files.MOST_BYTES:
                self._found.append((self._number, None))
            elif line.strip():
                self._found.append((self._number, line))
            self._is_too_long = False
        if len(self._rest) > files.MOST_BYTES:
            self._is_too_long, self._rest = True, b""


def _processes(cpus: int) -> "ProcessPoolExecutor":
    from concurrent.futures import ProcessPoolExecutor  # Late, because a single point needs no other process.

    ignored = (signal.SIGINT, signal.SIG_IGN)  # The first process alone is interrupted.
    return ProcessPoolExecutor(min(cpus, _PROCESSES), initializer=signal.signal, initargs=ignored)


def _share_out(
    batch: _Batch, lines: _Lines, pool: "ProcessPoolExecutor", answer: Callable[[_Batch], list[Answer]]
) -> Iterator[Answer]:
    waiting = deque([pool.submit(answer, batch)])
    while lines.ready():
        waiting.append(pool.submit(answer, lines.take(_TOGETHER)))
        if len(waiting) > 2 * _PROCESSES:
            yield from waiting.popleft().result()
    while waiting:
        yield from waiting.popleft().result()


def _answer_batch(batch: _Batch, facts: machine.Machine, catalog: Catalog, own: Measured | None = None) -> list[Answer]:
    return [_answer(line, number, facts, catalog, own) for number, line in batch]


def _answer(line: bytes | None, number: int, facts: machine.Machine, catalog: Catalog, own: Measured | None) -> Answer:
    identity, words = _point(line, number)
    try:
        document = as_json(_judge(words, facts, catalog, own)) if isinstance(words, list) else invalid_as_json([words])
    except ConfigErrors as error:
        document = invalid_as_json(error.errors)
    except DataError as error:
        document = invalid_as_json(as_errors(error).errors)
    except OSError as error:  # For example a path that is too long or an unreadable folder.
        rule = f"the system refuses it: {unreadable(error)}"
        document = invalid_as_json([ConfigError(f"line {number}", _shorten(error.filename), rule)])
    except Exception as fault:  # The lines after it are still answered.
        rule = f"internal error of launch: {type(fault).__name__}: {_shorten(fault)}"
        document = invalid_as_json([ConfigError(f"line {number}", None, rule)])
    return document["verdict"], terminal.as_json({"id": identity, **document})


def _judge(words: list[str], facts: machine.Machine, catalog: Catalog, own: Measured | None) -> Assessment:
    found = compose_run(CommandLine(words=tuple(words), catalog=catalog), own, facts)
    return judge_run(found, Judging(search=search_singles, looking=_look, measured=own))


def _point(line: bytes | None, number: int) -> tuple[object, list[str] | ConfigError]:
    rule, content = 'a point is {"id": ..., "overrides": ["group=option", ...]}', None
    try:
        if line is None:
            raise ValueError(f"it is longer than {files.MOST_BYTES >> 20} MiB")
        content = files.parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except ValueError as error:
        rule = f"{rule}: {unreadable(error)}"
    point = content if isinstance(content, dict) else {}
    words = point.get("overrides")
    if "id" in point and isinstance(words, list) and all(isinstance(word, str) for word in words):
        return point["id"], words
    found = None if line is None else _shorten(line.decode(errors="replace").strip())
    return point.get("id"), ConfigError(f"line {number}", found, rule)


def _shorten(text: object) -> str | None:
    return None if text is None else str(text)[:_LONGEST]
