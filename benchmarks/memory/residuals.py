"""The error band's quantiles of measured / predicted, for each framework, as a file of the package."""

from __future__ import annotations

import json
import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.memory.row import Counter
from benchmarks.memory.scoring import Judged, predicted
from benchmarks.reporting import RESULTS
from launcher import backends
from launcher.estimate.memory.estimate import Backend
from launcher.estimate.memory.result import RESIDUALS
from launcher.rundir.provenance import versions
from launcher.spec import RunSpec

_PEAKS: tuple[Counter, ...] = ("allocated", "reserved", "device")
"""The counters of a peak; of a row the first that was measured."""

_SHARES = 50  # Equal shares of the rows whose middles are kept: errors have longer tails than a normal distribution.

_WHAT = (
    "measured / predicted peak of measured runs, by the framework that ran them: quantiles 0.1, 0.5 and 0.9 over all"
    " rows of the files, soft ones included, each by the first of the counters allocated, reserved and device that it"
    " has; quantiles: at the middles of 50 equal shares; counter: the one of most rows;"
    " engine: what a worker of ours without enough rows of its own runs on as well;"
    " own_runs: the least, median and largest of this repository's own runs on CPU ranks"
)


def write(files: Mapping[str, Iterable[Judged]]) -> None:
    """Write ``residuals.json`` of the package from the rows of each file."""
    ratios: dict[str, list[float]] = defaultdict(list)
    sources: dict[str, set[str]] = defaultdict(set)
    counters: dict[str, Tally[str]] = defaultdict(Tally)
    engines: dict[str, str | None] = {}
    for file, items in files.items():
        for item in items:
            counter = next((name for name in _PEAKS if name in item.row.measured), None)
            if counter is not None:
                spec, backend = stated(item)
                name = backend.framework
                ratios[name].append(item.row.measured[counter] / _said(item, counter))
                sources[name].add(file)
                counters[name][counter] += 1
                engines[name] = backend.runs_on(spec)
    content = {
        "what": _WHAT,
        "command": "python -m benchmarks.memory --data DIR --write-band",
        "date": time.strftime("%Y-%m-%d"),
        "commit": versions()["git"],
        "measured": {
            name: {
                **_quantiles(found, 0.1),
                "counter": counters[name].most_common(1)[0][0],
                "files": sorted(sources[name]),
                "engine": engines[name],
            }
            for name, found in sorted(ratios.items())
        },
        "own_runs": {name: _quantiles(found, 0.0) for name, found in sorted(_own_runs().items())},
    }
    RESIDUALS.write_text(json.dumps(content, indent=1) + "\n")


def stated(item: Judged) -> tuple[RunSpec, Backend]:
    """The run and its backend, or the framework that is only compared with in its place."""
    spec = item.row.spec
    if spec is None:
        raise AssertionError("a row without a specification is left out")
    return spec, item.row.backend or backends.of(spec)


def _said(item: Judged, counter: Counter) -> int:
    """The estimate's bytes instead of a replay's, if launch's own worker shares the error band and has no replay."""
    spec, backend = stated(item)
    if backend.runs_on(spec) is None:
        return predicted(item, counter)
    return predicted(replace(item, row=replace(item.row, reserved=None)), counter)


def _quantiles(found: list[float], share: float) -> dict[str, Any]:
    ordered, last = sorted(found), len(found) - 1
    low, middle, high, *others = (
        round(ordered[round(at * last)], 4)
        for at in (share, 0.5, 1 - share, *((each + 0.5) / _SHARES for each in range(_SHARES)))
    )
    return {"rows": len(found), "low": low, "median": middle, "high": high, "quantiles": others}


def _own_runs() -> dict[str, list[float]]:
    """Peaks of ``benchmarks.own_runs``: FSDP2, DDP and DeepSpeed, whose presets begin with ``zero``."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for run in json.loads((RESULTS / "own_runs.json").read_text())["figures"]["runs"]:
        name = "deepspeed" if run["overrides"][0].startswith("parallel=zero") else "fsdp"
        ratios[name].append(run["measured"]["peak_bytes"] / run["predicted"]["peak_bytes"])
    return ratios
