"""One measured run, as an adapter returns it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from benchmarks.memory.row import Row as MemoryRow
from benchmarks.speed.stand_in import StandIn
from launcher.estimate.memory.estimate import Backend
from launcher.estimate.speed.card import Card, card_of
from launcher.spec import RunSpec

type Line = Mapping[str, str]
type Layout = tuple[str, ...]
"""The values of ``LAYOUT`` in that order."""

LAYOUT = ("dp", "tp", "pp", "vpp", "cp", "ep", "micro_batch", "zero", "act_ckpt")
"""The columns in which the rows of one problem differ."""

OUT_OF_MEMORY = "it ran out of memory"
"""Why a run is left out of the scores of speed that is stated to have done so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured run.

    Attributes:
        name: The row's id.
        family: The source: the first field of ``problem``, else the file.
        problem: Everything that a user fixes: model, GPUs, batch, sequence, precision.
        layout: What the rows of one problem differ in.
        framework: The product's name without its release, as ``frameworks.yaml`` has it.
        gpu: The card's name in ``conf/hardware``; empty where there is none.
        spec: The run; None where it cannot be expressed.
        backend: What stands in for the backend that ``spec`` names, with the framework's ``Execution``.
        memory: What stands in for it in the model of memory, where that is another.
        measured: Tokens a second and GPU.
        oom: True if it is stated to have run out of memory: a run that is left out, and still has its specification.
        left_out: Why it is not scored.
        soft: True if a field of the row is uncertain, or an OOM only inferred.
        moe: True if the model has experts.
        task: ``pretrain``, ``sft`` or ``lora``.
        precision: The row's own word.
        flags: Words by which an entry of the answer chooses rows: ``unsound``, ``broken pipeline``, ``512 GPUs``.
        line: The columns as they are.
    """

    name: str
    family: str
    problem: str = ""
    layout: Layout = ()
    framework: str = ""
    gpu: str = ""
    spec: RunSpec | None = None
    backend: StandIn | None = None
    memory: Backend | None = None
    measured: float = 0.0
    oom: bool = False
    left_out: str | None = None
    soft: bool = False
    moe: bool = False
    task: str = "pretrain"
    precision: str = ""
    flags: frozenset[str] = frozenset()
    line: Line = field(default_factory=dict)

    @property
    def run(self) -> RunSpec:
        """The run of a row that is scored."""
        if self.spec is None:
            raise AssertionError("a row without a specification has no prediction")
        return self.spec

    @property
    def card(self) -> Card:
        """Its card, of a row that is scored."""
        found = card_of(self.run.hardware)
        if found is None:
            raise AssertionError("a row without figures of its card has no prediction")
        return found


def paired(path: Path, adapter: ModuleType) -> Iterator[tuple[Line, MemoryRow]]:
    """Each line of a file with its row of the memory scoreboard, by that file's adapter there."""
    with path.open(newline="") as file:
        yield from zip(csv.DictReader(file), adapter.rows(path), strict=True)
