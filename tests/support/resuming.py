"""Runs of this machine whose ranks are forked from an agent: a user's commands, without the start of torchrun."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher import files
from launcher.rundir import state
from launcher.spec import ClusterSpec
from launcher.spec.parse import parse
from tests.support import ranks, train_many, training


def by_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``launch run`` and ``launch resume`` of this process train their runs in ranks of an agent, to the end."""
    monkeypatch.setattr("launcher.submission.submit._start_here", _trained)
    monkeypatch.setattr("launcher.commands._following.follow", lambda *arguments, **options: 0)


def _trained(directory: Path, cluster: ClusterSpec) -> str:
    spec = parse(json.loads((directory / "spec.json").read_text()))
    [port] = training.free_ports(1)
    ranks.run(
        train_many.main,
        [spec.backend.name, f"{directory}:{port}"],
        imports=train_many.IMPORTS[spec.backend.name],
        count=spec.gpus,
        environment=training.environment(),
        log=directory / "ranks.log",
    )
    files.write_atomically(directory / state.SUBMISSION, {"job_id": "1", "kind": "local"})
    state.put(directory, "finished")
    return "1"
