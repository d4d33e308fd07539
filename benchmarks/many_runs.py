"""Time of the verbs that read all runs, over 10,000 runs: ``python -m benchmarks.many_runs``.

The tool creates the runs: one recorded run, copied under many names, with the files that workers leave. A few of them
are training, some are points of sweeps. Each command is a whole process, timed three times after one that warms up the
file system; the lowest wall time counts. ``--against LAUNCH`` measures another version's command over the same
runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reporting import keep
from launcher.base import machine
from launcher.base.process import Process
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.preflight import assess
from launcher.preflight.plan import plan
from launcher.rundir import home, state
from launcher.rundir.record import record

RUNS = 10_000
ALONE = 9_000
"""Runs below ``runs/`` itself; the others are points of sweeps."""

_POINTS = 100
_UNKNOWN = ("predicted_bytes", "needed_bytes", "largest_pile", "predicted_tokens_per_second_per_gpu")
_STEPS = 300
_ACTIVE = 5
_WORDS = ("model=tiny", "parallel=fsdp", "hardware=cpu", "cluster.gpus_per_node=2", "train.steps=300")
COMMANDS = {
    "status": ["status"],
    "status --json": ["status", "--json"],
    "status --json --newest 20": ["status", "--json", "--newest", "20"],
    "status --all": ["status", "--all"],
    "status NAME": ["status", "run-00042"],
    "watch --once": ["watch", "--once"],
    "completion of any run": ["__complete", "bash", "launch status ", ""],
    "completion of a begun name": ["__complete", "bash", "launch status run-000", "run-000"],
}


def main() -> None:
    """Make the runs, measure and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"number of runs (default {RUNS})")
    parser.add_argument("--against", metavar="LAUNCH", help="the command of another version, measured as `before`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.update(XDG_STATE_HOME=f"{name}/state", XDG_CACHE_HOME=f"{name}/cache")
        make(folder, options.runs)
        figures: dict[str, Any] = {"runs": options.runs}
        if options.against is not None:
            figures["before_s"] = {name: _least([options.against, *words], folder) for name, words in COMMANDS.items()}
        launch = str(Path(sys.executable).with_name("launch"))
        figures["after_s" if options.against else "seconds"] = {
            name: _least([launch, *words], folder) for name, words in COMMANDS.items()
        }
    keep("many_runs", "python -m benchmarks.many_runs --against LAUNCH", figures)


def make(folder: Path, runs: int) -> None:
    """So many ended runs below ``runs/`` of a folder, the newest five of which train here, and sweeps of a hundred."""
    first = _recorded(folder / "made")
    alone = runs * ALONE // RUNS
    for number in range(runs - alone):
        sweep, point = divmod(number, _POINTS)
        place = folder / "runs" / f"sweep-{sweep:02d}"
        _copied(first, place / f"{point:03d}", "finished")
        if point == 0:
            known: dict[str, object] = {"overrides": [], "verdict": "fits", "reason": None, **dict.fromkeys(_UNKNOWN)}
            points = [{"id": f"{each:03d}", **known} for each in range(_POINTS)]
            (place / state.SWEEP).write_text(json.dumps({"points": points}))
    for number in range(alone):
        _copied(first, folder / "runs" / f"run-{number:05d}", "running" if number < _ACTIVE else "finished")


def _recorded(folder: Path) -> dict[str, bytes]:
    """The files of a run as it is recorded, and as its worker leaves it, by name."""
    folder.mkdir()
    with contextlib.chdir(folder):
        found = request(list(_WORDS), facts=machine.facts(), catalog=Catalog(folder=folder))
        planned = plan(assess.assess(found.require()), python="python")
        run = record(planned, folder / "runs" / "first", overrides=_WORDS, forced=False)
    files = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    lines = [
        {"step": step, "loss": 10 / step, "grad_norm": 1.0, "learning_rate": 1e-3} for step in range(1, _STEPS + 1)
    ]
    speeds = {"tokens_per_second": 1000.0, "step_seconds": 0.5, "time": 1e9}
    files["metrics.jsonl"] = "".join(f"{json.dumps({**line, **speeds})}\n" for line in lines).encode()
    phases = {"load": 2**20, "forward": 2**21, "backward": 2**22}
    ranks = [{"rank": rank, "static_bytes": 2**20, "phases": phases} for rank in range(2)]
    files["memory.json"] = json.dumps({"ranks": ranks}).encode()
    files[state.SUBMISSION] = json.dumps({"kind": "local", "job_id": None, "comment": ""}).encode()
    return files


def _copied(files: dict[str, bytes], run: Path, now: state.State) -> None:
    """A run with these files, which has two checkpoints."""
    for step in (150, 300):
        checkpoint = run / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "state.json").write_text('{"model": {}}')
    (run / "logs").mkdir()
    for name, content in files.items():
        (run / name).write_bytes(content)
    home.write(run, run)
    facts: dict[str, Any] = {"keeper": Process.here().as_dict()} if now == "running" else {}
    state.put(run, "running", **facts)
    if now != "running":
        state.put(run, now)


def _least(command: Sequence[str], folder: Path) -> float | None:
    """Seconds of the fastest of three; None where this version has no such option."""
    times = []
    for _ in range(4):
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        times.append(time.perf_counter() - began)
        if done.returncode == 2:
            return None
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode()}")
    return round(min(times[1:]), 3)


if __name__ == "__main__":
    main()
