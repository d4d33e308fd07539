"""Megatron Bridge's recipes: Python functions that fill a ``ConfigContainer`` (release 0.6), and YAML of its sections.

Its sections hold Megatron-core's dataclasses, so that a key without a setting here means what the argument of
Megatron-LM of the same name does (``launcher.importers.megatron.arguments``). What ``_pretrain_common`` sets is known.
"""

import re
from collections.abc import Mapping
from typing import Any

from launcher.base.files import JsonObject
from launcher.config.ledger import OPEN, Ledger
from launcher.importers import Imported, _fine_tuning, _foreign, _trainer
from launcher.importers._reading import KeyReader, flat
from launcher.importers._table import apply, choose, defaults, imported, program, rows, say_text, table, usual
from launcher.importers.megatron.arguments import degrees, enter, preset
from launcher.importers.megatron.data_and_saves import mixed

HAS_VARIABLES = True

_PRECISION, _COMMON, _SFT, _STATES, _SHORT, _HYBRID = program(
    "megatron_bridge", "precision common sft states short hybrid"
)
_WRITTEN = {"data.template": _fine_tuning.written("{instruction} ", "{instruction} ", "{system} ", begins="")}
_SETS: Mapping[str, Mapping[str, Any]] = {
    name: {**said, **(_WRITTEN if "data.columns" in said else {})}
    for name, said in table("data_sets")["megatron_bridge"].items()
}
_SQUAD = _SETS["squad"]
_BASES: Mapping[str, Mapping[str, Any]] = {
    "_pretrain_common": _COMMON,
    "_sft_common": {**_COMMON, **_SFT},
    "_peft_common": {**_COMMON, **_SFT, "optimizer.lr": 1e-4},
}
_DEFAULTS: Mapping[str, Any] = {"precision": "bf16", "data": "synthetic"}
_SECTIONS = re.compile(
    r"(?:model|mixed_precision|ddp|optimizer|scheduler|train|validation|checkpoint|logger|rng|dist|dataset)\.(\w+)\Z"
)


def read(text: str, path: str, *, variables: Mapping[str, str] | None = None) -> Imported:
    """Read a recipe or a YAML of its sections; of a Python text with several functions ``config`` names one.

    Raises ConfigErrors where the text is none, or several recipes.
    """
    content, notes = _foreign.read(text, path, "a configuration of Megatron Bridge", (variables or {}).get("config"))
    base = str(content.pop("class", ""))
    made = _annealed(content)
    values = _named(content) | ({"recipe": base} if base else {})
    if values.get("mixed_precision.value") == OPEN and base in _BASES:
        values["mixed_precision.value"] = "bf16_mixed"  # As the common recipes have it.
    file = "Megatron Bridge's configuration"
    reading = KeyReader(path=path, lenient=True, file=file, ledger=Ledger(values), notes=notes or [])
    if values.get("checkpoint.load") == values.get("checkpoint.save"):
        reading.idle("a run resumes from its own checkpoints", "checkpoint.load")
    apply(TABLE, reading)
    enter(reading, _SECTIONS)
    common = {**_BASES.get(base, {}), **made, **_DEFAULTS}
    if "optimizer.warmup_ratio" in reading.settings:
        common.pop("optimizer.warmup_steps", None)
    if values.get("checkpoint.save_interval", "") is None:
        common.pop("save.every", None)
    defaults(reading, common)
    _finish(reading)
    return imported(reading, reading.choose.get("model", "a model"), "Megatron Bridge")


def _annealed(content: JsonObject) -> dict[str, Any]:
    """Defaults of ``distributed_fused_adam_with_cosine_annealing`` (optimizer_utils.py), which makes both sections.

    The schedule's weight decay is the one that holds (``OptimizerParamScheduler.get_wd``).
    """
    found, schedule = content.get("optimizer"), content.get("scheduler")
    if not isinstance(found, dict) or not str(found.get("class")).endswith(_ANNEALED):
        return {}
    content["optimizer"] = {key.replace("max_lr", "lr"): each for key, each in found.items() if key not in _OF_RATES}
    if isinstance(schedule, dict) and schedule.get("class") == found["class"]:
        content["scheduler"] = {key: each for key, each in schedule.items() if key not in (*_OF_ADAM, "class")}
    lowest = _trainer.times(0.1, found["max_lr"] if isinstance(found.get("max_lr"), float) else 1e-4)
    return {
        "optimizer.lr": 1e-4,
        "optimizer.min_lr": lowest,
        "optimizer.warmup_steps": 2000,
        "optimizer.schedule": "cosine",
        "optimizer.weight_decay": 0.033,
        "zero": "1",
    }


