"""Runs and sweeps as launches and workers leave them, made without training: what a page holds is counted, not learned.

The losses are a formula's. Pages of real runs are those of ``--screenshots``.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.config.request import request
from launcher.rundir import state
from launcher.spec.parse import to_dict

RATES = ("1e-5", "3e-5", "1e-4", "3e-4", "1e-3", "3e-3")
BATCHES = (1, 2, 4, 8)
WIDTHS = (512, 1024, 2048)
_TOO_LARGE = 8 * 2048
"""Tokens of a micro-batch that the made points do not fit with."""

_WORDS = ("model=tiny", "cluster.gpus_per_node=2", "hardware.device=cpu")
_MIB = 2**20


def run(folder: Path, *words: str, steps: int, scale: float = 1.0, now: state.State = "finished") -> Path:
    """A run that has done so many steps.

    Args:
        folder: Its directory.
        words: Of the run, beside the model.
        steps: Lines of metrics.
        scale: Of its loss.
        now: Its state.
    """
    spec = _spec(*words)
    _write(folder, spec, [*_WORDS, *words], _metrics(steps, scale), now)
    return folder


def sweep(folder: Path, points: int, *, steps: int = 20) -> Path:
    """A sweep over learning rate, micro-batch, width of the MLP and seed; points that are too large are left out."""
    always = "train.global_batch_size=16"  # Points of other tokens a step would not be ranked by their loss.
    spec = _spec(always)
    rows: list[dict[str, Any]] = []
    for number, (rate, batch, width, seed) in zip(range(points), _grid(), strict=False):
        name, tokens = f"{number:03d}", batch * width
        words = [f"optimizer.lr={rate}", f"train.micro_batch_size={batch}"]
        words += [f"model.intermediate_size={width}", f"train.seed={seed}"]
        fits, size = tokens < _TOO_LARGE, (20 + tokens // 100) * _MIB
        rows.append({
            "id": name,
            "overrides": words,
            "verdict": "fits" if fits else "does_not_fit",
            "reason": None if fits else f"GPU needs {tokens / 500:.2f} GiB of 24.00 GiB",
            "predicted_bytes": size,
            "needed_bytes": size + 2 * _MIB,
            "largest_pile": ["activations", tokens // 200 * _MIB],
            "predicted_tokens_per_second_per_gpu": None,
        })  # fmt: skip
        if fits:
            content = copy.deepcopy(spec)
            content["optimizer"]["lr"] = float(rate)
            content["model"]["intermediate_size"] = width
            content["train"] |= {"micro_batch_size": batch, "seed": seed}
            scale = 1 + 0.3 * abs(math.log10(float(rate) / 6e-4)) + 0.01 * (seed % 7) + 0.05 / batch
            _write(
                folder / name, content, [*_WORDS, always, *words], _metrics(steps, scale, batch), "finished", size=size
            )
    grid = [f"optimizer.lr={','.join(RATES)}", f"train.micro_batch_size={','.join(map(str, BATCHES))}"]
    grid += [f"model.intermediate_size={','.join(map(str, WIDTHS))}", f"train.seed=range(0,{points})"]
    content = {"schema": 1, "id": folder.name, "overrides": [*_WORDS, always, *grid], "forced": False, "points": rows}
    (folder / state.SWEEP).write_text(json.dumps(content))
    return folder


def _spec(*words: str) -> dict[str, Any]:
    return to_dict(request([*_WORDS, *words]).require())


def _grid() -> Iterator[tuple[str, int, int, int]]:
    seed = 0
    while True:
        for rate in RATES:
            for batch in BATCHES:
                for width in WIDTHS:
                    yield rate, batch, width, seed
        seed += 1


def _metrics(steps: int, scale: float, batch: int = 1) -> str:
    return "".join(f"{json.dumps(_line(step, scale, batch))}\n" for step in range(1, steps + 1))


def _line(step: int, scale: float, batch: int) -> dict[str, Any]:
    ripple = 0.02 * math.sin(step * 12.9898)
    return {
        "step": step,
        "loss": round(scale * (1.5 + 4 / math.sqrt(step)) + ripple, 5),
        "grad_norm": round(0.4 + 2 / math.sqrt(step) + abs(ripple), 5),
        "learning_rate": 3e-4,
        "tokens_per_second": 1000.0 * batch**0.7 + 200 * ripple,
        "step_seconds": 0.5,
        "time": 1.7e9 + step,
    }


def _write(
    run: Path, spec: Mapping[str, Any], words: list[str], metrics: str, now: state.State, *, size: int = 40 * _MIB
) -> None:
    run.mkdir(parents=True)
    contents: dict[str, Mapping[str, Any]] = {
        "spec": spec,
        "plan": {"overrides": words, "peak": {"allocated_bytes": size}, "speed": None},
        "job": {"nodes": 1, "gpus_per_node": 2, "argv": ["true"], "environment": {}, "working_directory": "/"},
        "memory": {"method": "made", "ranks": [{"rank": 0, "phases": {"backward": size + size // 50}}]},
        "state": {"state": now, "reason": None, "time": 1.7e9},
    }
    for name, content in contents.items():
        (run / f"{name}.json").write_text(json.dumps(content))
    (run / "metrics.jsonl").write_text(metrics)
