"""Invented rows in the format of the files of measured speeds."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

LINE = {
    "id": "one",
    "problem": "mine|Llama-2-7B|A100-SXM-80GB|16gpu|s2048|b64|bf16|pretrain",
    "framework": "NeMo (Megatron-Core)",
    "framework_version": "1",
    "gpu": "A100-SXM-80GB",
    "gpus": "16",
    "gpus_per_node": "8",
    "interconnect": "",
    "model": "Llama-2-7B",
    "params_b": "6.7",
    "hidden": "4096",
    "layers": "32",
    "heads": "32",
    "kv_heads": "32",
    "ffn": "11008",
    "vocab": "32000",
    "experts": "",
    "topk": "",
    "moe_ffn": "",
    "seq": "2048",
    "micro_batch": "1",
    "global_batch": "64",
    "grad_accum": "",
    "dp": "4",
    "tp": "2",
    "pp": "2",
    "vpp": "1",
    "cp": "1",
    "ep": "1",
    "zero": "distributed optimizer (ZeRO-1)",
    "act_ckpt": "none",
    "precision": "bf16",
    "task": "pretrain",
    "tokens_s_gpu": "3000.0",
    "measured": "tokens_s_gpu",
    "notes": "",
    "soft": "False",
}
"""A run with the columns of throughput.csv."""


def write_lines(path: Path, lines: Iterable[Mapping[str, str]]) -> Path:
    """Write a file of these lines."""
    rows = list(lines)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
