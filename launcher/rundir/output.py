"""The output of a run's processes: the files of its ranks, of torchrun and of submitit.

Every attempt has a folder for the ranks' output, ``<rendezvous id>_<random>`` with one id for all nodes. A reader
usually wants the newest attempt; the other files matter if its ranks printed nothing.
"""

import contextlib
import io
import re
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from launcher.base import files, secret
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.rundir import contents, home, state
from launcher.slurm.states import NO_STEP

_RANDOM = 9
"""Characters that ``tempfile.mkdtemp`` adds to torchrun's rendezvous id: an underscore and eight random ones."""

_SUFFIXES = (".log", ".out", ".err")
_STDERR = "*/attempt_*/*/stderr.log"
END_BYTES = 65536  # Bytes at the end of a log that are searched for its last lines.
TRACEBACK = "Traceback (most recent call last)"
_ROOT = "Root Cause (first observed failure):"
_REPORTED = re.compile(
    r"rank\s*:\s*(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)|exitcode\s*:\s*(?P<code>-?\d+)(?: \(pid: (?P<pid>\d+)\))?"
)
_PREFIX = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)
"""Torch's prefix of each line of an exception once there is a process group (``_distributed_excepthook``)."""

_NOTE = re.compile(r"^(\[rank\d+\]:)?\[[IWEF]\d{4} ")
"""The start of a line of torch's own log, such as NCCL's note after an exception that it was not destroyed."""

_PEER_GONE = re.compile(r"Connection (closed|reset|refused)|connection was (closed|reset)|Broken pipe|recvBytes failed")
"""Messages of gloo, NCCL and the system about a peer that is gone."""

_LONGEST = 300  # Longest line in a reason, in characters.


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Nonempty files: of the newest attempt's ranks, of earlier ranks, and of torchrun and submitit."""

    ranks: tuple[Path, ...]
    earlier: tuple[Path, ...] = ()
    around: tuple[Path, ...] = ()

    @property
    def every(self) -> tuple[Path, ...]:
        """All of them, the most likely to explain a failure first."""
        return (*self.ranks, *self.earlier, *self.around)


def outputs(directory: Path) -> Outputs:
    """The files of a run, sorted by rank that failed first, by errors before other output, and by name."""
    root = directory / "logs" / "ranks"
    found = _nonempty(directory / "logs")
    ranks = [path for path in found if path.is_relative_to(root)]
    newest = _newest_attempt(root)
    now = [path for path in ranks if path.relative_to(root).parts[0][:-_RANDOM] == newest]
    first = first_log(directory)
    return Outputs(
        ranks=tuple(sorted(now, key=lambda path: (path != first, not _of_errors(path), path.as_posix()))),
        earlier=tuple(path for path in ranks if path not in now),
        around=(*(path for path in found if path not in ranks), *_of_the_array(directory)),
    )


def of_rank(directory: Path, rank: int) -> Outputs | None:
    """The files of a rank's newest attempt; None if unknown, as for scripts on several nodes.

    Our workers leave a link to them.
    """
    link = directory / "logs" / "ranks" / f"rank{rank}"
    if link.exists():
        return Outputs(ranks=tuple(_nonempty(files.real(link))))
    job = contents.known(directory, contents.JOB)
    attempts = sorted((directory / "logs" / "ranks").glob("*/attempt_*"), key=lambda path: path.stat().st_mtime_ns)
    if job.get("nodes") == 1 and attempts and (attempts[-1] / str(rank)).is_dir():
        return Outputs(ranks=tuple(_nonempty(attempts[-1] / str(rank))))
    return None


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file, without newlines."""
    try:
        with io.TextIOWrapper(files.opened(path), errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    except OSError as error:
        return [f"(it cannot be read: {error.strerror or error})"]


def count(paths: Sequence[Path]) -> int:
    """The total number of lines in some files."""
    found = 0
    for path in paths:
        with contextlib.suppress(OSError), files.opened(path) as file:
            found += sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return found


def _of_the_array(directory: Path) -> Iterator[Path]:
    """Submitit's files about a sweep's point, whose array shares one folder among its tasks."""
    submission = contents.known(directory, state.SUBMISSION)
    folder = home.here(directory, Path(submission.get("comment") or directory))
    if not folder.is_relative_to(directory):
        paths = (folder / f"{submission.get('job_id')}_0_log.{kind}" for kind in ("err", "out"))
        yield from filter(_holds_something, paths)


def _nonempty(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if path.suffix in _SUFFIXES and _holds_something(path))
    return sorted(found, key=lambda path: (not _of_errors(path), path.as_posix()))


def _holds_something(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _of_errors(path: Path) -> bool:
    return path.suffix == ".err" or path.name == "stderr.log"


def _newest_attempt(root: Path) -> str:
    folders = [path for path in root.glob("*") if path.is_dir() and not path.is_symlink()]
    newest = max(folders, key=lambda path: path.stat().st_mtime_ns, default=None)
    return "" if newest is None else newest.name[:-_RANDOM]


class RankExit(NamedTuple):
    """A failure in torchrun's report: rank and local rank (``?`` and empty if unknown), exit code, process."""

    rank: str
    local: str
    code: int
    pid: int | None


