"""The processes of one node's part: starts torchrun, asks its ranks to save, ends them, and detects kernel OOM kills.

Ranks that the kernel killed for lack of host memory cannot report it, so the node leaves ``oom.json``
(:class:`OomKillDetector`), with its last reading of the node's memory and largest processes.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from launcher.base import files, machine, process
from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.process import Timer, children, marked
from launcher.job import beat, memory
from launcher.job.memory import OUT_OF_MEMORY, HostMemory, Kind, MemoryRecord, OutOfMemory, newest
from launcher.job.torchrun import HOST, IS_HOST, PORT, RENDEZVOUS
from launcher.rundir import output


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPlace:
    """This node's part in a Slurm job."""

    job_id: str  # In the form that ``scontrol requeue`` takes.
    number: int  # Of this node, from 0; only the first writes the run's state.
    attempt: str  # Differs for every allocation of the job.
    told_to_save: threading.Event  # Set by the signal that comes before a time limit or a preemption.
    told_to_end: threading.Event  # Set by SIGTERM, with which Slurm ends a job and then decides on it itself.
    requeue: Callable[[], object] = field(repr=False)  # Requeues the job.
    seconds_left: Callable[[], float | None] = field(repr=False)  # Time left to the job; None if Slurm does not say.
    # Why the job cannot run without given nodes, asked before a requeue; None if it can.
    without: Callable[[Sequence[str]], str | None] = field(repr=False, default=lambda _: None)
    # Excludes nodes from a job that is queued again.
    exclude: Callable[[Sequence[str]], None] = field(repr=False, default=lambda _: None)
    hosts: Sequence[str] = ()  # Slurm's names of the job's nodes, in the order of their numbers.


def log_name(place: SlurmPlace | None) -> str:
    """The name, without suffix, of the files in ``logs/`` with the output of this node's agent."""
    return f"node{place.number}" if place is not None and place.number else "node"


