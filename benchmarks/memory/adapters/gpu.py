"""launch's own workers on one GPU, measured by ``python -m benchmarks.gpu`` (``gpu.json``).

Rank 0 of each world was measured. Where the others did not exist there were no communicators, which the estimate of
what a device holds counts, so that counter is left to the file's own comparison.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.memory.row import Counter, Row
from launcher.base.errors import ConfigErrors
from launcher.base.machine import Gpu, Machine
from launcher.config.catalog import Catalog
from launcher.config.request import request

_COUNTERS: dict[Counter, str] = {
    "static": "static_bytes",
    "allocated": "peak_allocated_bytes",
    "reserved": "peak_reserved_bytes",
    "device": "device_bytes",
}


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file; a rehearsal has no result."""
    content = json.loads(path.read_text())
    catalog, here = Catalog(folder=Path.cwd()), _machine(content["machine"])
    for run in content["runs"]:
        if content["rehearsal"]:
            yield Row(name=run["name"], left_out="a rehearsal on the CPU")
        else:
            yield _row(run, catalog, here)


def _row(run: dict[str, Any], catalog: Catalog, here: Machine) -> Row:
    name, measured = run["name"], run["measured"]
    ran_out = run["error"] == "out of memory"
    if measured is None and not ran_out:
        return Row(name=name, left_out="not measured")
    try:
        spec = request(run["overrides"], facts=here, catalog=catalog).require()
    except ConfigErrors as error:
        return Row(name=name, left_out=f"does not parse: {error.errors[0].path}")
    if measured is None:
        return Row(name=name, spec=spec, oom="true")
    found = {counter: measured[key] for counter, key in _COUNTERS.items() if measured.get(key)}
    if run["world"] > 1:
        found.pop("device", None)
    return Row(name=name, spec=spec, measured=found, oom="false")


def _machine(described: dict[str, Any]) -> Machine:
    """The machine of the file, whose GPU the runs take their hardware from."""
    gpus = tuple(
        Gpu(
            name=gpu["name"],
            memory_bytes=gpu["memory_bytes"],
            reserved_bytes=gpu["reserved_bytes"],
            compute_capability=gpu["compute_capability"],
        )
        for gpu in described["gpus"]
    )
    return Machine(
        gpus=gpus, host_memory_bytes=described["memory_bytes"], disk_free_bytes=None, cpus=described["cores"]
    )
