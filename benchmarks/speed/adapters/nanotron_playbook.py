"""nanotron's runs for the Ultra-Scale Playbook, as the memory scoreboard reads them, with their tokens a second.

Unsound by the file's notes (``shared/measured/README.md`` of the data): runs on several stages before the repair of
the pipeline, and those above 68 GiB, which the allocator's retries slow 7 to 10 times. A problem is model, GPUs and
global batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.memory.adapters import nanotron_playbook
from benchmarks.memory.row import Row as MemoryRow
from benchmarks.speed import frameworks
from benchmarks.speed.cards import CARDS
from benchmarks.speed.row import OUT_OF_MEMORY, Line, Row, paired
from benchmarks.speed.stand_in import StandIn

FRAMEWORK = "nanotron"
CROWDED_GIB = 68.0

NETWORK_LATENCY = 0.45e-3
"""Seconds of a ring's step between nodes of that cluster, p5 instances of AWS on EFA; chosen on these rows.

With 16 and 32 tensor parallel ranks, on two and four nodes, a block's ten collectives take 0.65 and 1.4 ms each beyond
what their bytes take. The source's own table of all-gathers falls from 169 to 6.5 GB/s between 2 and 64 nodes, as 1
over the nodes: 2.4e-12 seconds a byte more with each node, or 0.6 ms where 256 MiB were sent, which it leaves open."""

_LAYOUT = ("dp", "tp", "pp", "micro_batch", "zero_stage")


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file."""
    for line, row in paired(path, nanotron_playbook):
        yield _row(line, row)


def _row(line: Line, found: MemoryRow) -> Row:
    row = Row(
        name=line["id"],
        family="nanotron_playbook",
        problem=f"nanotron|{line['model_name']}|{line['n_gpus']}gpu|b{line['global_batch']}",
        layout=tuple(line[column] for column in _LAYOUT),
        framework=FRAMEWORK,
        gpu=CARDS.get(line["gpu"], ""),
        soft=line["soft"] == "True",
        precision="bf16",
        flags=flags(line),
        left_out=found.left_out,
        line=line,
    )
    oom = line["oom"] != "false"
    if oom:
        row = replace(row, oom=True, left_out=OUT_OF_MEMORY)
    if found.spec is None or found.backend is None:
        return row
    if not oom and not line["tokens_per_s_per_gpu"]:
        return replace(row, left_out="no tokens a second")
    framework = frameworks.named(FRAMEWORK)
    backend = StandIn(base=found.backend, executes=framework.execution, fitted=framework.fitted)
    spec = replace(found.spec, cluster=replace(found.spec.cluster, network_latency=NETWORK_LATENCY))
    return replace(row, spec=spec, backend=backend, measured=0.0 if oom else float(line["tokens_per_s_per_gpu"]))


def flags(line: Line) -> frozenset[str]:
    """Settings that the file's notes give for a run."""
    found = {"512 GPUs"} if line["n_gpus"] == "512" else set[str]()
    broken = int(line["pp"]) > 1 and "after_pp_fix=False" in line["framework_version"]
    if broken:
        found.add("broken pipeline")
    if broken or float(line["peak_mem_gib"] or 0) > CROWDED_GIB:
        found.add("unsound")
    return frozenset(found)