_ANNEALED = "distributed_fused_adam_with_cosine_annealing"
_OF_RATES = ("class", "lr_warmup_iters", "lr_decay_iters", "start_weight_decay", "end_weight_decay", "lr_decay_style",
             "weight_decay_incr_style")  # fmt: skip
_OF_ADAM = ("precision", "adam_beta1", "adam_beta2", "adam_eps", "weight_decay", "max_lr", "min_lr", "clip_grad")


def _named(content: JsonObject) -> JsonObject:
    """Flat keys, with the first argument of a call under ``value`` and its name where it says something."""
    found = {}
    for key, value in flat(content).items():
        name = re.sub(r"\.0\Z", ".value", key)
        if not (name.endswith(".class") and name.count(".") == 1 and name.split(".")[0] in _PLAIN):
            found[name] = value
    return found


_PLAIN = ("train", "validation", "optimizer", "scheduler", "ddp", "logger", "tokenizer", "checkpoint", "rng", "dist",
          "model", "ft", "comm_overlap", "profiling")  # fmt: skip


def _finish(reading: KeyReader) -> None:
    degree = degrees(reading)
    zero = reading.choose.pop("zero", "0")
    if zero == "0":  # Whole parameters are not gathered.
        for each in ("fp8-param-gather", "fp4-param-gather", "reuse-grad-buf-for-mxfp8-param-ag"):
            reading.settings.pop(f"backend.extra.{each}", None)
    reading.choose |= {"parallel": preset(degree), "zero": zero}
    for name, found in degree.items():
        reading.settings[f"parallel.{name}"] = found
    if degree["tensor"] == 1:
        reading.settings["parallel.sequence"] = False
    if "adapter" in reading.choose:
        reading.choose.pop("zero")
        _beside_adapter(reading, degree)
    if "model" not in reading.choose:
        if "model.hidden_size" in reading.settings:  # As long as a sequence (``training/config.py``).
            longest = reading.settings.get("train.sequence_length", 1024)
            reading.settings.setdefault("model.max_position_embeddings", longest)
        reading.notes.append("its model is not named: add model=ORGANISATION/NAME, or one of launch show model")
    if reading.choose.get("data") == "synthetic":
        reading.settings.pop("data.tokenizer", None)


def _model(reading: KeyReader, key: str) -> None:
    say_text(reading, key, "model")
    if not reading.flag("model.load_weights") and reading.has("model.load_weights"):
        reading.settings["model.weights"] = None
        reading.ledger.say("model.load_weights", "model.weights")
    reading.ledger.default("model.load_weights")


def _hybrid(reading: KeyReader, key: str) -> None:
    """The layers of a hybrid by their letters, beside what ``HybridModelProvider`` has where a recipe does not say it.

    The vocabulary is the tokenizer's: the size of a ``NullTokenizer``, or that of NVIDIA's own. An adapter trains
    beside the weights of the model on the Hub whose tokenizer that is, which has these sizes.
    """
    letters, name = str(reading.value(key)), str(reading.value("tokenizer.tokenizer_model"))
    own = name.startswith(("nvidia/Nemotron-H-", "nvidia/NVIDIA-Nemotron-"))
    if own and not reading.has("model.value") and (reading.has("peft") or reading.value("recipe") == "_peft_common"):
        choose(reading, key, {"model": name})
        for each in [each for each in reading.ledger.values if each.removeprefix("model.") in _OF_HYBRID]:
            reading.ledger.say(each, "model")
        _without_experts(reading)
        reading.notes.append(f"the model is {name}, by its tokenizer, and its sizes are taken to be the recipe's")
        return
    if {*letters} - {*"M*-E"} or reading.has("model.value") or not reading.has("model.num_layers"):
        effect = "its layers are Mamba (M), attention (*), MLP (-) and experts (E) here, of a recipe that sizes them"
        reading.ledger.leave(key, effect)
        return
    sizes = {each: reading.plain(f"model.{each}") for each in _OF_MAMBA if reading.has(f"model.{each}")}
    if "E" in letters:
        sizes |= {each: reading.plain(f"model.{each}") for each in _OF_EXPERTS if reading.has(f"model.{each}")}
    else:
        _without_experts(reading)
    if reading.has("model.mtp_num_layers"):
        sizes |= {each: reading.plain(f"model.{each}") for each in _OF_FURTHER if reading.has(f"model.{each}")}
    said = {_RENAMED.get(each, each): value for each, value in sizes.items()}
    choose(reading, key, {**_HYBRID, "model.extra": {"pattern": letters, **said}})
    for each in sizes:
        reading.ledger.say(f"model.{each}", "model.extra")
    reading.ledger.default("model.is_hybrid_model")
    reading.idle("its sizes are said by themselves", "model.hf_model_id", "model.hf_model_revision")
    known = reading.plain("tokenizer.vocab_size")
    size = 131072 if own else known
    reading.say(key, {"model.vocab_size": size if isinstance(size, int) else OPEN})


