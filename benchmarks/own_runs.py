"""Predicted against measured memory of our own workers on this machine: ``python -m benchmarks.own_runs``.

Each run is a real `launch` of the small model, measured by its ``memory.json``. Prints the table of the README and
records every phase.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.reporting import keep, takes_no_option
from launcher.base.units import MIB

COMMON = ("model=tiny", "precision=bf16", "train.steps=3")
RUNS = (
    ("parallel=fsdp",),
    ("parallel=fsdp", "checkpointing=full"),
    ("parallel=fsdp", "adapter=lora"),
    ("parallel=fsdp_tp",),
    ("parallel=ddp",),
    ("parallel=zero1",),
    ("parallel=zero2",),
    ("parallel=zero3",),
)


def main() -> None:
    """Run, compare and write the result."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for words in RUNS:
            rows.append(_compared(words, Path(folder)))
    lines = ["| run | between steps | | peak | |", "|---|---|---|---|---|"]
    lines += [_line(row) for row in rows]
    keep("own_runs", "python -m benchmarks.own_runs", {"common": " ".join(COMMON), "runs": rows})
    print("\n".join(lines))


def _compared(words: tuple[str, ...], folder: Path) -> dict[str, Any]:
    launch = str(Path(sys.executable).with_name("launch"))
    command = [launch, "--json", *COMMON, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    document = json.loads(done.stdout)
    memory = json.loads((Path(document["run"]["directory"]) / "memory.json").read_text())
    phases = {phase: max(rank["phases"][phase] for rank in memory["ranks"]) for phase in document["check"]["phases"]}
    return {
        "overrides": list(words),
        "predicted": {
            "static_bytes": document["check"]["static_bytes"],
            "peak_bytes": document["check"]["peak"]["allocated_bytes"],
            "phases": document["check"]["phases"],
        },
        "measured": {
            "static_bytes": max(rank["static_bytes"] for rank in memory["ranks"]),
            "peak_bytes": max(phases.values()),
            "phases": phases,
        },
    }


def _line(row: dict[str, Any]) -> str:
    cells = [f"`{' '.join(row['overrides'])}`"]
    for key in ("static_bytes", "peak_bytes"):
        predicted, measured = row["predicted"][key], row["measured"][key]
        cells += [f"{predicted / MIB:.1f} / {measured / MIB:.1f} MiB", f"{predicted / measured - 1:+.1%}"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    takes_no_option(__doc__)
    main()
