"""Run directories as the launcher and workers leave them, without running anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.rundir import run_names, state
from launcher.rundir.state import State
from launcher.spec.parse import to_dict
from tests.support.helpers import composed_once


def recorded(
    run: Path,
    *overrides: str,
    steps: Iterable[Mapping[str, Any]] = (),
    now: State | None = None,
    reason: str | None = None,
    job: str | None = None,
    speed: Mapping[str, float] | None = None,
) -> Path:
    """Record a run of ``model=tiny`` on two ranks.

    Args:
        run: Its directory.
        overrides: Overrides of the run, beyond the model.
        steps: Number of lines of metrics.
        now: Its state, if one is written.
        reason: Reason of that state.
        job: Its Slurm job id.
        speed: The speed that its plan predicts, as for GPUs.
    """
    for name in ("logs", "checkpoints"):
        (run / name).mkdir(parents=True)
    words = ["model=tiny", "cluster.gpus_per_node=2", *overrides]
    contents = {
        "spec": to_dict(composed_once(*words)),
        "plan": {"overrides": words, "peak": {"allocated_bytes": 3 * 2**20}, "speed": speed},
        "job": {"nodes": 1, "gpus_per_node": 2, "argv": ["true"], "environment": {}, "working_directory": "/"},
    }
    if job is not None:
        contents["submission"] = {"kind": "slurm", "job_id": job, "comment": ""}
    for name, content in contents.items():
        (run / f"{name}.json").write_text(json.dumps(content))
    if steps:
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(dict(line))}\n" for line in steps))
    if now is not None:
        state.put(run, now, reason=reason)
    run_names.remember(run)
    return run


def line(step: int, loss: float, speed: float = 100.0) -> dict[str, Any]:
    """A line of metrics; a step takes two seconds."""
    return {"step": step, "loss": loss, "tokens_per_second": speed, "step_seconds": 2.0, "time": 1e9 + 2 * step}


def predicted(per_gpu: float, gpus: int = 2) -> dict[str, float]:
    """A plan's speed of so many tokens per second per GPU, with a band of 10% and steps of 3 s."""
    ends = {"low": 0.9 * per_gpu, "high": 1.1 * per_gpu}
    return {"tokens_per_second": gpus * per_gpu, "tokens_per_second_per_gpu": per_gpu, **ends, "step_seconds": 3.0}


def swept(folder: Path, losses: Mapping[str, float | None], *, jobs: Sequence[str | None] = ()) -> Path:
    """Record a sweep of learning rates whose points reached these losses; points without a loss are left out."""
    points = []
    for number, (rate, loss) in enumerate(losses.items()):
        word, name = f"optimizer.lr={rate}", f"{number:03d}"
        judged = {"id": name, "overrides": [word], "needed_bytes": 1, "predicted_bytes": 1, "largest_pile": None}
        judged["predicted_tokens_per_second_per_gpu"] = None
        points.append({**judged, "verdict": "fits", "reason": None if loss is not None else "too large"})
        if loss is not None:
            job = jobs[number] if number < len(jobs) else None
            words = (word, f"run.name={folder.name}", "sweep.parallelism=2")
            recorded(folder / name, *words, steps=[line(1, loss)], now="finished", job=job)
    (folder / state.SWEEP).write_text(json.dumps({"schema": 1, "id": folder.name, "points": points}))
    run_names.remember(folder)
    return folder
