"""torchtune's YAML: the recipes that torchtune 0.6 ships (``recipes/configs``) and the arguments of their components.

Weights, gradients and optimizer states are in ``dtype``. A model's folder (``/tmp/Llama-3.2-1B-Instruct``) has the name
by which ``tune download`` fetched it, so that it is that model of the Hub.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from launcher.config.ledger import Ledger, name_from
from launcher.importers import Imported, _foreign
from launcher.importers._reading import Reading
from launcher.importers._table import (
    Row,
    apply,
    by,
    choose,
    count,
    defaults,
    flag,
    idle,
    imported,
    later,
    number,
    off,
    other,
    say_text,
    switch,
    text,
    usual,
    words,
)  # fmt: skip

_ORGANISATIONS = (
    ("meta-llama", "meta-llama"), ("llama", "meta-llama"), ("codellama", "codellama"), ("gemma", "google"),
    ("codegemma", "google"), ("mistral", "mistralai"), ("qwen", "Qwen"), ("phi-3", "microsoft"), ("phi-4", "microsoft"),
)  # fmt: skip
_SETS: Mapping[str, Mapping[str, Any]] = {
    "alpaca_dataset": {"data": "chat", "data.path": "tatsu-lab/alpaca", "data.template": "alpaca"},
    "alpaca_cleaned_dataset": {"data": "chat", "data.path": "yahma/alpaca-cleaned", "data.template": "alpaca"},
    "slimorca_dataset": {"data": "chat", "data.path": "Open-Orca/SlimOrca-Dedup"},
    "grammar_dataset": {"data": "chat", "data.path": "liweili/c4_200m"},
    "samsum_dataset": {"data": "chat", "data.path": "Samsung/samsum"},
    "wikitext_dataset": {"data": "huggingface", "data.path": "EleutherAI/wikitext_document_level"},
    "cnn_dailymail_articles_dataset": {
        "data": "huggingface",
        "data.path": "ccdv/cnn_dailymail",
        "data.column": "article",
    },
    "text_completion_dataset": {"data": "huggingface"},
    "chat_dataset": {"data": "chat"},
    "instruct_dataset": {"data": "chat"},
}
_TRAINS_ON_ALL = ("alpaca_dataset", "alpaca_cleaned_dataset", "grammar_dataset", "samsum_dataset")
"""Sets whose ``train_on_input`` is true where a file does not say."""

_TURNS = (("llama3", "llama3"), ("qwen", "chatml"), ("gemma", "gemma"), ("phi3", "phi"), ("phi4", "phi"))
_OPTIMIZERS: Mapping[str, str] = {
    "adamw": "adamw", "adam": "adamw", "sgd": "sgd", "pagedadamw8bit": "paged_adamw_8bit", "pagedadamw": "adamw",
    "adamw8bit": "adamw_8bit",
    "adafactor": "adafactor", "lion": "lion",
}  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {
    "optimizer.schedule": "constant", "optimizer.weight_decay": 0.01, "optimizer.beta2": 0.999, "optimizer.clip": 0.0,
    "train.epochs": 1, "data.eval_fraction": 0.0, "parallel": "fsdp",
}  # fmt: skip


def read(text: str, path: str) -> Imported:
    """Read a torchtune recipe's configuration; ``path`` is for messages; raises ConfigErrors where the text is none."""
    content = _foreign.content_of(text, path, "a configuration of torchtune")
    reading = Reading(path=path, lenient=True, file="torchtune's YAML", ledger=Ledger(_foreign.flat(content)))
    apply(TABLE, reading)
    _steps(reading)
    kept = {} if reading.choose.get("optimizer") != "sgd" else {"optimizer.beta2": 0.95}
    defaults(reading, {**_DEFAULTS, **kept})
    _pure(reading)
    if "model" in reading.choose:
        reading.settings.setdefault("data.tokenizer", reading.choose["model"])
    return imported(
        reading,
        summary=f"{name_from(reading.choose.get('model', path))} by torchtune",
        source="a torchtune configuration",
    )


def _pure(reading: Reading) -> None:
    """All of the state in ``dtype``, as the model is built under it."""
    if reading.choose.get("precision") == "bf16":
        names = ("parameters", "gradients", "accumulate", "optimizer_states", "reduce")
        reading.settings |= {f"precision.{name}": "bf16" for name in names}
        reading.ledger.say("dtype", "precision", *(f"precision.{name}" for name in names))


