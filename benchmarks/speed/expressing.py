"""A row by the columns of throughput.csv, as a run of ours under a stand-in for its framework."""

from __future__ import annotations

import re
from dataclasses import replace

from benchmarks.memory.frameworks.plain_torch import PlainTorch
from benchmarks.speed import frameworks
from benchmarks.speed.cards import CARDS, network_bandwidth
from benchmarks.speed.frameworks import Framework
from benchmarks.speed.models import model_words
from benchmarks.speed.row import LAYOUT, OUT_OF_MEMORY, Row
from benchmarks.speed.stand_in import StandIn
from benchmarks.speed.words import LeftOutError, Settings, precision, recompute, sharding
from launcher.base import registry
from launcher.base.errors import ConfigErrors
from launcher.config.catalog import Catalog
from launcher.config.request import request
from launcher.estimate.memory.estimate import Backend
from launcher.estimate.rank.engine import EXPERT_OVERLAP, AttentionKernel, Dispatcher, Execution
from launcher.spec import RunSpec

type Line = dict[str, str]

ASYNC_TP = 0.5
"""Share of tensor parallel traffic that torchtitan's asynchronous tensor parallelism hides [inferred from the gain of 9
to 10% at 8 ranks that pytorch/torchtitan benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md prints]."""

_DISPATCHERS: dict[str, Dispatcher] = {
    "HybridEP": "hybridep",
    "DeepEP": "deepep",
    "dispatcher A2A": "all_to_all",
    "alltoall fallback": "all_to_all",
    "tokendrop": "all_to_all",
}

_PRESETS = {"fsdp": "fsdp", "deepspeed": "zero1", "megatron": "3d"}
_KERNELS: dict[str, AttentionKernel] = {
    "torch": "unfused",
    "fused": "fused_softmax",
    "flash_attentionv1.0.8": "flash_1",
}
_COUNTS = ("gpus", "gpus_per_node", "seq", "micro_batch", "global_batch", "dp", "tp", "pp", "cp")


def express(line: Line, catalog: Catalog) -> Row:
    """The row as overrides, or with the reason why it cannot be expressed."""
    family = line["problem"].partition("|")[0]
    framework = frameworks.find(line["framework"], family)
    row = Row(
        name=line["id"],
        family=family,
        problem=line["problem"],
        layout=tuple(line[column] for column in LAYOUT),
        framework=framework.name if framework is not None else "",
        gpu=CARDS.get(line["gpu"], ""),
        soft=line["soft"] == "True",
        moe=bool(line["experts"]),
        task=line["task"],
        precision=line["precision"],
        line=line,
        oom=_ran_out_of_memory(line),
    )
    try:
        if framework is None:
            raise LeftOutError("a framework of whose steps nothing is known")
        measured = 0.0 if row.oom else _measured(line)
        said = _said(line, framework)
        spec = request(_overrides(said, framework, catalog), catalog=catalog).require()
    except LeftOutError as reason:
        return replace(row, left_out=OUT_OF_MEMORY if row.oom else str(reason))
    except (ArithmeticError, ValueError) as error:
        return replace(row, left_out=f"a number that cannot be read: {error}")
    except ConfigErrors as error:
        return replace(row, left_out=f"does not parse: {error.errors[0].path}")
    base = registry.load("backends", framework.engine)
    backend = StandIn(base=base, executes=_execution(line, framework), fitted=framework.fitted)
    row = replace(row, spec=_shared_out(spec), backend=backend, memory=_memory(framework, backend), measured=measured)
    row = replace(
        row, moe=row.moe or spec.model.num_experts > 0
    )  # A source may name experts in the model's name alone.
    return replace(row, left_out=OUT_OF_MEMORY) if row.oom else row


def _ran_out_of_memory(line: Line) -> bool:
    return not line["tokens_s_gpu"] and (line["measured"] == "OOM" or "OOM" in line["notes"])


def _memory(framework: Framework, backend: StandIn) -> Backend | None:
    if not framework.plain_modules:
        return None
    return PlainTorch(framework=framework.name, fused_norm=backend.executes.fused_norm, scores=backend.stores_scores)


def _measured(line: Line) -> float:
    if not line["tokens_s_gpu"]:
        raise LeftOutError("no tokens a second")
    speed = float(line["tokens_s_gpu"])
    if speed <= 0:
        raise LeftOutError("no tokens a second")
    return speed


def _said(line: Line, framework: Framework) -> Line:
    """The row with what its framework's documents say of a blank, and refused where one is left."""
    line = line | {column: line[column] or said for column, said in framework.blank.items()}
    if any(not line[column] for column in _COUNTS):
        raise LeftOutError("the layout is not stated in full")
    if not line["vpp"] and int(line["pp"]) > 1:
        raise LeftOutError("it is not stated whether stages are interleaved")
    return line


