"""What a run's processes printed, errors first: the last lines of every rank's stderr and stdout, and of the nodes'."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher import files
from launcher.commands._common import add_json, print_json, say
from launcher.commands.status import find
from launcher.errors import ConfigError, ConfigErrors
from launcher.rundir import state, status
from launcher.rundir.state import RunState

_POLL_S = 0.3
_ASK_S = 15


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="as of status; the newest run if none")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="last lines of each file (default 20)")
    parser.add_argument("--rank", type=int, metavar="R", help="only this rank")
    parser.add_argument("--follow", action="store_true", help="go on until the run has ended")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print the files of each run; with --follow also the text that is added to them."""
    if options.json and options.follow:
        rule = "it prints what is added as it comes, and --json is one document"
        raise ConfigErrors([ConfigError("--follow", None, rule, ["launch logs --json"])])
    if options.lines < 1:
        raise ConfigErrors([ConfigError("--lines", options.lines, "at least one line is shown", ["--lines 1"])])
    directories = find(options.runs)
    rows = status.read_all(directories if options.runs else directories[-1:])
    if options.json:
        print_json({"schema": 1, "logs": [document(row, options) for row in rows]})
        return 0
    if not rows:
        say("launch: no runs below runs/")
    for row in rows:
        directory = Path(row.directory)
        if row.reason is not None:
            print(f"{row.id} is {row.state}: {row.reason}")
        offsets = {}
        for path in _files(directory, options.rank):
            offsets[path] = path.stat().st_size
            _show(path, "".join(_tail(path, options.lines)))
        if not offsets and not options.follow:
            who = "" if options.rank is None else f" by rank {options.rank}"
            say(f"launch: {row.id} is {row.state}, and nothing was printed{who}")
        if options.follow:
            _follow(directory, options.rank, offsets)
    return 0


def document(row: RunState, options: argparse.Namespace) -> dict[str, Any]:
    """The last lines of a run's files, those of errors first: its part of ``launch logs --json``."""
    files = [
        {"path": str(path), "lines": [line.rstrip("\n") for line in _tail(path, options.lines)]}
        for path in _files(Path(row.directory), options.rank)
    ]
    return {"id": row.id, "directory": row.directory, "state": row.state, "reason": row.reason, "files": files}


def _files(directory: Path, rank: int | None) -> list[Path]:
    """Log files with something in them: those of errors first, then by name, which is by attempt."""
    root = directory / "logs" if rank is None else _of_rank(directory, rank)
    found = (path for path in root.rglob("*") if path.suffix in (".log", ".out", ".err") and path.stat().st_size)
    return sorted(found, key=lambda path: (path.suffix != ".err" and path.name != "stderr.log", path.as_posix()))


def _of_rank(directory: Path, rank: int) -> Path:
    """The folder of a rank's newest attempt, to which our workers point; a script's is known on one node."""
    link = directory / "logs" / "ranks" / f"rank{rank}"
    if link.exists():
        return link.resolve()
    job = files.read_json(directory / "job.json") or {}
    attempts = sorted((directory / "logs" / "ranks").glob("*/attempt_*"), key=lambda path: path.stat().st_mtime_ns)
    if job.get("nodes") == 1 and attempts and (attempts[-1] / str(rank)).is_dir():
        return attempts[-1] / str(rank)
    raise ConfigErrors([ConfigError("--rank", rank, f"{directory.name} has no logs of such a rank (yet)")])


def _follow(directory: Path, rank: int | None, offsets: dict[Path, int]) -> None:
    """Print the text that is added until the run has ended."""
    ended, asked = False, time.monotonic()
    while not ended:
        ended = (files.read_json(directory / "state.json") or {}).get("state") in state.ENDED
        if not ended and time.monotonic() - asked > _ASK_S:  # Its end may be known to Slurm alone.
            ended, asked = status.read(directory).state in state.ENDED, time.monotonic()
        for path, text in _news(directory, rank, offsets):
            _show(path, text)
        time.sleep(_POLL_S)


def _news(directory: Path, rank: int | None, offsets: dict[Path, int]) -> Iterator[tuple[Path, str]]:
    for path in _files(directory, rank):
        size = path.stat().st_size
        start = offsets.get(path, 0)
        if size != start:
            with path.open("rb") as file:
                file.seek(start if start < size else 0)
                yield path, file.read().decode(errors="replace")
            offsets[path] = size


def _show(path: Path, text: str) -> None:
    print(f"==> {path} <==")
    print(text.rstrip("\n"), flush=True)


def _tail(path: Path, lines: int) -> deque[str]:
    with path.open(errors="replace") as file:
        return deque(file, maxlen=lines)
