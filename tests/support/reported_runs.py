"""A run directory with everything that a page shows: metrics, piles over time, events of two attempts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.job.memory import RECORDS, HostMemory, MemoryRecord, OutOfMemory, PhaseMemory
from launcher.preflight import assess
from launcher.preflight.assess import as_json
from launcher.rundir.state import State
from tests.support.helpers import composed_once
from tests.support.recorded_runs import recorded

MIB = 2**20
BEGUN = 1_800_000_000.0

WORDS = ("train.steps=40", "save.every=10")


def reported(run: Path, *overrides: str, steps: int = 40, now: State = "finished") -> Path:
    """Record a run of two attempts on two ranks; the first attempt was preempted after step 20."""
    words = (*WORDS, *overrides)
    recorded(run, *words, steps=map(line, range(1, steps + 1)))
    spec = composed_once("model=tiny", "cluster.gpus_per_node=2", *words)
    plan = {**as_json(assess.assess(spec, search=None)), "overrides": ["model=tiny", *words], "forced": False}
    (run / "plan.json").write_text(json.dumps(plan))
    (run / "state.json").write_text(json.dumps({"state": now, "reason": None, "time": BEGUN + 300}))
    write(run / "events.jsonl", events())
    write(run / RECORDS, (record.as_dict() for step in (0, 1, 20, 40) for record in records(step)))
    write(run / "rank_times.jsonl", ({"step": step, "seconds": [0.1, 0.15]} for step in (10, 20)))
    return run


def line(step: int) -> dict[str, Any]:
    """A line of metrics, with a loss on held-out samples every tenth step."""
    held_out = {} if step % 10 else {"eval_loss": 6 - step / 20}
    figures = {"loss": 5.5 - step / 20, "grad_norm": 1.5, "learning_rate": 3e-4, "tokens_per_second": 1000.0 + step}
    return {"step": step, **figures, "step_seconds": 2.0, "time": BEGUN + 20 + 5 * step, **held_out}


def events() -> Iterator[dict[str, Any]]:
    """Two attempts of a job of two nodes."""
    yield _event(0, "queued", "submitted as job 7")
    for begun, end, word in ((10, 130, "requeued"), (160, 300, "finished")):
        yield _event(begun, "running", "running", node="gpu01")
        yield _event(begun + 2, "start", "the ranks are started", nodes=["gpu01", "gpu02"])
        yield _event(begun + 80, "save", "the checkpoint of step 10 is complete", step=10, seconds=1.5, node="gpu01")
        text = "rank 1 on gpu02 is slow: its own work takes 50% longer"
        yield _event(begun + 90, "straggler", text, step=15, rank=1, host="gpu02")
        text = "preempted after step 20" if word == "requeued" else word
        yield _event(end, "end", text, state=word, node="gpu01")


def _event(after: float, kind: str, text: str, *, step: int | None = None, **facts: object) -> dict[str, Any]:
    return {"time": BEGUN + after, "kind": kind, "step": step, "text": text, **facts}


def records(step: int) -> Iterator[MemoryRecord]:
    """The two ranks at one step; the second holds more."""
    for rank in (0, 1):
        piles = {"parameters": 6 * MIB, "activations": (9 + rank) * MIB + step * 1024}
        peak = PhaseMemory(allocated_bytes=sum(piles.values()), piles=piles)
        phases = {"load": PhaseMemory(allocated_bytes=6 * MIB, piles={"parameters": 6 * MIB})}
        yield MemoryRecord(
            step=step,
            rank=rank,
            node="gpu01",
            time=BEGUN + step,
            tokens=256,
            phases=phases if step == 0 else {"forward": peak},
            device_bytes=64 * MIB,
            host=HostMemory(rank_bytes=800 * MIB, node_used_bytes=3000 * MIB, node_bytes=8000 * MIB),
        )


def ran_out(run: Path) -> None:
    """Write the files of a rank that ran out of memory."""
    found = OutOfMemory(
        kind="budget",
        place="device",
        time=BEGUN + 3600,
        rank=1,
        node="gpu01",
        step=21,
        phase="backward",
        layer=3,
        requested_bytes=5 * MIB,
        free_bytes=MIB,
        message="out of memory <b>",
    )
    (run / "oom.json").write_text(json.dumps(found.as_dict()))


def write(path: Path, rows: Any) -> None:
    """Write lines of JSON."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
