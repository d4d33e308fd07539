"""Explains in one line why a job failed, from the files of its ranks and the output of its agent.

One failure causes many: ranks that wait for the failed one lose their connection or time out, and torchrun ends the
rest with SIGTERM. So errors that only say that another rank is gone are skipped, the earliest of the others wins, and
among signals the root cause in torchrun's report. A failure of the environment (a node, the network, a signal) is
``transient``: on Slurm the job is requeued.
"""

import contextlib
import json
import re
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from launcher.base import files
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.units import gib, request
from launcher.job.events import FailureKind
from launcher.job.memory import OUT_OF_MEMORY, OutOfMemory, ran_out
from launcher.rundir import contents, output
from launcher.rundir.output import END_BYTES, one_line

HUNG = Path("logs", "hung.json")
"""Written if the ranks of a job were ended because they hung: ``text``, and whether to ``restart``."""

EARLIER = Path("logs", "earlier")  # Files kept from earlier attempts, in a folder each, named by the time of its end.
_KINDS = get_args(FailureKind.__value__)
_OF_THE_KERNEL = ("host_killer", "cgroup", "slurm")  # Kinds of ``oom.json`` for a process that was ended from outside.
_WATCHDOG = re.compile(r"Watchdog caught collective operation timeout:.*?OpType=(\w+).*?ran for (\d+) milliseconds")
_OOM_KILL = re.compile(r"oom[-_]kill", re.IGNORECASE)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', re.MULTILINE)
_RENDEZVOUS = re.compile(
    r"^torch\.distributed\.(DistStoreError|DistNetworkError|elastic\.rendezvous\.\S*Error): .*$", re.MULTILINE
)
_TIMED_OUT = re.compile(
    r"Timed out waiting \d+ ?ms|Application timeout caused pair closure|collective operation timeout"
)
"""Messages of gloo and NCCL about a collective; a timeout in the program itself is an error like any other."""

_HARDWARE = re.compile(
    r"uncorrectable (ECC|NVLink) error|hardware stack error|nvlink or a hardware error|GPU is lost|"
    r"no CUDA-capable device is detected|CUDA-capable device\(s\) is/are busy or unavailable",
    re.IGNORECASE,
)
"""Messages of CUDA (``cudaGetErrorString``) about a broken GPU, whatever the program does."""

_NO_MEMORY = re.compile(r"^(\w+\.)*OutOfMemoryError: ")
"""The last line of a traceback from torch, whose module for this class depends on the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a job failed."""

    text: str  # One line.
    transient: bool = False  # True if the same job may well succeed when restarted.
    node: str | None = None  # The node that failed first, if known.
    broken: bool = False  # True if that node must not be used again, even after a single failure.
    kind: FailureKind = "error"  # The cause for ``launch why``.
    rank: int | None = None  # The rank that failed first, if known.

    @property
    def facts(self) -> JsonObject:
        """Cause and rank, which ``state.json`` holds in addition to the text."""
        return {"cause": self.kind, "rank": self.rank}


def explain(directory: Path, returncode: int, hosts: Sequence[str] = ()) -> Failure:
    """Why a job failed; ``returncode`` is that of the agent on this node, the first of ``hosts``."""
    errors = output.rank_errors(directory)
    own = [error for error in errors if not output.is_of_another(error)]
    for found in (
        _hung(directory),
        _without_memory(directory, own),
        _timed_out(directory, errors, hosts),
        _written(own),
        _watchdog(directory),
        _signalled(directory, returncode, hosts),
        _failed_rendezvous(directory),
    ):
        if found is not None:
            return found
    if errors:
        rank = int(errors[0]["rank"])
        text = f"rank {rank} lost its connection to another rank"
        return Failure(text=text, transient=True, kind="rank_killed", rank=rank)
    return _last_words(directory, returncode)


def _written(errors: Sequence[JsonObject]) -> Failure | None:
    if not errors:
        return None
    error, rank = errors[0], int(errors[0]["rank"])
    if error["type"] == "OutOfMemoryError":  # From a script, or if no more could be recorded.
        wanted = re.search(r"Tried to allocate [\d.]+ \w+", error["message"])
        asked = f": {wanted[0][0].lower()}{wanted[0][1:]}" if wanted else ""
        text = f"rank {rank}: out of GPU memory{asked}; `launch check` lists what would fit"
        return Failure(text=text, kind="out_of_memory", rank=rank)
    if "faulty_node" in error:
        text, node = one_line(error["message"]), error["faulty_node"]
        return Failure(text=text, transient=True, node=node, broken=node is not None, rank=rank)
    if _HARDWARE.search(error["message"]):
        text, node = f"rank {rank}: {one_line(error['message'])}", error.get("node")
        return Failure(text=text, transient=True, node=node, broken=node is not None, rank=rank)
    ours = not error["message"].startswith(f"{error['type']}:")
    where = "" if ours else _frame(error["traceback"])
    kind: FailureKind = error["kind"] if error["kind"] in _KINDS else "error"
    return Failure(text=f"rank {rank}: {one_line(error['message'])}{where}", kind=kind, rank=rank)


