"""Why a job failed, in one line, from the files of its ranks and the output of its agent.

One failure makes many: ranks that wait for the one that failed lose their connection or time out, and torchrun ends the
rest by SIGTERM. So errors that only say that another rank is gone are passed over, the earliest of the others wins, and
of signals that of the root cause in torchrun's report. The order of the questions is that of :func:`explain`. A failure
of the surroundings (a node, the network, a signal) is ``transient``: on Slurm the job goes back into the queue. Where
it is known which node failed first, it is named, since a job is not put back onto a node that fails again and again.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from launcher.base import files, secret
from launcher.job.memory import ran_out
from launcher.rundir import contents, out_of_memory
from launcher.slurm.states import NO_STEP

_REPORTED = re.compile(
    r"rank\s*:\s*(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)|exitcode\s*:\s*(?P<code>-?\d+)(?: \(pid: (?P<pid>\d+)\))?"
)
_TRACEBACK = "Traceback (most recent call last)"
_ROOT = "Root Cause (first observed failure):"
_WATCHDOG = re.compile(r"Watchdog caught collective operation timeout:.*?OpType=(\w+).*?ran for (\d+) milliseconds")
_OOM_KILL = re.compile(r"oom[-_]kill", re.IGNORECASE)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', re.MULTILINE)
_RENDEZVOUS = re.compile(
    r"^torch\.distributed\.(DistStoreError|DistNetworkError|elastic\.rendezvous\.\S*Error): .*$", re.MULTILINE
)
_TIMED_OUT = re.compile(
    r"Timed out waiting \d+ ?ms|Application timeout caused pair closure|collective operation timeout"
)
"""Words of gloo and NCCL about a collective; a timeout of the program's own is an error like any other."""

_LOST = re.compile(r"Connection (closed|reset|refused)|connection was (closed|reset)|Broken pipe|recvBytes failed")
_HARDWARE = re.compile(
    r"uncorrectable (ECC|NVLink) error|hardware stack error|nvlink or a hardware error|GPU is lost|"
    r"no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy or unavailable",
    re.IGNORECASE,
)
"""Words of CUDA (``cudaGetErrorString``) about a GPU that does not work, whatever the program does."""

_NO_MEMORY = re.compile(r"^(\w+\.)*OutOfMemoryError: ")
"""The last line of a traceback of torch's, whichever module the version has the class in."""

_PREFIX = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)
"""Torch puts this before each line of an exception once a process group is there (``_distributed_excepthook``)."""

_NOTE = re.compile(r"^(\[rank\d+\]:)?\[[IWEF]\d{4} ")
"""The beginning of a line of torch's own log, such as NCCL's behind an exception: it was not destroyed."""

_TAIL = 65536
HUNG = Path("logs", "hung.json")
"""Left where the ranks of a job were ended because they hung: ``text``, and whether it is to ``restart``."""

_LONGEST = 300
"""Characters that one line of a reason may have."""


type Kind = Literal["error", "out_of_memory", "rank_killed", "hang", "nan", "disk"]
"""What a failure is, for ``launch why``; ``error`` is any other."""

_NOT_A_NUMBER = re.compile(r"^the loss of step \d+ (is|jumped)")
"""The beginning of the worker's sentences about a loss (``launcher.worker.spikes``)."""

_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large|disk is full", re.IGNORECASE)
"""Words of the system (``strerror`` of ENOSPC, EDQUOT, EFBIG) and of the worker about a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a job failed.

    Attributes:
        text: One line.
        transient: True if the same job may well succeed when it is started again.
        node: The node that failed first, where that is known.
        broken: True if that node is not to be used again, even if it has failed only once.
        kind: What it is.
        rank: The rank that failed first, where that is known.
    """

    text: str
    transient: bool = False
    node: str | None = None
    broken: bool = False
    kind: Kind = "error"
    rank: int | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """What is kept of it in ``state.json`` beside its text."""
        return {"cause": self.kind, "rank": self.rank}


def explain(directory: Path, returncode: int, hosts: Sequence[str] = ()) -> Failure:
    """Return the reason of a job's failure.

    The first error that a rank wrote wins, unless it is only that another rank is gone; then the signal that ended a
    rank or the agent; else the end of a log.

    Args:
        directory: The run directory.
        returncode: Of the agent on this node.
        hosts: Names of the job's nodes by their numbers, this one's first, where they are known.
    """
    errors = _errors(directory / "logs")
    own = [error for error in errors if not is_of_another(error)]
    for found in (
        _hung(directory),
        _without_memory(directory, own),
        _timed_out(directory, errors, hosts),
        _written(own),
        _watchdog(directory),
        _signalled(directory, returncode, hosts),
        _apart(directory),
    ):
        if found is not None:
            return found
    if errors:
        rank = int(errors[0]["rank"])
        text = f"rank {rank} lost its connection to another rank"
        return Failure(text=text, transient=True, kind="rank_killed", rank=rank)
    return _last_words(directory, returncode)


