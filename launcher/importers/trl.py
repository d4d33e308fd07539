"""TRL's YAML (``trl sft --config``) and scripts, and TrainingArguments of the Trainer: keys and defaults of TRL 1.16.

Of a script the calls of ``SFTConfig``, ``LoraConfig``,
    ``load_dataset`` and the like are read as text. A YAML does not say
the task: its keys do, else it is fine-tuning, and ``--set task=dpo`` says another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.files import JsonObject
from launcher.config.ledger import Ledger, name_from
from launcher.importers import Imported, _adapters, _data, _foreign, _python, _sharding, _trainer
from launcher.importers._reading import Reading
from launcher.importers._table import (
    Row,
    apply,
    by,
    choose,
    count,
    flag,
    idle,
    imported,
    number,
    off,
    revision,
    say_text,
    switch,
    text,
    usual,
    words,
)  # fmt: skip

HAS_VARIABLES = True

_TASKS = ("sft", "dpo", "kto", "reward", "grpo")
_OF_TASKS: Mapping[str, str] = {
    **dict.fromkeys(
        ("num_generations", "max_completion_length", "use_vllm", "reward_funcs", "reward_model_name_or_path"), "grpo"
    ),
    **dict.fromkeys(("desirable_weight", "undesirable_weight"), "kto"),
    "center_rewards_coefficient": "reward",
    **dict.fromkeys(("precompute_ref_log_probs", "ld_alpha", "rpo_alpha", "beta", "max_prompt_length"), "dpo"),
}
"""Keys that only one task has; the first that is there decides."""

_CLASSES = {
    f"{name}Config": task
    for name, task in (("SFT", "sft"), ("DPO", "dpo"), ("KTO", "kto"), ("Reward", "reward"), ("GRPO", "grpo"))
}
_NOT_HERE = (
    "ORPOConfig",
    "CPOConfig",
    "GKDConfig",
    "PPOConfig",
    "RLOOConfig",
    "OnlineDPOConfig",
    "XPOConfig",
    "NashMDConfig",
)
_RATES = {"sft": 2e-5, "dpo": 1e-6, "kto": 1e-6, "reward": 1e-4, "grpo": 1e-6}
_DEFAULTS: Mapping[str, Any] = {**_trainer.DEFAULTS, "train.sequence_length": 1024, "checkpointing": "full"}
_LORA: Mapping[str, Any] = {"adapter.rank": 16, "adapter.alpha": 32, "adapter.dropout": 0.05}
_PEFT: Mapping[str, Any] = {"adapter.rank": 8, "adapter.alpha": 8, "adapter.dropout": 0.0}
"""Defaults of TRL's own arguments, and of peft's ``LoraConfig``."""


def read(text: str, path: str, *, variables: Mapping[str, str] | None = None) -> Imported:
    """Read a configuration or a script; ``task`` of the variables says what a YAML trains.

    Raises:
        ConfigErrors: The text is none, or of a task that is not known here.
    """
    found_task = None
    python = path.endswith(".py") or _foreign.is_python(text)
    content, found_task = (
        _script(text, path) if python else (_foreign.content_of(text, path, "a configuration of TRL"), None)
    )
    reading = Reading(path=path, lenient=True, file="TRL's configuration", ledger=Ledger(_foreign.flat(content)))
    is_trainer = found_task == "trainer" or (found_task is None and not _of_trl(content))
    task = _task(reading, found_task, (variables or {}).get("task"), path)
    if not is_trainer:
        reading.choose["task"] = task
    _mixture(reading)
    apply(TABLE, reading)
    _sharding.finish(reading)
    _trainer.precision(reading, pure=_pure(reading), otherwise="fp32" if is_trainer else "bf16")
    _adapter(reading, python=python)
    defaults = dict(_DEFAULTS if not is_trainer else _trainer.DEFAULTS)
    if not is_trainer:
        defaults["optimizer.lr"] = _RATES[task]
    if "model" in reading.choose:
        defaults["data.tokenizer"] = reading.choose["model"]
    _trainer.finish(reading, defaults)
    return imported(
        reading,
        summary=f"{name_from(reading.choose.get('model', path))} by {'the Trainer' if is_trainer else 'TRL'}",
        source="a TRL configuration",
    )


def _of_trl(content: JsonObject) -> bool:
    """True for a file with keys of TRL's own beside those of the Trainer."""
    shared = {
        key for row in (_sharding.DEEPSPEED, _sharding.FSDP_WORDS, *_sharding.FSDP, *_trainer.ROWS) for key in row.keys
    }
    own = {key for row in TABLE for key in row.keys} - shared
    return bool(content.keys() & own)