def _without_memory(directory: Path, errors: Sequence[JsonObject]) -> Failure | None:
    """The first rank that ran out of memory; not for a full disk, where the rank's own error names the file."""
    found = ran_out(directory)
    if found is None or found.place == "disk":
        return None
    by_a_rank = any(error["rank"] == str(found.rank) for error in errors)
    if not by_a_rank and found.kind not in _OF_THE_KERNEL:
        return None
    return Failure(text=one_line(out_of_memory_line(found)), kind="out_of_memory", rank=found.rank)


def _hung(directory: Path) -> Failure | None:
    """The hang for which the hang watch ended the ranks (``train.on_hang``); their own files show only that end."""
    found = files.read_json(directory / HUNG)
    return None if found is None else Failure(text=found["text"], transient=bool(found["restart"]), kind="hang")


def _timed_out(directory: Path, errors: Sequence[JsonObject], hosts: Sequence[str]) -> Failure | None:
    """A collective that some ranks did not reach: the ranks that waited wrote an error, the absent ones did not."""
    waited = [error for error in errors if _TIMED_OUT.search(error["message"])]
    first = next((error for error in errors if not output.is_of_another(error)), None)
    if first is None or first not in waited:
        return None
    job = contents.known(directory, contents.JOB)
    world = job.get("nodes", 0) * job.get("gpus_per_node", 0)
    absent = sorted(set(range(world)) - {int(error["rank"]) for error in errors})
    if not absent:
        text = f"rank {waited[0]['rank']}: timeout in a collective that every rank reached"
        return Failure(text=text, transient=True, kind="hang", rank=int(waited[0]["rank"]))
    names = ", ".join(map(str, absent[:8])) + (", ..." if len(absent) > 8 else "")
    ranks = "rank" if len(absent) == 1 else "ranks"
    nodes = {_node_of(directory, rank) for rank in absent} if hosts else set()
    node = nodes.pop() if len(nodes) == 1 else None
    where = "" if node is None else f" on {node}"
    late = f"{ranks} {names}{where} did not arrive while {len(waited)} waited"
    text = f"timeout in a collective: {late} (train.timeout_s)"
    return Failure(text=text, transient=True, node=node, kind="hang", rank=absent[0])


def _node_of(directory: Path, rank: int) -> str | None:
    link = directory / "logs" / "ranks" / f"rank{rank}"
    try:
        return files.read_text(files.real(link).parent / f"{files.real(link).name}.node").strip() or None
    except OSError:
        return None


def _watchdog(directory: Path) -> Failure | None:
    """The timeout of NCCL's watchdog, which ends the process without a Python error, from the rank's stderr."""
    for path in output.rank_logs(directory):
        found = _WATCHDOG.search(files.end_of(path, END_BYTES))
        if found:
            text = f"NCCL timeout in {found[1]} after {int(found[2]) // 1000} s (train.timeout_s)"
            return Failure(text=text, transient=True, kind="hang")
    return None


def _signalled(directory: Path, returncode: int, hosts: Sequence[str]) -> Failure | None:
    for number, node in enumerate(hosts or [None]):
        for exit_ in output.exits(directory / "logs" / (f"node{number}.err" if number else "node.err")):
            if _is_cause(exit_.code):
                found = _by_signal(f"rank {exit_.rank}", -exit_.code, directory, node)
                return replace(found, rank=int(exit_.rank)) if exit_.rank.isdecimal() else found
    others = list(_failed_agents(directory / "logs", hosts))
    for code, node in others:
        if _is_cause(code):
            return _by_signal("torchrun", -code, directory, node)
    # The launcher kills an agent that waits in vain for another node.
    own = hosts[0] if hosts and not others else None
    return _by_signal("torchrun", -returncode, directory, own) if returncode < 0 else None


def _is_cause(code: int) -> bool:
    """True for a signal's exit code, except for SIGTERM, with which torchrun ends the other ranks after a failure."""
    return code < 0 and -code != signal.SIGTERM


def _failed_agents(logs: Path, hosts: Sequence[str]) -> Iterator[tuple[int, str]]:
    for number, node in list(enumerate(hosts))[1:]:
        for path in logs.glob(f"node{number}.*.failed"):
            yield int((files.read_json(path) or {}).get("returncode", 0)), node


