"""BigScience's Megatron-LM logs: memory of every pipeline stage, printed after an early step.

A soft row was printed after the first step, at whose end the states of Adam are made: it is the peak of that step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.memory.frameworks.megatron_2021 import Megatron2021
from benchmarks.memory.row import Counter, Row, rows_of_csv
from launcher.base.errors import ConfigErrors
from launcher.base.units import GIB
from launcher.config.catalog import Catalog
from launcher.config.request import request

GPUS_PER_NODE = 4
"""Of the nodes of Jean Zay that these runs had."""

_AFTER_STEP = re.compile(r"allocated after step ([\d.]+) GiB")
_STAGE = re.compile(r"pp stage (\d+)")


def rows(path: Path) -> Iterator[Row]:
    """Each stage of the file."""
    return rows_of_csv(path, _row)


def _row(line: dict[str, str], catalog: Catalog) -> Row:
    name, stage = line["id"], _STAGE.search(line["mem_rank"])
    if line["framework"] != "Megatron-LM":
        return Row(name=name, left_out=f"{line['framework']} with ZeRO {line['zero_stage']}")
    if stage is None:
        return Row(name=name, left_out="the stage is not stated")
    try:
        spec = request(_overrides(line), catalog=catalog).require()
    except ConfigErrors as error:
        return Row(name=name, left_out=f"does not parse: {error.errors[0].path}")
    first = line["soft"] == "True"
    measured: dict[Counter, int] = {"allocated": round(float(line["peak_mem_gib"]) * GIB)}
    if (after := _AFTER_STEP.search(line["notes"])) is not None:
        measured["static"] = round(float(after[1]) * GIB)
    backend = Megatron2021(first_step=first)
    return Row(name=name, spec=spec, backend=backend, measured=measured, stage=int(stage[1]), first_step=first)


def _overrides(line: dict[str, str]) -> list[str]:
    settings = {
        "model.family": "gpt",
        "model.hidden_size": line["hidden"],
        "model.num_hidden_layers": line["layers"],
        "model.num_attention_heads": line["heads"],
        "model.intermediate_size": line["ffn"],
        "model.vocab_size": line["vocab"],
        "model.max_position_embeddings": line["seq_len"],
        "model.dropout": 0.1,
        "train.sequence_length": line["seq_len"],
        "train.micro_batch_size": line["micro_batch"],
        "train.global_batch_size": line["global_batch"],
        "parallel.tensor": line["tp"],
        "parallel.pipeline": line["pp"],
        "parallel.sequence": False,
        "cluster.gpus_per_node": GPUS_PER_NODE,
        "cluster.nodes": int(line["n_gpus"]) // GPUS_PER_NODE,
    }
    chosen = ["model=gpt2", "parallel=tp_pp", "zero=0", "hardware=v100_32g", "precision=fp16"]
    chosen.append(f"checkpointing={line['act_ckpt']}")
    return [*chosen, *(f"{key}={value}" for key, value in settings.items())]
