"""SimuMax's runs of Megatron-LM on one node of eight B200: each stage's fullest rank, and what SimuMax predicts.

The layouts are its own examples' (``zero`` 1, sequence parallel, no communication overlap). Bytes that a run with
another number of micro-batches has as well are scored once.

Three settings are not stated. That the fused loss is Transformer Engine's, which no fp32 logits show beside, and that
torch's workspaces of cuBLAS are of 8.1 MiB, not the 32 MiB of later releases, is read off the bytes of the open rows.
How many of the first layers of a cut model are dense is read off what SimuMax predicts of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.memory.row import Counter, Row
from benchmarks.memory.scoring import judged
from launcher.base.errors import ConfigErrors
from launcher.base.units import GIB
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.spec import RunSpec

_COUNTERS: Mapping[Counter, str] = {"allocated": "max_allocated_bytes", "reserved": "max_reserved_bytes"}

_DENSE = 3
"""The most first dense layers of the two models: DeepSeek-V2 has one, V3 three."""

_LATENT = ("kv_lora_rank=512", "qk_nope_head_dim=128", "qk_rope_head_dim=64", "v_head_dim=128", "q_lora_rank=1536")


def rows(path: Path) -> Iterator[Row]:
    """Each pipeline stage of each run."""
    catalog, seen = Catalog(folder=Path.cwd()), set[str]()
    for line in path.read_text().splitlines():
        run = json.loads(line)
        key = json.dumps([run["model"], run["by_rank"]])
        if key in seen:
            yield Row(name=run["id"], left_out="the bytes of another row")
        else:
            yield from _rows(run, catalog)
        seen.add(key)


def _rows(run: dict[str, Any], catalog: Catalog) -> Iterator[Row]:
    try:
        spec = _spec(run, catalog)
    except ConfigErrors as error:
        yield Row(name=run["id"], left_out=f"does not parse: {error.errors[0].path}")
        return
    stages, ranks = spec.parallel.pipeline, [run["by_rank"][str(rank)] for rank in range(run["gpus"])]
    size = len(ranks) // stages
    fullest = max(range(stages), key=lambda stage: _most(ranks[stage * size :][:size])["allocated"])
    for stage in range(stages):
        yield Row(
            name=f"{run['id']} stage {stage}",
            spec=spec,
            measured=_most(ranks[stage * size :][:size]),
            stage=stage,
            theirs={"SimuMax": _theirs(run)} if stage == fullest else {},
            oom="false",
        )


def _spec(run: dict[str, Any], catalog: Catalog) -> RunSpec:
    """The run, with the number of first dense layers that is nearest to SimuMax's prediction."""
    theirs = _theirs(run)["allocated"]
    counts = range(min(_DENSE, run["layers"] - 1) + 1) if run["experts"] else (0,)
    specs = [request([*_overrides(run, dense)], catalog=catalog).require() for dense in counts]
    if len(specs) == 1:
        return specs[0]
    return min(specs, key=lambda spec: abs(judged(Row(name="", spec=spec)).estimate.peak.allocated_bytes - theirs))


def _most(ranks: list[dict[str, int]]) -> dict[Counter, int]:
    return {counter: max(rank[key] for rank in ranks) for counter, key in _COUNTERS.items()}


def _theirs(run: dict[str, Any]) -> dict[Counter, int]:
    found = run["theirs"]
    return {name: round(found[f"max_{name}_gib"] * GIB) for name in _COUNTERS}


def _overrides(run: dict[str, Any], dense: int) -> Iterator[str]:
    """The run as a user would write it."""
    experts = run["experts"]
    yield from ("parallel=tp_pp", "zero=1", "hardware=b200", "precision=bf16", "train.loss=fused")
    settings = {
        "model.num_hidden_layers": run["layers"],
        "model.hidden_size": run["hidden"],
        "model.num_attention_heads": run["heads"],
        "model.intermediate_size": run["ffn"],
        "model.vocab_size": run["vocab"],
        "model.max_position_embeddings": run["seq"],
        "train.sequence_length": run["seq"],
        "train.micro_batch_size": run["micro_batch"],
        "train.global_batch_size": run["global_batch"],
        "parallel.tensor": run["tp"],
        "parallel.sequence": run["tp"] > 1,
        "parallel.pipeline": run["pp"],
        "parallel.context": run["cp"],
        "cluster.gpus_per_node": run["gpus"],
        "cluster.nodes": 1,
        "+backend.extra.cross-entropy-fusion-impl": "te",
        "+cluster.environment.CUBLAS_WORKSPACE_CONFIG": "':4096:2:16:8'",
        "+backend.extra.overlap-grad-reduce": False,
        "+backend.extra.overlap-param-gather": False,
    }
    yield from (f"{key}={value}" for key, value in settings.items())
    if run["cp"] > 1:
        yield "+backend.extra.cp-comm-type=a2a"
    if not experts:
        yield from ("model=llama3_70b", f"model.num_key_value_heads={run['kv_heads']}")
        return
    yield from ("model=deepseek_v3", "model.n_group=1", "model.topk_group=1", "model.routed_scaling_factor=1.0")
    yield from (f"model.{each}" for each in _LATENT)
    yield f"model.num_experts={experts}"
    yield f"model.num_experts_per_tok={run['topk']}"
    yield f"model.moe_intermediate_size={run['moe_ffn']}"
    yield f"model.num_shared_experts={2 if run['model'].startswith('DeepSeek-V2') else 1}"
    yield f"model.first_dense_layers={dense}"
    yield from (f"parallel.expert={run['ep']}", "parallel.expert_tensor=1")
