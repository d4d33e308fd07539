"""Takes the state, Python stack and last collectives of this node's ranks, from outside, while they hang.

Stacks come from ``py-spy`` if it is installed and permitted, because it needs no response from the rank, else from the
rank's own signal handler. A rank that is stopped or blocked in the kernel gives none; its state is reported instead.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from launcher.base import files
from launcher.base import process as processes
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.job import beat
from launcher.job.beat import Heartbeat

_PATIENCE_S = 4.0  # Seconds for a rank's own answers, which take milliseconds if it can answer at all.
_PYSPY_S = 8.0  # Seconds for py-spy, which reads the symbols of every library of the process.
_FAULTHANDLER = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)$')
_PYSPY = re.compile(r"^ {4}(?P<function>.+) \((?P<file>[^():]+):(?P<line>\d+)\)$")
_FRAMES = 40
_STATES = {
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "D": "in the kernel, waiting for a disk or a network file system",
    "Z": "gone",
    "X": "gone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A rank of this node; ``beat`` is None for a rank of a user's script."""

    rank: int
    pid: int
    beat: Heartbeat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStacks:
    """One rank's state, stacks and collectives."""

    state: str | None = None  # Why the process cannot continue, if the kernel says so.
    source: str = ""  # Where the stack is from: ``py-spy``, ``faulthandler``, or empty.
    stack: Sequence[str] = ()  # The frames of its main thread as ``function (file:line)``, innermost first.
    threads: str = ""  # The stacks of all its threads as printed.
    collectives: Sequence[JsonObject] | None = None  # The last ones, oldest first; None if the rank did not answer.


def take_stacks(folder: Path, processes: Sequence[Rank], program: str) -> dict[int, RankStacks]:
    """The state, stacks and collectives of each rank; all are asked at once and have a few seconds to answer."""
    until = time.monotonic() + _PATIENCE_S
    numbers = {each.rank: _ask(folder, each.rank) for each in processes if each.beat is not None}
    able = [each for each in processes if each.beat is not None and _state(each.pid) not in _STATES]
    with ThreadPoolExecutor(max_workers=max(1, len(processes))) as pool:
        stacks = list(pool.map(lambda each: _stack(folder, each, program, until), processes))
    _wait(lambda: all(_collectives(folder, each.rank, numbers.get(each.rank)) is not None for each in able), until)
    return {
        each.rank: RankStacks(
            state=_STATES.get(_state(each.pid)),
            source=source,
            stack=frames(text),
            threads=text,
            collectives=_collectives(folder, each.rank, numbers.get(each.rank)),
        )
        for each, (source, text) in zip(processes, stacks, strict=True)
    }


def _wait(answered: Callable[[], bool], until: float) -> None:
    while not answered() and time.monotonic() < until:
        time.sleep(0.1)


def frames(text: str) -> list[str]:
    """The main thread's frames in a dump of all threads.

    ``py-spy`` names the main thread; ``faulthandler`` prints the newest thread first and the main thread last.
    """
    threads = re.split(r"\n\n|\n(?=Thread |Current thread )", text)
    named = [part for part in threads if '"MainThread"' in part.partition("\n")[0]]
    for part in (*named, *reversed(threads)):
        matches = [_FAULTHANDLER.match(line) or _PYSPY.match(line) for line in part.splitlines()]
        found = [f"{match['function']} ({match['file']}:{match['line']})" for match in matches if match]
        if found:
            return found[:_FRAMES]
    return []


def _ask(folder: Path, rank: int) -> int:
    path = beat.path(folder, rank)
    with contextlib.suppress(OSError, IndexError), path.open("r+b") as file:
        count = (os.pread(file.fileno(), 1, beat.ASKED)[0] + 1) % 256
        os.pwrite(file.fileno(), bytes([count]), beat.ASKED)
        return count
    return -1


def _collectives(folder: Path, rank: int, number: int | None) -> list[JsonObject] | None:
    content = files.read_json(beat.collectives(folder, rank)) or {}
    return content["collectives"] if number is not None and content.get("asked") == number else None


def _stack(folder: Path, process: Rank, program: str, until: float) -> tuple[str, str]:
    spy = _pyspy(program)
    if spy is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            # Nonblocking: a hanging rank does not move anyway, and a stopped one must not be continued.
            words = [spy, "dump", "--nonblocking", "--pid", str(process.pid)]
            done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=_PYSPY_S)
            if done.returncode == 0 and frames(done.stdout):
                return "py-spy", done.stdout
    return _by_signal(folder, process, until)


def _pyspy(program: str) -> str | None:
    beside = [Path(python).with_name("py-spy") for python in (program, sys.executable)]
    return next((str(path) for path in beside if path.is_file()), shutil.which("py-spy"))


def _by_signal(folder: Path, process: Rank, until: float) -> tuple[str, str]:
    """The stacks by the rank's own handler; a rank without a heartbeat has none, and the signal would end it."""
    path = beat.stack(folder, process.rank)
    if process.beat is None or _state(process.pid) in _STATES:
        return "", ""
    before = path.stat().st_size if path.exists() else 0
    known = processes.Process.of(process.pid)
    if not _has_mapped(known.pid, folder) and _rank_of(known.pid) != process.rank:
        return "", ""  # The process id now belongs to another process, which the signal would end.
    with contextlib.suppress(PermissionError):
        known.send(signal.SIGUSR1)
    _wait(lambda: path.stat().st_size > before, until)
    with contextlib.suppress(OSError), files.opened(path) as file:
        file.seek(before)
        text = file.read(files.MOST_OF_A_RECORD).decode(errors="replace")
        return ("faulthandler", text) if text else ("", "")
    return "", ""


def _has_mapped(pid: int, folder: Path) -> bool:
    """True for a rank with its heartbeat in this folder: only such a process has mapped the file."""
    with contextlib.suppress(OSError):
        return f" {folder}/" in Path(f"/proc/{pid}/maps").read_text()
    return False


def _state(pid: int) -> str:
    return processes.state(pid) or "X"


def ranks(agent: int) -> list[Rank]:
    """The processes that torchrun started, with their ranks."""
    known = ((child.pid, _rank_of(child.pid)) for child in processes.children(agent))
    found = [Rank(rank=rank, pid=pid) for pid, rank in known if rank is not None]
    return sorted(found, key=lambda each: each.rank)


def _rank_of(pid: int) -> int | None:
    told = (each.removeprefix(b"RANK=") for each in processes.environment(pid) if each.startswith(b"RANK="))
    return next((int(rank) for rank in told if rank.isdigit()), None)
