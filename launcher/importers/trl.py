"""TRL's YAML (``trl sft --config``) and scripts, and TrainingArguments of the Trainer: keys and defaults of TRL 1.16.

Of a script the calls of ``SFTConfig``, ``LoraConfig``,
    ``load_dataset`` and the like are read as text. A YAML does not say
the task: its keys do, else it is fine-tuning, and ``--set task=dpo`` says another.
"""

from collections.abc import Mapping
from typing import Any

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.config.ledger import Ledger, name_from
from launcher.importers import Imported, _fine_tuning, _foreign, _trainer
from launcher.importers._reading import KeyReader, content_of, flat, parts
from launcher.importers._table import apply, choose, imported, program, rows, under

HAS_VARIABLES = True

_TASKS = ("sft", "dpo", "kto", "reward", "grpo")
_OF_TASKS: Mapping[str, str] = {
    key: task
    for task, keys in (
        ("grpo", "num_generations max_completion_length use_vllm reward_funcs reward_model_name_or_path"),
        ("kto", "desirable_weight undesirable_weight"),
        ("reward", "center_rewards_coefficient"),
        ("dpo", "precompute_ref_log_probs ld_alpha rpo_alpha beta max_prompt_length"),
    )
    for key in keys.split()
}
"""Keys that only one task has; the first that is there decides."""

_CLASSES = dict(zip(("SFTConfig", "DPOConfig", "KTOConfig", "RewardConfig", "GRPOConfig"), _TASKS, strict=True))
_RATES, _LORA, _PEFT, _PEFT_NAMES, _NOT_HERE = program("trl", "rates lora peft peft_names not_here")
_DEFAULTS: Mapping[str, Any] = {**_trainer.DEFAULTS, "train.sequence_length": 1024, "checkpointing": "full"}
"""Defaults of TRL's own arguments, and of peft's ``LoraConfig``."""


def read(text: str, path: str, *, variables: Mapping[str, str] | None = None) -> Imported:
    """Read a configuration or a script; ``task`` of the variables says what a YAML trains.

    Raises ConfigErrors where the text is none, or of a task that is not known here.
    """
    found_task = None
    python = path.endswith(".py") or _foreign.is_python(text)
    content, found_task = _script(text, path) if python else (content_of(text, path, "a configuration of TRL"), None)
    reading = KeyReader(path=path, lenient=True, file="TRL's configuration", ledger=Ledger(flat(content)))
    is_trainer = found_task == "trainer" or (found_task is None and not _of_trl(content))
    task = _task(reading, found_task, (variables or {}).get("task"), path)
    if not is_trainer:
        reading.choose["task"] = task
    _mixture(reading)
    apply(TABLE, reading)
    _trainer.shard(reading)
    _keeps_fp32(reading)
    _trainer.precision(reading, pure=_pure(reading), otherwise="fp32" if is_trainer else "bf16")
    _adapter(reading, python=python)
    if reading.choose.get("data") == "chat" and "data.train_on" not in reading.settings:
        reading.notes.append("TRL trains every token of conversations, and of questions and answers the answers, which"
                             " are trained here: data.train_on=all trains every token")  # fmt: skip
    defaults = dict(_DEFAULTS if not is_trainer else _trainer.DEFAULTS)
    if not is_trainer:
        defaults["optimizer.lr"] = _RATES[task]
    if "model" in reading.choose:
        defaults["data.tokenizer"] = reading.choose["model"]
    _trainer.finish(reading, defaults)
    return imported(reading, name_from(reading.choose.get("model", path)), "Trainer" if is_trainer else "TRL")


def _of_trl(content: JsonObject) -> bool:
    shared = {key for row in (*_trainer.SHARDING, *_trainer.ROWS) for key in row.keys}
    own = {key for row in TABLE for key in row.keys} - shared
    return bool(content.keys() & own)


def _script(text: str, path: str) -> tuple[JsonObject, str | None]:
    followed = _foreign.StaticEvaluation(text, path)
    found: JsonObject = {}
    task = None
    for call in followed.calls((
        *_CLASSES,
        *_NOT_HERE,
        "TrainingArguments",
        "LoraConfig",
        "load_dataset",
        "BitsAndBytesConfig",
    )):
        name = str(call.pop("class"))
        if name in _NOT_HERE:
            raise ConfigErrors([ConfigError(path, name, "experimental in TRL, and launch has no such task")])
        if name in _CLASSES or name == "TrainingArguments":
            task = _CLASSES.get(name, "trainer")
            found |= call
        elif name == "LoraConfig":
            found |= {"use_peft": True} | {
                _PEFT_NAMES.get(key, key if key.startswith("lora_") else f"lora_{key}"): value
                for key, value in call.items()
            }
        elif name == "BitsAndBytesConfig":
            found |= call
        else:
            found |= {f"load_dataset.{key}": value for key, value in call.items()}
    found |= _data_and_model(followed)
    if task is None:
        rule = f"it calls none of {', '.join(_CLASSES)} and TrainingArguments, whose arguments are read"
        raise ConfigErrors([ConfigError(path, None, rule)])
    return found, task


