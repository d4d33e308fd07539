"""torchtitan's configurations: TOML of releases up to 0.2, and Python functions of 0.3 (``config_registry.py``).

Its models train from fresh weights in fp32 with bf16 computation, sharded by FSDP2 over the ranks that other degrees
leave. Sections that were renamed between releases are read under both names.
"""

import copy
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from launcher.base.files import JsonObject
from launcher.config.ledger import OPEN, Ledger
from launcher.importers import Imported, _foreign, _param_groups, _trainer
from launcher.importers._reading import KeyReader, flat
from launcher.importers._table import apply, choose, defaults, imported, program, rows, table

HAS_VARIABLES = True

_MODELS: Mapping[str, Mapping[str, Any]] = table("torchtitan_models")
"""Models by family and size: their name, and the sizes in which they differ from it."""

_BASES: Mapping[str, JsonObject] = table("torchtitan_bases")
"""Configurations that others start from, by the function that makes each."""

_ORGANISATIONS, _DECAYS, _DEFAULTS = program("torchtitan", "organisations decays defaults")
_SETS: Mapping[str, Mapping[str, Any]] = table("data_sets")["torchtitan"]


def read(text: str, path: str, *, variables: Mapping[str, str] | None = None) -> Imported:
    """Read a torchtitan configuration; of a Python text with several functions ``config`` names one.

    Raises ConfigErrors where the text is none, or several configurations.
    """
    function = (variables or {}).get("config")
    found, notes = _foreign.read(text, path, "a configuration of torchtitan", function, _RULES)
    python = notes is not None
    if python:
        found = _sections(found)
        if isinstance(found.get("optimizer"), dict):
            found["optimizer"] = _param_groups.as_one(found["optimizer"])
        family = _family_of(text, path, str(found.get("base") or function or ""))
        if family and "flavor" in found.get("model", {}):
            found["model"] = {"name": family, **found["model"]}
    ledger = Ledger(flat(found))
    reading = KeyReader(path=path, lenient=True, file="torchtitan's configuration", ledger=ledger, notes=notes or [])
    apply(TABLE, reading)
    saves = {} if "save.every" in reading.settings else {"save.last": False}
    unnamed = not any(map(reading.has, ("training.dataset", "training.dataset_path", "dataloader")))
    defaults(reading, {**_DEFAULTS, **saves, **(_SETS["c4_test"] if unnamed else {})})
    reading.settings["model.max_position_embeddings"] = reading.settings["train.sequence_length"]  # Its max_seq_len.
    if python and not (reading.has("model.attn_backend") or reading.has("hf_model")):
        reading.settings["data.packing"] = "documents"  # Its default, flex, keeps documents apart.
    _schedule(reading)
    _batch(reading)
    return imported(reading, reading.choose.get("model", "a model"), "torchtitan")


def _sections(found: JsonObject) -> JsonObject:
    found = _based(found)
    spec = found.pop("model_spec", None)
    content: JsonObject = {key: value for key, value in found.items() if key != "class"}
    if isinstance(spec, dict):
        content["model"] = {
            "flavor": spec.get("0"),
            **{key: value for key, value in spec.items() if key not in ("0", "class")},
        }
    if found.get("class") == _OF_GRAPHS:
        _recomputed(content)
    container = content.pop("model_converters", None)  # Of 0.2's later main branch.
    if isinstance(container, dict):
        content.setdefault("model", {})["converters"] = container.get("converters")
    _convert(content)
    rows_of = content.get("dataloader")
    if isinstance(rows_of, dict) and isinstance(rows_of.get("sample_processor"), list):
        rows_of["sample_processor"] = _turns(rows_of["sample_processor"])
    if isinstance(content.get("loss"), dict) and isinstance(content["loss"].get("loss_fn"), dict):
        content["loss"]["loss_fn"] = content["loss"]["loss_fn"].get("class")
    for section in [*content]:
        if isinstance(content[section], dict):
            content[section] = {{"0": "value"}.get(key, key): value for key, value in content[section].items()}
    return content