def killed(report: Path, number: int) -> list[tuple[int, int | None]]:
    """Rank and process of those that a signal has ended by torchrun's report, the root cause first."""
    found = [(rank, pid) for rank, _, code, pid in _reported(report) if code == -number and rank.isdecimal()]
    return [(int(rank), pid) for rank, pid in found]


def written_errors(directory: Path) -> list[dict[str, Any]]:
    """The errors of a failed job's ranks (rank, node, type, message, traceback): that of the failure first.

    Of ranks with the same message that comes first which tells most: rank 0 hands what it finds in the data to the
    others. Errors that say only that another rank is gone come last.
    """
    found = _errors(directory / "logs")
    own = [error for error in found if not is_of_another(error)]
    if own:
        same = (error for error in own if error["message"] == own[0]["message"])
        first = max(same, key=lambda error: len(error["traceback"]))
        found.sort(key=lambda error: (error is not first, error not in own))
    keys = ("rank", "node", "type", "message", "traceback")
    return [{key: secret.shown(error.get(key)) for key in keys} for error in found]


def is_of_another(error: dict[str, Any]) -> bool:
    """True if an error only says that another rank is gone."""
    return _LOST.search(error["message"]) is not None


def first_log(directory: Path) -> Path | None:
    """The standard error of the rank that failed first by torchrun's report, which knows a script's ranks, too."""
    root = next((local for _, local, _ in _exits(directory / "logs" / "node.err")), None)
    return next((path for path in _rank_logs(directory) if path.parent.name == root and path.stat().st_size), None)


def logged_error(directory: Path) -> dict[str, Any] | None:
    """The exception in which the log of the rank that failed first ends, as :func:`written_errors` has those of ours.

    A script's ranks write no error of their own. None where there is no log of that rank.
    """
    log = first_log(directory)
    lines = [] if log is None else _last_lines(log)
    if not lines:
        return None
    rank = next((rank for rank, _, _ in _exits(directory / "logs" / "node.err")), "")
    traceback = "\n".join(lines)
    at = traceback.rfind(_TRACEBACK)
    return {
        "rank": rank if rank.isdecimal() else None,
        "node": None,
        "type": lines[-1].partition(":")[0].rpartition(".")[2],
        "message": lines[-1],
        "traceback": traceback[at:] if at >= 0 else "",
    }


def not_started(log: Path) -> str | None:
    """The reason why Slurm did not start the job's program, where that is the last that srun says in a log; or None."""
    for line in files.last_lines(log, _TAIL)[-3:]:
        if re.match(NO_STEP, line):
            return f"Slurm could not start it on its nodes: {_one_line(line.removeprefix('srun: error: '))}"
    return None


def never_began(directory: Path) -> str:
    """Why a job of this machine left no state behind: the last words of the process that was to start it."""
    logs = directory / "logs"
    for path in [
        *sorted(filter(Path.is_file, (logs / "submitit").glob("*_log.err")), key=lambda log: -log.stat().st_mtime),
        logs / "node.err",
    ]:
        lines = [line for line in files.last_lines(path, _TAIL) if line.strip()]
        if lines:
            return f"its process ended before the job began: {_one_line(lines[-1])} ({path})"
    return f"its process ended before the job began, without a message; see {logs}"


def _errors(logs: Path) -> list[dict[str, Any]]:
    """Contents of the ranks' ``error.rank<r>.json``, each with its rank, the earliest first."""
    paths = [path for path in logs.glob("error.rank*.json") if path.is_file() and _rank_of(path).isdecimal()]
    paths.sort(key=lambda path: path.stat().st_mtime_ns)
    found = ((_rank_of(path), files.read_json(path) or {}) for path in paths)
    return [_known_of(content) | {"rank": rank} for rank, content in found if "message" in content]


def _known_of(content: dict[str, Any]) -> dict[str, Any]:
    """A rank's error with texts for all that is read of it; nodes only where they are named."""
    texts = {key: str(content.get(key, "")) for key in ("type", "message", "traceback")}
    return texts | {key: content[key] for key in ("node", "faulty_node") if isinstance(content.get(key), str)}


def _rank_of(path: Path) -> str:
    return path.stem.removeprefix("error.rank")