def exits(report: Path) -> list[RankExit]:
    """The failures of torchrun's report, the root cause first."""
    found: list[RankExit] = []
    text = files.end_of(report, END_BYTES)
    at = text.rfind(_ROOT)
    for part in (text[at:], text[:at]) if at >= 0 else (text,):
        rank, local = "?", ""
        for match in _REPORTED.finditer(part):
            if match["rank"] is not None:
                rank, local = match["rank"], match["local"]
            else:
                pid = None if match["pid"] is None else int(match["pid"])
                found.append(RankExit(rank, local, int(match["code"]), pid))
    return found


def killed(report: Path, number: int) -> list[tuple[int, int | None]]:
    """Rank and process of the ranks that a signal ended, from torchrun's report, the root cause first."""
    return [(int(each.rank), each.pid) for each in exits(report) if each.code == -number and each.rank.isdecimal()]


def rank_errors(directory: Path) -> list[JsonObject]:
    """Contents of the ranks' ``error.rank<r>.json``, each with its ``rank``, the earliest first.

    ``type``, ``message``, ``traceback`` and ``kind`` are strings; ``node`` and ``faulty_node`` are present if known.
    """
    paths = [path for path in (directory / "logs").glob("error.rank*.json") if path.is_file()]
    named = [(path, rank) for path in paths if (rank := path.stem.removeprefix("error.rank")).isdecimal()]
    named.sort(key=lambda pair: pair[0].stat().st_mtime_ns)
    found = []
    for path, rank in named:
        content = files.read_json(path) or {}
        if "message" in content:
            texts = {key: str(content.get(key, "")) for key in ("type", "message", "traceback", "kind")}
            nodes = {key: content[key] for key in ("node", "faulty_node") if isinstance(content.get(key), str)}
            found.append({**texts, **nodes, "rank": rank})
    return found


def written_errors(directory: Path) -> list[JsonObject]:
    """The errors of a failed job's ranks (rank, node, type, message, traceback), the cause of the failure first.

    Among ranks with the same message, the one with the longest traceback comes first: rank 0 passes what it finds in
    the data to the others. Errors that only say that another rank is gone come last.
    """
    found = rank_errors(directory)
    own = [error for error in found if not is_of_another(error)]
    if own:
        same = (error for error in own if error["message"] == own[0]["message"])
        first = max(same, key=lambda error: len(error["traceback"]))
        found.sort(key=lambda error: (error is not first, error not in own))
    keys = ("rank", "node", "type", "message", "traceback")
    return [{key: secret.shown(error.get(key)) for key in keys} for error in found]


def is_of_another(error: JsonObject) -> bool:
    """True if an error only says that another rank is gone."""
    return _PEER_GONE.search(error["message"]) is not None


def first_log(directory: Path) -> Path | None:
    """The stderr file of the rank that failed first by torchrun's report, which also covers scripts."""
    root = next((each.local for each in exits(directory / "logs" / "node.err")), None)
    return next((path for path in rank_logs(directory) if path.parent.name == root and path.stat().st_size), None)


def rank_logs(directory: Path) -> list[Path]:
    """The ranks' stderr files, the latest first."""
    found = ((path.stat().st_mtime_ns, path) for path in (directory / "logs" / "ranks").glob(_STDERR))
    return [path for _, path in sorted(found, reverse=True)]


def logged_error(directory: Path) -> JsonObject | None:
    """The exception that ends the log of the first failed rank, in the form of :func:`written_errors`, or None."""
    log = first_log(directory)
    lines = [] if log is None else last_lines(log)
    if not lines:
        return None
    rank = next((each.rank for each in exits(directory / "logs" / "node.err")), "")
    traceback = "\n".join(lines)
    at = traceback.rfind(TRACEBACK)
    return {
        "rank": rank if rank.isdecimal() else None,
        "node": None,
        "type": lines[-1].partition(":")[0].rpartition(".")[2],
        "message": lines[-1],
        "traceback": traceback[at:] if at >= 0 else "",
    }


def last_lines(path: Path) -> list[str]:
    """The end of a log without empty lines, without torch's rank prefixes, and without torch's trailing notes."""
    lines = [line for line in _PREFIX.sub("", files.end_of(path, END_BYTES)).splitlines() if line.strip()]
    end = max((number for number, line in enumerate(lines, 1) if not _NOTE.match(line)), default=len(lines))
    return lines[:end]


def not_started(log: Path) -> str | None:
    """Why Slurm did not start the job's program, if srun says so at the end of a log; else None."""
    for line in files.last_lines(log, END_BYTES)[-3:]:
        if re.match(NO_STEP, line):
            return f"Slurm could not start it on its nodes: {one_line(line.removeprefix('srun: error: '))}"
    return None


def never_began(directory: Path) -> str:
    """Why a local job left no state: the last output of the process that should have started it."""
    logs = directory / "logs"
    submitit = sorted(filter(Path.is_file, (logs / "submitit").glob("*_log.err")), key=lambda log: -log.stat().st_mtime)
    for path in [*submitit, logs / "node.err"]:
        lines = [line for line in files.last_lines(path, END_BYTES) if line.strip()]
        if lines:
            return f"its process ended before the job started: {one_line(lines[-1])} ({path})"
    return f"its process ended before the job started, without a message; see {logs}"


def one_line(text: str) -> str:
    """A text on one line, shortened to the length of a reason."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