def _failed_rendezvous(directory: Path) -> Failure | None:
    """A failed rendezvous of the nodes before the ranks started, which is not a fault of the program."""
    found = _RENDEZVOUS.search(files.end_of(directory / "logs" / "node.err", END_BYTES))
    return Failure(text=f"torchrun's rendezvous failed: {one_line(found[0])}", transient=True) if found else None


def _by_signal(who: str, number: int, directory: Path, node: str | None) -> Failure:
    name = signal.Signals(number).name
    if name != "SIGKILL":
        return Failure(text=f"{who} was ended by {name}", transient=True, node=node, kind="rank_killed")
    logs = (directory / "logs" / "submitit").glob("*_log.err")
    if any(_OOM_KILL.search(files.end_of(path, END_BYTES)) for path in logs):
        return Failure(text=f"{who} was ended by the kernel: out of host memory", kind="out_of_memory")
    text = f"{who} was ended by SIGKILL: the kernel may have been out of memory"
    return Failure(text=text, transient=True, node=node, kind="rank_killed")


def _last_words(directory: Path, returncode: int) -> Failure:
    logs = directory / "logs"
    rank, root = next(((each.rank, each.local) for each in output.exits(logs / "node.err")), ("", None))
    paths = output.rank_logs(directory)
    first = [path for path in paths if path.parent.name == root]
    for path in [*first, *paths, logs / "node.err"]:
        lines = output.last_lines(path)
        if lines:
            text = "\n".join(lines)
            where = _frame(text) if output.TRACEBACK in text else ""
            reason = f"{one_line(lines[-1])}{where} (exit status {returncode}; {path})"
            kind: FailureKind = "out_of_memory" if _NO_MEMORY.search(lines[-1]) else "error"
            return Failure(text=reason, kind=kind, rank=int(rank) if path in first and rank.isdecimal() else None)
    return Failure(text=f"exit status {returncode} without a message; see {logs}")


def _frame(traceback: str) -> str:
    frames = list(_FRAME.finditer(traceback))
    return f" ({Path(frames[-1]['file']).name}:{frames[-1]['line']} in {frames[-1]['function']})" if frames else ""


def put_out_of_memory_aside(directory: Path) -> None:
    """Move the ``oom.json`` of an earlier attempt into the run's logs, since it does not apply to this one."""
    path = directory / OUT_OF_MEMORY
    with contextlib.suppress(OSError):
        found = ran_out(directory)
        folder = directory / EARLIER / f"{path.stat().st_mtime:.3f}"
        folder.mkdir(parents=True, exist_ok=True)
        if found is not None and found.snapshot is not None and (directory / found.snapshot).is_file():
            (directory / found.snapshot).rename(folder / Path(found.snapshot).name)
        path.rename(folder / OUT_OF_MEMORY)
    path.unlink(missing_ok=True)


def note_out_of_memory_of_slurm(directory: Path) -> None:
    """Write an ``oom.json`` from Slurm's state for a job whose own processes could no longer write it."""
    words = "Slurm's state OUT_OF_MEMORY"
    found = OutOfMemory(kind="slurm", place="host", time=time.time(), rank=None, node=None, message=words)
    with contextlib.suppress(OSError):  # The run belongs to another user, or a rank has written one.
        files.write_new(directory / OUT_OF_MEMORY, f"{json.dumps(found.as_dict())}\n".encode())


def out_of_memory_line(found: OutOfMemory) -> str:
    """One line about a device or host that ran out of memory."""
    who = f"rank {found.rank}" if found.rank is not None else "the job" if found.node is None else found.node
    if found.kind in _OF_THE_KERNEL:
        return f"{who} was ended by the kernel: out of host memory{_host_use(found)}; `launch why RUN` says more"
    what = "out of host memory" if found.place == "host" else "out of memory"
    step = f" of step {found.step}" if found.step else ""
    where = "" if found.phase is None else f" in {found.phase.replace('_', ' ')}{step}"
    layer = "" if found.layer is None else f", layer {found.layer}"
    asked = "" if found.requested_bytes is None else f": asked for {request(found.requested_bytes, found.free_bytes)}"
    return f"{who}: {what}{where}{layer}{asked}; `launch why RUN` says which pile grew"


def _host_use(found: OutOfMemory) -> str:
    host = found.host
    if host is None or host.node_used_bytes is None or host.node_bytes is None:
        return ""
    return f", {gib(host.node_used_bytes)} of {gib(host.node_bytes)} in use"