def _based(found: JsonObject) -> JsonObject:
    """A configuration with the function that it starts from, where that one's file is not beside its own."""
    name = str(found.get("class")).rpartition(".")[2]
    if "Config" in name:
        return found
    return {**_joined(copy.deepcopy(_BASES.get(name, {})), found), "class": "Trainer.Config", "base": name}


def _joined(base: JsonObject, own: JsonObject) -> JsonObject:
    """The sections of one over those of another; one that is made anew, with a class, takes the other's place."""
    changed = {key: value for key, value in own.items() if isinstance(value, dict) and "class" not in value}
    parts = {key: _joined(base[key], value) for key, value in changed.items() if isinstance(base.get(key), dict)}
    return {**base, **own, **parts}


def _starts(reading: KeyReader, key: str) -> None:
    known = reading.value(key) in _BASES
    effect = "torchtitan 0.3.0's version is used" if known else "what it sets is unknown: set model, data, train"
    reading.ledger.leave(key, f"its file is not beside this one, and {effect}", matters=not known)


def _traced(base: Any) -> Any:
    """The configuration that ``to_graph_trainer_config`` makes of another (``experiments/graph_trainer/configs.py``).

    Model, data, optimizer, loss and layout are the other's; ``compile`` is none.
    """
    if not isinstance(base, dict):
        return base
    return {key: value for key, value in _based(base).items() if key != "compile"} | {"class": _OF_GRAPHS}


_OF_GRAPHS = "GraphTrainer.Config"
_RULES = {"to_graph_trainer_config": _traced}


def _recomputed(content: JsonObject) -> None:
    """Say what GraphTrainer recomputes: its graph's passes choose, and without them it recomputes nothing."""
    compiled = content.get("compile")
    said: JsonObject = {"memory_policy": "default", **(compiled if isinstance(compiled, dict) else {})}
    mode = said.get("mode", "aot_fx_trace")
    passes = mode == "aot_fx_trace" and said.get("enable_passes") is not False
    content["activation_checkpoint"] = {"mode": "selective" if passes else "none"}
    content["compile"] = said if mode else {**said, "enable": False}


def _convert(content: JsonObject) -> None:
    """Name the converters of a model's linears, with what is said of fp8 and of LoRA, each in a section of its own."""
    converters = content.get("model", {}).get("converters")
    [first, *others] = converters if isinstance(converters, list) and converters else [None]
    if not others and isinstance(first, dict) and str(first.get("class")).startswith("LoRAConverter"):
        said = {key: value for key, value in first.items() if key != "class" and value is not None}
        content["lora"] = {"rank": 8, "alpha": 16, "target_modules": "all", **said}
        content["model"]["converters"] = converters = []
    if isinstance(converters, list):
        kinds = [str(each.get("class") if isinstance(each, dict) else each) for each in converters]
        content["model"]["converters"] = [kind.partition("LinearConverter")[0].lower() for kind in kinds]
        for each in converters:
            for start, name in (("Float8Linear", "float8"), ("MXFP8Linear", "mx"), ("NVFP4Linear", "mx")):
                if isinstance(each, dict) and str(each.get("class")).startswith(start):
                    said = {key: each[key] for key in each if key not in ("class", "model_compile_enabled")}
                    content[name] = ({"recipe_name": "rowwise"} if name == "float8" else {}) | said


def _turns(messages: list[Any]) -> Any:
    """The columns of a question and its answer, as one text; any other conversation is left open."""
    roles = [each.get("role") if isinstance(each, dict) else None for each in messages]
    texts = [str(each.get("content")) if isinstance(each, dict) else "" for each in messages]
    found = [re.fullmatch(r"\{([\w.-]+)\}", text) for text in texts]
    return " ".join(each[1] for each in found if each) if roles == ["user", "assistant"] and all(found) else OPEN


