"""Tokens a second beside the published memory: torchtitan, torchtune, LitGPT, PEFT, Megatron of BigScience and others.

The columns are named as those of throughput.csv are and read as theirs; a blank degree of a framework that only copies
or shards the model is 1, a blank accumulation is 1, as the runs that print one iteration's time have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.memory.row import rows_of_csv
from benchmarks.speed.expressing import Line, express
from benchmarks.speed.row import Row
from launcher.config.catalog import Catalog

_NAMES = {"n_gpus": "gpus", "model_name": "model", "seq_len": "seq", "tokens_per_s_per_gpu": "tokens_s_gpu"}
_ZERO = {"0": "0", "1": "ZeRO-1", "2": "ZeRO-2", "3": "ZeRO-3", "fsdp2": "FSDP"}
_PRECISIONS = (
    (r"nvfp4", "nvfp4"),
    (r"mxfp8", "mxfp8"),
    (r"float8 delayed", "fp8"),
    (r"float8|fp8", "fp8-cs"),
    (r"fp16", "fp16"),
    (r"bf16", "bf16"),
)
_RECOMPUTE = {"default": "op", "selective": ""}
"""torchtitan's own default is per-op; what another framework's ``selective`` is, no column says."""

_JEAN_ZAY = "Jean Zay"
"""Equal runs of BigScience on its shared network differ by 40%."""


def rows(path: Path) -> Iterator[Row]:
    """Each run of the file."""
    return rows_of_csv(path, _row)


def _row(line: Line, catalog: Catalog) -> Row:
    if line["offload"] not in ("none", ""):
        return Row(name=line["id"], family="published", left_out="offloading that is not expressed")
    if line["compile"] == "":
        return Row(name=line["id"], family="published", left_out="it is not stated whether it was compiled")
    try:
        said = translated(line)
    except ValueError as error:
        return Row(name=line["id"], family="published", left_out=f"a number that cannot be read: {error}")
    row = express(said, catalog)
    return replace(row, family="published", soft=row.soft or _JEAN_ZAY in line["framework_version"])


def translated(line: Line) -> Line:
    """The row with the column names and values of throughput.csv."""
    said = {_NAMES.get(name, name): value for name, value in line.items()}
    said |= {name: line[name] or "1" for name in ("tp", "pp", "vpp", "cp", "ep")}
    accumulation = line["grad_accum"] or "1"
    if not line["global_batch"] and line["micro_batch"] and line["dp"]:
        said["global_batch"] = str(int(line["micro_batch"]) * int(accumulation) * int(line["dp"]))
    words = f"{line['precision']} {line['compile']}".lower()
    precision = next((word for pattern, word in _PRECISIONS if re.search(pattern, words)), "")
    fixed = (line["framework"], line["model_name"], line["gpu"], line["n_gpus"], line["seq_len"], said["global_batch"])
    gpus = int(line["n_gpus"] or 0)
    return said | {
        "problem": "|".join(("published", *fixed, precision)),
        "gpus_per_node": str(min(gpus, 4 if "V100" in line["gpu"] else 8)) if gpus else "",
        "zero": _ZERO.get(line["zero_stage"], line["zero_stage"]),
        "act_ckpt": _RECOMPUTE.get(line["act_ckpt"], line["act_ckpt"]),
        "precision": precision,
        "task": "lora" if line["lora_rank"] else "pretrain",
        "experts": "",
        "topk": "",
        "moe_ffn": "",
        "interconnect": "Jean Zay" if line["id"].startswith("bigsci") else "",
        "measured": "OOM" if line["oom"] == "true" else "",
    }
