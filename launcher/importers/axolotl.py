"""axolotl's YAML: keys and defaults of axolotl 0.21 (``utils/schemas``), and older spellings.

Without a DeepSpeed file or FSDP it trains by DDP. The model is loaded in the format that it computes in, so that
without ZeRO parameters, gradients and optimizer states are in 16 bits.
"""

import re
from typing import Any

from launcher.base.files import JsonObject
from launcher.config.ledger import Ledger, name_from
from launcher.data import chat
from launcher.importers import Imported, _fine_tuning, _trainer
from launcher.importers._reading import KeyReader, content_of, flat, parts
from launcher.importers._table import apply, choose, imported, program, rows, table, under

_TEMPLATED = ("chat_template", "sharegpt", "chatml", "completion", "pretrain")
_DEFAULTS, _PLUGINS = program("axolotl", "defaults plugins")
_WARMUP_RATIO = 0.03  # What core/builders/base.py takes for what the file does not say.


def read(text: str, path: str) -> Imported:
    """Read an axolotl configuration; ``path`` is for messages; raises ConfigErrors where the text is none."""
    content = content_of(text, path, "a configuration of axolotl")
    reading = KeyReader(path=path, lenient=True, file="axolotl's YAML", ledger=Ledger(flat(content)))
    _data_sets(reading)
    apply(TABLE, reading)
    if reading.has("datasets") and not reading.has("excess_length_strategy"):
        reading.notes.append("axolotl drops samples longer than sequence_len, launch truncates them")
    _trainer.shard(reading)
    _trainer.precision(reading, pure=True, otherwise="bf16")  # Its default is auto.
    reading.settings.setdefault("data.tokenizer", reading.choose.get("model"))
    warms = reading.has("warmup_steps") or reading.has("warmup_ratio")
    _trainer.finish(reading, _DEFAULTS if warms else {**_DEFAULTS, "optimizer.warmup_ratio": _WARMUP_RATIO})
    return imported(reading, name_from(str(content.get("base_model", path))), "axolotl")


def _plugins(reading: KeyReader, key: str) -> None:
    found = [str(each).rpartition(".")[2] for each in reading.listed(key)]
    unknown = [name for name in found if name not in _PLUGINS]
    if unknown:
        reading.ledger.leave(key, f"{', '.join(unknown)} changes the training, and launch has no such feature")
    elif "CutCrossEntropyPlugin" in found and not reading.has("cut_cross_entropy"):
        reading.say(key, {"train.loss": "fused"})
    else:
        reading.ledger.default(key)


def _thaws(reading: KeyReader, key: str) -> None:
    """Parameters that are trained by patterns: all of the text's, or another training than there is here."""
    names = {re.sub(r"^\^|\.?\*?\$?$", "", str(each)).strip(".*") for each in reading.listed(key)}
    whole = {"model", "model.language_model", "language_model"}
    of_the_text = bool(names & whole) and names <= whole | _OUTSIDE
    if of_the_text and reading.value("adapter") is None:
        reading.ledger.default(key)
    elif of_the_text:
        effect = "launch trains an adapter beside frozen weights; axolotl 0.21 would freeze it too by these names"
        reading.ledger.leave(key, effect, matters=False)
    else:
        reading.ledger.leave(key, "launch trains all parameters or an adapter, not a subset: set adapter.name")


_OUTSIDE = {"lm_head", "embed_tokens", "model.embed_tokens"}


def _thinks(reading: KeyReader, key: str) -> None:
    """Accept the key of a turn's reasoning where row and template have one name for it; else say what is left out."""
    place = key.rpartition(".")[0]
    if reading.value(f"{place}.field_thinking") == reading.value(f"{place}.template_thinking_key"):
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, "the template must know the key of a turn's reasoning: set data.path")


def _data_sets(reading: KeyReader) -> None:
    values = reading.ledger.values
    for block in ("datasets", "pretraining_dataset"):
        places = parts(values, block)
        _fine_tuning.say(reading, [each for place in places for each in _data_set(reading, place, block)])
    if isinstance(values.get("pretraining_dataset"), str):
        path = values["pretraining_dataset"]
        said = {"path": path}
        _fine_tuning.say(
            reading, [_fine_tuning.DataSet(keys=("pretraining_dataset",), source="huggingface", said=said)]
        )
    found = (_evaluated(reading, place) for place in parts(values, "test_datasets"))
    _fine_tuning.say_evaluated(reading, [each for each in found if each is not None])


