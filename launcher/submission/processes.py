"""The processes of a node's part: torchrun and its ranks, started, asked to save, and killed if left over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.base.process import children, marked
from launcher.job.torchrun import HOST, IS_HOST, PORT, RENDEZVOUS


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPlace:
    """This node's part in a Slurm job."""

    job_id: str  # As ``scontrol requeue`` takes it.
    number: int  # Of this node, counted from 0; the first alone writes the run's state.
    attempt: str  # Differs for every allocation of the job.
    told_to_save: threading.Event  # Set by the signal that comes before a time limit or a preemption.
    told_to_end: threading.Event  # Set by SIGTERM, with which Slurm ends a job; what follows is Slurm's to say.
    requeue: Callable[[], object] = field(repr=False)  # Puts the job back into the queue.
    seconds_left: Callable[[], float | None] = field(repr=False)  # How long the job may still run, if Slurm says so.
    # Why the job cannot do without nodes, asked before it is put back; None where it can.
    without: Callable[[Sequence[str]], str | None] = field(repr=False, default=lambda _: None)
    # Keeps the job, once it waits again, off nodes.
    exclude: Callable[[Sequence[str]], None] = field(repr=False, default=lambda _: None)
    hosts: Sequence[str] = ()  # Slurm's names of the job's nodes, by their numbers.


def log_name(place: SlurmPlace | None) -> str:
    """The name of the files in ``logs/`` that hold the output of this node's agent, without suffix."""
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
            start_new_session=True,  # So that a Ctrl-C meant for the launcher does not reach the ranks.
            preexec_fn=None if place is None else _ignore_user_signal,
        )


def _ignore_user_signal() -> None:
    """Let torchrun survive SIGUSR2, which Slurm sends to all processes: an ignored signal stays so across exec."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


def _fill(text: str, facts: Mapping[str, str]) -> str:
    for placeholder in (HOST, PORT, IS_HOST, RENDEZVOUS):
        if placeholder in facts:
            text = text.replace(placeholder, facts[placeholder])
    return text


def ask_to_save(process: subprocess.Popen[bytes], *, own: bool) -> None:
    """Ask ranks to save: our own by SIGUSR2, a user's script by torchrun's SIGTERM."""
    if not own:
        process.terminate()
        return
    for rank in children(process.pid):
        rank.send(signal.SIGUSR2)


def end_leftovers(directory: Path) -> None:
    """Kill the processes of the job, known by the variable that it gave them, that have outlived its agent."""
    for left in marked(f"LAUNCH_RUN={directory}"):
        with contextlib.suppress(PermissionError):
            left.send(signal.SIGKILL)