def _script(text: str, path: str) -> tuple[JsonObject, str | None]:
    """The arguments of a script's calls, with the names that they have in YAML, and its task."""
    followed = _python.Followed(text, path)
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
            raise ConfigErrors([ConfigError(path, name, "TRL has it as an experiment, and there is no such task here")])
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


_PEFT_NAMES = {"r": "lora_r", "target_modules": "lora_target_modules", "modules_to_save": "lora_modules_to_save",
               "use_dora": "use_dora", "use_rslora": "use_rslora", "task_type": "lora_task_type"}  # fmt: skip


def _data_and_model(followed: _python.Followed) -> JsonObject:
    """The model and the data of a script: first arguments of ``load_dataset``, ``from_pretrained`` and a trainer."""
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


def _task(reading: Reading, of_class: str | None, given: str | None, path: str) -> str:
    if given is not None and given not in _TASKS:
        raise ConfigErrors([
            ConfigError(
                path, given, f"the task is one of {', '.join(_TASKS)}", [f"--set task={each}" for each in _TASKS]
            )
        ])
    of_keys = next((task for key, task in _OF_TASKS.items() if reading.ledger.values.get(key) is not None), "sft")
    return given or (of_class if of_class in _TASKS else None) or of_keys


def _pure(reading: Reading) -> bool:
    """True where the weights are loaded in 16 bits (``dtype``); TRL's default is fp32."""
    word = str(reading.value("dtype") or reading.value("torch_dtype") or reading.value("model_init_kwargs.dtype")
               or reading.value("model_init_kwargs.torch_dtype") or "").lower()  # fmt: skip
    return word in ("bfloat16", "float16", "bf16") and reading.choose.get("adapter", "none") == "none"


def _adapter(reading: Reading, *, python: bool) -> None:
    if not reading.flag("use_peft"):
        return
    reading.choose["adapter"] = "qlora" if reading.flag("load_in_4bit") else "lora"
    for setting, value in (_PEFT if python else _LORA).items():
        reading.settings.setdefault(setting, value)


def _peft(reading: Reading, key: str) -> None:
    if reading.flag(key):
        choose(reading, key, {"adapter": "qlora" if reading.flag("load_in_4bit") else "lora"})
    else:
        reading.ledger.default(key)


def _loads(reading: Reading, key: str) -> None:
    """The format of the weights: of frozen ones, or of those that are trained."""
    word = str(reading.value(key)).lower()
    if word in ("float32", "auto", "none") or reading.flag("use_peft"):
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, "weights that are trained whole are in fp32 here")


def _of_peft(row: Row) -> Row:
    """A row that says something where ``use_peft`` is on."""

    def enter(reading: Reading, key: str) -> None:
        if reading.flag("use_peft"):
            row.enter(reading, key)
        else:
            reading.idle("no adapter is asked for", key)

    return by(" ".join(row.keys), row.ours, row.differs, enter)


def _data_set(reading: Reading, key: str) -> None:
    """``dataset_name``: a data set on the Hub, or a folder; of its rows conversations and prompts are trained."""
    task = reading.choose.get("task", "sft")
    path = str(reading.value(key))
    source = "rows" if task in ("dpo", "kto", "reward", "grpo") else "chat"
    choose(reading, key, {"data": source, "data.path": path})


def _mixture(reading: Reading) -> None:
    """``datasets``: one data set or several, with a split and a configuration each."""
    sets = []
    source = "rows" if reading.choose.get("task") in ("dpo", "kto", "reward", "grpo") else "chat"
    for place in _foreign.parts(reading.ledger.values, "datasets"):
        path = _data.path_of(reading.value(f"{place}.path"), reading.value(f"{place}.data_files"))
        if not isinstance(path, str):
            continue
        split = reading.value(f"{place}.split")
        said = {"path": path, "config": reading.value(f"{place}.name"), "split": split if split != "train" else None}
        keys = tuple(f"{place}.{name}" for name in ("path", "name", "split", "data_files"))
        sets.append(_data.DataSet(keys=keys, source=source, said=said))
        apply(
            (
                off(
                    f"{place}.data_dir {place}.columns {place}.fraction",
                    "all of a set is read here: set data.max_samples",
                ),
            ),
            reading,
        )
    _data.say(reading, sets)


