"""Runs on the development cluster, started and watched as by a user; their scripts need no torch, so they are quick."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher import cli
from launcher.base import files
from launcher.rundir import state, status
from launcher.rundir.status import RunState
from slurm.dev_cluster import Cluster
from tests.support.helpers import ROOT

SLURM = ("cluster=slurm", "hardware.device=cpu", "model=tiny", "precision=fp32")

SCRIPT = """
import argparse, json, os, signal, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--do", default="end")
parser.add_argument("--steps", type=int, default=0)
parser.add_argument("--again", type=int, help="steps of a later attempt")
options = parser.parse_args()
if options.again and os.environ.get("SLURM_RESTART_COUNT"):
    options.steps = options.again
rank, run = int(os.environ["RANK"]), os.environ["LAUNCH_RUN"]
print("rank", rank, "of", os.environ["WORLD_SIZE"], "sees", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
def fail():
    raise ValueError("the learning rate is a fish")
if options.do == "fail" and rank == 1:
    fail()
if options.do == "die" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
def checkpoints():
    return sorted(int(name[5:]) for name in os.listdir(f"{run}/checkpoints") if name.startswith("step-"))
done = (checkpoints() or [0])[-1]
while done < options.steps and not stopped:
    time.sleep(0.1)
    done += 1
    if rank == 0:
        with open(f"{run}/metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": done, "attempt": os.environ.get("SLURM_RESTART_COUNT", "0")}) + "\\n")
if rank == 0 and options.steps:
    os.makedirs(f"{run}/checkpoints/step-{done:08d}", exist_ok=True)  # It may be told to stop as it ends.
"""
"""A script whose rank 0 counts steps of a tenth of a second, saves when told to stop, and resumes from there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Output of one command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def launch(*words: str) -> Answer:
    """Run ``launch`` in this process, which saves a process start."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(words)
    return Answer(status, out.getvalue(), err.getvalue())


def submit(name: str, *words: str) -> Path:
    """Submit a run of :data:`SCRIPT`, or of ``words``, and return its directory."""
    own = () if any(word.startswith("model.") for word in words) else ("script=train.py",)
    answer = launch(*SLURM, *own, f"run.name={name}", *words)
    assert answer.status == 0, answer.err
    return Path.cwd() / "runs" / name


def submitted(run: Path) -> Path:
    """Record a run directory whose job only Slurm knows about."""
    run.mkdir(parents=True)
    (run / "spec.json").write_text("{}")
    files.write_atomically(run / state.SUBMISSION, {"kind": "slurm", "job_id": "1"})
    return run


def wait(what: str, condition: Callable[[], object], seconds: float = 400) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.2)


def ended(run: Path, seconds: float = 400) -> RunState:
    """Wait for the end of a run and return its state."""
    found: list[RunState] = []

    def over() -> bool:
        found.append(status.read(run))
        return found[-1].state in ("finished", "failed", "cancelled", "lost")

    wait(f"the end of {run.name}: {found[-1:]}", over, seconds)
    return found[-1]


def succeeds(run: Path, seconds: float = 400) -> None:
    """Wait for a run to finish successfully; otherwise fail with its output."""
    ending = ended(run, seconds)
    paths = [*run.glob("logs/**/*.err"), *run.glob("logs/**/*.log")]
    paths += Path(os.environ["SLURM_CONF"]).parent.parent.glob("log/slurm*.log")
    logs = (f"==> {path}\n{path.read_text(errors='replace')[-2000:]}" for path in paths if path.is_file())
    assert ending.state == "finished", "\n".join((str(ending), *logs))


def lines(run: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl``."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def losses(run: Path) -> list[tuple[int, float]]:
    """The loss of every step."""
    return [(line["step"], line["loss"]) for line in lines(run)]


def restarts(cluster: Cluster, run: Path) -> int:
    """Number of times that Slurm restarted the run's job."""
    text = cluster.ask("scontrol", "-o", "show", "job", str(status.read(run).job_id))
    return int(text.partition("Restarts=")[2].split()[0])


def processes(run: Path) -> list[int]:
    """Processes of a run's job, on any node."""
    mark, found = f"LAUNCH_RUN={run}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return sorted(found)


@contextlib.contextmanager
def at(folder: Path, cluster: Cluster) -> Iterator[None]:
    """Work in a folder, with the cluster's Slurm."""
    before, cwd = {**os.environ}, Path.cwd()
    root = str(ROOT)
    os.environ.update({**cluster.environment, "PYTHONPATH": root})
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(before)