def _model(reading: Reading, key: str) -> None:
    """``checkpointer.checkpoint_dir``: the model by the name of its folder, or that folder."""
    parts = [part for part in str(reading.value(key)).rstrip("/").split("/") if part != "original"]
    name = parts[-1] if parts else ""
    organisation = next((found for part, found in _ORGANISATIONS if name.lower().startswith(part)), None)
    found = f"{organisation}/{name}" if organisation else "/".join(parts)
    if name.lower().startswith("meta-llama"):
        found = f"meta-llama/{name}"
    choose(reading, key, {"model": found})


def _component(reading: Reading, key: str) -> None:
    """``model._component_``: the builder says an adapter; its sizes are the folder's."""
    builder = str(reading.value(key)).rpartition(".")[2]
    if re.search(r"classifier|reward|vision", builder):
        reading.ledger.leave(key, "another model than one of text: set model.hidden_size and the other sizes")
    elif builder.startswith(("lora_", "dora_")):
        choose(reading, key, {"adapter": "lora"} | ({"adapter.dora": True} if builder.startswith("dora_") else {}))
    elif builder.startswith("qlora_"):
        choose(reading, key, {"adapter": "qlora"})
    else:
        reading.ledger.default(key)


def _targets(reading: Reading, key: str) -> None:
    """Modules with an adapter, by the three keys that name them."""
    found = [
        {"output_proj": "o_proj"}.get(str(each), str(each)) for each in reading.value("model.lora_attn_modules") or []
    ]
    found += ["gate_proj", "up_proj", "down_proj"] if reading.flag("model.apply_lora_to_mlp") else []
    found += ["lm_head"] if reading.flag("model.apply_lora_to_output") else []
    for each in ("model.lora_attn_modules", "model.apply_lora_to_mlp", "model.apply_lora_to_output"):
        if reading.ledger.values.get(each) is not None:
            reading.say(each, {"adapter.targets": found})


def _data(reading: Reading, key: str) -> None:
    """``dataset._component_``: a set that torchtune names, or one of ``dataset.source``."""
    builder = str(reading.value(key)).rpartition(".")[2]
    source = reading.value("dataset.source")
    said = dict(_SETS.get(builder, {}))
    if not said or ("data.path" not in said and source is None):
        reading.ledger.leave(key, f"the rows of {builder} are not known here: set data.path")
        return
    files = reading.value("dataset.data_files")
    if source is not None:
        place = files if str(source) in ("json", "csv", "text", "parquet") and isinstance(files, str) else source
        said["data.path"] = str(place)
        said["data"] = "text" if said["data"] == "huggingface" and place is files else said["data"]
        reading.ledger.say("dataset.source", "data.path")
        reading.ledger.say("dataset.data_files", "data.path")
    if said.get("data.template") == "alpaca":
        said["data.template"] = _alpaca(reading)
    trains = reading.ledger.values.get("dataset.train_on_input", builder in _TRAINS_ON_ALL)
    if trains is True and said["data"] == "chat":
        said["data.train_on"] = "all"
    choose(reading, key, said)
    reading.ledger.say("dataset.train_on_input", "data.train_on")


def _alpaca(reading: Reading) -> str:
    """Alpaca's prompt inside the turns that a model's tokenizer writes; those of Llama 2 and Mistral write none."""
    tokenizer = str(reading.ledger.values.get("tokenizer._component_")).rpartition(".")[2]
    return next((f"alpaca+{name}" for family, name in _TURNS if tokenizer.startswith(family)), "alpaca")


def _packs(reading: Reading, key: str) -> None:
    if reading.flag(key):
        reading.say(key, {"data.packing": "documents"})
    else:
        reading.ledger.default(key)


def _steps(reading: Reading) -> None:
    """``max_steps_per_epoch`` cuts every epoch off."""
    key = "max_steps_per_epoch"
    if reading.value(key) is not None and (steps := reading.count(key, 1)) is not None:
        epochs = reading.settings.pop("train.epochs", 1)
        reading.say(key, {"train.steps": max(1, int(steps * epochs))})
        reading.ledger.say("epochs", "train.steps")
    if reading.settings.get("train.steps"):
        reading.settings.pop("train.epochs", None)