def _packs(reading: Reading, key: str) -> None:
    """TRL packs by itself."""
    if not reading.flag(key):
        reading.ledger.default(key)
        return
    for name in ("packing", "packing_strategy"):
        if reading.value(name) is not None:
            reading.settings[f"backend.extra.{name}"] = reading.value(name)
            reading.ledger.keep(name)


def _of_task(names: Mapping[str, str]) -> Any:
    """A key that is another setting by the task; beyond those it is left out."""

    def enter(reading: Reading, key: str) -> None:
        setting = names.get(reading.choose.get("task", "sft"))
        value = reading.value(key)
        if setting is None:
            reading.idle("another task reads it", key)
        elif isinstance(value, str):
            say_text(reading, key, setting)
        else:
            reading.say(key, {setting: value})

    return enter


def _loss(reading: Reading, key: str) -> None:
    task = reading.choose.get("task", "sft")
    value = reading.value(key)
    word = value[0] if isinstance(value, list) and len(value) == 1 else value
    if task == "sft":
        table = {"nll": None, "chunked_nll": None, "dft": {"task.loss": "dft"}}
        words(key, "task.loss", table, "{}: there is no such loss here: set task.loss").enter(reading, key)
    elif isinstance(word, str) and task in ("dpo", "kto", "grpo"):
        reading.say(key, {"task.loss": word})
    else:
        reading.ledger.leave(key, "one loss trains here: set task.loss")


def _trains_on(reading: Reading, key: str) -> None:
    """Of a conversation without these switches every token is trained."""
    if reading.flag(key):
        reading.say(key, {"data.train_on": "assistant"})
    else:
        reading.say(key, {"data.train_on": "all"})


_ADAPTER: tuple[Row, ...] = tuple(map(_of_peft, (
    count("lora_r", "adapter.rank", "left out it is 16", least=1),
    count("lora_alpha", "adapter.alpha", "left out it is 32"),
    number("lora_dropout", "adapter.dropout", "left out it is 0.05"),
    by("lora_target_modules", "adapter.targets", "", _adapters.targets),
    by("lora_modules_to_save", "adapter.modules_to_save", "", lambda reading, key: reading.say(
        key, {"adapter.modules_to_save": reading.value(key)})),
    flag("use_dora", "adapter.dora"),
    flag("use_rslora", "adapter.rslora"),
    flag("use_bnb_nested_quant bnb_4bit_use_double_quant", "adapter.double_quant"),
    usual("bnb_4bit_quant_type", ("nf4",), "the 4 bits are NF4 here"),
    usual("lora_bias", ("none",), "biases are frozen here"),
)))  # fmt: skip