@contextlib.contextmanager
def start_agent(
    directory: Path,
    job: JsonObject,
    facts: Mapping[str, str],
    place: SlurmPlace | None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the recorded command of this node; its output goes to ``logs/node*.out`` and ``.err``."""
    name = log_name(place)
    with (directory / "logs" / f"{name}.out").open("ab") as out, (directory / "logs" / f"{name}.err").open("ab") as err:
        yield subprocess.Popen(
            [_fill(text, facts) for text in job["argv"]],
            env={**os.environ, **job["environment"], **(environment or {})},
            cwd=job["working_directory"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # Keeps a Ctrl-C for the launcher away from the ranks.
            preexec_fn=None if place is None else _ignore_user_signal,
        )


def _ignore_user_signal() -> None:
    """Let torchrun survive SIGUSR2, which Slurm sends to all processes: an ignored signal stays ignored across exec."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _fill(text: str, facts: Mapping[str, str]) -> str:
    for placeholder in (HOST, PORT, IS_HOST, RENDEZVOUS):
        if placeholder in facts:
            text = text.replace(placeholder, facts[placeholder])
    return text


def ask_to_save(process: subprocess.Popen[bytes], *, own: bool) -> None:
    """Ask the ranks to save: our own workers with SIGUSR2, a user's script with torchrun's SIGTERM."""
    if not own:
        process.terminate()
        return
    for rank in children(process.pid):
        rank.send(signal.SIGUSR2)


def end_leftovers(directory: Path) -> None:
    """Kill the job's processes that outlived its agent, identified by the environment variable that it set."""
    for left in marked(f"LAUNCH_RUN={directory}"):
        with contextlib.suppress(PermissionError):
            left.send(signal.SIGKILL)


_LOOK_S = 1.0  # Seconds between two readings of the node's memory.
_NEARLY_FULL = 0.8  # Share of the node's memory in use from which the largest processes are recorded.
_SLURM_OOM = re.compile(r"^.*slurmstepd.*oom[-_ ]kill.*$", re.IGNORECASE | re.MULTILINE)
_RESIDENT = re.compile(r"(?:anon|file|shmem)-rss:(\d+)kB")
_LOGGED_S = 5  # Seconds for dmesg, which answers at once, or not at all without permission.
_LONGEST = 1000  # Longest message that the record keeps, in characters.


class OomKillDetector:
    """Detects OOM kills by the kernel or Slurm on one node, from the start of its ranks."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._look = directory, Timer(_LOOK_S, at_once=True)
        self._sizes = {path: path.stat().st_size for path in _outputs(directory)}
        self._before = memory.kills()
        self._memory: HostMemory | None = None
        self._beats: dict[int, beat.Heartbeat] = {}
        self._biggest: tuple[JsonObject, ...] = ()

    def look(self) -> None:
        """Read the node's memory if it is time."""
        if not self._look.is_due():
            return
        with contextlib.suppress(Exception):  # A reading that only serves an explanation must not end a job.
            found = memory.host_memory()
            if found is None or found.node_used_bytes is None or found.node_bytes is None:
                return
            if self._memory is None or found.node_used_bytes >= (self._memory.node_used_bytes or 0):
                self._memory = found
                if found.node_used_bytes > _NEARLY_FULL * found.node_bytes:
                    self._biggest = self._others()

    def read(self, beats: Path) -> None:
        """Read the last heartbeats of this node's ranks, while their folder exists."""
        with contextlib.suppress(OSError):
            found = (beat.read(path) for path in beats.glob("*.beat"))
            self._beats = {each.rank: each for each in found if each is not None}

    def tell(self, report: Path, agent: subprocess.Popen[bytes]) -> None:
        """Write ``oom.json`` if a rank of this node was killed for lack of memory, unless a rank has written one."""
        with contextlib.suppress(Exception):  # Explaining how a job ended must not keep the end from being recorded.
            self._tell(report, agent)

    def _tell(self, report: Path, agent: subprocess.Popen[bytes]) -> None:
        killed: list[tuple[int | None, int | None]] = [*output.killed(report, signal.SIGKILL)]
        if not killed and agent.returncode == -signal.SIGKILL:
            killed = [(None, agent.pid)]
        found = self._killer() if killed else None
        if found is None:
            return
        kind, message = found
        rank, pid = killed[0]
        last = next((each for each in newest(self._directory)[::-1] if each.rank == rank), None)
        logged, doing = _log_line(pid), None if rank is None else self._beats.get(rank)
        record = OutOfMemory(
            kind=kind,
            place="host",
            time=time.time(),
            rank=rank,
            node=machine.node(),
            host=self._host(logged, last),
            capacity_bytes=None if self._memory is None else self._memory.node_bytes,
            others=self._biggest or self._others(),
            last=last,
            step=None if doing is None else doing.step,
            phase=None if doing is None else beat.MEMORY_PHASES.get(doing.phase),
            message=logged or message,
        )
        content = json.dumps(record.as_dict())
        files.write_new(self._directory / OUT_OF_MEMORY, f"{content}\n".encode())

    def _others(self) -> tuple[JsonObject, ...]:
        """The largest processes that do not belong to the job."""
        own = {each.pid for each in process.marked(f"LAUNCH_RUN={self._directory}")}
        return memory.biggest(without=own | {os.getpid()})

    def _host(self, logged: str | None, last: MemoryRecord | None) -> HostMemory | None:
        if self._memory is None:
            return None
        resident = sum(1024 * int(part) for part in _RESIDENT.findall(logged or ""))  # KiB
        if not resident and last is not None and last.host is not None:
            resident = last.host.rank_bytes
        return replace(self._memory, rank_bytes=resident)

    def _killer(self) -> tuple[Kind, str] | None:
        now, before = memory.kills(), self._before
        if (line := self._slurm_line()) is not None:
            return "slurm", line
        if now.group > before.group and now.limit > before.limit:
            return "cgroup", "the job's cgroup reached its limit, and the kernel killed a process in it (oom_kill)"
        if now.group > before.group or (now.machine > before.machine and not now.known):
            return "host_killer", "the node ran out of memory, and the kernel killed a process (oom_kill)"
        return None

    def _slurm_line(self) -> str | None:
        for path in _outputs(self._directory):
            with contextlib.suppress(OSError), files.opened(path) as file:
                file.seek(self._sizes.get(path, 0))
                if found := _SLURM_OOM.search(file.read(files.MOST_OF_A_LOG).decode(errors="replace")):
                    return found[0].strip()[:_LONGEST]
        return None


def _outputs(directory: Path) -> list[Path]:
    return sorted((directory / "logs" / "submitit").glob("*_log.err"))


def _log_line(pid: int | None) -> str | None:
    if pid is None:
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        log = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", timeout=_LOGGED_S)
        lines = [line for line in log.stdout.splitlines() if f"Killed process {pid} " in line]
        return lines[-1].strip()[:_LONGEST] if lines else None
    return None