def _written(errors: Sequence[dict[str, Any]]) -> Failure | None:
    if not errors:
        return None
    error, rank = errors[0], int(errors[0]["rank"])
    if error["type"] == "OutOfMemoryError":  # Of a script, or where no more could be written down.
        wanted = re.search(r"Tried to allocate [\d.]+ \w+", error["message"])
        asked = f": {wanted[0][0].lower()}{wanted[0][1:]}" if wanted else ""
        text = f"rank {rank}: out of GPU memory{asked}; `launch check` names what would fit"
        return Failure(text=text, kind="out_of_memory", rank=rank)
    if "faulty_node" in error:
        text, node = _one_line(error["message"]), error["faulty_node"]
        return Failure(text=text, transient=True, node=node, broken=node is not None, rank=rank)
    if _HARDWARE.search(error["message"]):
        text, node = f"rank {rank}: {_one_line(error['message'])}", error.get("node")
        return Failure(text=text, transient=True, node=node, broken=node is not None, rank=rank)
    ours = not error["message"].startswith(f"{error['type']}:")
    where = "" if ours else _frame(error["traceback"])
    return Failure(text=f"rank {rank}: {_one_line(error['message'])}{where}", kind=_kind_of(error), rank=rank)


def _kind_of(error: dict[str, Any]) -> Kind:
    """What the error of a rank is of."""
    if _NOT_A_NUMBER.search(error["message"]):
        return "nan"
    return "disk" if _FULL.search(error["message"]) else "error"


def _without_memory(directory: Path, errors: Sequence[dict[str, Any]]) -> Failure | None:
    """The first rank that ran out of memory; of a full disk the rank's own error names the file and what is left."""
    found = ran_out(directory)
    if found is None or found.place == "disk":
        return None
    by_a_rank = any(error["rank"] == str(found.rank) for error in errors)
    if not by_a_rank and found.kind not in ("host_killer", "cgroup", "slurm"):
        return None
    return Failure(text=_one_line(out_of_memory.line(found)), kind="out_of_memory", rank=found.rank)


def _hung(directory: Path) -> Failure | None:
    """The ranks were ended by the hang watch (``train.on_hang``): what they leave tells of that end alone."""
    found = files.read_json(directory / HUNG)
    return None if found is None else Failure(text=found["text"], transient=bool(found["restart"]), kind="hang")


def _timed_out(directory: Path, errors: Sequence[dict[str, Any]], hosts: Sequence[str]) -> Failure | None:
    """A collective that not all ranks came to: those that waited wrote an error, those that did not come wrote none."""
    waited = [error for error in errors if _TIMED_OUT.search(error["message"])]
    first = next((error for error in errors if not is_of_another(error)), None)
    if first is None or first not in waited:
        return None
    job = contents.known(directory, contents.JOB)
    world = job.get("nodes", 0) * job.get("gpus_per_node", 0)
    absent = sorted(set(range(world)) - {int(error["rank"]) for error in errors})
    if not absent:
        text = f"rank {waited[0]['rank']}: timeout in a collective that every rank came to"
        return Failure(text=text, transient=True, kind="hang", rank=int(waited[0]["rank"]))
    names = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
    ranks = "rank" if len(absent) == 1 else "ranks"
    nodes = {_node_of(directory, rank) for rank in absent} if hosts else set()
    node = nodes.pop() if len(nodes) == 1 else None
    where = "" if node is None else f" on {node}"
    text = (
        f"timeout in a collective: {ranks} {names}{where} did not arrive while {len(waited)} waited (train.timeout_s)"
    )
    return Failure(text=text, transient=True, node=node, kind="hang", rank=absent[0])


def _node_of(directory: Path, rank: int) -> str | None:
    """The node on which a rank of ours runs: the rank names it beside the folder of its output."""
    link = directory / "logs" / "ranks" / f"rank{rank}"
    try:
        return files.read_text(files.real(link).parent / f"{files.real(link).name}.node").strip() or None
    except OSError:
        return None


def _watchdog(directory: Path) -> Failure | None:
    """NCCL's watchdog ends the process without a Python error; its text is in the rank's stderr."""
    for path in _rank_logs(directory):
        found = _WATCHDOG.search(files.end_of(path, _TAIL))
        if found:
            text = f"NCCL timeout in {found[1]} after {int(found[2]) // 1000} s (train.timeout_s)"
            return Failure(text=text, transient=True, kind="hang")
    return None