def _conversations(reading: KeyReader, key: str) -> None:
    """Rows of a data set as question and answer, by the function that makes them of its columns."""
    columns, files = str(reading.value(key)).split(), reading.value("dataloader.load_dataset_kwargs.data_files")
    path = files if reading.value("dataloader.dataset_path") == "json" else reading.value("dataloader.dataset_path")
    if len(columns) != 2 or not isinstance(path, str):
        reading.ledger.leave(key, "a function of torchtitan makes its rows: set data.path and data.columns")
        return
    said = {"data": "chat", "data.path": path, "data.columns": {"prompt": columns[0], "completion": columns[1]}}
    choose(reading, key, said)
    for name, setting in (("split", "data.split"), ("name", "data.config"), ("revision", "data.revision")):
        if (value := reading.value(f"dataloader.load_dataset_kwargs.{name}")) is not None:
            choose(reading, f"dataloader.load_dataset_kwargs.{name}", {setting: str(value)})
    for name in ("class", "dataset_path", "load_dataset_kwargs.data_files"):
        reading.ledger.say(f"dataloader.{name}", "data.path")


def _names(reading: KeyReader, key: str) -> None:
    flavor = str(reading.value("model.flavor") or "").lower()
    family = str(reading.value("model.name") or _family(reading)).lower()
    found = _MODELS.get(family or "llama3", {}).get(flavor, {})
    if (hub := reading.value("hf_model")) and flavor in _MODELS[_OF_THE_HUB]:
        family, found = _OF_THE_HUB, {"model": str(hub), **_MODELS[_OF_THE_HUB][flavor]}
        reading.notes.append("torchtitan starts embeddings at a deviation of 1 and takes attention's biases away there")
    if key == "model.name" and flavor:
        reading.ledger.say(key, "model") if len(found) == 1 else reading.ledger.default(key)
        return
    if found and (family in ("deepseek_v3", "gpt_oss") or re.search(r"moe|-a\d+b", flavor)):
        reading.notes.append("torchtitan balances experts by a bias (load_balance_coeff), which launch does not update")
    if found and (family or len(found) > 1):
        choose(reading, key, {**found, "model.weights": None} if "/" in found["model"] else found)
    else:
        effect = f"no model {family} {flavor} here: set model.hidden_size and the other sizes"
        reading.ledger.leave(key, effect)


_OF_THE_HUB = "transformers_modeling_backend"  # Experiments whose model is one of transformers.


def _family_of(text: str, path: str, function: str) -> str:
    """The family whose Python a registry is: by the module that it imports its models from, its folder or its name."""
    found = re.findall(r"from torchtitan\.models\.(\w+)(?:\.config_registry)? import ", text)
    named: set[str] = _MODELS.keys() & set(found)
    if len(named) == 1:
        return named.pop()
    file = PurePath(path)
    if file.name == "config_registry.py" and file.parent.name:
        return file.parent.name
    names = re.findall(r"^def (\w+)", text, re.MULTILINE) if not function else [function]
    return next((family for family in _MODELS for name in names if name.startswith(f"{family}_")), "")


def _family(reading: KeyReader) -> str:
    path = str(reading.value("hf_assets_path") or reading.value("model.hf_assets_path") or "").lower()
    found = {"llama-3": "llama3", "qwen3": "qwen3", "deepseek": "deepseek_v3", "gpt-oss": "gpt_oss"}
    return next((family for part, family in found.items() if part in path), "llama3" if "tests/assets" in path else "")


def _assets(reading: KeyReader, key: str) -> None:
    """The folder of tokenizer and weights: ``./assets/hf/Llama-3.1-8B`` is that model of the Hub."""
    path = str(reading.value(key)).rstrip("/")
    name = path.rpartition("/")[2]
    owners = (owner for part, owner in _ORGANISATIONS if name.lower().startswith((part, f"meta-{part}")))
    owner = next(owners, None) if "assets/hf" in path else None
    if path.endswith("tokenizer.model") and str(reading.value("model.name") or "llama3").lower() == "llama3":
        reading.say(key, {"data.tokenizer": "meta-llama/Meta-Llama-3-8B"})  # Whose file it is, in its first form.
    else:
        reading.say(key, {"data.tokenizer": f"{owner}/{name}" if owner else path})


