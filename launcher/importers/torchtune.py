"""torchtune's YAML: the recipes that torchtune 0.6 ships (``recipes/configs``) and the arguments of their components.

Weights, gradients and optimizer states are in ``dtype``. A model's folder (``/tmp/Llama-3.2-1B-Instruct``) has the name
by which ``tune download`` fetched it, so that it is that model of the Hub.
"""

import re
from collections.abc import Mapping
from typing import Any

from launcher.config.ledger import Ledger, name_from
from launcher.importers import Imported, _fine_tuning
from launcher.importers._reading import KeyReader, content_of, flat, parts
from launcher.importers._table import apply, choose, defaults, imported, program, rows, say_text, table

_ORGANISATIONS, _TURNS, _DEFAULTS = program("torchtune", "organisations turns defaults")
_SETS: Mapping[str, Mapping[str, Any]] = table("data_sets")["torchtune"]
_TRAINS_ON_ALL = ("alpaca_dataset", "alpaca_cleaned_dataset", "grammar_dataset", "samsum_dataset")
"""Sets whose ``train_on_input`` is true where a file does not say."""


def read(text: str, path: str) -> Imported:
    """Read a torchtune recipe's configuration; ``path`` is for messages; raises ConfigErrors where the text is none."""
    content = content_of(text, path, "a configuration of torchtune")
    reading = KeyReader(path=path, lenient=True, file="torchtune's YAML", ledger=Ledger(flat(content)))
    _data_sets(reading)
    apply(TABLE, reading)
    _steps(reading)
    kept = {} if reading.choose.get("optimizer") != "sgd" else {"optimizer.beta2": 0.95}
    length = {} if "train.steps" in reading.settings else {"train.epochs": 1}
    defaults(reading, {**_DEFAULTS, **kept, **length})
    if reading.choose.get("precision") == "bf16" and "task" not in reading.choose:
        _fine_tuning.say_pure(reading, "dtype")
    elif reading.choose.get("precision") == "bf16" and "adapter" not in reading.choose:
        reading.ledger.leave("dtype", "TRL trains fp32 copies of weights that FSDP2 shards: set precision.parameters")
    if "model" in reading.choose:
        reading.settings.setdefault("data.tokenizer", reading.choose["model"])
    return imported(reading, name_from(reading.choose.get("model", path)), "torchtune")


def _model(reading: KeyReader, key: str) -> None:
    parts = [part for part in str(reading.value(key)).rstrip("/").split("/") if part != "original"]
    name = parts[-1] if parts else ""
    organisation = next((found for part, found in _ORGANISATIONS if name.lower().startswith(part)), None)
    found = f"{organisation}/{name}" if organisation else "/".join(parts)
    if name.lower().startswith("meta-llama"):
        found = f"meta-llama/{name}"
    choose(reading, key, {"model": found})


def _component(reading: KeyReader, key: str) -> None:
    builder = str(reading.value(key)).rpartition(".")[2]
    if re.search(r"classifier|reward|vision", builder):
        reading.ledger.leave(key, "not a text model: set model.hidden_size and the other sizes")
    elif builder.startswith(("lora_", "dora_")):
        choose(reading, key, {"adapter": "lora"} | ({"adapter.dora": True} if builder.startswith("dora_") else {}))
    elif builder.startswith("qlora_"):
        choose(reading, key, {"adapter": "qlora"})
    else:
        reading.ledger.default(key)
    if not _is_of(builder, str(reading.choose.get("model"))):
        reading.ledger.leave(key, "launch takes the model of the folder, and this one has other sizes: set model")


def _is_of(builder: str, model: str) -> bool:
    """False where a function builds a model of another family or size than a name says."""
    families = [
        re.findall("llama|qwen|gemma|mistral|phi", name.lower().rpartition("/")[2]) for name in (builder, model)
    ]
    named = re.search(r"(\d+(?:\.\d+)?)b\b", model.lower())
    size = "" if named is None else named[1].replace(".", "_")
    sizes = not size or not re.search(r"_\d+b", builder) or re.search(rf"_{size}b(?:_|\Z)", builder) is not None
    return bool(families[0]) and (not families[1] or (families[0][-1] == families[1][-1] and sizes))


def _targets(reading: KeyReader, key: str) -> None:
    named = reading.value("model.lora_attn_modules") or []
    if not isinstance(named, list):
        reading.wrong("model.lora_attn_modules", "is a list of modules")
        return
    found = [{"output_proj": "o_proj"}.get(str(each), str(each)) for each in named]
    found += ["gate_proj", "up_proj", "down_proj"] if reading.flag("model.apply_lora_to_mlp") else []
    found += ["lm_head"] if reading.flag("model.apply_lora_to_output") else []
    for each in ("model.lora_attn_modules", "model.apply_lora_to_mlp", "model.apply_lora_to_output"):
        if reading.ledger.values.get(each) is not None:
            reading.say(each, {"adapter.targets": found})