def _loss(reading: Reading, key: str) -> None:
    builder = str(reading.value(key)).rpartition(".")[2]
    if builder in ("CEWithChunkedOutputLoss", "LinearCrossEntropyLoss"):
        reading.say(key, {"train.loss": "chunked"})
    elif builder == "CrossEntropyLoss":
        reading.ledger.default(key)
    elif builder == "DPOLoss":
        choose(reading, key, {"task": "dpo"})
    else:
        reading.ledger.leave(key, f"the loss {builder} is not known here: set train.loss")


def _tracks(reading: Reading, key: str) -> None:
    builder = str(reading.value(key)).rpartition(".")[2]
    found = {"WandBLogger": "wandb", "TensorBoardLogger": "tensorboard"}.get(builder)
    if found:
        choose(reading, key, {"tracking": found})
    elif builder in ("DiskLogger", "StdoutLogger"):
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, "no such tracker here: tracking=wandb, tensorboard or mlflow", matters=False)


def _optimizes(reading: Reading, key: str) -> None:
    builder = str(reading.value(key)).rpartition(".")[2].lower()
    if builder in _OPTIMIZERS:
        choose(reading, key, {"optimizer": _OPTIMIZERS[builder]})
    else:
        reading.ledger.leave(key, f"{builder} keeps its states elsewhere than the optimizers here: set optimizer.name")


def _betas(reading: Reading, key: str) -> None:
    value = reading.value(key)
    if isinstance(value, list) and len(value) == 2:
        reading.say(key, {"optimizer.beta1": value[0], "optimizer.beta2": value[1]})
    else:
        reading.wrong(key, "is a list of two numbers")