def _data(reading: KeyReader, key: str) -> None:
    word = str(reading.value(key))
    path = next((str(reading.value(each)) for each in (f"{key}_path",) if reading.value(each)), None)
    if path is None and word not in _SETS:
        reading.ledger.leave(key, f"only torchtitan knows where {word} is: set data.path")
        return
    said = dict(_SETS.get(word, {"data": "huggingface"})) | ({"data.path": path} if path else {})
    choose(reading, key, said)
    reading.ledger.say(f"{key}_path", "data.path")


def _evaluates(reading: KeyReader, key: str) -> None:
    word = str(reading.value(key))
    block = key.partition(".")[0]
    if not (reading.value(f"{block}.enable") or reading.value(f"{block}.enabled")):
        reading.idle("validation is off", key)
    elif word in ("c4_validation", "c4_test"):
        choose(reading, key, {"data.eval_path": _SETS[word]["data.path"]} | (
            {"data.eval_split": "validation"} if word == "c4_validation" else {}))  # fmt: skip
    else:
        reading.ledger.leave(key, f"only torchtitan knows where {word} is: set data.eval_path")


def _every_nth(reading: KeyReader, key: str) -> None:
    option = str(reading.value(key))
    if option == "op" or reading.value("activation_checkpoint.mode") != "selective":
        reading.ledger.default(key)
    elif option == "1":
        choose(reading, key, {"checkpointing": "full"})
    elif option.isdigit() and isinstance(layers := reading.settings.get("model.num_hidden_layers"), int):
        reading.say(key, {"checkpointing.method": "block", "checkpointing.layers": -(-layers // max(1, int(option)))})
    else:
        effect = "torchtitan recomputes every n-th block, launch the first ones: set checkpointing.layers"
        reading.ledger.leave(key, effect)


def _loads(reading: KeyReader, key: str) -> None:
    if key.endswith("initial_load_in_hf") and reading.flag(key):
        where = reading.value("checkpoint.initial_load_path") or reading.settings.get("data.tokenizer")
        reading.say(key, {"model.weights": where})
    elif not reading.flag(key):
        reading.ledger.default(key)


_SHARING = {"mx": "mxfp8", "mxfp8": "mxfp8", "quantize.linear.mx": "mxfp8", "nvfp4": "nvfp4"}
"""Converters to formats whose numbers share scales, by name, and the precision."""


def _converters(reading: KeyReader, key: str) -> None:
    found = {str(each) for each in reading.listed(key)}
    if found <= {"float8", "quantize.linear.float8", "quantize.dense.float8"} and found:
        choose(reading, key, {"precision": "fp8"})
        if not any(reading.value(f"{each}.filter_fqns") for each in found):
            reading.notes.append("the output projection computes in fp8 there, too, and in bf16 here")
    elif len(found) == 1 and (word := _SHARING.get(min(found))):
        choose(reading, key, {"precision": word})
        if word in found and not reading.value("mx.fqns"):
            reading.notes.append(f"the output projection computes in {word} there, too, and in bf16 here")
    elif not found or found == {"None"}:
        reading.ledger.default(key)
    else:
        found_here = "FSDP has fp8, mxfp8 or nvfp4 in all linears of blocks, and experts in bf16: set precision"
        reading.ledger.leave(key, f"{', '.join(sorted(found))}: {found_here}")


def _adapts(reading: KeyReader, key: str) -> None:
    """LoRA beside the linears that it names by torchtitan's words, the same in every block."""
    name, found = key.partition(".")[2], [str(each) for each in reading.listed(key)]
    if name in ("rank", "alpha"):
        reading.say_count(key, f"adapter.{name}", 1)
    elif name == "target_modules" and {*found} <= _LINEARS.keys():
        reading.say(key, {"adapter.targets": [ours for each in found for ours in _LINEARS[each].split()]})
    else:
        reading.ledger.leave(key, "launch adds LoRA to named linear layers of the blocks: set adapter.targets")
    reading.choose["adapter"] = "lora"


_LINEARS = {"wq": "q_proj", "wk": "k_proj", "wv": "v_proj", "wkv": "k_proj v_proj", "wo": "o_proj", "w1": "gate_proj",
            "w2": "down_proj", "w3": "up_proj", "wq_a": "q_a_proj", "wq_b": "q_b_proj",
            "wkv_a": "kv_a_proj_with_mqa", "wkv_b": "kv_b_proj"}  # fmt: skip


def _schedule(reading: KeyReader) -> None:
    """The decay: over a ratio of the run at its end (``wsd``), or over all that follows the warm-up."""
    block = "lr_scheduler"
    ratio, kind = reading.number(f"{block}.decay_ratio"), str(reading.value(f"{block}.decay_type") or "linear")
    steps = reading.settings.get("train.steps", 10000)
    warmup = reading.settings.setdefault("optimizer.warmup_steps", 200)
    if ratio is None and kind in ("linear", "cosine"):
        said: dict[str, Any] = {"optimizer.schedule": kind}
    else:
        decay = max(1, round(steps * ratio)) if ratio is not None else max(1, steps - warmup)
        decay = min(decay, max(1, steps - warmup))
        said = {
            "optimizer.schedule": "wsd",
            "optimizer.wsd_decay_steps": decay,
            "optimizer.wsd_decay": _DECAYS.get(kind, "linear"),
        }
    reading.say_together(said, f"{block}.decay_ratio", f"{block}.decay_type")
    if kind not in _DECAYS:
        reading.ledger.leave(f"{block}.decay_type", f"{kind} is not a decay of torchtitan: set optimizer.schedule")
    factor = reading.number(f"{block}.min_lr_factor") or reading.number(f"{block}.lr_min") or 0.0
    for key in (f"{block}.min_lr_factor", f"{block}.lr_min"):
        if reading.value(key) is not None:
            reading.say(
                key, {"optimizer.min_lr": _trainer.times(factor, reading.settings["optimizer.lr"])} if factor else {}
            )


def _batch(reading: KeyReader) -> None:
    if (reading.number("parallelism.pipeline_parallel_degree") or 1) <= 1:
        return
    local = reading.settings["train.micro_batch_size"]
    size = int(reading.number("parallelism.pipeline_parallel_microbatch_size") or 1)
    said = {"train.micro_batch_size": size, "train.gradient_accumulation": max(1, local // size)}
    keys = ("parallelism.pipeline_parallel_microbatch_size", "training.local_batch_size", "training.batch_size")
    reading.say_together(said, *keys)


def _compiles(reading: KeyReader, key: str) -> None:
    parts = reading.value("compile.components")
    if reading.flag(key) and isinstance(parts, list) and "model" not in parts:
        reading.ledger.leave(key, "launch does not compile the loss separately, with the same maths", matters=False)
    elif reading.flag(key):
        reading.say(key, {"train.compile": True})
    elif reading.ledger.is_open(key):
        reading.ledger.default(key)


def _sequence(reading: KeyReader, key: str) -> None:
    degree = int(reading.number(key) or 1)
    sequence = reading.ledger.values.get("parallelism.enable_sequence_parallel", True)
    reading.say(key, {"parallel.tensor": degree, **({"parallel.sequence": bool(sequence)} if degree > 1 else {})})


TABLE = rows(
    "torchtitan", _adapts, _assets, _compiles, _conversations, _converters, _data, _evaluates, _every_nth,
    _loads, _names, _sequence, _starts,
)  # fmt: skip