def _data_sets(reading: KeyReader) -> None:
    places = parts(reading.ledger.values, "dataset") or ["dataset"]
    sets = [found for place in places if (found := _set(reading, place)) is not None]
    trains = {_trains_prompts(reading, place) for place in places}
    _fine_tuning.say(reading, sets)
    if trains == {True}:
        reading.settings["data.train_on"] = "all"
    elif len(trains) > 1:
        reading.ledger.leave("dataset.0._component_", "launch trains prompts in all sets or in none: set data.mix")
    if reading.value("dataset_val._component_") == reading.value("dataset._component_") is not None:
        held_out = _set(reading, "dataset_val")
        if held_out is not None:
            evaluated = dict(_fine_tuning.differing(held_out))
            said = {f"data.eval_{name}": evaluated[name] for name in ("path", "split") if name in evaluated}
            reading.say_together(said, *held_out.keys)
            reading.idle("rows are read as those that are trained on", "dataset_val")


def _set(reading: KeyReader, place: str) -> _fine_tuning.DataSet | None:
    key, builder = f"{place}._component_", _builder(reading, place)
    known, files = _SETS.get(builder, {}), reading.value(f"{place}.data_files")
    path = _fine_tuning.path_of(reading.value(f"{place}.source"), files) or known.get("data.path")
    if not known or not isinstance(path, str):
        if reading.has(key):
            reading.ledger.leave(key, f"the rows of {builder} are unknown to launch: set data.path")
        return None
    split, own = reading.value(f"{place}.split"), reading.value(f"{place}.column")
    said = {
        "path": path,
        "template": _alpaca(reading) if "data.template" in known else None,
        "column": own or reading.value(f"{place}.conversation_column") or known.get("data.column"),
        "split": split,
        "config": reading.value(f"{place}.name"),
        "columns": _columns(reading, place, known.get("data.columns", {})),
    }
    source = "text" if known["data"] == "huggingface" and path == files else known["data"]
    reading.idle("launch detects the row format from its content", f"{place}.conversation_style", f"{place}.filter_fn")
    names = ("_component_", "source", "data_files", "split", "column", "conversation_column", "train_on_input", "name")
    keys = tuple(f"{place}.{name}" for name in names if reading.has(f"{place}.{name}"))
    keys += tuple(reading.inside(f"{place}.column_map"))
    return _fine_tuning.DataSet(keys=keys, source=source, said=said)


def _columns(reading: KeyReader, place: str, usual: Mapping[str, str]) -> Mapping[str, str] | None:
    """The columns of a data set by ``column_map``, whose names for a question and its answer are input and output."""
    said = {key.rpartition(".")[2]: str(reading.value(key)) for key in reading.inside(f"{place}.column_map")}
    if not said or not usual:
        return said or usual or None
    names = {"prompt": "input", "completion": "output"}
    return {name: said.get(names.get(name, name.partition(".")[0]), column) for name, column in usual.items()}


def _builder(reading: KeyReader, place: str) -> str:
    return str(reading.value(f"{place}._component_")).rpartition(".")[2]


def _trains_prompts(reading: KeyReader, place: str) -> bool:
    builder = _builder(reading, place)
    said = reading.ledger.values.get(f"{place}.train_on_input", builder in _TRAINS_ON_ALL)
    return said is True and _SETS.get(builder, {}).get("data") == "chat"


def _alpaca(reading: KeyReader) -> str:
    """Alpaca's prompt inside the turns that a model's tokenizer writes; those of Llama 2 and Mistral write none."""
    tokenizer = str(reading.ledger.values.get("tokenizer._component_")).rpartition(".")[2]
    return next((f"alpaca+{name}" for family, name in _TURNS if tokenizer.startswith(family)), "alpaca")


def _steps(reading: KeyReader) -> None:
    key = "max_steps_per_epoch"
    if reading.value(key) is not None and (steps := reading.count(key, 1)) is not None:
        epochs = reading.settings.pop("train.epochs", 1)
        reading.say(key, {"train.steps": max(1, int(steps * epochs))})
        reading.ledger.say("epochs", "train.steps")
    if reading.settings.get("train.steps"):
        reading.settings.pop("train.epochs", None)


def _reference(reading: KeyReader, key: str) -> None:
    """The model that answers are compared with: TRL's is the one that is trained, as it was."""
    if reading.value(key) == reading.value("checkpointer.checkpoint_dir"):
        reading.idle("the reference is the model before training", "ref_checkpointer")
    else:
        reading.ledger.leave(key, "launch uses the model before training as the reference: set model")


def _project(reading: KeyReader, key: str) -> None:
    if "WandB" in str(reading.ledger.values.get("metric_logger._component_")):
        say_text(reading, key, "tracking.project")
    else:
        reading.idle("of a tracker", key)


TABLE = rows("torchtune", _component, _model, _project, _reference, _targets)
