"""Seconds of the kernels and copies of one step on a GPU, and the kernels that took most of them.

Beside the step's own time it says whether the card was waited for (the two are near each other) or the host.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import profiler

_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_NAMED = 12
"""Kernels that are kept by name; the rest are a sum."""


def of_step(step: Callable[[], None]) -> dict[str, Any]:
    """Run one step under torch's profiler and sum up what it recorded.

    The card alone is recorded, so the host is slowed little. A machine where that is not allowed costs no row.
    """
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "trace.json"
        try:
            with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as recorded:
                step()
            recorded.export_chrome_trace(str(trace))
            return of_trace(trace)
        except (RuntimeError, OSError, ValueError, KeyError) as error:
            return {"error": str(error)}


def of_trace(path: Path) -> dict[str, Any]:
    """Sum up a Chrome trace of torch's profiler.

    Returns:
        ``busy_seconds``, in which at least one stream worked, and ``most``: name, seconds and calls of the dearest
        kernels.
    """
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    events = [event for event in json.loads(text)["traceEvents"] if event.get("cat") in _WORK]
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in events:
        seconds[event["name"]] += event["dur"] / 1e6
        calls[event["name"]] += 1
    dearest = sorted(seconds, key=lambda name: -seconds[name])[:_NAMED]
    return {
        "busy_seconds": round(_union((event["ts"], event["ts"] + event["dur"]) for event in events) / 1e6, 6),
        "kernels": len(events),
        "most": [{"name": name[:160], "seconds": round(seconds[name], 6), "calls": calls[name]} for name in dearest],
    }


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of spans, in their unit."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered
