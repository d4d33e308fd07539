"""Tokens a second of BigScience's Megatron-LM logs, a row a run; the file has one for each pipeline stage.

Equal runs on that shared network differ by 40%, so that all are soft.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.memory.adapters import bigscience_logs
from benchmarks.memory.row import Row as MemoryRow
from benchmarks.speed import frameworks
from benchmarks.speed.cards import CARDS
from benchmarks.speed.row import Line, Row, paired
from benchmarks.speed.stand_in import StandIn

_PROBLEM = ("model_name", "gpu", "n_gpus", "seq_len", "global_batch")
_LAYOUT = ("dp", "tp", "pp", "micro_batch", "zero_stage", "act_ckpt")


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file, by its first stage."""
    logs = set[str]()
    for line, row in paired(path, bigscience_logs):
        log = line["raw_ref"].partition(" stage ")[0]
        yield replace(_row(line, row), left_out="another stage of the same run") if log in logs else _row(line, row)
        logs.add(log)


def _row(line: Line, found: MemoryRow) -> Row:
    framework = frameworks.find(line["framework"], "bigsci")
    row = Row(
        name=line["id"],
        family="bigscience_logs",
        problem="|".join(("bigscience", *(line[column] for column in _PROBLEM))),
        layout=tuple(line[column] for column in _LAYOUT),
        framework=framework.name if framework is not None else "",
        gpu=CARDS.get(line["gpu"], ""),
        soft=True,
        precision="fp16",
        left_out=found.left_out,
        line=line,
    )
    if found.spec is None or found.backend is None or framework is None:
        return row
    if not line["tokens_per_s_per_gpu"]:
        return replace(row, left_out="no tokens a second")
    backend = StandIn(base=found.backend, executes=framework.execution, fitted=framework.fitted)
    return replace(row, spec=found.spec, backend=backend, measured=float(line["tokens_per_s_per_gpu"]))
