"""Tokens a second of fms-acceleration's benchmarks, as the memory scoreboard reads them: fine-tuning on A100.

The kernels that a configuration swaps are read from its name: ``foak`` is Unsloth's RMSNorm, rotary embedding and cross
entropy, ``liger`` Liger's fused linear cross entropy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.memory.adapters import fms_acceleration
from benchmarks.memory.row import Row as MemoryRow
from benchmarks.speed import frameworks
from benchmarks.speed.cards import CARDS
from benchmarks.speed.row import Line, Row, paired
from benchmarks.speed.stand_in import StandIn
from launcher.estimate.rank.engine import Execution

FRAMEWORK = "Hugging Face Trainer"

_PROBLEM = ("model_name", "gpu", "n_gpus", "seq_len", "global_batch", "precision", "lora_rank", "quant", "framework")
_LAYOUT = ("micro_batch", "zero_stage", "act_ckpt")


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file."""
    for line, row in paired(path, fms_acceleration):
        yield _row(line, row)


def _row(line: Line, found: MemoryRow) -> Row:
    row = Row(
        name=line["id"],
        family="fms_acceleration",
        problem="|".join(("fms", *(line[column] for column in _PROBLEM))),
        layout=tuple(line[column] for column in _LAYOUT),
        framework=FRAMEWORK,
        gpu=CARDS.get(line["gpu"], ""),
        soft=found.soft,
        moe=bool(line["moe_num_experts"]),
        task="lora" if line["lora_rank"] else "sft",
        precision="bf16" if line["precision"].startswith("bf") else "fp16",
        left_out=found.left_out,
        line=line,
    )
    if found.spec is None or found.backend is None:
        return row
    if not line["tokens_per_s_per_gpu"]:
        return replace(row, left_out="no tokens a second")
    backend = StandIn(base=found.backend, executes=_execution(line["notes"]))
    return replace(row, spec=found.spec, backend=backend, measured=float(line["tokens_per_s_per_gpu"]))


def _execution(notes: str) -> Execution:
    features = frameworks.named(FRAMEWORK).execution
    said = re.search(r"framework_config=([^;]*)", notes)
    config = said[1] if said is not None else ""
    if "foak" in config:
        return replace(features, fused_norm=True, fused_rotary=True, fused_loss=True)
    return replace(features, fused_loss=True) if "liger" in config else features
