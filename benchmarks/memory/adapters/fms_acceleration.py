"""fms-acceleration's benchmarks: the Hugging Face Trainer with TRL and PEFT, on one GPU or with FSDP1, on A100-80GB.

Whole fine-tuning, LoRA, and LoRA beside NF4 (bitsandbytes) or GPTQ weights; flash attention and recomputation of every
block throughout. The framework that was benchmarked swaps kernels: ``foak`` is Unsloth's RMSNorm, rotary embedding,
cross entropy and, beside quantised weights, adapters; ``liger`` is Liger's fused linear cross entropy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.memory.frameworks.hf_trainer import HfTrainer
from benchmarks.memory.row import Oom, Row, rows_of_csv
from launcher.base.errors import ConfigErrors
from launcher.base.units import GIB
from launcher.config.catalog import Catalog
from launcher.config.request import request

LORA_DROPOUT = 0.05
"""Defaults of fms-hf-tuning where nothing is said (``tuning/config/peft_config.py``); any dropout saves the same."""

_SHAPE = {
    "hidden": "model.hidden_size",
    "layers": "model.num_hidden_layers",
    "heads": "model.num_attention_heads",
    "kv_heads": "model.num_key_value_heads",
    "vocab": "model.vocab_size",
    "tied_embeddings": "model.tie_word_embeddings",
    "seq_len": "train.sequence_length",
    "micro_batch": "train.micro_batch_size",
    "global_batch": "train.global_batch_size",
}
_COUNTERS = {"allocated": "allocated", "device": "device"}


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file."""
    return rows_of_csv(path, _row)


def _row(line: dict[str, str], catalog: Catalog) -> Row:
    name, config = line["id"], _noted(line, "framework_config")
    reason = _reason(line, config)
    if reason is not None:
        return Row(name=name, left_out=reason)
    try:
        spec = request(_overrides(line, config), catalog=catalog).require()
    except ConfigErrors as error:
        return Row(name=name, left_out=f"does not parse: {error.errors[0].path}")
    counter = _COUNTERS.get(line["counter"])
    measured: dict[Any, int] = {counter: round(float(line["peak_mem_gib"]) * GIB)} if counter else {}
    oom: Oom = "likely" if line["oom"] == "likely" else "false"
    soft = line["soft"] == "True"
    return Row(name=name, spec=spec, backend=_trainer(line, config), measured=measured, soft=soft, oom=oom)


def _reason(line: dict[str, str], config: str) -> str | None:
    if not line["hidden"]:
        return "the shape of the model is not stated"
    if not line["seq_len"]:
        return "the sequence length is not stated"
    if line["ep"] != "1":
        return "experts on different ranks, which the Trainer does not have"
    if "moe" in config:
        return "ScatterMoE's kernels"
    if line["activation_fn"] == "gelu":
        return "a GPT whose dropout is not stated"
    return None


def _trainer(line: dict[str, str], config: str) -> HfTrainer:
    version = tuple(int(number) for number in re.findall(r"transformers(\d+)\.(\d+)", line["framework_version"])[0])
    fsdp, fast = "FSDP" in line["framework"], "foak" in config
    repeats = version < (4, 48) and any(word in line["model_name"] for word in ("istral", "ixtral"))
    return HfTrainer(
        version=version,
        fsdp=fsdp,
        mixed="AMP" in line["precision"],
        fast_kernels=fast,
        fused_adapters=fast and bool(line["quant"]),
        repeats_keys=repeats,
        gptq=line["quant"].startswith("gptq"),
        upcast=config == "baseline-peft-bnb" and not fsdp,
    )


def _overrides(line: dict[str, str], config: str) -> list[str]:
    """The run as a user would write it."""
    settings: dict[str, object] = {key: line[column] for column, key in _SHAPE.items()}
    experts = line["moe_num_experts"]
    if experts:
        settings["model.num_experts"] = experts.partition(".")[0]
        settings["model.num_experts_per_tok"] = line["moe_topk"].partition(".")[0]
        settings["model.moe_intermediate_size"] = line["moe_ffn"].partition(".")[0]
    settings |= {
        "model.family": "moe" if experts else "llama",
        "model.head_dim": "null",
        "model.intermediate_size": line["ffn"] or settings["model.moe_intermediate_size"],
        "model.max_position_embeddings": line["seq_len"],
        "model.attention": "flash" if line["flash_attn"] == "true" else "sdpa",
        "cluster.gpus_per_node": line["n_gpus"],
        "parallel.shard": "FSDP" in line["framework"],
        "checkpointing": line["act_ckpt"],
        "precision": "bf16" if line["precision"].startswith("bf") else "fp16",
    }
    if "liger" in config:
        settings |= {"train.loss": "chunked", "train.loss_chunk": _liger_chunk(line)}
    chosen = [f"model={'mixtral_8x7b' if experts else '7b'}", "parallel=ddp", "hardware=a100_80g", *_adapter(line)]
    return [*chosen, *(f"{key}={value}" for key, value in settings.items())]


def _adapter(line: dict[str, str]) -> list[str]:
    """The adapter; 4-bit weights of either kind are quantised twice (``framework_plugin_bnb.py``)."""
    if not line["lora_rank"]:
        return []
    targets = ",".join(_noted(line, "LoRA alpha").partition("targets=")[2].split())
    settings = [f"adapter.rank={line['lora_rank']}", f"adapter.targets=[{targets}]", f"adapter.dropout={LORA_DROPOUT}"]
    return ["adapter=qlora" if line["quant"] else "adapter=lora", *settings]


def _liger_chunk(line: dict[str, str]) -> int:
    """Liger's chunk of tokens: a power of two above ``tokens / ceil(V / h)`` (``fused_linear_cross_entropy.py``)."""
    tokens = int(line["micro_batch"]) * int(line["seq_len"])
    parts = -(-int(line["vocab"]) // int(line["hidden"]))
    return 1 << (-(-tokens // parts) - 1).bit_length()


def _noted(line: dict[str, str], key: str) -> str:
    """The value of a key in the notes."""
    found = re.search(rf"{key}=([^;]*)", line["notes"])
    return found.group(1).strip() if found else ""
