"""Real runs of ``launch`` against a plain loop on the same card: the same weights, tokens and seed, 50 steps each."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.document import Document
from benchmarks.gpu.matrix import TORCHS
from benchmarks.gpu.process import import_path
from benchmarks.gpu.session import Session

STEPS = 50
SECONDS = 28.0
"""Expected seconds of one run on an H100, its start included."""

_TIMEOUT_S = 150.0
_WARM_UP = 5

SIZE = ("model=1b", "train.sequence_length=2048", "train.micro_batch_size=2")
REHEARSED = ("model=tiny", "hardware=cpu", "train.sequence_length=64")

# Python's library in bytes, whose loss falls; ddp computes by autocast, as one does by hand.
_RUN = ("precision=bf16", f"train.steps={STEPS}", "save.last=false", "cluster.gpus_per_node=1")
ENGINES = {
    "ddp": ("parallel=ddp",),
    "fsdp": ("parallel=fsdp",),
    "sft by TRL": ("task=sft", "parallel=fsdp"),
    "megatron": ("backend=megatron", "+backend.extra.transformer-impl=local"),
    "zero 2": ("parallel=zero2", TORCHS),
    "zero 3": ("parallel=zero3", TORCHS),
}
"""Name and what sets it apart; the first is what the plain loop trains again."""

FIRST = "ddp"
PLAIN = "plain loop"


def compare(session: Session, document: Document, scratch: Path, size: Sequence[str]) -> None:
    """Train with each engine, and the first one's run with the plain loop; write every row as it ends."""
    plain: list[float] | None = None
    for engine, own in ENGINES.items():
        row = _row(session, document, engine, [*_sized(size, own), *_RUN, *own], scratch)
        if engine == FIRST:
            by_hand = _row(session, document, PLAIN, row["overrides"], scratch)
            plain = by_hand["measured"] and by_hand["measured"]["losses"]
            _add(document, by_hand, None)
        _add(document, row, plain)


def _sized(size: Sequence[str], own: Sequence[str]) -> list[str]:
    """The size of a run; TRL shifts the labels within a row, so its rows are one token longer for the same tokens."""
    key = "train.sequence_length="
    more = int("task=sft" in own)
    return [f"{key}{int(word.removeprefix(key)) + more}" if word.startswith(key) else word for word in size]


def _row(session: Session, document: Document, name: str, overrides: list[str], scratch: Path) -> dict[str, Any]:
    earlier = document.earlier("training", name, overrides)
    # The plain loop reads the first engine's run directory, so the two are done in one call.
    if earlier is not None and (name != FIRST or document.earlier("training", PLAIN, overrides)):
        return earlier
    row: dict[str, Any] = {"name": name, "overrides": overrides, "measured": None, "error": None}
    if session.left < SECONDS:
        return {**row, "error": session.over}
    began = time.monotonic()
    try:
        found = _by_hand(scratch) if name == PLAIN else _launched(name, overrides, scratch)
    except subprocess.TimeoutExpired:
        return {**row, "error": f"not done after {_TIMEOUT_S:.0f} s"}
    seconds = round(time.monotonic() - began, 1)
    if "losses" not in found:
        return {**row, "seconds": seconds, **found}
    rate = _tokens(_directory(scratch, FIRST if name == PLAIN else name)) / statistics.median(
        found["step_seconds"][_WARM_UP:]
    )
    return {**row, "seconds": seconds, "measured": {**found, "tokens_per_second": round(rate, 1)}}


def _add(document: Document, row: dict[str, Any], plain: list[float] | None) -> None:
    """Write and print a row, with the distance of its losses from the plain loop's."""
    measured = row["measured"]
    if measured and plain:
        measured["largest_relative_difference"] = difference(measured["losses"], plain)
    document.add("training", row)
    if not measured:
        print(f"50 steps, {row['name']}: {row['error']}", flush=True)
        return
    words = [f"loss {measured['losses'][0]:.3f} to {measured['losses'][-1]:.3f}"]
    words.append(f"{measured['tokens_per_second']} tokens/s")
    if plain:
        words.append(f"largest relative difference {measured['largest_relative_difference']:.2e}")
    print(f"50 steps, {row['name']}: {', '.join(words)}", flush=True)


def difference(ours: Sequence[float], plain: Sequence[float]) -> float:
    """The largest difference of two series of losses, step by step, relative to the second."""
    return max(abs(one - other) / abs(other) for one, other in zip(ours, plain, strict=True))


def _launched(name: str, overrides: Sequence[str], scratch: Path) -> dict[str, Any]:
    """Train by the command that a user types."""
    words = [*overrides, f"run.directory={_directory(scratch, name)}"]
    done = call(["-m", "launcher", "--json", *words], scratch)
    if done.returncode != 0:
        return failure(done)
    lines = (_directory(scratch, name) / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    memory = json.loads((_directory(scratch, name) / "memory.json").read_text())
    return {
        "losses": [row["loss"] for row in rows],
        "step_seconds": [row["step_seconds"] for row in rows],
        "peak_allocated_bytes": memory["ranks"][0]["peak_allocated_bytes"],
    }


def _by_hand(scratch: Path) -> dict[str, Any]:
    """Train the run of the first engine's directory with the plain loop."""
    directory = _directory(scratch, FIRST)
    if not (directory / "spec.json").exists():
        return {"error": f"not started: it trains what {FIRST} has trained, which has left no run directory"}
    done = call(["-m", "benchmarks.plain.alone", str(directory)], scratch)
    if done.returncode != 0:
        return failure(done)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _directory(scratch: Path, name: str) -> Path:
    return scratch / "training" / name


def _tokens(directory: Path) -> int:
    """Tokens of a step of the run in a directory."""
    spec = json.loads((directory / "spec.json").read_text())
    size: int = spec["train"]["micro_batch_size"] * spec["train"]["sequence_length"]
    return size


def call(words: Sequence[str], scratch: Path) -> subprocess.CompletedProcess[str]:
    """Run a module of this checkout, with its own folders of state and cache in ``scratch``."""
    own = {
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "XDG_STATE_HOME": str(scratch / "state"),
        "OMP_NUM_THREADS": "1",  # As the job's.
        "PYTHONPATH": import_path(),
    }
    return subprocess.run(
        [sys.executable, *words], env={**os.environ, **own}, cwd=scratch,
        capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
    )  # fmt: skip


def failure(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The ``error`` of a row whose process failed, and its ``last_words``."""
    lines = [line.rstrip()[:1000] for line in done.stderr.splitlines() if line.strip()][-15:]
    return {"error": lines[-1] if lines else f"ended with status {done.returncode}", "last_words": lines}