def _without_experts(reading: KeyReader) -> None:
    for each in [each for each in reading.ledger.values if each.startswith("model.moe_")]:
        reading.idle("none of its layers has experts", each)


_WHOLE = "a hybrid of Megatron-LM's modules trains whole here, without an adapter"
_OF_EXPERTS = {"moe_shared_expert_intermediate_size": "shared_width", "moe_latent_size": "latent"}
_OF_FURTHER = {"mtp_hybrid_override_pattern": "mtp", "mtp_use_repeated_layer": "mtp_shared"}
_RENAMED = {**_OF_EXPERTS, **_OF_FURTHER}
_OF_MAMBA = ("mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups")
_OF_HYBRID = (
    *_OF_MAMBA, "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
    "kv_channels", "activation_func", "is_hybrid_model", "normalization", "layernorm_epsilon",
)  # fmt: skip


def _mixed(reading: KeyReader, key: str) -> None:
    word = str(reading.value(key)).replace("-", "_").rpartition(".")[2]
    if key.count(".") and key.rpartition(".")[2] not in ("class", "value", "_target_"):
        return  # An argument of Megatron-LM's name.
    if word == "MixedPrecisionConfig" and (
        reading.flag("mixed_precision.bf16") or reading.flag("mixed_precision.fp16")
    ):
        choose(reading, key, {"precision": "bf16" if reading.flag("mixed_precision.bf16") else "fp16"})
    elif word in ("get_mixed_precision_config", "MixedPrecisionConfig") and reading.has("mixed_precision.value"):
        reading.ledger.default(key)
    elif word not in _PRECISION:
        reading.ledger.leave(key, f"{word} mixes formats by layers: set precision.compute")
    else:
        found = _PRECISION[word]
        choose(reading, key, found if isinstance(found, dict) else {"precision": found})


def _layout(reading: KeyReader, key: str) -> None:
    found = reading.value(key)
    named = isinstance(found, list) and all(isinstance(each, list) and {*map(str, each)} <= {*_PARTS} for each in found)
    if isinstance(found, str):
        reading.say(key, {"parallel.layout": found.split("|")})
    elif named:
        reading.say(key, {"parallel.layout": ["".join(map(_PARTS.__getitem__, each)) for each in found]})
    else:
        reading.ledger.leave(key, "stages are named by letters in one word here: set parallel.layout")


_PARTS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def _data(reading: KeyReader, key: str) -> None:
    """``blend``, prefixes and their weights, or ``data_path``, a weight before each; without one data are made up."""
    value = reading.value(key)
    parts = value if isinstance(value, list) else str(value).split()
    if key.endswith("blend") and len(parts) == 2 and isinstance(parts[0], list):
        weights = parts[1] if isinstance(parts[1], list) else []
        parts = [word for pair in zip(weights, parts[0], strict=False) for word in pair] or parts[0]
    if not parts or not all(isinstance(each, str | int | float) for each in parts):
        reading.ledger.leave(key, "one blend for training is read here, and one set to evaluate on: set data.mix")
        return
    mix = mixed([str(each) for each in parts])
    choose(reading, key, {"data": "tokens"} | ({"data.path": mix[0]["path"]} if len(mix) == 1 else {"data.mix": mix}))