def _overrides(line: Line, framework: Framework, catalog: Catalog) -> list[str]:
    """The run as a user would write it."""
    hardware = CARDS.get(line["gpu"])
    if hardware is None or hardware not in catalog.groups["hardware"]:
        raise LeftOutError("no such GPU in conf/hardware")
    preset, settings = model_words(line)
    gpus, node = int(line["gpus"]), int(line["gpus_per_node"])
    if gpus > node and gpus % node:
        raise LeftOutError("a node is not full")
    if int(line["dp"]) * int(line["tp"]) * int(line["pp"]) * int(line["cp"]) != gpus:
        raise LeftOutError("the degrees do not multiply to the GPUs")
    settings |= {
        "train.sequence_length": line["seq"],
        "train.micro_batch_size": line["micro_batch"],
        "train.global_batch_size": line["global_batch"],
        "parallel.tensor": line["tp"],
        "parallel.pipeline": line["pp"],
        "parallel.virtual_pipeline": line["vpp"] or 1,
        "parallel.context": line["cp"],
        "parallel.expert": line["ep"] or 1,
        "parallel.expert_tensor": _expert_tensor(line),
        "parallel.sequence": _sequence(line, framework),
        "cluster.gpus_per_node": min(gpus, node),
        "cluster.nodes": -(-gpus // node),
    }
    if int(line["vpp"] or 1) > 1:
        settings["parallel.schedule"] = "interleaved"
    settings |= sharding(line["zero"], int(line["dp"]))
    settings |= recompute(line["act_ckpt"], int(line["pp"]))
    if (bandwidth := network_bandwidth(line["interconnect"], min(gpus, node))) is not None:
        settings["cluster.network_bandwidth"] = bandwidth
    settings |= framework.settings
    chosen = [f"model={preset}", f"parallel={_PRESETS[framework.engine]}", f"hardware={hardware}", *_adapter(line)]
    return [*chosen, *precision(line["precision"]), *_words(settings)]


def _adapter(line: Line) -> list[str]:
    if line["task"] != "lora":
        return []
    if not line.get("lora_rank"):
        raise LeftOutError("the rank of the adapters is not stated")
    return ["adapter=qlora" if line.get("quant") else "adapter=lora", f"adapter.rank={line['lora_rank']}"]


def _words(settings: Settings) -> list[str]:
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]


def _expert_tensor(line: Line) -> str:
    """Megatron's ETP: 1 in NVIDIA's recipes of experts, where ``expert`` counts ranks of all kinds."""
    found = re.search(r"ETP (\d+)", line["notes"])
    return found[1] if found is not None else ("1" if line["experts"] else "null")


def _sequence(line: Line, framework: Framework) -> bool:
    """True if norms are split along the sequence: as the notes say, else as the framework does."""
    found = re.search(r"sequence parallel: (\d)", line["notes"])
    return int(line["tp"]) > 1 and (found[1] == "1" if found is not None else framework.sequence)


def _execution(line: Line, framework: Framework) -> Execution:
    """The framework's, with the kernels that the notes of a row name."""
    features = framework.execution
    found = re.search(r"kernel: ([^;+]+?)(?: \+ (RMS) kernel)?(?:;|$)", line["notes"])
    if found is not None:
        kernel = _KERNELS.get(found[1].strip(), "flash_2")
        features = replace(features, attention=kernel, fused_norm=features.fused_norm or found[2] is not None)
    if line.get("compile") == "loss only":
        features = replace(features, fused_loss=True)
    elif line.get("compile", "false") != "false":
        features = replace(features, compiled=True)
    if "launch-bound" in line["notes"]:
        features = replace(features, graphs=False)
    if "AsyncTP" in line["notes"]:
        features = replace(features, tensor_overlap=ASYNC_TP)
    return _of_experts(line["notes"], features)


def _of_experts(notes: str, features: Execution) -> Execution:
    """With the exchange of tokens that the notes of a row name; tokens are dropped behind an all-to-all alone.

    A step that is said to be bound by launches has no graphs.
    """
    for words, dispatcher in _DISPATCHERS.items():
        if words in notes:
            features = replace(features, dispatcher=dispatcher)
    if "launch-bound" in notes:
        features = replace(features, graphs=False)
    if "EP overlap on" in notes or "+1f1b overlap" in notes:
        features = replace(features, expert_overlap=EXPERT_OVERLAP)
    return features


def _shared_out(spec: RunSpec) -> RunSpec:
    """Layers of the outer stages if layers do not divide evenly: embedding and head count as one layer each.

    Megatron-Core ``account_for_embedding_in_pipeline_split`` and ``account_for_loss_in_pipeline_split``; Llama 3.1
    405B has 126 layers for this (arXiv:2407.21783, section 3.3.2).
    """
    layers, chunks = spec.model.num_hidden_layers, spec.parallel.pipeline * spec.parallel.virtual_pipeline
    if layers % chunks == 0 or (layers + 2) % chunks:
        return spec
    outer = (layers + 2) // spec.parallel.pipeline - 1
    return replace(spec, parallel=replace(spec.parallel, first_stage_layers=outer, last_stage_layers=outer))
