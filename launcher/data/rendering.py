"""Conversations as text, from an untrusted template that runs in a process with its own limits.

Jinja's sandbox protects the machine's files but not its time and memory: two nested loops of ``range(99999)`` take
hours, ``'x' * 10**11`` takes all memory, sometimes before the first row, when constants are folded. So a template that
is not shipped is compiled and rendered by ``python -m launcher.data.rendering``, which the kernel kills at its limits.
"""

import contextlib
import json
import resource
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import batched
from typing import Any, Protocol

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.data.chat import Conversation
from launcher.data.template import Rendered, Template, is_shipped, plain, template, ways_out
from launcher.data.unusable import PackageMissing, Unusable
from launcher.spec.training import DataSpec

SECONDS = 5
"""CPU seconds for one text, a hundred thousand times the 40 microseconds that one of six messages takes."""

MEMORY = 4 << 30
"""Memory limit of the process in bytes: the largest row has 256 MiB, and a Python string up to four times that."""

_AT_ONCE = 256  # Conversations per request to the process.

type Outcome = Rendered | Unusable


class Renderer(Protocol):
    """Renders conversations as text."""

    def outcomes(self, conversations: Iterable[Conversation], train_on: str) -> Iterator[Outcome]:
        """Each rendered conversation with the parts that ``data.train_on`` trains, or why it cannot be rendered."""


def written(outcome: Outcome) -> Rendered:
    """The text of an outcome; raises it if it is an error."""
    if isinstance(outcome, Unusable):
        raise outcome
    return outcome


def writer(data: DataSpec) -> Renderer:
    """A writer for the chat template of a run."""
    found = template(data)
    if is_shipped(found):
        found.require()
        return _Here(found)
    return _Apart(found)


@dataclass(frozen=True, slots=True)
class _Here:
    template: Template

    def outcomes(self, conversations: Iterable[Conversation], train_on: str) -> Iterator[Outcome]:
        for each in conversations:
            yield _outcome(self.template, each, train_on)


def _outcome(writer: Template, conversation: Conversation, train_on: str) -> Outcome:
    try:
        return writer.written(conversation, train_on)
    except Unusable as error:
        return error


class _Apart:
    """Renders conversations in a separate process, which is restarted when it ends."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._process = self._start()

    def outcomes(self, conversations: Iterable[Conversation], train_on: str) -> Iterator[Outcome]:
        for some in batched(conversations, _AT_ONCE):
            found = self._outcomes_apart(some, train_on)
            if found is not None:
                yield from found
                continue
            self._process = self._start()  # One of them ended it: find out which by sending each alone.
            for each in some:
                alone = self._outcomes_apart([each], train_on)
                yield from alone or [self._end_error(f"row {each.row}: ")]
                self._process = self._process if alone else self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-P", "-W", "ignore", "-m", __name__, str(SECONDS)]
        self._process = process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        weakref.finalize(self, _end, process)
        said = _answer(process, asdict(self._template))
        if said is None:
            raise self._end_error("")
        if said:
            raise _as_error(said)
        return process

    def _outcomes_apart(self, conversations: Sequence[Conversation], train_on: str) -> list[Outcome] | None:
        """The outcomes of some conversations; None if one of them ended the process."""
        asked = [[plain(each.messages), each.row, plain(each.tools)] for each in conversations]
        found = _answer(self._process, [train_on, asked])
        return None if found is None else [_outcome_of(each) for each in found]

    def _end_error(self, where: str) -> Unusable:
        status = self._process.wait()
        why = f"does not finish within {SECONDS} s of CPU time"
        if status != -signal.SIGXCPU:
            why = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended its process ({status})"
        rule = f"{where}{self._template.name} {why}: a template is a program, and this one loops too much"
        return Unusable("data.template", self._template.asked, rule, ways_out())


def _end(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    process.kill()
    process.wait()


def _answer(process: subprocess.Popen[bytes], content: object) -> Any:
    assert process.stdin is not None, "the process is reached through pipes"
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(content).encode() + b"\n")
        process.stdin.flush()
    line = process.stdout.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def _outcome_of(said: Any) -> Outcome:
    if isinstance(said, dict):
        return _as_error(said)
    text, trained = said
    return Rendered(text, None if trained is None else [(start, end) for start, end in trained])


def _as_error(said: JsonObject) -> Unusable:
    kind = PackageMissing if said.pop("missing") else Unusable
    return kind(**said)


def _as_data(error: Unusable) -> JsonObject:
    return {**error.finding.as_dict(), "missing": isinstance(error, PackageMissing)}


def main() -> None:
    """Compile the template of the first input line, then answer each further line of conversations with one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose pipe then closes.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    seconds = int(sys.argv[1])
    lines = sys.stdin.buffer
    _limit(seconds)
    found = _Limited(**json.loads(lines.readline()), seconds=seconds)
    try:
        found.require()
    except Unusable as error:
        _say(_as_data(error))
        return
    _say({})
    for line in lines:
        train_on, asked = json.loads(line)
        outcomes = [_outcome(found, Conversation(*each), train_on) for each in asked]
        _say([_as_data(each) if isinstance(each, Unusable) else [each.text, each.trained] for each in outcomes])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limited(Template):
    seconds: int

    def _render(self, conversation: Conversation, count: int, *, prompt: bool = False) -> str:
        _limit(self.seconds)
        return Template._render(self, conversation, count, prompt=prompt)


def _limit(seconds: int) -> None:
    until = int(time.process_time()) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def _say(content: object) -> None:
    sys.stdout.buffer.write(json.dumps(content).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
