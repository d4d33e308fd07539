"""``memory.jsonl``: its lines, what is cut of it, and the warning of what grows."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

import torch
import torch.distributed as dist

from launcher.base import machine
from launcher.base.units import GIB, MIB
from launcher.job import events
from launcher.job.memory import RECORDS, host_memory, records
from launcher.rundir import health
from launcher.worker import memory, watch
from launcher.worker.engine import Context
from launcher.worker.watch import MemoryLog, tokens_of
from tests.support.helpers import make_spec


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank, with nobody to gather from, on a node whose memory nobody else uses."""
    monkeypatch.setattr(dist, "gather_object", lambda own, gathered: None)
    monkeypatch.setattr(machine, "memory_in_use", lambda: (20 * GIB, 64 * GIB))


def context(directory: Path, *overrides: str) -> Context:
    spec = make_spec("model=tiny", "parallel=fsdp", "precision=fp32", *overrides)
    device = torch.device("cpu")
    return Context(spec=spec, directory=directory, rank=0, world=1, device=device, memory=memory.tracker(device))


def sample(place: Context, log: MemoryLog, step: int, size: int = 1000) -> None:
    kept = torch.ones(size, dtype=torch.uint8)
    with place.memory.measuring("forward"):
        place.memory.rest([kept + 1, kept])
    log.write(step, tokens=128)


def test_lines_are_read_back_and_those_of_steps_that_are_done_again_are_cut(tmp_path: Path) -> None:
    place = context(tmp_path, "hardware.memory_bytes=5000000000")
    log = MemoryLog(place, resumed_at=0)
    log.write(0)
    for step in (1, 2, 3):
        sample(place, log, step)
    written = list(records(tmp_path))
    assert [(each.step, each.tokens) for each in written] == [(0, None), (1, 128), (2, 128), (3, 128)]
    assert written[1].static == {"temporary": 2000}
    assert written[1].phases["forward"].allocated_bytes == 2000
    assert written[1].device_bytes == 5_000_000_000
    assert written[1].host is not None
    assert written[1].host.rank_bytes > 10 * MIB
    MemoryLog(place, resumed_at=2)
    assert [each.step for each in records(tmp_path)] == [0, 1, 2]
    log.rewind(1)
    assert [each.step for each in records(tmp_path)] == [0, 1]


def test_steps_are_followed_as_often_as_the_run_says(tmp_path: Path) -> None:
    often = MemoryLog(context(tmp_path, "train.log_memory_every=5"), resumed_at=0)
    assert [step for step in range(1, 12) if often.due(step)] == [5, 10]
    never = MemoryLog(context(tmp_path, "train.log_memory_every=null"), resumed_at=0)
    assert not any(never.due(step) for step in range(1, 500))


def test_a_leak_is_an_event_that_a_running_runs_state_shows_until_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = host_memory()  # That of this process may grow by itself.
    monkeypatch.setattr(watch, "host_memory", lambda: first)
    place = context(tmp_path, "train.steps=1000")
    log = MemoryLog(place, resumed_at=0)
    for step in range(1, 30):
        sample(place, log, step, size=step * MIB)
    (line,) = events.read(tmp_path)
    assert (line["kind"], line["where"], line["pile"], line["ranks"]) == ("memory_growth", "device", "temporary", [0])
    assert line["bytes_per_step"] == 2 * MIB
    shown = health.beside(tmp_path, "running", None)
    assert shown is not None
    assert "the temporary pile of rank 0" in shown
    assert "grows by 2.0 MiB a step" in shown
    for step in range(30, 60):
        sample(place, log, step, size=29 * MIB)
    assert events.read(tmp_path)[-1]["over"]
    assert health.beside(tmp_path, "running", None) is None


def test_a_folder_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / RECORDS).mkdir()
    place = context(tmp_path)
    sample(place, MemoryLog(place, resumed_at=0), 1)


def test_a_micro_batch_counts_its_inputs() -> None:
    assert tokens_of([torch.zeros(2, 33), torch.zeros(4, 33)]) == 128
    assert tokens_of([]) is None
