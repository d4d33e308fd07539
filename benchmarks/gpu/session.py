"""One call of the benchmark: measures row after row within the given minutes."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu import flops
from benchmarks.gpu.compared import predicted, predicted_speed, ratios
from benchmarks.gpu.document import Document
from benchmarks.gpu.matrix import Point
from benchmarks.gpu.process import RankProcess
from launcher.base.errors import ConfigError
from launcher.base.machine import Machine
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.estimate.memory.result import MemoryEstimate
from launcher.preflight import assess, findings, job_python
from launcher.spec import RunSpec

AHEAD = max(1, min(6, (os.cpu_count() or 2) // 2 - 1))
"""Processes that import while one measures, which takes each a processor for some ten seconds."""

ROW_TIMEOUT_S = 150.0
"""A row that takes longer has failed; the dearest is expected to take 85."""


@dataclass(slots=True, kw_only=True)
class Item:
    """A pending row: ``process`` waits, or ``row`` already says why there is none."""

    point: Point
    row: dict[str, Any]
    spec: RunSpec | None = None
    estimate: MemoryEstimate | None = None
    process: RankProcess | None = None


class Session:
    """Measures rows until the time is used; the others are written as not started."""

    def __init__(self, document: Document, here: Machine, scratch: Path, *, minutes: float) -> None:
        """Start counting the minutes."""
        self._document, self._here, self._scratch = document, here, scratch
        self._minutes, self._until = minutes, time.monotonic() + 60 * minutes

    @property
    def left(self) -> float:
        """Seconds."""
        return self._until - time.monotonic()

    @property
    def over(self) -> str:
        """The error of a row without time left."""
        return f"not started: the {self._minutes:g} minutes were used (go on with --resume, or give more by --minutes)"

    def measure(self, points: Iterable[Point]) -> None:
        """Measure points one after the other, while the next ones import."""
        with contextlib.closing(self._items(points)) as items:
            for item in items:
                if item.process is not None and item.point.seconds > self.left:
                    item.process.end()
                    item.process, item.row["error"] = None, self.over
                if item.process is not None:
                    self._measure(item)
                self._document.add("runs", item.row)
                print(f"{item.point.name}: {_said(item.row)}", flush=True)

    def _items(self, points: Iterable[Point]) -> Generator[Item]:
        """The points with their processes; some start early, and all end with this iterator."""
        waiting: deque[Item] = deque()
        try:
            for point in points:
                waiting.append(self._begun(point))
                if len(waiting) > AHEAD:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        finally:
            for item in waiting:
                if item.process is not None:
                    item.process.end()

    def _begun(self, point: Point) -> Item:
        row: dict[str, Any] = {"name": point.name, "world": point.world, "overrides": list(point.words)}
        earlier = self._document.earlier("runs", point.name, row["overrides"])
        if earlier is not None:
            return Item(point=point, row=earlier)
        row |= {"predicted": None, "measured": None, "ratio": None, "error": None}
        missing = [name for name in point.needs if find_spec(name) is None]
        if missing:
            return Item(point=point, row={**row, "error": f"not measured: {', '.join(missing)} is not installed here"})
        asked = request(point.words, facts=self._here, catalog=Catalog(folder=self._scratch))
        errors: list[ConfigError] = list(asked.errors)
        if asked.spec is not None:
            errors += [*findings.errors(asked.spec), *job_python.errors(asked.spec)]
        if asked.spec is None or errors:
            return Item(point=point, row={**row, "error": "; ".join(str(error) for error in errors)})
        estimate = assess.estimated(asked.spec)
        row["predicted"] = predicted(estimate, point.world) | predicted_speed(asked.spec, estimate)
        if self.left < point.seconds:
            return Item(point=point, row={**row, "error": self.over})
        process = RankProcess(asked.spec, Path(tempfile.mkdtemp(dir=self._scratch)))
        return Item(point=point, row=row, spec=asked.spec, estimate=estimate, process=process)

    def _measure(self, item: Item) -> None:
        """Fill the row."""
        if item.process is None or item.spec is None or item.estimate is None:
            raise AssertionError("an item with a process has a run")
        began, before = time.monotonic(), card_used()
        found = item.process.measured(min(ROW_TIMEOUT_S, max(item.point.seconds, self.left)))
        item.row["seconds"] = round(time.monotonic() - began, 1)
        item.row["card_before_bytes"] = before
        if "static_bytes" not in found:
            item.row |= found
            return
        item.row["measured"] = {**found, **speed(item, found, self._here)}
        item.row["ratio"] = ratios(item.row["predicted"], item.row["measured"])


def speed(item: Item, found: dict[str, Any], here: Machine) -> dict[str, Any]:
    """The median step in seconds, in tokens and in the card's peak."""
    spec, seconds = item.spec, found["step_seconds"]
    if spec is None or item.estimate is None or not seconds:
        return {"step_seconds_median": None, "tokens_per_second": None, "mfu": None}
    median = statistics.median(seconds)
    tokens = spec.micro_batch_size * spec.gradient_accumulation * spec.sequence_length
    card = here.gpus[0].name if here.gpus else ""
    return {
        "step_seconds_median": median,
        "tokens_per_second": round(tokens / median, 1),
        "mfu": flops.utilisation(spec, item.estimate.parameters, median, card),
    }


def card_used() -> int | None:
    """Bytes in use on the first card by NVML before a row begins; more than the driver's are other processes'."""
    import pynvml  # Late, because it is among what may have to be unpacked first.

    try:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, OSError):
        return None


def _said(row: dict[str, Any]) -> str:
    """A row in a line."""
    if row["measured"] is None:
        return str(row["error"])
    measured, peak = row["measured"], row["ratio"].get("peak_allocated_bytes")
    words = [f"predicted/measured {peak}", f"{measured['tokens_per_second']} tokens/s"]
    if "step_seconds" in row["ratio"]:
        words.append(f"predicted/measured step {row['ratio']['step_seconds']}")
    if measured["mfu"] is not None:
        words.append(f"MFU {100 * measured['mfu']:.1f}%")
    return ", ".join(words)
