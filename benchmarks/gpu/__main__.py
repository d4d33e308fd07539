"""Measure the matrix on this machine's first GPU, each run in a process of its own, and write one JSON file."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.gpu.matrix import Point, points, predicted, ratios
from benchmarks.reporting import RESULTS, machine
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.machine import Machine, facts
from launcher.preflight import assess
from launcher.preflight.plan import translate
from launcher.rundir.provenance import versions
from launcher.spec import RunSpec
from launcher.spec.parse import to_dict

NO_GPU = "benchmarks.gpu: this machine shows no GPU, and this script measures one; nothing was written"
_TIMEOUT_S = 600


def main() -> int:
    """Measure and write; 2 where there is no GPU, 1 where no run could be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "gpu.json", metavar="FILE", help="where to write")
    parser.add_argument("--only", metavar="TEXT", default="", help="runs whose name has this text")
    options = parser.parse_args()
    here = facts()
    if not here.gpus:
        print(NO_GPU, file=sys.stderr)
        return 2
    chosen = [point for point in points() if options.only in point.name]
    rows = measured(chosen, here)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document(rows, here), indent=1) + "\n")
    return 0 if any(row["ratio"] for row in rows) else 1


def document(rows: list[dict[str, Any]], here: Machine) -> dict[str, Any]:
    """The file: where and with what it was measured, and a row a run."""
    cards = [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in here.gpus]
    return {
        "schema": 1,
        "command": "python -m benchmarks.gpu",
        "date": time.strftime("%Y-%m-%d"),
        "machine": {**machine(), "gpus": cards},
        "versions": versions(),
        "method": "rank 0 of each world; of more than one rank, the others do not exist (torch's fake process group)",
        "runs": rows,
    }


def measured(chosen: Iterable[Point], here: Machine) -> list[dict[str, Any]]:
    """Every run with what was predicted and what was measured, one after the other."""
    rows = []
    for point in chosen:
        row = _row(point, here)
        rows.append(row)
        ratio = row["ratio"].get("peak_allocated_bytes") if row["ratio"] else row["error"]
        print(f"{point.name}: {ratio}", flush=True)
    return rows


def _row(point: Point, here: Machine) -> dict[str, Any]:
    """One run; an error stands in its row, and the others are measured all the same."""
    row: dict[str, Any] = {"name": point.name, "world": point.world, "overrides": list(point.words)}
    row |= {"predicted": None, "measured": None, "ratio": None, "error": None}
    asked = request(point.words, facts=here, catalog=Catalog(folder=Path(__file__).parent))
    spec = asked.spec
    errors = asked.errors if spec is None else (*asked.errors, *assess.errors(spec))
    if spec is None or errors:
        return {**row, "error": "; ".join(str(error) for error in errors)}
    row["predicted"] = predicted(assess.estimated(spec), point.world)
    with tempfile.TemporaryDirectory() as name:
        found = run(spec, Path(name))
    if "static_bytes" not in found:
        return {**row, "error": "out of memory" if found.get("out_of_memory") else found["error"]}
    return {**row, "measured": found, "ratio": ratios(row["predicted"], found)}


def run(spec: RunSpec, directory: Path) -> dict[str, Any]:
    """Measure one run in a process of its own, with the environment of its job.

    Returns:
        What the process measured, or its last words as ``error``.
    """
    environment = prepared(spec, directory)
    command = [sys.executable, "-m", "benchmarks.gpu.rank", str(directory)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {_TIMEOUT_S} s"}
    answer = directory / "measured.json"
    if not answer.exists():
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    content: dict[str, Any] = json.loads(answer.read_text())
    return content


def prepared(spec: RunSpec, directory: Path) -> dict[str, str]:
    """Write what the process reads; its environment."""
    job = translate(spec, python=sys.executable).at(str(directory))
    (directory / "spec.json").write_text(json.dumps(to_dict(spec)))
    for name, text in job.files.items():
        (directory / name).write_text(text)
    return {**os.environ, **job.environment}


if __name__ == "__main__":
    sys.exit(main())