def _signalled(directory: Path, returncode: int, hosts: Sequence[str]) -> Failure | None:
    """A signal that ended a rank or torchrun, on this node or, by what they have left, on another."""
    for number, node in enumerate(hosts or [None]):
        report = directory / "logs" / (f"node{number}.err" if number else "node.err")
        for rank, _, code in _exits(report):
            if code < 0 and -code != signal.SIGTERM:  # Torchrun's own, to the ranks that the first failure has left.
                found = _by_signal(f"rank {rank}", -code, directory, node)
                return replace(found, rank=int(rank)) if rank.isdecimal() else found
    others = list(_failed_agents(directory / "logs", hosts))
    for code, node in others:
        if code < 0 and -code != signal.SIGTERM:
            return _by_signal("torchrun", -code, directory, node)
    # An agent that waits in vain for another node is killed by us.
    own = hosts[0] if hosts and not others else None
    return _by_signal("torchrun", -returncode, directory, own) if returncode < 0 else None


def _failed_agents(logs: Path, hosts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Exit codes of the agents of other nodes that failed."""
    for number, node in list(enumerate(hosts))[1:]:
        for path in logs.glob(f"node{number}.*.failed"):
            yield int((files.read_json(path) or {}).get("returncode", 0)), node


def _apart(directory: Path) -> Failure | None:
    """Nodes that did not find each other, or lost sight before the ranks began: no fault of the program."""
    found = _RENDEZVOUS.search(files.end_of(directory / "logs" / "node.err", _TAIL))
    return Failure(text=f"torchrun's rendezvous failed: {_one_line(found[0])}", transient=True) if found else None


def _by_signal(who: str, number: int, directory: Path, node: str | None) -> Failure:
    name = signal.Signals(number).name
    if name != "SIGKILL":
        return Failure(text=f"{who} was ended by {name}", transient=True, node=node, kind="rank_killed")
    if any(_OOM_KILL.search(files.end_of(path, _TAIL)) for path in (directory / "logs" / "submitit").glob("*_log.err")):
        return Failure(text=f"{who} was ended by the kernel: out of host memory", kind="out_of_memory")
    text = f"{who} was ended by SIGKILL: the kernel may have been out of memory"
    return Failure(text=text, transient=True, node=node, kind="rank_killed")


def _exits(path: Path) -> list[tuple[str, str, int]]:
    """Rank, local rank and exit code of each failure in torchrun's report, the root cause first."""
    return [(rank, local, code) for rank, local, code, _ in _reported(path)]


def _reported(path: Path) -> list[tuple[str, str, int, int | None]]:
    """As :func:`_exits`, with the number of the process where the report has it."""
    found: list[tuple[str, str, int, int | None]] = []
    text = files.end_of(path, _TAIL)
    at = text.rfind(_ROOT)
    for part in (text[at:], text[:at]) if at >= 0 else (text,):
        rank, local = "?", ""
        for match in _REPORTED.finditer(part):
            if match["rank"] is not None:
                rank, local = match["rank"], match["local"]
            else:
                found.append((rank, local, int(match["code"]), None if match["pid"] is None else int(match["pid"])))
    return found


def _last_words(directory: Path, returncode: int) -> Failure:
    """The end of the log of the rank that failed first, with the frame that a traceback in it ends in."""
    logs = directory / "logs"
    rank, root = next(((rank, local) for rank, local, _ in _exits(logs / "node.err")), ("", None))
    paths = _rank_logs(directory)
    first = [path for path in paths if path.parent.name == root]
    for path in [*first, *paths, logs / "node.err"]:
        lines = _last_lines(path)
        if lines:
            text = "\n".join(lines)
            where = _frame(text) if _TRACEBACK in text else ""
            kind: Kind = "out_of_memory" if _NO_MEMORY.search(lines[-1]) else "error"
            of = int(rank) if path in first and rank.isdecimal() else None
            said = f"{_one_line(lines[-1])}{where} (exit status {returncode}; {path})"
            return Failure(text=said, kind=kind, rank=of)
    return Failure(text=f"exit status {returncode} without a message; see {logs}")


def _last_lines(path: Path) -> list[str]:
    """The end of a log without empty lines, what torch puts before a rank's, and what it notes behind them."""
    lines = [line for line in _PREFIX.sub("", files.end_of(path, _TAIL)).splitlines() if line.strip()]
    said = max((number for number, line in enumerate(lines, 1) if not _NOTE.match(line)), default=len(lines))
    return lines[:said]


def _rank_logs(directory: Path) -> list[Path]:
    """Files of the ranks' stderr, the latest first."""

    def found() -> Iterator[tuple[int, Path]]:
        for path in (directory / "logs" / "ranks").glob("*/attempt_*/*/stderr.log"):
            yield path.stat().st_mtime_ns, path

    return [path for _, path in sorted(found(), reverse=True)]


def _frame(traceback: str) -> str:
    frames = list(_FRAME.finditer(traceback))
    return f" ({Path(frames[-1]['file']).name}:{frames[-1]['line']} in {frames[-1]['function']})" if frames else ""


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."
