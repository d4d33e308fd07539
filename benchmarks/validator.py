"""Time of one cold call of Megatron-LM's own validator: ``python -m benchmarks.validator``.

Compares a process that imports only the code that judges arguments (as started by ``check``, ``plan`` and ``run``) with
one that imports all of Megatron-LM and the PyTorch that it needs: wall time, CPU seconds and executed modules, with and
without bytecode of the packages, on an idle machine and with four busy loops. Needs the extra ``megatron``.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.reporting import keep, takes_no_option
from launcher.backends.megatron.validator import VALIDATOR, question
from launcher.base.package import IMPORT_FOLDER
from tests.support.helpers import make_spec

RUN = ("model=7b", "parallel=tp", "hardware=h100_80g", "cluster.gpus_per_node=8")
RUNS = 3
LOOPS = 4

COUNTED = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
print(sum(type(each).__name__ != "_Later" for each in sys.modules.values()), file=sys.stderr)
"""


def main() -> None:
    """Measure and write the result."""
    takes_no_option(__doc__)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cached, bare = {"PYTHONPYCACHEPREFIX": folder}, {"PYTHONPYCACHEPREFIX": f"{folder}/none"}
        for has_bytecode in (True, False):
            own = cached if has_bytecode else bare | {"PYTHONDONTWRITEBYTECODE": "1"}
            for loops in (0, LOOPS):
                with busy(loops):
                    rows += [row(words, own, has_bytecode, loops) for words in ((), ("--whole",))]
    keep("validator", "python -m benchmarks.validator", {"overrides": RUN, "runs": RUNS, "rows": rows})


def row(words: tuple[str, ...], own: dict[str, str], has_bytecode: bool, loops: int) -> dict[str, Any]:
    """The medians of some questions, after one that is not counted."""
    once(words, own)
    taken = [once(words, own) for _ in range(RUNS)]
    return {
        "imports": "all" if words else "what judges",
        "bytecode": has_bytecode,
        "busy_loops": loops,
        "seconds": round(statistics.median(each[0] for each in taken), 2),
        "processor_seconds": round(statistics.median(each[1] for each in taken), 2),
        "modules": taken[-1][2],
    }


def once(words: tuple[str, ...], own: dict[str, str]) -> tuple[float, float, int]:
    """Wall time, time of the processor and modules of one question."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(IMPORT_FOLDER), **own}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", COUNTED, VALIDATOR, *words],
        input=json.dumps([question(make_spec(*RUN))]),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert json.loads(done.stdout) == [None]
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, used, int(done.stderr.splitlines()[-1])


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that compute, and nothing else, until the block ends."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


if __name__ == "__main__":
    main()
