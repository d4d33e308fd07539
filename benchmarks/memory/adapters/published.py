"""Runs of many frameworks, from their READMEs, logs, issues and commit messages.

A framework that the memory model knows as a backend, our own or one that is only checked, is scored; of the rest the
reason is named. What the notes tell is read only where it says how the run differs from the columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.memory.frameworks import litgpt, torchtitan
from benchmarks.memory.frameworks.expressed import Expressed, LeftOutError, Line, within_card
from benchmarks.memory.frameworks.hf_trainer import HfTrainer
from benchmarks.memory.frameworks.megatron_2021 import Megatron2021
from benchmarks.memory.row import Counter, Oom, Row, rows_of_csv
from launcher.base.errors import ConfigErrors
from launcher.base.units import GIB
from launcher.config.catalog import Catalog
from launcher.config.request import request

HARDWARE = {
    "A100-80GB": "a100_80g",
    "A100-SXM4-80GB": "a100_80g",
    "A100-40GB": "a100_40g",
    "A100-SXM4-40GB": "a100_40g",
    "A10G-24GB": "a10g",
    "H100-80GB": "h100_80g",
    "H100-96GB HBM2e": "h100_80g",
    "H100": "h100_80g",
    "H200": "h200",
    "B200": "b200",
    "MI300X": "mi300x",
    "RTX3090-24GB": "rtx3090",
    "RTX4090": "rtx4090",
    "V100-SXM2-32GB": "v100_32g",
    "V100-32GB": "v100_32g",
    "V100-16GB": "v100_16g",
}
_COUNTERS: dict[str, Counter] = {"allocated": "allocated", "reserved": "reserved", "device": "device"}
_SHAPE = {
    "hidden": "model.hidden_size",
    "layers": "model.num_hidden_layers",
    "heads": "model.num_attention_heads",
    "kv_heads": "model.num_key_value_heads",
    "ffn": "model.intermediate_size",
    "vocab": "model.vocab_size",
    "tied_embeddings": "model.tie_word_embeddings",
}
_PUBLIC: dict[str, dict[str, object]] = {
    "Qwen3-32B": {"model.head_dim": 128, "model.qk_norm": "true"},
    "Qwen3-8B": {"model.head_dim": 128, "model.qk_norm": "true"},
    "Gemma-7B": {"model.head_dim": 256},
}
"""Settings of the models' own config.json beyond the columns (huggingface.co/Qwen, google)."""


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file."""
    return rows_of_csv(path, _row)


def _row(line: Line, catalog: Catalog) -> Row:
    name = line["id"]
    try:
        _stated(line)
        expressed = _framework(line["framework"])(line)
        spec = request([*_overrides(line), *_words(expressed.settings)], catalog=catalog).require()
    except LeftOutError as reason:
        return Row(name=name, left_out=str(reason))
    except ConfigErrors as error:
        return Row(name=name, left_out=f"does not parse: {error.errors[0].path}")
    counter = _COUNTERS.get(line["counter"])
    measured: dict[Any, int] = {}
    if counter is not None and line["peak_mem_gib"] and line["oom"] == "false":
        measured[counter] = round(float(line["peak_mem_gib"]) * GIB)
    oom: Oom = "true" if line["oom"] == "true" else "false"
    return Row(
        name=name,
        spec=spec,
        backend=expressed.backend,
        measured=measured,
        stage=expressed.stage,
        reserved=partial(expressed.reserved, spec) if expressed.reserved is not None else None,
        first_step=expressed.first_step,
        soft=line["soft"] == "True",
        oom=oom,
    )


def _stated(line: Line) -> None:
    """Refuse a row that lacks a value that every framework needs."""
    if line["oom"] == "false" and line["counter"] not in _COUNTERS:
        raise LeftOutError("no memory, or it is not said which counter")
    blank = [column for column in _SHAPE if not line[column]]
    if blank:
        raise LeftOutError("the shape of the model is not stated")
    if not line["seq_len"] or not line["micro_batch"]:
        raise LeftOutError("the sequence length or the micro-batch is not stated")
    if not line["n_gpus"]:
        raise LeftOutError("the number of GPUs is not stated")
    if line["gpu"] not in HARDWARE:
        raise LeftOutError("no such GPU in conf/hardware")


def _overrides(line: Line) -> list[str]:
    """Overrides from the columns with the same meaning for every framework."""
    gpus = int(line["n_gpus"])
    nodes = -(-gpus // 8)
    accumulated = int(line["grad_accum"] or 1)
    data = int(line["dp"] or 1)
    settings: dict[str, object] = {key: line[column] for column, key in _SHAPE.items()}
    settings |= {
        "model.head_dim": "null",
        "model.max_position_embeddings": line["seq_len"],
        "train.sequence_length": line["seq_len"],
        "train.micro_batch_size": line["micro_batch"],
        "train.global_batch_size": int(line["micro_batch"]) * accumulated * data,
        "cluster.gpus_per_node": gpus // nodes,
        "cluster.nodes": nodes,
    }
    settings |= _PUBLIC.get(line["model_name"], {})
    return ["model=7b", "parallel=ddp", f"hardware={HARDWARE[line['gpu']]}", "precision=bf16", *_words(settings)]


def _words(settings: dict[str, object]) -> list[str]:
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]


def _framework(name: str) -> Callable[[Line], Expressed]:
    for prefix, express in _FRAMEWORKS.items():
        if name.startswith(prefix):
            return express
    lacks = next((reason for prefix, reason in _NOT_JUDGED.items() if name.startswith(prefix)), None)
    raise LeftOutError(lacks or "a framework that is not modelled")


def _fsdp_qlora(line: Line) -> Expressed:
    """Answer.AI's script: all bf16, ``peft`` LoRA with its dropout of 0.1, FSDP1, the Trainer's modules."""
    if line["offload"] != "none":
        raise LeftOutError("parameters that FSDP1 offloads")
    settings: dict[str, object] = {
        "parallel.shard": True,
        "checkpointing": line["act_ckpt"],
        "adapter": "qlora" if line["quant"] else "lora",
        "adapter.rank": line["lora_rank"],
        "adapter.targets": "[k_proj,q_proj,v_proj,up_proj,down_proj,gate_proj]",
        "adapter.dropout": 0.1,
    }
    backend = HfTrainer(version=(4, 38), fsdp=True, low_adapters=True, names_output=True)
    return Expressed(backend=backend, settings=settings, reserved=partial(within_card, backend))


def _qwen(line: Line) -> Expressed:
    """Qwen's ``finetune.py`` on one GPU: autocast over bf16 weights, ``peft`` with its script's dropout of 0.05.

    Its scripts for whole, quantised and distributed runs call DeepSpeed. Its table prints "G", of no counter. Read
    as GiB of a device its figures are 4.8% from the estimates in the median, 12.5% above at worst; as GB 3.0%, and 6.1%
    above to 11% below. A share of 16% for what the allocator caches was 4.2% off in GiB, which that doubt covers. Nor
    is the estimate's context that of torch 2.0, and ``python`` alone makes no communicator.
    """
    if line["n_gpus"] != "1" or not line["lora_rank"] or line["quant"]:
        raise LeftOutError("the Trainer under DeepSpeed")
    if "LoRA(emb)" in line["notes"]:
        raise LeftOutError("an embedding that is trained beside an adapter")
    settings: dict[str, object] = {
        "model.attention_bias": True,
        "checkpointing": line["act_ckpt"],
        "adapter": "lora",
        "adapter.rank": line["lora_rank"],
        "adapter.targets": "[q_proj,o_proj,gate_proj,up_proj,down_proj]",
        "adapter.dropout": 0.05,
    }
    return Expressed(backend=HfTrainer(version=(4, 32), mixed=True), settings=settings)


def _megatron(line: Line) -> Expressed:
    """BigScience's logs of Megatron-LM, the first stage or the worst; the other rows of that framework are not ours."""
    stage = re.search(r"peak on pp stage (\d+)", line["notes"])
    if "Jean Zay" not in line["framework_version"] or stage is None:
        raise LeftOutError("a Megatron whose switches are not stated")
    settings: dict[str, object] = {
        "model.family": "gpt",
        "model.hidden_act": "gelu",
        "model.normalization": "layernorm",
        "model.position_embedding": "learned",
        "model.attention_bias": True,
        "model.mlp_bias": True,
        "model.dropout": 0.1,
        "parallel.tensor": line["tp"],
        "parallel.pipeline": line["pp"],
        "checkpointing": line["act_ckpt"],
        "precision": "fp16",
        "cluster.gpus_per_node": 4,
        "cluster.nodes": int(line["n_gpus"]) // 4,
    }
    first = line["soft"] == "True"
    return Expressed(backend=Megatron2021(first_step=first), settings=settings, stage=int(stage[1]), first_step=first)


_FRAMEWORKS: dict[str, Callable[[Line], Expressed]] = {
    "Megatron-LM": _megatron,
    "torchtitan": torchtitan.express,
    "LitGPT": litgpt.express,
    "fsdp_qlora": _fsdp_qlora,
    "HF Trainer (+PEFT/DeepSpeed), Qwen": _qwen,
}
_NOT_JUDGED = {
    "ms-swift": "samples of varying length, whose order the allocator's cache depends on",
    "Megatron-DeepSpeed": "DeepSpeed's pipeline of 2022, by nvidia-smi in whole GB or of a stage that is not stated",
    "Megatron-Bridge": "a recipe whose kernels, dispatcher and offloading are not stated",
    "lightning-thunder": "a compiler that chooses what is saved",
    "torchtune": "what is recomputed and which of torchtune's counters is not stated",
    "NeMo Automodel": "the baseline's number of GPUs is not stated",
}
"""Reasons to leave out rows of a framework that state their model, batch and GPUs."""