def _split(reading: KeyReader, key: str) -> None:
    value = reading.value(key)
    try:
        parts = [float(each) for each in (value if isinstance(value, list) else str(value).split(","))]
        share = round(1 - parts[0] / sum(parts), 6)
    except (ValueError, TypeError, ZeroDivisionError):
        reading.wrong(key, "is the parts of training, validation and test: 969,30,1")
        return
    reading.say(key, {"data.eval_fraction": min(0.999999, max(0.0, share))})


def _rows(reading: KeyReader, key: str) -> None:
    """The data set of a class: tokens, a preset by its function or name, or a folder whose rows have two columns."""
    word, root = str(reading.value("dataset.class")).rpartition(".")[2], reading.value("dataset.dataset_root")
    name = str(reading.value("dataset.hf_dataset.dataset_name") or re.sub(r"^default_|_config$", "", word))
    if key.endswith("value") and name in _SETS:
        reading.say_count(key, "train.sequence_length", 1)
    elif word in ("GPTDatasetConfig", "MockGPTDatasetConfig"):
        reading.ledger.default(key)
    elif isinstance(root, str) and word in ("FinetuningDatasetConfig", "GPTSFTDatasetConfig", "None"):
        own = {"data.path": f"{root}/training.jsonl", "data.columns": {"prompt": "input", "completion": "output"}}
        choose(reading, key, {**_SQUAD, **own})
    elif name in _SETS:
        packs = reading.has("dataset.enable_offline_packing") or word == "default_squad_config"
        choose(reading, key, {**_SETS[name], **({} if packs else {"data.packing": "none"})})
    else:
        reading.ledger.leave(key, "its rows are built by a function there: set data.path")


def _packs(reading: KeyReader, key: str) -> None:
    length = (
        reading.number("dataset.seq_length") or reading.number("model.seq_length") or reading.number("dataset.value")
    )
    if key.endswith("size") and length is not None and reading.number(key) != length:
        reading.ledger.leave(key, "packed rows are as long as a sequence here: set train.sequence_length")
    elif reading.value(key):
        reading.say(key, {"data.packing": "documents"})
    else:
        reading.say(key, {"data.packing": "none"})


def _base(reading: KeyReader, key: str) -> None:
    word = str(reading.value(key))
    if word in ("_pretrain_common", "ConfigContainer"):
        reading.ledger.default(key)
    elif word == "_peft_common" and "model.extra" in reading.settings:
        reading.ledger.leave(key, _WHOLE)
    elif word in ("_sft_common", "_peft_common"):
        if word == "_peft_common" and not reading.has("peft"):
            reading.choose["adapter"] = "lora"
        choose(reading, key, {} if reading.has("dataset.class") else _SQUAD)
    elif word.endswith("_vlm"):
        reading.ledger.leave(key, "images are not trained here, the text beside them alone: set data.path")
    else:
        reading.ledger.leave(key, f"what {word} sets is not known here")


def _decays(reading: KeyReader, key: str) -> None:
    if reading.value(key) == reading.value("train.train_iters"):
        reading.ledger.default(key)
    else:
        reading.say_count(key, "optimizer.decay_steps", 1)


def _states(reading: KeyReader, key: str) -> None:
    name, word = key.rpartition(".")[2], str(reading.value(key)).rpartition(".")[2]
    word = _SHORT.get(word, word)
    if name not in _STATES or word == "fp32" or not reading.flag("optimizer.use_precision_aware_optimizer"):
        reading.ledger.default(key)
    else:
        reading.say(key, {_STATES[name]: word})


def _starts(reading: KeyReader, key: str) -> None:
    """A checkpoint that was converted from the model on the Hub: its weights are those."""
    if "/" not in reading.choose.get("model", ""):
        reading.ledger.leave(key, "its form of checkpoint is not read here: set model.weights")
        return
    reading.settings.pop("model.weights", None)
    reading.ledger.default("model.load_weights")
    reading.ledger.say(key, "model")
    reading.notes.append(f"{reading.value(key)} is taken to hold the weights of {reading.choose['model']}")


def _provider(reading: KeyReader, key: str) -> None:
    if "ModelProvider" in str(reading.value(key)) and not reading.has("model.num_layers"):
        reading.ledger.leave(key, "its sizes are those of that class: set model.hidden_size and the other sizes")
    else:
        reading.ledger.default(key)


