"""CPU cost of `launch check --points` and `launch plan`: ``python -m benchmarks.pace``.

Figures are CPU seconds of whole commands with all of their processes, over those of a bare Python loop of
:data:`LOOP` rounds on the same machine, measured before and after each, so they compare between machines and under
load. Points are those of the grid of ``benchmarks.points``, with their ways out.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.points import grid
from benchmarks.reporting import keep, processor_seconds, takes_no_option

LOOP = 20_000_000

PLANS = {
    "7b on 8": "model=7b hardware=h100_80g",
    "70b on 64": "model=70b hardware=h100_80g cluster.nodes=8",
    "405b on 16,384": "model=llama3_405b hardware=h100_80g cluster.nodes=2048",
    "deepseek_v3 on 2,048": "model=deepseek_v3 hardware=h100_80g cluster.nodes=256",
}


def main() -> None:
    """Measure and write the result."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # An installation has bytecode.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "points.jsonl")
        lines = list(grid())
        path.write_text("".join(f"{line}\n" for line in lines))
        found = {"1,000 points": 1000 / len(lines) * _loops(["check", "--points", str(path)], path.parent)}
        for question, words in PLANS.items():
            found[question] = _loops(["plan", *words.split(), "--no-native", "--json"], path.parent)
    keep("pace", "python -m benchmarks.pace", {"loop": LOOP, "loops": found})


def _loops(words: Sequence[str], folder: Path) -> float:
    """The CPU time of a command, in bare loops."""
    loops = _bare()
    took = processor_seconds([sys.executable, "-m", "launcher", *words], folder)
    return 2 * took / (loops + _bare())


def _bare() -> float:
    start = time.process_time()
    for _ in range(LOOP):
        pass
    return time.process_time() - start


if __name__ == "__main__":
    takes_no_option(__doc__)
    main()
