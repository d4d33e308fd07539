"""Megatron-LM's functional tests: the argument list is imported as a user's would be; the last rank was measured."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Set
from math import lcm
from pathlib import Path
from typing import Any

from benchmarks.memory.row import Counter, Row
from benchmarks.memory.scoring import judged
from launcher.base.errors import ConfigErrors
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.importers import megatron
from launcher.spec import RunSpec

HARDWARE = {"a100": "a100_80g", "h100": "h100_80g", "gb200": "b200"}

ENVIRONMENT = ("CUBLAS_WORKSPACE_CONFIG", "NVTE_ALLOW_NONDETERMINISTIC_ALGO")
"""Variables that change memory."""

SMALL_BLACKWELL_WORKSPACES = ("2aeaf56cb73f", "4e85d74ae9b4", "6de636290480")
"""Commits at whose containers' torch has cuBLAS workspaces of 8.1 MiB on Blackwell, as static bytes of runs with and
without tensor and context parallelism say alike; the torch of this launcher, and of the other commits, has 32 MiB."""

NODE = 8

NEAR = 0.03
"""Share by which static bytes of the right world may be off: those of the next ones are off by 10% and more."""

TOKENIZERS = {"nemotron_2_256k.model": 256_000, "tokenizer.model": 32_000}
"""Vocabularies of tokenizers that the arguments name: Nemotron's of 256,000 (arXiv:2402.16819, section 2) and Llama 2's
(``--tokenizer-type Llama2Tokenizer``), which is Mixtral's too."""

GPT2 = 50_257
"""The vocabulary of GPT-2's tokenizer, which is Megatron-LM's default where a list has its two files."""

UNMODELLED = {
    "--export-kd-cfg": "distillation",
}
"""Arguments that change memory and that the model does not know."""


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file."""
    catalog = Catalog(folder=Path.cwd())
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    worlds = defaultdict(set)
    for run in runs:
        if run["gpus"] is not None:
            worlds[_place(run)].add(_gpus(run))
    for run in runs:
        yield _row(run, worlds[_place(run)], catalog)


def _gpus(run: dict[str, Any]) -> int:
    """Number of GPUs of a run that states it; a run that states no nodes has one node."""
    return int((run["nodes"] or 1) * run["gpus"])


def _place(run: dict[str, Any]) -> tuple[str, ...]:
    """The test suite, machine type and node count by which the CI chooses a job's machines."""
    suite, test = run["id"].split("/")[:2]
    kind = "release" if "release" in test else "one node" if test.endswith("_1node") else ""
    return suite, run["machine"].removesuffix("_2nd"), kind


