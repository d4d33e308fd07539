"""Pictures of five pages for ``docs/``, of runs that are trained for them on this machine's CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import Browser

from benchmarks.report import browser as chromium

DOCS = Path(__file__).parents[2] / "docs"

_SMALL = ("model=tiny", "parallel=fsdp", "hardware.device=cpu", "cluster.gpus_per_node=2", "train.sequence_length=64")
_TINY = (
    "run",
    *_SMALL,
    "precision=bf16",
    "train.steps=120",
    "train.eval_every=20",
    "train.log_memory_every=10",
    "save.every=40",
    "run.name=tiny",
)
_FASTER = ("run", *_SMALL, "train.steps=120", "optimizer.lr=1e-3", "run.name=faster")
_LARGER = ("run", *_SMALL, "train.steps=120", "train.global_batch_size=8", "run.name=larger-batch")
_TOO_MUCH = (
    *("run", *_SMALL, "train.steps=20", "train.micro_batch_size=8", "run.name=too-much"),
    *("hardware.memory_bytes=33554432", "train.enforce_memory=true", "--force"),
)
_SWEEP = (
    *("-m", *_SMALL, "train.steps=20", "run.name=sweep", "sweep.parallelism=1"),
    *("optimizer.lr=3e-4,1e-3,3e-3", "train.micro_batch_size=1,2"),
)
_CHECK = ("check", "model=llama3_70b", "parallel=3d", "hardware=h100_80g", "cluster.nodes=8", "cluster.gpus_per_node=8")

PICTURES: dict[str, tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]] = {
    "run": ((_TINY,), ("report", "tiny", "-o")),
    "out-of-memory": ((_TOO_MUCH,), ("report", "too-much", "-o")),
    "several": ((_TINY, _FASTER, _LARGER), ("report", "tiny", "faster", "larger-batch", "-o")),
    "sweep": ((_SWEEP,), ("report", "sweep", "-o")),
    "check": ((), (*_CHECK, "--plot")),
}
"""By the names of the pictures: the runs that are trained, and the command that makes the page."""

_HEIGHTS = {"run": 1500, "sweep": 1300}
_WIDTH, _HEIGHT = 1100, 1100


def take(browser: Browser, folder: Path, names: Sequence[str]) -> None:
    """Train, make the pages, and write ``docs/report-<name>.png``."""
    for words in dict.fromkeys(run for name in names for run in PICTURES[name][0]):
        _launch(folder, *words)
    for name in names:
        page = folder / f"{name}.html"
        _launch(folder, *PICTURES[name][1], str(page))
        with chromium.visit(browser, page, width=_WIDTH, height=_HEIGHTS.get(name, _HEIGHT)) as found:
            if found.asked or found.said:
                raise AssertionError(f"the page of {name} is not quiet: {found.asked} {found.said}")
            target = DOCS / f"report-{name}.png"
            found.page.screenshot(path=target)
            print(f"{target}: {target.stat().st_size:,} bytes", flush=True)


def _launch(folder: Path, *words: str) -> None:
    """Run the command as a user; a run that is to fail has status 5, a check that does not fit 3."""
    launch = str(Path(sys.executable).with_name("launch"))
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([launch, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3, 5):
        raise RuntimeError(f"launch {' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
