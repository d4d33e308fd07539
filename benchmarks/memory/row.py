"""One measured run, as an adapter returns it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from launcher.config.catalog import Catalog
from launcher.estimate.memory.estimate import Backend
from launcher.spec import RunSpec

type Counter = Literal["static", "allocated", "reserved", "device"]
type Oom = Literal["true", "false", "likely", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured run.

    Attributes:
        name: The row's id.
        spec: The run; None where it cannot be expressed.
        left_out: Why it cannot be expressed.
        backend: What stands in for the backend that ``spec`` names: a framework that is only checked.
        measured: Bytes by counter.
        stage: The pipeline stage that was measured; None is the worst.
        reserved: Bytes that the allocator reserves, by a replay of the framework's own allocations in their order; None
            is the estimate's share of what is allocated.
        theirs: Bytes by counter that another estimator has published for this run, by its name.
        first_step: Whether the first step was measured, at whose end the optimizer makes its states.
        soft: Whether a field of the row is uncertain.
        oom: Whether it ran out of memory.
    """

    name: str
    spec: RunSpec | None = None
    left_out: str | None = None
    backend: Backend | None = None
    measured: Mapping[Counter, int] = field(default_factory=dict)
    stage: int | None = None
    reserved: Callable[[], int] | None = None
    theirs: Mapping[str, Mapping[Counter, int]] = field(default_factory=dict)
    first_step: bool = False
    soft: bool = False
    oom: Oom = "unknown"


def rows_of_csv[R](path: Path, read: Callable[[dict[str, str], Catalog], R]) -> Iterator[R]:
    """The rows of a CSV file; ``read`` turns a line into a row."""
    catalog = Catalog(folder=Path.cwd())
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            yield read(line, catalog)