def _data_and_model(followed: _foreign.StaticEvaluation) -> JsonObject:
    found: JsonObject = {}
    for name, key in (("load_dataset", "dataset_name"), ("from_pretrained", "model_name_or_path")):
        places = followed.first(name)
        if places:
            found[key] = places[0]
    trainers = [f"{name.removesuffix('Config')}Trainer" for name in _CLASSES]
    models = [place for name in trainers for place in followed.first(name)]
    models += [each.get("model") for each in followed.calls(trainers)]
    if models and isinstance(models[0], str) and models[0] != "???":
        found["model_name_or_path"] = models[0]
    return found


def _task(reading: KeyReader, of_class: str | None, given: str | None, path: str) -> str:
    if given is not None and given not in _TASKS:
        raise ConfigErrors([
            ConfigError(
                path, given, f"the task is one of {', '.join(_TASKS)}", [f"--set task={each}" for each in _TASKS]
            )
        ])
    of_keys = next((task for key, task in _OF_TASKS.items() if reading.ledger.values.get(key) is not None), "sft")
    return given or (of_class if of_class in _TASKS else None) or of_keys


def _pure(reading: KeyReader) -> bool:
    word = str(reading.value("dtype") or reading.value("torch_dtype") or reading.value("model_init_kwargs.dtype")
               or reading.value("model_init_kwargs.torch_dtype") or "").lower()  # fmt: skip
    return word in ("bfloat16", "float16", "bf16") and reading.choose.get("adapter", "none") == "none"


def _adapter(reading: KeyReader, *, python: bool) -> None:
    if not reading.flag("use_peft"):
        return
    reading.choose.setdefault("adapter", "qlora" if reading.flag("load_in_4bit") else "lora")
    for setting, value in (_PEFT if python else _LORA).items():
        reading.settings.setdefault(setting, value)


def _prompts(reading: KeyReader, key: str) -> None:
    if reading.choose.get("task") == "grpo":
        answer = int(reading.number("max_completion_length") or 256)
        reading.say(key, {"train.sequence_length": int(reading.number(key) or 512) + answer})
    else:
        reading.ledger.leave(
            key, "launch shares train.sequence_length between prompt and answer: set train.sequence_length"
        )


def _keeps_fp32(reading: KeyReader) -> None:
    """FSDP2 and DeepSpeed train fp32 copies of weights loaded in bf16 (accelerate, ``fsdp2_prepare_model``)."""
    if reading.choose["parallel"] != "ddp" and reading.settings.pop("precision.parameters", None):
        for key in reading.ledger.saying("precision.parameters"):
            reading.ledger.default(key)


def _data_set(reading: KeyReader, key: str) -> None:
    task = reading.choose.get("task", "sft")
    path = str(reading.value(key))
    source = "rows" if task in ("dpo", "kto", "reward", "grpo") else "chat"
    choose(reading, key, {"data": source, "data.path": path})


def _mixture(reading: KeyReader) -> None:
    sets = []
    source = "rows" if reading.choose.get("task") in ("dpo", "kto", "reward", "grpo") else "chat"
    for place in parts(reading.ledger.values, "datasets"):
        path = _fine_tuning.path_of(reading.value(f"{place}.path"), reading.value(f"{place}.data_files"))
        if not isinstance(path, str):
            continue
        split = reading.value(f"{place}.split")
        said = {"path": path, "config": reading.value(f"{place}.name"), "split": split}
        keys = tuple(f"{place}.{name}" for name in ("path", "name", "split", "data_files"))
        sets.append(_fine_tuning.DataSet(keys=keys, source=source, said=said))
        apply(under(_OF_A_DATA_SET, f"{place}."), reading)
    _fine_tuning.say(reading, [*sets, *_mixer(reading, source)])


def _mixer(reading: KeyReader, source: str) -> list[_fine_tuning.DataSet]:
    """The alignment handbook's ``dataset_mixer``: data sets and their shares, of the splits whose names say train."""
    found = reading.value("dataset_splits")
    splits = [str(each) for each in (found if isinstance(found, list) else ["train", "test"])]
    sets = []
    for key in reading.inside("dataset_mixer"):
        share = round(100 * (reading.number(key) or 0.0))
        for split in (each if share >= 100 else f"{each}[:{share}%]" for each in splits if "train" in each):
            said = {"path": key.removeprefix("dataset_mixer."), "split": split}
            sets.append(_fine_tuning.DataSet(keys=(key, "dataset_splits"), source=source, said=said))
    held = [each for each in splits if "test" in each]
    if len(sets) == 1 and held:
        reading.settings["data.eval_split"] = held[0]
    return sets


_OF_A_DATA_SET = rows("trl_data_set")
TABLE = rows(
    "trl", _data_set, _fine_tuning.own_template, _fine_tuning.loss, _prompts,
    _fine_tuning.special_tokens, _fine_tuning.parameters, _fine_tuning.targets, _fine_tuning.template_values,
    sharding=_trainer.SHARDING, trainer=_trainer.ROWS,
)  # fmt: skip