def _evaluated(reading: KeyReader, place: str) -> _fine_tuning.DataSet | None:
    said = {name: reading.value(f"{place}.{key}") for name, key in (("split", "split"), ("config", "name"))}
    said["path"] = _fine_tuning.path_of(reading.value(f"{place}.path"), reading.value(f"{place}.data_files"))
    if not isinstance(said["path"], str):
        return None
    apply(under(_OF_A_DATA_SET, f"{place}."), reading)
    keys = (f"{place}.{name}" for name in ("path", "data_files", "split", "name"))
    return _fine_tuning.DataSet(keys=tuple(filter(reading.has, keys)), source="", said=said)


def _data_set(reading: KeyReader, place: str, block: str) -> list[_fine_tuning.DataSet]:
    value, kind = reading.value, reading.value(f"{place}.type")
    path = _fine_tuning.path_of(value(f"{place}.path"), value(f"{place}.data_files"))
    paths = path if isinstance(path, list) else [path]
    if not all(isinstance(each, str) for each in paths):
        return []
    pretrains = block == "pretraining_dataset" or kind in ("completion", "pretrain")
    column = value(f"{place}.text_column") or value(f"{place}.field") if pretrains else value(f"{place}.field_messages")
    split = _shard(reading, place)
    said = {
        "config": value(f"{place}.name"),
        "split": split,
        "revision": value(f"{place}.revision"),
        "column": None if column in ("text", "messages", "conversations") else column,
        "weight": value(f"{place}.weight"),
    }
    names = {
        "path",
        "name",
        "split",
        "revision",
        "weight",
        *(("text_column", "field") if pretrains else ("field_messages",)),
    }
    keys = [f"{place}.{name}" for name in names if value(f"{place}.{name}") is not None]
    if (value(f"{place}.data_files") is not None and value(f"{place}.path") is None) or path != value(f"{place}.path"):
        keys.append(f"{place}.data_files")
    elif value(f"{place}.data_files"):
        reading.ledger.leave(f"{place}.data_files", "launch reads all files of the path: set data.path to these")
    own = _of_kind(reading, place, str(kind)) or (None if _prefers(reading) else _format(reading, place))
    if own:
        said |= own
        keys += list(reading.inside(f"{place}.type", *(f"{place}.{name}" for name in _FIELDS)))
    else:
        _type(reading, place, kind)
    apply(under(_OF_A_DATA_SET, f"{place}."), reading)
    found = []
    for each in paths:
        source = "rows" if _prefers(reading) else _fine_tuning.source_of(each, chat=not pretrains)
        found.append(_fine_tuning.DataSet(keys=tuple(keys), source=source, said={"path": each, **said}))
    return found


def _prefers(reading: KeyReader) -> bool:
    """True if rows hold preferences, and no conversation."""
    return reading.value("rl") is not None or reading.flag("reward_model")


def _shard(reading: KeyReader, place: str) -> Any:
    split, shards = reading.value(f"{place}.split"), reading.value(f"{place}.shards")
    first = reading.value(f"{place}.shards_idx") or 0
    if not isinstance(shards, int) or not isinstance(first, int) or shards < 1 or 100 % shards or "[" in str(split):
        return split
    for key in (f"{place}.shards", f"{place}.shards_idx"):
        if reading.has(key):
            reading.ledger.say(key, "data.split")
    return f"{split or 'train'}[{first * 100 // shards}%:{(first + 1) * 100 // shards}%]"


_ALPACA = ("alpaca", "alpaca:instruct", "alpaca_instruct", "alpaca_instruct.load")
_STYLES, _TYPES, _PAIRS, _JUDGED, _OF_PAIRS = map(
    table("data_sets")["axolotl"].get, ("styles", "types", "pairs", "judged", "of_pairs")
)
"""Tables of rows by their type: words around the system's text, a turn with an input and one without
(``prompters.py``), a type's style, own words and columns (``prompt_strategies``), and columns of preferences
(``prompt_strategies/dpo`` and ``kto``) by a type's last name, and types whose columns are TRL's own."""


def _format(reading: KeyReader, place: str) -> JsonObject:
    """Columns and words of rows that the file describes (axolotl's ``user_defined.py``); nothing where it does not."""

    def value(name: str) -> str:
        return str(reading.value(f"{place}.type.{name}") or "")

    whole, system = value("format"), value("system_format") or "{system}"
    template = _fine_tuning.written(whole, value("no_input_format") or whole, system)
    if not whole or value("system_prompt") or value("field") or template is None:
        return {}
    names = {name: value(f"field_{name}") or name for name in ("instruction", "output")}
    names |= {name: value(f"field_{name}") for name in ("input", "system") if value(f"field_{name}")}
    own = tuple(names[name] for name in ("instruction", "output")) in chat.PAIRS and names.get("input") in (
        None,
        "input",
    )
    return {"template": template} if own else {"template": template, "columns": names}


