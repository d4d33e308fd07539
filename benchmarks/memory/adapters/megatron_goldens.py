"""Megatron-LM's functional tests: the argument list is imported as a user's would be; the last rank was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.memory.row import Row
from launcher.catalog import Catalog
from launcher.errors import ConfigErrors
from launcher.importers import megatron
from launcher.request import request

HARDWARE = {"a100": "a100_80g", "h100": "h100_80g", "gb200": "b200"}

ENVIRONMENT = ("CUBLAS_WORKSPACE_CONFIG", "NVTE_ALLOW_NONDETERMINISTIC_ALGO")
"""Variables that change memory."""

UNMODELLED = {
    "--mtp-num-layers": "multi-token prediction",
    "--use-megatron-fsdp": "Megatron-FSDP",
    "--pipeline-model-parallel-layout": "a free pipeline layout",
    "--account-for-embedding-in-pipeline-split": "a pipeline split that counts the embedding",
    "--fine-grained-activation-offloading": "activation offload",
    "--export-kd-cfg": "distillation",
    "--cuda-graph-impl": "CUDA graphs",
    "--num-distributed-optimizer-instances": "instances of the distributed optimizer",
    "--rampup-batch-size": "a batch that grows",
}
"""Arguments that change memory and that the model does not know."""


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file."""
    catalog = Catalog(folder=Path.cwd())
    for line in path.read_text().splitlines():
        yield _row(json.loads(line), catalog)


def _row(run: dict[str, Any], catalog: Catalog) -> Row:
    name, arguments = run["id"], run["args"]
    reason = _reason(run)
    if reason is not None:
        return Row(name=name, left_out=reason)
    hardware = next(option for word, option in HARDWARE.items() if word in run["machine"])
    world = [f"hardware={hardware}", f"cluster.nodes={run['nodes']}", f"cluster.gpus_per_node={run['gpus']}"]
    world += _environment(run["env_vars"])
    try:
        found = megatron.read(json.dumps({"MODEL_ARGS": arguments}), "arguments.json")
        overrides = [text for text in found.overrides if not text.startswith("model.vocab_size")]
        overrides += [*world, *_left_out(arguments), *_kernels(run), f"model.vocab_size={run['vocab_size']}"]
        spec = request(overrides, catalog=catalog).require()
    except ConfigErrors as error:
        return Row(name=name, left_out=f"does not parse: {error.errors[0].path}")
    measured: dict[Any, int] = {"static": run["mem_allocated_bytes"]}
    if run["mem_max_allocated_bytes"]:
        measured["allocated"] = run["mem_max_allocated_bytes"]
    return Row(name=name, spec=spec, measured=measured, stage=spec.parallel.pipeline - 1, oom="false")


def _environment(variables: dict[str, Any]) -> Iterator[str]:
    for name in ENVIRONMENT:
        if name in variables:
            yield f"+cluster.environment.{name}='{variables[name]}'"


def _left_out(arguments: dict[str, Any]) -> Iterator[str]:
    """Arguments that the launcher's own runs have and this run had not."""
    for name in ("moe-grouped-gemm", "no-create-attention-mask-in-dataloader"):
        if not arguments.get(f"--{name}"):
            yield f"+backend.extra.{name}=false"


def _kernels(run: dict[str, Any]) -> Iterator[str]:
    """The older long-term-support container has a flash-attn before 2.4.1, which is not deterministic.

    On A100 nor is cuDNN's attention (Transformer Engine ``attention/dot_product_attention/utils.py``): what is left of
    the kernels that a deterministic run chooses from is attention with scores in full.
    """
    deterministic = str(run["env_vars"].get("NVTE_ALLOW_NONDETERMINISTIC_ALGO")) == "0"
    chosen = "--attention-backend" in run["args"]
    if run["id"].endswith("/lts/dgxa100_dracooci") and deterministic and not chosen:
        yield "model.attention=eager"


def _reason(run: dict[str, Any]) -> str | None:
    if run["gpus"] is None:
        return "the number of GPUs is not stated"
    if run["vocab_size"] is None:
        return "the vocabulary is not stated"
    for argument, reason in UNMODELLED.items():
        value = run["args"].get(argument)
        one_instance = argument == "--num-distributed-optimizer-instances" and value == 1
        if value is not None and value is not False and not one_instance:
            return reason
    return None
