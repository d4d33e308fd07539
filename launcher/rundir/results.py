"""Results of a run, read from the files that its worker left: losses, speed, measured memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher import files

BETWEEN = "between steps"


def steps(run: Path) -> list[dict[str, Any]]:
    """The whole lines of ``metrics.jsonl`` that belong to a training step; none where there is no such file."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = []
    for line in lines:
        with contextlib.suppress(ValueError):  # The line that is being written.
            rows.append(json.loads(line))
    return [row for row in rows if "loss" in row]


def speed(found: Sequence[dict[str, Any]]) -> float:
    """Tokens a second of all ranks together, the mean of the second half of the steps, which knows no warm-up."""
    half = found[len(found) // 2 :]
    return float(sum(row["tokens_per_second"] for row in half) / len(half))


def loss(found: Sequence[dict[str, Any]]) -> float:
    """The loss that a sampler minimises: the last on held-out samples, else the mean over the last tenth of steps."""
    held_out = [row["eval_loss"] for row in found if "eval_loss" in row]
    if held_out:
        return float(held_out[-1])
    last = found[-max(1, len(found) // 10) :]
    return float(sum(row["loss"] for row in last) / len(last))


def measured(run: Path) -> dict[str, int]:
    """The largest figure over the ranks for each phase, in bytes, and for the state between two steps."""
    worst: dict[str, int] = {}
    for rank in (files.read_json(run / "memory.json") or {}).get("ranks") or ():
        for phase, size in {**rank.get("phases", {}), BETWEEN: rank.get("static_bytes")}.items():
            if size is not None:
                worst[phase] = max(worst.get(phase, 0), size)
    return worst
