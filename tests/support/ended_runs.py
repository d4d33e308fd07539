"""Run directories of ended runs, as a job leaves them: out of memory, errors, events."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.job.memory import MemoryRecord, OutOfMemory, PhaseMemory
from launcher.rundir import contents, state
from launcher.why import comparison
from tests.support import out_of_memory
from tests.support.recorded_runs import recorded

GPUS = ("model=llama3_8b", "parallel=fsdp", "hardware=h100_80g", "cluster.gpus_per_node=8")
"""Eight ranks with a predicted backward pass of 40 of 78.7 GiB."""

GIB = 2**30


def failed(
    run: Path,
    *words: str,
    reason: str = "rank 0: no",
    cause: str | None = None,
    rank: int | None = None,
    **facts: Any,
) -> Path:
    """Record a run that failed for this reason; ``facts`` are those of :func:`recorded`."""
    recorded(run, *words, **facts)
    state.put(run, "failed", reason=reason, cause=cause, rank=rank)
    return run


def without_memory(run: Path, *words: str, grown: Mapping[str, int] | None = None, **facts: Any) -> Path:
    """Record a run in which a request of rank 3 failed in the backward pass of block 17.

    Args:
        run: Its directory.
        words: Words of the run; by default :data:`GPUS`.
        grown: Bytes by pile above the prediction for that moment.
        facts: Values of its ``oom.json`` that differ from the defaults.
    """
    failed(run, *(words or GPUS), reason="rank 3: out of memory; `launch why RUN` says which pile grew")
    content: dict[str, Any] = {"rank": 3, "phase": "backward", "layer": 17, **facts}
    spec = contents.spec_of(run)
    piles = dict(comparison.predict(spec, content["rank"], content["phase"], content["layer"]).piles)
    for pile, size in (grown or {}).items():
        piles[pile] = piles.get(pile, 0) + size
    allocated = sum(piles.values())
    usual: dict[str, Any] = {
        "kind": "device",
        "place": "device",
        "time": time.time(),
        "node": "gpu07",
        "step": 412,
        "operation": "aten.mm.default",
        "requested_bytes": GIB,
        "free_bytes": GIB // 2,
        "capacity_bytes": spec.rank_memory_bytes,
        "allocated_bytes": allocated,
        "reserved_bytes": allocated + GIB // 4 if spec.hardware.device == "cuda" else None,
        "piles": piles,
        "message": "CUDA out of memory. Tried to allocate 1.00 GiB",
    }
    write_oom(run, OutOfMemory(**{**usual, **content}))
    return run


def write_oom(run: Path, found: OutOfMemory) -> None:
    """Write an ``oom.json``."""
    (run / "oom.json").write_text(json.dumps(found.as_dict()))


def write_records(run: Path, sizes: Sequence[int], *, pile: str = "temporary", tokens: Sequence[int] = ()) -> None:
    """Write a line of ``memory.jsonl`` for each size of a pile of rank 3 between two steps, every tenth step."""
    lines = []
    for number, size in enumerate(sizes):
        static = {"parameters": 4 * GIB, pile: size}
        record = MemoryRecord(
            step=10 * (number + 1),
            rank=3,
            node="gpu07",
            time=time.time() - 1,
            tokens=tokens[number] if tokens else 4096,
            phases={"forward": PhaseMemory(allocated_bytes=sum(static.values()) + GIB, piles=static)},
            static=static,
            device_bytes=80 * GIB,
        )
        lines.append(json.dumps(record.as_dict()))
    (run / "memory.jsonl").write_text("\n".join(lines) + "\n")


def write_error(
    run: Path,
    message: str,
    *,
    kind: str = "RuntimeError",
    rank: int = 0,
    traceback: str = "",
    cause: str | None = None,
) -> None:
    """Write the error file that a rank leaves."""
    path = run / "logs" / f"error.rank{rank}.json"
    content = {"type": kind, "message": message, "traceback": traceback, "node": "gpu07", "kind": cause}
    path.write_text(json.dumps(content))
    os.utime(path, ns=(rank, rank))


def pile_of(case: str) -> str | None:
    """The pile to be named for a case of ``tests.support.out_of_memory``, also if no pile of a device grew."""
    elsewhere = {"disk": "checkpoints", "disk in the background": "checkpoints", "other process": "other_processes"}
    return elsewhere.get(case, out_of_memory.CASES[case].pile)
