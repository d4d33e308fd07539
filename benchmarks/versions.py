"""Every engine with the installed packages: ``python -m benchmarks.versions``; ``make test-oldest`` with the oldest.

Each engine is checked, trained, resumed and exported as a user does, by processes of their own over gloo, on this
machine's CPU. The result of a set of versions is kept in ``benchmarks/results/versions_<torch>.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.reporting import keep
from launcher.job.versions import installed

ENGINES = {
    "fsdp": ("parallel=fsdp",),
    "ddp": ("parallel=ddp",),
    "lora": ("parallel=ddp", "adapter=lora"),
    "zero1": ("parallel=zero1",),
    "zero3": ("parallel=zero3",),
}
PACKAGES = ("torch", "transformers", "deepspeed", "megatron-core", "peft", "datasets", "numpy")
_TINY = ("model=tiny", "model.num_hidden_layers=2", "precision=bf16", "hardware.device=cpu", "cluster.gpus_per_node=2")
_STEPS = {
    "check": ("check", *_TINY),
    "train": ("run", *_TINY, "train.steps=4", "run.name=a"),
    "resume": ("resume", "a", "train.steps=8"),
    "export": ("resume", "a", "save.export=safetensors"),
}
_TIMEOUT_S = 600


def main() -> int:
    """Run every engine and keep what came of it; 1 where any step failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/versions_<torch>.json")
    options = parser.parse_args()
    begin = time.monotonic()
    engines = {name: _engine(name, words) for name, words in ENGINES.items()}
    versions = {name: installed(name) for name in PACKAGES}
    if options.keep:
        torch = (versions["torch"] or "none").partition("+")[0]
        figures = {"versions": versions, "engines": engines, "seconds": round(time.monotonic() - begin)}
        keep(f"versions_{torch}", "python -m benchmarks.versions --keep", figures)
    return 0 if all(word == "works" for steps in engines.values() for word in steps.values()) else 1


def _engine(name: str, words: tuple[str, ...]) -> dict[str, str]:
    """What came of each step of an engine: ``works``, or the last line of its error."""
    found = {}
    with tempfile.TemporaryDirectory(prefix=f"launch-{name}-") as folder:
        for step, command in _STEPS.items():
            chosen = words if step in ("check", "train") else ()
            found[step] = _ran((*command, *chosen), Path(folder))
            print(f"{name} {step}: {found[step]}", flush=True)
    return found


def _ran(words: tuple[str, ...], folder: Path) -> str:
    command = [sys.executable, "-P", "-m", "launcher.cli", *words]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"not done after {_TIMEOUT_S} s"
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower() or "failed" in line]
        return next(iter(errors), f"exit status {done.returncode}")
    if words[0] == "run" and not (folder / "runs" / "a" / "metrics.jsonl").exists():
        return "no metrics were written"
    losses = folder / "runs" / "a" / "metrics.jsonl"
    last = json.loads(losses.read_text().splitlines()[-1])["step"] if losses.exists() else 0
    wanted = {"run": 4, "resume": 8}.get(words[0], 0)
    if last < wanted:
        return f"it stopped after step {last} of {wanted}"
    export = folder / "runs" / "a" / "export"
    if "save.export=safetensors" in words and not any(export.glob("*.safetensors")):
        return "nothing was exported"
    return "works"


if __name__ == "__main__":
    sys.exit(main())
