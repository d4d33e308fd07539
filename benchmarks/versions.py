"""Every engine with the installed packages: ``python -m benchmarks.versions``; ``make test-oldest`` with the oldest.

Each engine is checked, trained, resumed and exported as by a user, in separate processes over gloo, on this machine's
CPU, with settings that an older package ignored silently (``model.rope_theta``). The last losses show whether it was
the same training: they agree to all digits between versions that compute alike, so ``tests/benchmarks`` compares those
of two sets. The result of a set is kept in ``benchmarks/results/versions_<torch>.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.reporting import RESULTS, keep
from launcher.job.versions import OLDEST, installed, numbers

ENGINES = {
    "fsdp": ("parallel=fsdp",),
    "ddp": ("parallel=ddp",),
    "lora": ("parallel=ddp", "adapter=lora"),
    "zero1": ("parallel=zero1",),
    "zero3": ("parallel=zero3",),
    "megatron": ("parallel=tp", "parallel.tensor=2"),
}
_TINY = ("model=tiny", "model.num_hidden_layers=2", "model.rope_theta=500000", "precision=bf16", "hardware.device=cpu",
         "cluster.gpus_per_node=2")  # fmt: skip
_STEPS = {
    "check": ("check", *_TINY),
    "train": ("run", *_TINY, "train.steps=4", "run.name=a"),
    "resume": ("resume", "a", "train.steps=8"),
    "export": ("resume", "a", "save.export=safetensors"),
}
_LAST = {"run": 4, "resume": 8}
_TIMEOUT_S = 600
_WORKS = "works"


def main() -> int:
    """Run the engines and keep what came of them; 1 where any step failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/versions_<torch>.json")
    parser.add_argument("--only", nargs="+", choices=list(ENGINES), default=list(ENGINES), help="only these engines")
    options = parser.parse_args()
    begin = time.monotonic()
    engines = {name: _engine(name, ENGINES[name]) for name in options.only}
    versions = {name: installed(name) for name in OLDEST}
    if options.keep:
        torch = (versions["torch"] or "none").partition("+")[0]
        figures = {"versions": versions, "engines": engines, "seconds": round(time.monotonic() - begin)}
        keep(f"versions_{torch}", "python -m benchmarks.versions --keep", figures)
    return 0 if all(engine[step] == _WORKS for engine in engines.values() for step in _STEPS) else 1


def table(results: Path = RESULTS) -> str:
    """The kept results as the table of benchmarks/README.md: a row an engine, a column a set of versions."""
    kept = [json.loads(path.read_text())["figures"] for path in results.glob("versions_*.json")]
    kept.sort(key=lambda figures: numbers(figures["versions"]["torch"]))
    heads = [f"torch {figures['versions']['torch']}" for figures in kept]
    rows = [["", *heads], ["---"] * (len(kept) + 1)]
    rows += [[name, *(figures["versions"].get(name) or "not tried" for figures in kept)] for name in OLDEST]
    rows += [[f"`{' '.join(words)}`", *(_cell(figures["engines"][name]) for figures in kept)]
             for name, words in ENGINES.items()]  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(engine: dict[str, Any]) -> str:
    """The cell of an engine: its failed steps and its losses."""
    steps = ", ".join(f"{step}: {engine[step]}" for step in _STEPS if engine[step] != _WORKS) or "all work"
    losses = ", ".join(f"{loss:.4f}" for loss in engine["losses"].values())
    return f"{steps}; {losses}"


def _engine(name: str, words: tuple[str, ...]) -> dict[str, Any]:
    """What came of each step of an engine: ``works``, or the first line of its error; and its last loss."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix=f"launch-{name}-") as folder:
        for step, command in _STEPS.items():
            chosen = words if step in ("check", "train") else ()
            found[step] = _ran((*command, *chosen), Path(folder))
            print(f"{name} {step}: {found[step]}", flush=True)
        steps = _metrics(Path(folder))
    found["losses"] = {str(line["step"]): line["loss"] for line in steps if line["step"] in _LAST.values()}
    print(f"{name} losses: {found['losses']}", flush=True)
    return found


def _metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "runs" / "a" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _ran(words: tuple[str, ...], folder: Path) -> str:
    command = [sys.executable, "-P", "-m", "launcher", *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {_TIMEOUT_S} s"
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower() or "failed" in line]
        return next(iter(errors), f"exit status {done.returncode}")
    steps, wanted = _metrics(folder), _LAST.get(words[0], 0)
    if wanted and (not steps or steps[-1]["step"] < wanted):
        return f"it stopped after step {steps[-1]['step'] if steps else 0} of {wanted}"
    export = folder / "runs" / "a" / "export"
    if "save.export=safetensors" in words and not any(export.glob("*.safetensors")):
        return "nothing was exported"
    return _WORKS


if __name__ == "__main__":
    sys.exit(main())