def _row(run: dict[str, Any], worlds: Set[int], catalog: Catalog) -> Row:
    """The row of a run; unstated GPUs are those of the runs on the same machines, if these agree."""
    name = run["id"]
    reason = _reason(run)
    if reason is not None:
        return Row(name=name, left_out=reason)
    try:
        overrides = list(_overrides(run))
        if run["gpus"] is not None or len(worlds) == 1:
            gpus = next(iter(worlds)) if run["gpus"] is None else _gpus(run)
            spec = _spec(overrides, max(1, gpus // NODE), min(gpus, NODE), catalog)
        elif (any_world := _whatever_the_world(overrides, catalog)) is not None:
            spec = any_world
        elif (told := _told_by_the_shards(run, overrides, catalog)) is not None:
            return _measured(run, told, soft=True)
        else:
            return Row(name=name, left_out="the number of GPUs is not stated, and it matters")
    except ConfigErrors as error:
        return Row(name=name, left_out=f"does not parse: {error.errors[0].path}")
    return _measured(run, spec)


def _measured(run: dict[str, Any], spec: RunSpec, *, soft: bool = False) -> Row:
    measured: dict[Counter, int] = {} if soft else {"static": run["mem_allocated_bytes"]}
    if run["mem_max_allocated_bytes"]:
        measured["allocated"] = run["mem_max_allocated_bytes"]
    stage = spec.parallel.pipeline - 1
    return Row(name=run["id"], spec=spec, measured=measured, stage=stage, soft=soft, oom="false")


def _overrides(run: dict[str, Any]) -> Iterator[str]:
    """Overrides of the run without world size and saves: the recorded peak is that of a step before the last save."""
    found = megatron.read(json.dumps({"MODEL_ARGS": run["args"]}), "arguments.json")
    if found.errors:
        raise ConfigErrors(found.errors)
    yield from (text for text in found.overrides if not text.startswith(("model.vocab_size", "save.every")))
    yield "save.last=false"
    yield f"hardware={next(option for word, option in HARDWARE.items() if word in run['machine'])}"
    yield f"model.vocab_size={_vocabulary(run)}"
    yield from _environment(run)
    yield from _left_out(run["args"])
    yield from _kernels(run)


def _spec(overrides: list[str], nodes: int, gpus: int, catalog: Catalog) -> RunSpec:
    world = (f"cluster.nodes={nodes}", f"cluster.gpus_per_node={gpus}")
    return request([*overrides, *world], catalog=catalog).require()


def _whatever_the_world(overrides: list[str], catalog: Catalog) -> RunSpec | None:
    """The specification, if the prediction is the same for every possible world size, so that none is guessed.

    Worlds with fewer micro-batches than stages, whose pipeline is never full, are none of a recipe's.
    """
    whole = _worlds(overrides, catalog)
    answers = {_last_stage(spec) for spec in whole}
    return whole[0] if len(whole) > 1 and len(answers) == 1 else None


def _worlds(overrides: list[str], catalog: Catalog) -> list[RunSpec]:
    parallel = _spec(overrides, 1, 1, catalog).parallel
    dense = parallel.tensor * parallel.pipeline * parallel.context
    sparse = parallel.pipeline * parallel.expert * (parallel.expert_tensor or parallel.tensor)
    worlds = [times * lcm(dense, sparse) for times in (1, 2, 4, 8)]
    specs = [_spec(overrides, max(1, gpus // NODE), min(gpus, NODE), catalog) for gpus in worlds]
    whole = [spec for spec in specs if spec.global_batch_size % (spec.micro_batch_size * spec.data_degree) == 0]
    return [spec for spec in whole if spec.gradient_accumulation >= spec.parallel.pipeline]


def _told_by_the_shards(run: dict[str, Any], overrides: list[str], catalog: Catalog) -> RunSpec | None:
    """The only number of GPUs consistent with a release run's static bytes, which are then not scored.

    Twice as many GPUs halve the optimizer's shard, which is most of what stays between steps.
    """
    if "release" not in run["id"]:
        return None
    near = [
        spec
        for spec in _worlds(overrides, catalog)
        if abs(_last_stage(spec)[0] / run["mem_allocated_bytes"] - 1) < NEAR
    ]
    return near[0] if len(near) == 1 else None


def _last_stage(spec: RunSpec) -> tuple[int, int]:
    rank = judged(Row(name="", spec=spec)).estimate.ranks[-1]
    return rank.static_bytes, rank.allocated_bytes


def _environment(run: dict[str, Any]) -> Iterator[str]:
    variables = dict(run["env_vars"])
    if run["source"].partition("@")[2].startswith(SMALL_BLACKWELL_WORKSPACES) and "gb200" in run["machine"]:
        variables.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    for name in ENVIRONMENT:
        if name in variables:
            yield f"+cluster.environment.{name}='{variables[name]}'"


def _left_out(arguments: dict[str, Any]) -> Iterator[str]:
    """Arguments that only launch's runs have, and the fused AdamW of this run's container."""
    if arguments.get("--transformer-impl") == "local":
        yield "optimizer.fused=true"
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


def _vocabulary(run: dict[str, Any]) -> int | None:
    """The stated vocabulary, or that of the tokenizer's file."""
    if run["vocab_size"] is not None:
        return int(run["vocab_size"])
    if "--merge-file" in run["args"] and "--tokenizer-type" not in run["args"]:
        return GPT2
    return TOKENIZERS.get(str(run["args"].get("--tokenizer-model", "")).rpartition("/")[2])


def _reason(run: dict[str, Any]) -> str | None:
    if _vocabulary(run) is None:
        return "the vocabulary is not stated"
    for argument, reason in UNMODELLED.items():
        if run["args"].get(argument):
            return reason
    return None
