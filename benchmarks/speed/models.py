"""What a model's name says beyond the columns of a file (``models.yaml``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.speed.words import LeftOutError, Settings

TABLE = Path(__file__).with_name("models.yaml")

_SIZES = {
    "hidden": "model.hidden_size",
    "layers": "model.num_hidden_layers",
    "heads": "model.num_attention_heads",
    "kv_heads": "model.num_key_value_heads",
    "ffn": "model.intermediate_size",
    "vocab": "model.vocab_size",
    "experts": "model.num_experts",
    "topk": "model.num_experts_per_tok",
    "moe_ffn": "model.moe_intermediate_size",
}
_NEEDED = ("hidden", "layers", "heads", "vocab")


def model_words(line: Mapping[str, str]) -> tuple[str, Settings]:
    """The option of ``model=`` and the settings beside it.

    Raises:
        LeftOutError: Of the name nothing is known, or a size is blank that its public config does not have.
    """
    known = _named(line["model"])
    if "left_out" in known:
        raise LeftOutError(known["left_out"])
    settings: Settings = {"model.head_dim": "null", "model.max_position_embeddings": line["seq"]}
    settings |= {key: line[column] for column, key in _SIZES.items() if line.get(column)}
    settings |= known.get("set", {})
    if any(_SIZES[column] not in settings for column in _NEEDED):
        raise LeftOutError("the shape of the model is not stated")
    if not line["kv_heads"] and known["preset"] == "gpt3_175b":
        settings["model.num_key_value_heads"] = "null"
    elif not line["kv_heads"] and "model.num_key_value_heads" not in settings:
        raise LeftOutError("the shape of the model is not stated")
    if "model.intermediate_size" not in settings:
        settings["model.intermediate_size"] = _width(line, known["preset"])
    return known["preset"], settings


def _width(line: Mapping[str, str], preset: str) -> int:
    """Of an MLP that the row leaves blank: GPT's has 4 h."""
    if preset != "gpt3_175b":
        raise LeftOutError("the shape of the model is not stated")
    return 4 * int(line["hidden"])


@cache
def _named(name: str) -> dict[str, Any]:
    for entry in _table():
        if re.match(entry["matches"], name):
            return entry
    raise LeftOutError("a model of whose blocks nothing is known")


@cache
def _table() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = yaml.safe_load(TABLE.read_text())["models"]
    return entries