TABLE: tuple[Row, ...] = (
    text("model_name_or_path", "model", "a name on the Hub, or a folder"),
    revision("model_revision"),
    words("attn_implementation model_init_kwargs.attn_implementation", "model.attention", {
        "flash_attention_2": "flash", "kernels-community/flash-attn2": "flash", "sdpa": "sdpa", "eager": "eager"},
          "{} has no such kernel here: set model.attention"),
    by("dtype torch_dtype model_init_kwargs.dtype model_init_kwargs.torch_dtype", "precision",
       "weights that are trained whole are in fp32 here", _loads),
    idle("model_init_kwargs lora_task_type bnb_4bit_quant_storage bnb_4bit_compute_dtype",
         "of how weights are loaded; precision says the formats"),
    by("use_peft", "adapter=lora, qlora", "", _peft),
    *_ADAPTER,
    usual("load_in_4bit", (True, False), ""),
    off("load_in_8bit", "frozen weights stay in 16 bits here, or are in 4: set adapter.name (with adapter=qlora)"),
    off("lora_target_parameters lora_init_lora_weights lora_layers_to_transform",
        "LoRA is the same in every layer here"),
    by("dataset_name", "data.path", "", _data_set),
    text("dataset_config", "data.config"),
    by("dataset_train_split load_dataset.split", "data.split", "", lambda reading, key: reading.ledger.default(key)
       if reading.value(key) == "train" else say_text(reading, key, "data.split")),
    by("dataset_test_split", "data.eval_split", "", lambda reading, key: say_text(reading, key, "data.eval_split")
       if str(reading.value("eval_strategy") or "no") != "no" else reading.idle("nothing evaluates", key)),
    flag("dataset_streaming streaming", "data.streaming"),
    number("test_split_size", "data.eval_fraction"),
    text("load_dataset.data_files", "data.path"),
    off("load_dataset datasets", "its arguments are not known here: set data.path"),
    words("dataset_text_field", "data.column", {"text": None, "messages": None}, "{}: set data.column"),
    count("max_length max_seq_length", "train.sequence_length", "left out it is 1024", least=1),
    by("packing", "backend.extra.packing", "with packing_strategy, by TRL itself", _packs),
    idle("packing_strategy", "nothing is packed"),
    by("assistant_only_loss completion_only_loss", "data.train_on", "", _trains_on),
    text("chat_template_path", "data.template"),
    by("loss_type", "task.loss", "one of them", _loss),
    by("beta", "task.beta", "of dpo, kto and grpo", _of_task(dict.fromkeys(("dpo", "kto", "grpo"), "task.beta"))),
    by("label_smoothing", "task.label_smoothing", "of dpo", _of_task({"dpo": "task.label_smoothing"})),
    by("precompute_ref_log_probs", "task.precompute_reference", "of dpo and kto", _of_task(dict.fromkeys(("dpo",
        "kto"), "task.precompute_reference"))),
    by("desirable_weight", "task.desirable_weight", "of kto", _of_task({"kto": "task.desirable_weight"})),
    by("undesirable_weight", "task.undesirable_weight", "of kto", _of_task({"kto": "task.undesirable_weight"})),
    by("center_rewards_coefficient", "task.center_rewards", "of reward", _of_task({"reward": "task.center_rewards"})),
    by("num_generations", "task.generations", "of grpo", _of_task({"grpo": "task.generations"})),
    by("max_completion_length", "task.completion_length", "of grpo", _of_task({"grpo": "task.completion_length"})),
    by("temperature", "task.temperature", "of grpo", _of_task({"grpo": "task.temperature"})),
    by("reward_funcs", "task.rewards", "of grpo", _of_task({"grpo": "task.rewards"})),
    by("use_vllm", "task.vllm", "of grpo", _of_task({"grpo": "task.vllm"})),
    number("router_aux_loss_coef", "model.router_aux_loss_coef"),
    switch("activation_offloading", {"checkpointing.offload": True}),
    usual("truncation_mode", ("keep_start",), "a sample keeps its beginning here"),
    off("eos_token pad_token", "the tokenizer is taken as it is: set data.tokenizer"),
    usual("disable_dropout shuffle_dataset padding_free ignore_bias_buffers", (True, False), ""),
    idle("dataset_num_proc dataset_kwargs pad_to_multiple_of eval_packing dataset_batch_size num_of_sequences"
         " chars_per_token gradient_checkpointing_use_reentrant config recipe",
         "of how the data are prepared; padding is not trained"),
    idle("precompute_ref_batch_size log_completions log_unique_prompts log_multimodal num_completions_to_print"
         " log_completions_hub_repo vllm_server_host vllm_server_port vllm_server_timeout vllm_server_base_url"
         " vllm_group_port", "of logs and servers"),
    off("max_prompt_length", "prompt and answer share train.sequence_length here: set train.sequence_length"),
    off("ld_alpha f_divergence_type f_alpha_divergence_coef use_weighting discopop_tau sync_ref_model loss_weights"
        " rpo_alpha"
        " ref_model_mixup_alpha ref_model_sync_steps reward_weights reward_model_name_or_path num_iterations"
        " epsilon delta"
        " epsilon_high scale_rewards mask_truncated_completions top_p top_k min_p repetition_penalty"
        " generation_batch_size"
        " steps_per_generation vllm_mode vllm_gpu_memory_utilization vllm_tensor_parallel_size vllm_enable_sleep_mode"
        " vllm_max_model_length importance_sampling_level top_entropy_quantile generation_kwargs chat_template_kwargs"
        " cache_implementation use_liger_loss ref_model cast_lm_head_to_fp32 num_generations_eval vllm_model_impl"
        " ds3_gather_for_generation vllm_structured_outputs_regex sapo_temperature_neg sapo_temperature_pos"
        " vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg multi_objective_aggregation entropy_coef"
        " use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target"
        " max_tool_calling_iterations vllm_importance_sampling_correction vllm_importance_sampling_mode"
        " vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min vllm_importance_sampling_cap"
        " off_policy_mask_threshold use_bias_correction_kl use_transformers_continuous_batching"
        " transformers_continuous_batching_config use_transformers_paged",
        "that task has no such argument here"),
    _sharding.DEEPSPEED,
    _sharding.FSDP_WORDS,
    *_sharding.FSDP,
    *_trainer.ROWS,
)  # fmt: skip