def _adapts(reading: KeyReader, key: str) -> None:
    """LoRA, which Megatron-LM does not have here: the model trains by DDP or FSDP with it; any other is left out."""
    name, value = key.rpartition(".")[2], reading.value(key)
    kinds = (reading.value(f"peft{each}") for each in (".value", ".class", "._target_", ""))
    kind = str(next((each for each in kinds if each), None)).rpartition(".")[2].lower()
    if "model.extra" in reading.settings:
        reading.ledger.leave(key, _WHOLE)
    elif kind not in ("lora", "dora"):
        reading.ledger.leave(key, f"{kind} is no adapter here: set adapter.name")
    elif name in ("class", "value", "_target_", "peft"):
        choose(reading, key, {"adapter": "lora"} | ({"adapter.dora": True} if kind == "dora" else {}))
    elif name == "target_modules" and isinstance(value, list) and {*map(str, value)} == _ALL:
        reading.ledger.default(key)  # All linear layers.
    elif name == "target_modules" and isinstance(value, list) and {*map(str, value)} <= _LAYERS.keys():
        reading.say(key, {"adapter.targets": [name for each in value for name in _LAYERS[each].split()]})
    elif name in _OF_LORA:
        reading.say_number(key, _OF_LORA[name])
    elif name in ("dropout_position", "lora_A_init_method", "lora_B_init_method", "a2a_experimental", "lora_dtype"):
        usual(reading, key, ("pre", "xavier", "zero", False), "LoRA starts and drops out as in its paper here")
    else:
        reading.ledger.leave(key, "LoRA is the same in every layer here: set adapter.targets")


_LAYERS = {"linear_qkv": "q_proj k_proj v_proj", "linear_proj": "o_proj", "linear_fc1": "gate_proj up_proj",
           "linear_fc2": "down_proj", "linear_q_proj": "q_proj", "linear_q_down_proj": "q_a_proj",
           "linear_q_up_proj": "q_b_proj", "linear_kv_down_proj": "kv_a_proj_with_mqa",
           "linear_kv_up_proj": "kv_b_proj"}  # fmt: skip
_ALL = {"linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", "in_proj", "out_proj"}
_OF_LORA = {"dim": "adapter.rank", "alpha": "adapter.alpha", "dropout": "adapter.dropout"}


def _beside_adapter(reading: KeyReader, degree: Mapping[str, int]) -> None:
    """An adapter trains on whole copies, or on FSDP2's shards where ranks cut the model there; kernels fall away."""
    cuts = [f"{name} {found}" for name, found in degree.items() if found > 1 and name != "context"]
    reading.choose["parallel"] = "fsdp" if cuts else "ddp"
    note = "one matrix A for queries, keys and values there, and for gate and up; here each layer has its own"
    reading.notes.append(f"LoRA has {note}, and experts have none")
    if cuts:
        reading.notes.append(
            f"ranks cut the model there ({', '.join(cuts)}), and FSDP2 shards it over all of them here"
        )
    defaults(reading, {"adapter.rank": 32, "adapter.alpha": 32, "adapter.dropout": 0.0})
    for setting in [name for name in reading.settings if name.startswith(("parallel.", "backend.extra."))]:
        for key in reading.ledger.saying(setting) if cuts else ():
            reading.ledger.say(key, "parallel")
        if setting != "parallel.context" or degree["context"] == 1:
            del reading.settings[setting]
    for setting, effect in _MEGATRONS.items():
        for key in reading.ledger.saying(setting) if reading.settings.pop(setting, None) else ():
            reading.ledger.leave(key, effect, matters=setting == "model.mtp_layers")


_MEGATRONS = {
    "model.mtp_layers": "further tokens are not predicted beside an adapter here: set adapter.name (to none)",
    "checkpointing.modules": "the same tensors: other operations are recomputed here, and counted so",
}
"""Settings that Megatron-LM alone reads, and what their keys are left out for beside an adapter."""


TABLE = rows(
    "megatron_bridge", _adapts, _base, _data, _decays, _hybrid, _layout, _mixed, _model,
    _packs, _provider, _rows, _split, _starts, _states,
)  # fmt: skip
