"""Facts about the machine of a measurement, and the writer of results."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.rundir.provenance import versions

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Processor, cores, memory and system of this machine."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": model, "cores": os.cpu_count(), "memory_bytes": pages, "system": platform.platform()}


def keep(name: str, command: str, figures: dict[str, Any], *, printed: bool = True) -> None:
    """Write ``benchmarks/results/<name>.json`` and print the figures, unless the caller has printed them."""
    RESULTS.mkdir(exist_ok=True)
    software = versions()
    if software["git"]:
        software["git"] = {key: software["git"][key] for key in ("commit", "dirty")}
    content = {
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": software,
        "figures": figures,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    if printed:
        print(json.dumps(figures, indent=1))


def takes_no_option(doc: str | None) -> None:
    """Answer ``--help`` with a benchmark's own words, and refuse any other word."""
    argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()


def seconds(command: Sequence[str], *, runs: int = 7, cwd: Path | None = None) -> dict[str, float]:
    """Wall time of a command as a whole process after one warm-up; the median is the figure to quote."""
    return spread(lambda: _run(command, cwd), runs=runs)


def spread(measure: Callable[[], float], *, runs: int) -> dict[str, float]:
    """Minimum, median and maximum of a measurement after one warm-up, in the unit that it returns."""
    measure()
    times = [measure() for _ in range(runs)]
    return {"min": min(times), "median": statistics.median(times), "max": max(times)}


def processor_seconds(command: Sequence[str], cwd: Path | None = None) -> float:
    """Processor time of a command as a whole, with all of its processes."""
    before = os.times()
    subprocess.run(command, cwd=cwd, check=False, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _run(command: Sequence[str], cwd: Path | None) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