TABLE: tuple[Row, ...] = (
    by("checkpointer.checkpoint_dir", "model", "the model of the Hub that its folder is named after", _model),
    by("model._component_", "adapter", "its sizes are those of the folder", _component),
    count("model.lora_rank", "adapter.rank", least=1),
    count("model.lora_alpha", "adapter.alpha"),
    number("model.lora_dropout", "adapter.dropout"),
    flag("model.use_dora", "adapter.dora"),
    by("model.lora_attn_modules model.apply_lora_to_mlp model.apply_lora_to_output", "adapter.targets", "", _targets),
    switch("model.quantize_base", {"adapter": "qlora"}),
    by("dataset._component_", "data.path", "sets that torchtune names; others are refused", _data),
    by("dataset.packed", "data.packing=documents", "", _packs),
    by("dataset.split", "data.split", "", lambda reading, key: reading.ledger.default(key)
        if reading.value(key) == "train"
       else say_text(reading, key, "data.split")),
    text("dataset.column", "data.column"),
    text("dataset.conversation_column", "data.column"),
    usual("dataset.add_eos dataset.split_across_pack", (True, False), "a document ends with its token here"),
    idle("dataset.source dataset.data_files dataset.conversation_style dataset.filter_fn dataset.train_on_input",
         "what a row holds is found by its content"),
    off("dataset dataset_val datasets", "its rows are built by arguments that are not known here: set data.path"),
    count("tokenizer.max_seq_len", "train.sequence_length", "left out it is the model's, at most 4096 here", least=1),
    off("tokenizer.prompt_template", "the tokenizer's own template writes a conversation here: set data.template"),
    idle("tokenizer", "the tokenizer is that of the model's folder"),
    by("resume_from_checkpoint checkpointer.resume_from_checkpoint", "save.load", "", lambda reading, key: off(
        key, "a run starts afresh here: set save.load, or launch resume").enter(reading, key)),
    off("checkpointer.recipe_checkpoint checkpointer.adapter_checkpoint", "a run starts afresh here: set save.load"),
    idle("checkpointer", "of the files of a checkpoint"),
    count("batch_size", "train.micro_batch_size", least=1),
    count("gradient_accumulation_steps", "train.gradient_accumulation", least=1),
    number("epochs", "train.epochs", "left out it is 1"),
    later("max_steps_per_epoch", "train.steps", "times the epochs"),
    count("seed", "train.seed"),
    flag("shuffle", "data.shuffle"),
    by("optimizer._component_", "optimizer", "others are refused", _optimizes),
    number("optimizer.lr", "optimizer.lr"),
    number("optimizer.weight_decay", "optimizer.weight_decay", "left out it is 0.01"),
    number("optimizer.eps", "optimizer.epsilon"),
    number("optimizer.momentum", "optimizer.beta1"),
    by("optimizer.betas", "optimizer.beta1, optimizer.beta2", "", _betas),
    usual("optimizer.fused optimizer.foreach", (True, False), ""),
    words("lr_scheduler._component_", "optimizer.schedule",
          {"torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup": "cosine",
           "torchtune.modules.get_cosine_schedule_with_warmup": "cosine"},
          "{} has learning rates of its own: set optimizer.schedule", "left out it is constant"),
    count("lr_scheduler.num_warmup_steps", "optimizer.warmup_steps"),
    usual("lr_scheduler.num_cycles", (0.5,), "the schedule has half a wave here: set optimizer.schedule"),
    number("clip_grad_norm", "optimizer.clip", "left out nothing is clipped"),
    by("loss._component_", "train.loss, task=dpo", "distillation and PPO are refused", _loss),
    usual("loss.num_output_chunks loss.ignore_index", (8, -100),
        "the loss is chunked by tokens here: set train.loss_chunk"),
    number("loss.beta", "task.beta"),
    by("loss.label_smoothing", "task.label_smoothing", "", lambda reading, key: reading.say_number(
        key, "task.label_smoothing") if reading.number(key) else reading.ledger.default(key)),
    words("dtype", "precision", {"bf16": "bf16", "fp32": "fp32", "fp16": "fp16"},
        "{} is no number format here: set precision.compute"),
    switch("enable_activation_checkpointing", {"checkpointing": "full"}),
    switch("enable_activation_offloading", {"checkpointing.offload": True}),
    by("ac_mode", "checkpointing", "", lambda reading, key: choose(reading, key,
        {"checkpointing": str(reading.value(key))})
       if str(reading.value(key)) in ("none", "full", "selective") else reading.wrong(key,
           "is none, full or selective")),
    other("ac_option", "by operation here, not every n-th block"),
    flag("compile", "train.compile", "each block is compiled"),
    switch("fsdp_cpu_offload fsdp.cpu_offload", {"zero.offload_optimizer": "cpu", "zero.offload_parameters": "cpu"}),
    by("fsdp_reshard_after_forward", "zero=2", "", lambda reading, key: reading.ledger.default(key) if reading.flag(key)
       else choose(reading, key, {"zero": "2"})),
    count("tensor_parallel_dim", "parallel.tensor", least=1),
    count("data_parallel_replicate_dim", "parallel.replicate", least=1),
    idle("tensor_parallel_plan data_parallel_shard_dim custom_sharded_layers memory_efficient_fsdp_wrap low_cpu_ram",
         "FSDP2 shards each block here"),
    other("optimizer_in_bwd", "the optimizer steps after the backward pass here, with all gradients, which are"
        " counted"),
    by("metric_logger._component_", "tracking", "other trackers are left out", _tracks),
    by("metric_logger.project", "tracking.project", "", lambda reading, key: say_text(reading, key, "tracking.project")
       if "WandB" in str(reading.ledger.values.get("metric_logger._component_")) else reading.idle("of a tracker",
           key)),
    words("device", "hardware.device", {"cuda": None, "cpu": "cpu"}, "{} is no device here: set hardware.device"),
    count("dataloader.num_workers", "data.workers"),
    idle("metric_logger log_every_n_steps log_peak_memory_stats log_level profiler output_dir save_adapter_weights_only"
         " enable_async_checkpointing cudnn_deterministic_mode dataloader collate_fn device_map name",
         "of logs, profiles and files; every step is a line of metrics.jsonl"),
    off("teacher_model teacher_checkpointer kd_loss kd_ratio ref_checkpointer policy_model reward_and_value_model"
        " ref_policy_checkpointer value_checkpointer reward_checkpointer quantizer fake_quant_after_n_steps",
        "there is no such training here"),
    off("model enable_kv_cache tasks limit prompt temperature top_k max_new_tokens loss optimizer lr_scheduler",
        "there is no such thing here"),
)  # fmt: skip
