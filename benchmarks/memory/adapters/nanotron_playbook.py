"""nanotron's runs for the Ultra-Scale Playbook, a framework that is only checked; the first stage was measured.

bf16 parameters and gradients, fp32 accumulation and master weights, fused AdamW, ZeRO 0 or 1, tensor parallelism with
Megatron's sequence parallelism, 1F1B, fused attention, no recomputation. ``framework_version`` says whether a run came
after the repair of the pipeline; before it, transfers kept the host from running ahead of the GPU, as the tokens per
second of those runs say, which fall with the number of stages. Two runs that are said to have run out of memory before
it, nt-2011 and nt-2310, did not after it on half the copies, which hold more; they are scored as stated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

from benchmarks.memory.frameworks.nanotron.backend import Nanotron, usable_bytes
from benchmarks.memory.frameworks.nanotron.training import reserved
from benchmarks.memory.row import Row, rows_of_csv
from launcher.base.errors import ConfigErrors
from launcher.base.units import GIB
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.spec import ModelSpec

GPUS_PER_NODE = 8


def first_and_last(model: ModelSpec, stages: int) -> tuple[int, int]:
    """Layers of the first and of the last stage.

    Layers and the output projection are weighed by their matrices and dealt out in order; a stage is full with the
    block that exceeds its share of the whole (nanotron ``models/base.py``, ``build_model``).
    """
    layer = 4 * model.query_size * model.hidden_size + 3 * model.intermediate_size * model.hidden_size
    costs = [*[layer] * model.num_hidden_layers, model.vocab_size * model.hidden_size]
    stage, sizes = 0, [0] * stages
    for index, total in enumerate(accumulate(costs)):
        sizes[stage] += index < model.num_hidden_layers
        stage += total > sum(costs) * (stage + 1) / stages
    return sizes[0], sizes[-1]


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file."""
    return rows_of_csv(path, _row)


def _row(line: dict[str, str], catalog: Catalog) -> Row:
    name = line["id"]
    if line["oom"] == "false" and (line["counter"] != "reserved" or line["unit_certain"] != "True"):
        return Row(name=name, left_out="the counter or its unit is uncertain")
    nodes, rest = divmod(int(line["n_gpus"]), GPUS_PER_NODE)
    if rest and nodes:
        return Row(name=name, left_out="a node is not full")
    try:
        spec = request(_overrides(line), catalog=catalog).require()
    except ConfigErrors as error:
        return Row(name=name, left_out=f"does not parse: {error.errors[0].path}")
    stages = spec.parallel.pipeline
    if stages > 1:
        first, last = first_and_last(spec.model, stages)
        parallel = replace(spec.parallel, first_stage_layers=first, last_stage_layers=last)
        spec = replace(spec, parallel=parallel)
    measured = {"reserved": round(float(line["peak_mem_gib"]) * GIB)} if line["oom"] == "false" else {}
    oom = "true" if line["oom"] == "true" else "false"
    repaired = "after_pp_fix=True" in line["framework_version"]
    return Row(
        name=name,
        spec=spec,
        backend=Nanotron(),
        measured=measured,  # type: ignore[arg-type]
        stage=0,
        reserved=partial(reserved, spec, run_ahead=repaired, capacity=usable_bytes(spec)),
        soft=line["soft"] == "True",
        oom=oom,  # type: ignore[arg-type]
    )


def _overrides(line: dict[str, str]) -> list[str]:
    """The run as a user would write it; ``tied_embeddings`` and the like are as the file infers them."""
    gpus = int(line["n_gpus"])
    settings = {
        "model.family": "llama",
        "model.hidden_size": line["hidden"],
        "model.num_hidden_layers": line["layers"],
        "model.num_attention_heads": line["heads"],
        "model.num_key_value_heads": line["kv_heads"],
        "model.intermediate_size": line["ffn"],
        "model.vocab_size": line["vocab"],
        "model.tie_word_embeddings": line["tied_embeddings"],
        "model.max_position_embeddings": line["seq_len"],
        "train.sequence_length": line["seq_len"],
        "train.micro_batch_size": line["micro_batch"],
        "train.global_batch_size": line["global_batch"],
        "parallel.tensor": line["tp"],
        "parallel.pipeline": line["pp"],
        "parallel.sequence": line["sp"],
        "cluster.gpus_per_node": min(gpus, GPUS_PER_NODE),
        "cluster.nodes": max(1, gpus // GPUS_PER_NODE),
    }
    chosen = ["model=7b", "parallel=tp_pp", f"zero={line['zero_stage']}", "hardware=h100_80g", "precision=bf16"]
    return [*chosen, *(f"{key}={value}" for key, value in settings.items())]
