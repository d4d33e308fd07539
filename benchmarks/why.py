"""Whether ``launch why`` names the right pile of runs that really ran out of memory: ``python -m benchmarks.why``.

Each case is a real worker run on the CPU that runs out of a budget (``train.enforce_memory``) or of a system limit, on
fsdp, ddp, DeepSpeed and Megatron-LM (``tests/support/out_of_memory.py``). The construction of the case tells the right
answer. Needs the extras ``fsdp``, ``deepspeed`` and ``megatron``, and root for the limits of a disk and of a cgroup; a
case that this machine cannot make is counted as such.
"""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.reporting import keep, takes_no_option
from launcher.why.explain import explain
from tests.support import ended_runs, out_of_memory


def main() -> None:
    """Make each run, ask why, and keep the answers."""
    takes_no_option(__doc__)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        rows = [judged(name, Path(folder)) for name in out_of_memory.CASES if out_of_memory.can_make(name)]
    figures = {
        "cases": len(rows),
        "right": sum(row["right"] for row in rows),
        "cannot_be_made_here": len(out_of_memory.CASES) - len(rows),
        "rows": rows,
    }
    keep("why", "python -m benchmarks.why", figures)


def judged(name: str, folder: Path) -> dict[str, Any]:
    """One case: what it was made to end by, and what was answered in how many seconds."""
    run, wanted = out_of_memory.ended(name, folder), ended_runs.pile_of(name)
    began = time.perf_counter()
    found = explain(run, folder)
    seconds = time.perf_counter() - began
    said = [sentence.replace(str(folder), "") for sentence in found.said]
    return {
        "case": name,
        "words": list(out_of_memory.CASES[name].words),
        "pile": wanted,
        "named": found.pile,
        "right": found.pile == wanted,
        "cause": found.cause,
        "phase": found.where.phase,
        "seconds": round(seconds, 2),
        "said": said,
        "ways_out": [list(way.overrides) for way in found.ways],
    }


if __name__ == "__main__":
    main()
