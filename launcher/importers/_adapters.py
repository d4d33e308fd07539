"""LoRA and the chat template in files of fine-tuning programs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from launcher.data.template import shipped
from launcher.importers._reading import Reading
from launcher.importers._table import choose

ALL_LINEAR = ("all", "all-linear", "all_linear")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_LINEAR = (*_ATTENTION, "gate_proj", "up_proj", "down_proj")

_AS: Mapping[str, str] = {
    "gemma2": "gemma", "gemma3": "gemma", "gemma_chatml": "chatml", "mistral_v2v3": "mistral", "qwen_25": "qwen",
    "qwen2": "qwen", "qwen3_nothink": "chatml", "phi_3": "phi", "phi_35": "phi", "phi3": "phi", "yi": "chatml",
}  # fmt: skip
"""Names of other programs for the same text."""

_OWN = ("tokenizer_default", "default", "jinja")


def targets(reading: Reading, key: str) -> None:
    """Modules that an adapter is put on: all linear ones, or a list (also a line with commas)."""
    value = reading.value(key)
    found = value if isinstance(value, list) else re.split(r"[,\s]+", str(value).strip())
    names = [str(each) for each in found]
    if names and names[0] in ALL_LINEAR:
        names = list(_LINEAR)
    if not names or any(re.search(r"[^\w.-]", name) for name in names):
        reading.ledger.leave(key, "modules are named here, not matched: set adapter.targets")
    elif {*names} == {*_LINEAR}:
        reading.ledger.default(key)
    else:
        reading.say(key, {"adapter.targets": names})


def template(reading: Reading, key: str) -> None:
    """A chat template by its name: one that is shipped, or the tokenizer's own."""
    value = str(reading.value(key)).lower()
    known = _AS.get(value, value)
    if known in shipped():
        reading.say(key, {"data.template": known})
    elif value in _OWN or value.startswith("tokenizer_default"):
        reading.ledger.default(key)
    else:
        model = str(reading.choose.get("model", "")).lower()
        family = re.split(r"[\d_.-]", value)[0]
        if family and family in model and not re.search(r"base|pretrain", model):
            reading.ledger.leave(
                key, "the tokenizer's own template is taken, which is that of its chat models", matters=False
            )
        else:
            reading.ledger.leave(key, f"no template {value} here: set data.template to a Jinja file")


def kind(reading: Reading, key: str, names: Mapping[str, str]) -> None:
    """The kind of adapter by its word."""
    value = str(reading.value(key)).lower()
    found = names.get(value)
    if found is None:
        reading.ledger.leave(key, f"{value} is no adapter here: set adapter.name")
    elif found == "none":
        reading.ledger.default(key)
    else:
        choose(reading, key, {"adapter": found})
