"""LLaMA-Factory's YAML: keys and defaults of LLaMA-Factory 0.9.5 (``hparams``), beside those of the Trainer.

Parameters that are trained whole are in fp32 (``pure_bf16`` apart), those that LoRA leaves alone in 16 bits,
    and blocks are recomputed unless the file says otherwise.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.base.errors import ConfigError
from launcher.config.ledger import Ledger, name_from
from launcher.importers import Imported, _fine_tuning, _trainer
from launcher.importers._reading import KeyReader, content_of, flat
from launcher.importers._table import apply, imported, rows, table
from launcher.importers.megatron.arguments import degrees, enter, preset

_DEFAULTS: Mapping[str, Any] = {
    **_trainer.DEFAULTS, "train.sequence_length": 2048, "checkpointing": "full",
}  # fmt: skip
_LORA: Mapping[str, Any] = {"adapter.rank": 8, "adapter.dropout": 0.0}
_SETS: Mapping[str, Mapping[str, Any]] = table("data_sets")["llamafactory"]
"""Names of the ``data/dataset_info.json`` that is shipped, and where those data are."""

_TEMPLATES: Mapping[str, Sequence[str]] = table("data_sets")["llamafactory_templates"]


def read(text: str, path: str) -> Imported:
    """Read a LLaMA-Factory configuration; ``path`` is for messages; raises ConfigErrors where the text is none."""
    content = content_of(text, path, "a configuration of LLaMA-Factory")
    reading = KeyReader(path=path, lenient=True, file="LLaMA-Factory's YAML", ledger=Ledger(flat(content)))
    apply(TABLE, reading)
    _evaluates_on(reading)
    if not reading.flag("do_train"):
        rule = "LLaMA-Factory trains where it is true: this predicts, evaluates or exports"
        reading.errors.append(ConfigError(f"{path}: do_train", reading.value("do_train"), rule))
    of_megatron = _cut(reading)
    _trainer.shard(reading)
    adapter = _adapter(reading)
    _trainer.precision(reading, pure=reading.flag("pure_bf16") or bool(adapter))
    _trainer.finish(reading, {**_DEFAULTS, **adapter, **of_megatron})
    if reading.choose.get("adapter") == "none":
        del reading.choose["adapter"]
    if "model" in reading.choose:
        reading.settings.setdefault("data.tokenizer", reading.choose["model"])
    return imported(reading, name_from(str(content.get("model_name_or_path", path))), "LLaMA-Factory")


def _cut(reading: KeyReader) -> Mapping[str, Any]:
    """Defaults of a file for Megatron-core (``USE_MCA=1``), known by its degrees; empty for any other."""
    if not any(reading.has(f"{name}_model_parallel_size") for name in ("tensor", "pipeline", "expert")):
        return {}
    degree = degrees(reading)
    reading.choose["parallel"] = preset(degree)
    reading.settings |= {f"parallel.{name}": found for name, found in degree.items()}
    if degree["tensor"] == 1:
        reading.settings["parallel.sequence"] = False
    enter(reading, re.compile(r"(\w+)\Z"))
    return {"checkpointing": "none", "zero": "0"}


def _adapter(reading: KeyReader) -> dict[str, Any]:
    reading.choose.setdefault("adapter", "lora")
    if reading.choose["adapter"] in ("none", "oft", "qoft"):
        return {}
    rank = reading.settings.get("adapter.rank", _LORA["adapter.rank"])
    return {**_LORA, "adapter.alpha": 2 * rank}


def _template(reading: KeyReader, key: str) -> None:
    """A template by LLaMA-Factory's name: one that is shipped, the words that it has there, or the model's own."""
    words = _TEMPLATES.get(str(reading.value(key)))
    if reading.value("stage") == "pt":
        reading.idle("only rows of text are trained", key)
    elif words is None:
        _fine_tuning.template(reading, key)
    else:
        reading.say(key, {"data.template": _fine_tuning.turns(*words)})


def _data_sets(reading: KeyReader, key: str) -> None:
    value = reading.value(key)
    names = value if isinstance(value, list) else [each.strip() for each in str(value).split(",") if each.strip()]
    sets = []
    pretrains = str(reading.value("stage") or "sft") == "pt"
    try:
        weights = [float(each) for each in str(reading.value("interleave_probs") or "").split(",") if each.strip()]
    except ValueError:
        reading.wrong("interleave_probs", "is numbers with commas between them")
        return
    for place, name in enumerate(map(str, names)):
        found = _place(reading, name)
        if found is None:
            effect = f"dataset_info.json says where {name} is, which launch does not read: set data.path"
            reading.ledger.leave(key, effect)
            return
        said = {**found, "weight": weights[place] if place < len(weights) else None}
        prefers = str(reading.value("stage")) in ("dpo", "kto", "rm")
        source = "rows" if prefers else _fine_tuning.source_of(found["path"], chat=not pretrains)
        sets.append(
            _fine_tuning.DataSet(keys=(key, *(("interleave_probs",) if weights else ())), source=source, said=said)
        )
    _fine_tuning.say(reading, sets)


def _place(reading: KeyReader, name: str) -> Mapping[str, Any] | None:
    named = _SETS["hub"].get(name) or _SETS["files"].get(name, name)
    found = {"path": named} if isinstance(named, str) else named
    if name in _SETS["hub"] or "/" in found["path"]:
        return found
    if not found["path"].endswith((".json", ".jsonl", ".parquet", ".csv", ".txt")):
        return None
    return {**found, "path": f"{reading.value('dataset_dir') or 'data'}/{found['path']}"}


def _evaluates_on(reading: KeyReader) -> None:
    key = "eval_dataset"
    if reading.value(key) is None:
        return
    found = [_place(reading, each.strip()) for each in str(reading.value(key)).split(",")]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        reading.ledger.leave(key, "the location of a data set is unknown: set data.eval_path, or data.eval_sets")
        return
    _fine_tuning.say_evaluated(reading, [_fine_tuning.DataSet(keys=(key,), source="", said=each) for each in known])


def _saves_modules(reading: KeyReader, key: str) -> None:
    reading.say(key, {"adapter.modules_to_save": [each.strip() for each in str(reading.value(key)).split(",")]})


def _starts(reading: KeyReader, key: str) -> None:
    """PiSSA by ``pissa_iter`` iterations; -1 there is an exact SVD."""
    if not reading.flag(key):
        reading.ledger.default(key)
        return
    found = reading.number("pissa_iter")
    reading.say_together({"adapter.pissa": max(0, int(16 if found is None else found))}, key, "pissa_iter")


TABLE = rows(
    "llamafactory", _data_sets, _saves_modules, _starts,
    _fine_tuning.held_out, _fine_tuning.special_tokens, _fine_tuning.targets, _template,
    sharding=_trainer.SHARDING, trainer=_trainer.ROWS,
)  # fmt: skip
