"""Runs on this machine without torchrun: trained in ranks of an agent, or not at all."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from launcher.base import files
from launcher.job import torchrun
from launcher.rundir import contents, state
from launcher.saved import checkpoints as saved
from launcher.spec import ClusterSpec, RunSpec
from launcher.spec.parse import parse
from tests.support import ranks, train_many, training

CORPUS = {"samples": 1000, "sha256": "0123456789abcdef"}


def by_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ``launch run`` and ``launch resume`` of this process train their runs in ranks of an agent, to the end."""
    _start_by(monkeypatch, _train)


def by_nobody(monkeypatch: pytest.MonkeyPatch, *, steps: Sequence[int]) -> None:
    """Have them write what a finished run leaves: descriptions of checkpoints and losses, no tensors."""

    def leave(directory: Path, spec: RunSpec) -> None:
        lines = []
        for step in steps:
            checkpoint(directory, spec, step)
            lines.append({"step": step, "loss": 1.0, "grad_norm": 1.0, "eval_loss": abs(step - steps[0] - 1)})
        (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    _start_by(monkeypatch, leave)


def by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have them run the recorded job's single rank, without torchrun, to the end."""

    def act(directory: Path, spec: RunSpec) -> None:
        job = contents.job_of(directory)
        environment = {**os.environ, **job["environment"], "RANK": "0", "WORLD_SIZE": "1"}
        argv = torchrun.one_rank(job["argv"])
        subprocess.run(argv, env=environment, cwd=job["working_directory"], check=True, stdout=subprocess.DEVNULL)

    _start_by(monkeypatch, act)


def checkpoint(directory: Path, spec: RunSpec, step: int) -> Path:
    """Write a checkpoint that has its description but no tensors."""
    folder = directory / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").write_text(json.dumps(saved.state_content(spec, step, corpus=CORPUS)))
    return folder


def _start_by(monkeypatch: pytest.MonkeyPatch, act: Callable[[Path, RunSpec], None]) -> None:
    def started(directory: Path, cluster: ClusterSpec) -> str:
        act(directory, parse(json.loads((directory / "spec.json").read_text())))
        files.write_atomically(directory / state.SUBMISSION, {"job_id": "1", "kind": "local"})
        state.put(directory, "finished")
        return "1"

    monkeypatch.setattr("launcher.submission.submit._start_here", started)
    for module in ("run", "follow"):
        monkeypatch.setattr(f"launcher.actions.{module}.follow", lambda *arguments, **options: 0)


def _train(directory: Path, spec: RunSpec) -> None:
    [port] = training.free_ports(1)
    ranks.run(
        train_many.main,
        [spec.backend.name, f"{directory}:{port}"],
        imports=train_many.IMPORTS[spec.backend.name],
        count=spec.gpus,
        environment=training.environment(spec.backend.name),
        log=directory / "ranks.log",
    )