def _of_kind(reading: KeyReader, place: str, kind: str) -> JsonObject | None:
    """What a data set's type says of its rows; None where nothing is known of it here."""
    family, _, name = kind.partition(".")
    if not _prefers(reading):
        return {"template": "alpaca"} if kind in _ALPACA else _written(_TYPES.get(kind))
    pairs = _JUDGED if reading.value("rl") == "kto" else _PAIRS
    if family in ("chatml", "llama3") and name in pairs:
        return {"columns": pairs[name], "template": None if reading.has("chat_template") else family}
    fields = {name: str(reading.value(f"{place}.field_{name}") or name) for name in ("messages", "chosen", "rejected")}
    if kind in ("chat_template", "chat_template.default", "bradley_terry.chat_template") and reading.has(
        f"{place}.field_messages"
    ):
        return {"columns": {"prompt": fields.pop("messages"), **fields}}
    return {} if kind in _OF_PAIRS else None


def _written(found: JsonObject | None) -> JsonObject | None:
    """The template and the columns of a type that has words of its own; None where it is unknown."""
    if found is None:
        return None
    system, whole, short = _STYLES[found["style"]]
    words = found.get("words", ["", ""])
    if words != "own":  # Else the system's text is a column.
        before = [system.replace("{system}", word) if word else "" for word in words]  # noqa: RUF027
        whole, short, system = before[0] + whole, before[1] + short, ""
    own = {"columns": found["columns"]} if "columns" in found else {}
    return {"template": _fine_tuning.written(whole, short, system), **own}


def _type(reading: KeyReader, place: str, kind: object) -> None:
    key, word = f"{place}.type", str(kind).split(":")[0].split(".")[0]
    if kind is None or isinstance(kind, dict) or reading.has(f"{key}.field_instruction"):
        reading.leave("launch renders rows with a chat template: set data.template and data.columns", key)
    elif str(kind) in _OF_PAIRS if _prefers(reading) else word in _TEMPLATED or str(kind) == "alpaca:chat_template":
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, f"rows of the type {kind} are unknown to launch: set data.columns")


def _balances(reading: KeyReader, key: str) -> None:
    """A loss that balances experts, by the weight that their published configurations give it."""
    name = str(reading.value("base_model")).lower()
    found = next((weight for part, weight in (("mixtral", 0.02), ("qwen", 0.001)) if part in name), None)
    if not reading.flag(key):
        reading.ledger.default(key)
    elif found is None:
        reading.ledger.leave(key, "the model's config.json has its weight: set model.router_aux_loss_coef")
    else:
        reading.say(key, {"model.router_aux_loss_coef": found})


def _liger(reading: KeyReader, key: str) -> None:
    names = ("liger_rope", "liger_rms_norm", "liger_swiglu", "liger_glu_activation")
    if reading.flag(key):
        choose(reading, key, {"train.kernels": "liger"})
    elif any(reading.flag(name) for name in names):
        effect = "launch enables Liger's norms, rotation and MLPs together, with the same maths"
        reading.ledger.leave(key, effect, matters=False)
    else:
        reading.ledger.default(key)


def _accumulates(reading: KeyReader, key: str) -> None:
    """The samples of a step on one rank, which say the accumulation where the file does not."""
    size, micro = reading.count(key, 1), reading.settings.get("train.micro_batch_size", 1)
    if reading.has("gradient_accumulation_steps") or size is None:
        reading.idle("what the other two make", key)
    else:
        reading.say(key, {"train.gradient_accumulation": max(1, size // micro)})


def _lowest_rate(reading: KeyReader, key: str) -> None:
    share, rate = reading.number(key), reading.number("learning_rate")
    reading.say(key, {"optimizer.min_lr": _trainer.times(share, rate)})


def _project(reading: KeyReader, key: str) -> None:
    choose(reading, key, {"tracking": "wandb", "tracking.project": str(reading.value(key))})


_FIELDS = ("field_messages", "field_chosen", "field_rejected")
_OF_A_DATA_SET = rows("axolotl_data_set", _thinks, _fine_tuning.template)
TABLE = rows(
    "axolotl", _accumulates, _balances, _liger, _lowest_rate, _plugins, _project,
    _thaws,
    _trainer.say_interval, _fine_tuning.held_out, _fine_tuning.own_template, _fine_tuning.parameters,
    _fine_tuning.targets, _fine_tuning.template,
    _fine_tuning.loss, _fine_tuning.special_tokens, _fine_tuning.template_values,
    sharding=_trainer.SHARDING, trainer=_trainer.ROWS,
)  # fmt: skip
