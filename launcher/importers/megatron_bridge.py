"""Megatron Bridge's recipes: Python functions that fill a ``ConfigContainer`` (release 0.6), and YAML of its sections.

Its sections hold Megatron-core's dataclasses, so that a key without a setting here means what the argument of
Megatron-LM of the same name does (``launcher.importers.megatron.tables``). What ``_pretrain_common`` sets is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from launcher.base.files import JsonObject
from launcher.config.ledger import Ledger
from launcher.importers import Imported, _foreign, _python
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
    number,
    off,
    revision,
    say_text,
    text,
    usual,
    words,
)  # fmt: skip
from launcher.importers.megatron.tables import DEFAULTS, MEANINGS

HAS_VARIABLES = True

_PRECISION: Mapping[str, Any] = {
    "bf16_mixed": "bf16", "fp16_mixed": "fp16",
    "bf16_with_fp8_delayed_scaling_mixed": {"precision": "fp8", "precision.recipe": "delayed"},
    "bf16_with_fp8_current_scaling_mixed": {"precision": "fp8", "precision.recipe": "tensorwise"},
    "bf16_with_fp8_subchannel_scaling_mixed": {"precision": "fp8", "precision.recipe": "blockwise"},
    "bf16_with_mxfp8_mixed": "mxfp8", "bf16_with_nvfp4_mixed": "nvfp4",
}  # fmt: skip
_COMMON: Mapping[str, Any] = {  # recipes/common.py
    "train.steps": 300000, "train.global_batch_size": 32, "train.micro_batch_size": 2, "train.sequence_length": 4096,
    "train.eval_every": 500, "train.eval_steps": 32, "save.every": 500, "optimizer.warmup_steps": 500,
    "optimizer.lr": 3e-4, "optimizer.min_lr": 3e-5, "train.seed": 1234, "data": "synthetic", "zero": "1",
}  # fmt: skip
_SFT: Mapping[str, Any] = {
    **_COMMON,
    "train.steps": 1000, "train.global_batch_size": 128, "train.micro_batch_size": 1, "train.sequence_length": 2048,
    "train.eval_every": 100, "save.every": 100, "optimizer.warmup_steps": 50, "optimizer.lr": 5e-6,
    "optimizer.min_lr": 0.0, "optimizer.beta2": 0.98, "train.seed": 5678, "data.packing": "documents", "data": "chat",
}  # fmt: skip
_BASES: Mapping[str, Mapping[str, Any]] = {"_pretrain_common": _COMMON, "_sft_common": _SFT}
_DEFAULTS: Mapping[str, Any] = {"precision": "bf16", "data": "synthetic"}
_LONG = {"microbatch-group-size-per-vp-stage": "microbatch-group-size-per-virtual-pipeline-stage"}
_SECTIONS = re.compile(
    r"(?:model|ddp|optimizer|scheduler|train|validation|checkpoint|logger|rng|dist|dataset)\.(\w+)\Z"
)


def read(text: str, path: str, *, variables: Mapping[str, str] | None = None) -> Imported:
    """Read a recipe or a YAML of its sections; of a Python text with several functions ``config`` names one.

    Raises:
        ConfigErrors: The text is none, or several recipes.
    """
    notes: list[str] = []
    if path.endswith(".py") or _foreign.is_python(text):
        followed = _python.Followed(text, path)
        content, notes = followed.function((variables or {}).get("config")), followed.notes
    else:
        content = _foreign.content_of(text, path, "a configuration of Megatron Bridge")
    base = str(content.pop("class", ""))
    values = _named(content) | ({"recipe": base} if base else {})
    reading = Reading(
        path=path, lenient=True, file="Megatron Bridge's configuration", ledger=Ledger(values), notes=notes
    )
    apply(TABLE, reading)
    _arguments(reading)
    defaults(reading, {**_BASES.get(base, {}), **_DEFAULTS})
    _finish(reading)
    return imported(
        reading,
        summary=f"{reading.choose.get('model', 'a model')} by Megatron Bridge",
        source="a Megatron Bridge configuration",
    )


def _named(content: JsonObject) -> JsonObject:
    """Flat keys, with the first argument of a call under ``value`` and its name where it says something."""
    found = {}
    for key, value in _foreign.flat(content).items():
        name = re.sub(r"\.0\Z", ".value", key)
        if not (name.endswith(".class") and name.count(".") == 1 and name.split(".")[0] in _PLAIN):
            found[name] = value
    return found


_PLAIN = ("train", "validation", "optimizer", "scheduler", "ddp", "dataset", "logger", "tokenizer", "checkpoint",
    "rng", "dist",
          "model", "ft", "comm_overlap", "profiling")  # fmt: skip


def _finish(reading: Reading) -> None:
    """The preset whose name says most of the degrees; the schedule's end is the run's."""
    degree = {
        name: int(reading.settings.get(f"parallel.{name}", 1)) for name in ("tensor", "pipeline", "context", "expert")
    }
    preset = "ep" if degree["expert"] > 1 else "cp" if degree["context"] > 1 and degree["tensor"] == 1 else "tp"
    if degree["pipeline"] > 1:
        preset = "ep" if degree["expert"] > 1 else "tp_pp"
    zero = reading.choose.pop("zero", "0")
    reading.choose |= {"parallel": preset, "zero": zero}
    for name, found in degree.items():
        reading.settings[f"parallel.{name}"] = found
    if degree["tensor"] == 1:
        reading.settings["parallel.sequence"] = False
    if "model" not in reading.choose:
        reading.notes.append("its model is not named: add model=ORGANISATION/NAME, or one of launch show model")
    if reading.choose.get("data") == "synthetic":
        reading.settings.pop("data.tokenizer", None)


def _arguments(reading: Reading) -> None:
    """Keys that are Megatron-LM's arguments under other signs, by the meaning that they have there."""
    for key, value in reading.ledger.values.items():
        found = _SECTIONS.match(key)
        if not reading.ledger.is_open(key) or found is None or not isinstance(value, bool | int | float | str):
            continue
        name = found[1].replace("_", "-")
        name = _LONG.get(name, name)
        meaning = MEANINGS.get(name)
        if value is False or DEFAULTS.get(name) == value:
            reading.ledger.default(key)
        elif meaning is not None and meaning.effect is None:
            reading.settings[f"backend.extra.{name}"] = value
            reading.ledger.keep(key)
        elif meaning is not None:
            reading.ledger.leave(key, str(meaning.effect), matters=meaning.matters)


def _model(reading: Reading, key: str) -> None:
    """The first argument of ``AutoBridge.from_hf_pretrained``: a model of the Hub."""
    say_text(reading, key, "model")
    if not reading.flag("model.load_weights") and reading.has("model.load_weights"):
        reading.settings["model.weights"] = None
        reading.ledger.say("model.load_weights", "model.weights")
    reading.ledger.default("model.load_weights")


def _sequence(reading: Reading, key: str) -> None:
    reading.say_count(key, "train.sequence_length", 1)


def _mixed(reading: Reading, key: str) -> None:
    word = str(reading.value(key)).replace("-", "_").rpartition(".")[2]
    if word in ("get_mixed_precision_config", "MixedPrecisionConfig") and reading.has("mixed_precision.value"):
        reading.ledger.default(key)
    elif word not in _PRECISION:
        reading.ledger.leave(key, f"{word} mixes formats by layers: set precision.compute")
    else:
        found = _PRECISION[word]
        choose(reading, key, found if isinstance(found, dict) else {"precision": found})


def _reduces(reading: Reading, key: str) -> None:
    """Gradients in fp32 are the default; else they are kept and reduced in 16 bits."""
    if reading.flag(key):
        reading.ledger.default(key)
    else:
        reading.say(key, {f"precision.{name}": "bf16" for name in ("gradients", "accumulate", "reduce")})


def _evaluates(reading: Reading, key: str) -> None:
    """Steps between evaluations, or batches of one; 0 evaluates never."""
    if reading.number(key):
        reading.say_count(key, "train.eval_every" if key.endswith("interval") else "train.eval_steps", 1)
    else:
        reading.say(key, {"train.eval_every": None})


def _layout(reading: Reading, key: str) -> None:
    """Stages in Megatron's letters, in one word."""
    if isinstance(reading.value(key), str):
        reading.say(key, {"parallel.layout": str(reading.value(key)).split("|")})
    else:
        reading.ledger.leave(key, "stages are named by letters in one word here: set parallel.layout")


def _data(reading: Reading, key: str) -> None:
    """``blend`` or ``data_path``: one prefix; without one the data are made up."""
    value = reading.value(key)
    while (isinstance(value, list) and len(value) == 1) or (isinstance(value, list) and value and value[-1] is None):
        value = value[0]
    if isinstance(value, str):
        choose(reading, key, {"data": "tokens", "data.path": value})
    else:
        reading.ledger.leave(key, "one prefix is read here: set data.path")


def _recomputes(reading: Reading, key: str) -> None:
    word = str(reading.value(key))
    if word in ("full", "selective"):
        choose(reading, key, {"checkpointing": word})
    else:
        reading.wrong(key, "is full or selective")


def _modules(reading: Reading, key: str) -> None:
    if reading.choose.get("checkpointing") == "selective" and isinstance(reading.value(key), list):
        reading.say(key, {"checkpointing.modules": reading.value(key)})
    else:
        reading.idle("nothing is recomputed by modules", key)


def _shards(reading: Reading, key: str) -> None:
    if reading.flag(key):
        choose(reading, key, {"zero": "1"})
    else:
        choose(reading, key, {"zero": "0"})


def _fuses(reading: Reading, key: str) -> None:
    if reading.flag(key):
        reading.say(key, {"train.loss": "fused"})
    else:
        reading.ledger.default(key)


def _loss_kernel(reading: Reading, key: str) -> None:
    if reading.flag("model.cross_entropy_loss_fusion") and str(reading.value(key)) == "te":
        reading.ledger.leave(key, "Megatron-LM's own kernel takes its place, whose memory is counted", matters=False)
    else:
        reading.ledger.default(key)


def _trains_anew(reading: Reading, key: str) -> None:
    reading.ledger.leave(key, "Megatron-LM has no adapters here: adapter=lora with parallel=fsdp: set adapter.name")


def _base(reading: Reading, key: str) -> None:
    word = str(reading.value(key))
    if word in ("_pretrain_common", "ConfigContainer"):
        reading.ledger.default(key)
    elif word == "_sft_common":
        reading.ledger.leave(key, "it trains on SQuAD's own columns, which are not read here: set data.path")
    else:
        reading.ledger.leave(key, f"what {word} sets is not known here")


_DTYPES = ("float32", "fp32")
TABLE: tuple[Row, ...] = (
    by("recipe", "", "of the common recipes _pretrain_common is known", _base),
    by("model.value model.hf_model_id model.hf_path", "model", "a name on the Hub", _model),
    revision("model.revision model.hf_model_revision"),
    idle("model.class model.load_weights model.trust_remote_code model.torch_dtype", "of how the model is loaded"),
    count("model.tensor_model_parallel_size", "parallel.tensor", least=1),
    count("model.pipeline_model_parallel_size", "parallel.pipeline", least=1),
    count("model.virtual_pipeline_model_parallel_size", "parallel.virtual_pipeline", least=1),
    count("model.context_parallel_size", "parallel.context", least=1),
    count("model.expert_model_parallel_size", "parallel.expert", least=1),
    count("model.expert_tensor_parallel_size", "parallel.expert_tensor", least=1),
    flag("model.sequence_parallel", "parallel.sequence"),
    count("model.num_layers_in_first_pipeline_stage", "parallel.first_stage_layers", least=1),
    count("model.num_layers_in_last_pipeline_stage", "parallel.last_stage_layers", least=1),
    by("model.pipeline_model_parallel_layout", "parallel.layout", "in one word", _layout),
    count("model.kv_channels", "model.head_dim", least=1),
    number("model.hidden_dropout model.attention_dropout", "model.dropout"),
    usual("model.gradient_accumulation_fusion model.bias_activation_fusion model.bias_dropout_fusion"
          " model.apply_rope_fusion model.persist_layer_norm model.masked_softmax_fusion"
          " model.deallocate_pipeline_outputs"
          " model.use_transformer_engine_full_layer_spec", (True, False), ""),
    off("model.position_embedding_type model.yarn_rotary_scaling_factor model.yarn_mscale model.yarn_mscale_all_dim"
        " model.layernorm_zero_centered_gamma model.freeze_vision_model model.freeze_language_model"
        " model.freeze_vision_projection ddp.use_megatron_fsdp",
        "there is no such thing here"),
    idle("model.pipeline_dtype", "of what stages send, which is what they compute"),
    by("model.seq_length dataset.seq_length dataset.sequence_length", "train.sequence_length", "", _sequence),
    by("model.recompute_granularity", "checkpointing", "", _recomputes),
    by("model.recompute_modules", "checkpointing.modules", "", _modules),
    by("model.recompute_method", "checkpointing.method", "", lambda reading, key: say_text(reading, key,
        "checkpointing.method")
       if reading.choose.get("checkpointing") == "full" else reading.idle("blocks are not recomputed whole", key)),
    by("model.recompute_num_layers", "checkpointing.layers", "", lambda reading, key: reading.say_count(key,
        "checkpointing.layers", 1)
       if reading.choose.get("checkpointing") == "full" else reading.idle("blocks are not recomputed whole", key)),
    count("model.mtp_num_layers", "model.mtp_layers"),
    number("model.init_method_std", "model.initializer_range"),
    number("model.moe_aux_loss_coeff", "model.router_aux_loss_coef"),
    number("model.rotary_base", "model.rope_theta"),
    count("model.num_layers", "model.num_hidden_layers", least=1),
    count("model.hidden_size", "model.hidden_size", least=1),
    count("model.ffn_hidden_size", "model.intermediate_size", least=1),
    count("model.num_attention_heads", "model.num_attention_heads", least=1),
    count("model.num_query_groups", "model.num_key_value_heads", least=1),
    count("model.vocab_size", "model.vocab_size", least=1),
    by("model.cross_entropy_loss_fusion", "train.loss=fused", "", _fuses),
    by("model.cross_entropy_fusion_impl", "train.loss=fused", "Megatron-LM's own kernel", _loss_kernel),
    words("model.attention_backend", "model.attention", {"auto": None, "flash": "flash", "fused": None, "none": None,
        "unfused": "eager"},
          "{}: set model.attention"),
    usual("model.params_dtype", ("bfloat16",), "set precision.parameters"),
    idle("model.cuda_graph_scope model.cuda_graph_warmup_steps model.cuda_graph_modules"
        " model.moe_flex_dispatcher_backend"
         " model.moe_hybridep_num_sms model.moe_deepep_num_sms model.moe_flex_dispatcher_num_sms"
         " model.use_te_rng_tracker"
         " rng.te_rng_tracker model.offload_modules model.high_priority_a2a_comm_stream model.hf_config",
         "it belongs to what another key switches on"),
    by("mixed_precision.grad_reduce_in_fp32", "precision.gradients, precision.accumulate, precision.reduce", "",
        _reduces),
    idle("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag", "of how buffers are shared"),
    usual("mixed_precision.fp8_param_gather mixed_precision.fp8_dot_product_attention", (False,),
        "parameters are gathered in 16 bits here"),
    by("mixed_precision.class mixed_precision.value mixed_precision", "precision", "mixtures by layers are refused",
        _mixed),
    count("train.train_iters", "train.steps", least=1),
    count("train.global_batch_size", "train.global_batch_size", least=1),
    count("train.micro_batch_size", "train.micro_batch_size", least=1),
    by("train.eval_interval validation.eval_interval train.eval_iters validation.eval_iters",
       "train.eval_every, train.eval_steps", "", _evaluates),
    idle("train.manual_gc train.manual_gc_interval train.manual_gc_eval train.empty_unused_memory_level"
         " train.exit_signal_handler train.check_for_nan_in_grad", "of how ranks do the same"),
    number("optimizer.lr scheduler.max_lr", "optimizer.lr"),
    number("optimizer.min_lr scheduler.min_lr", "optimizer.min_lr"),
    number("optimizer.weight_decay", "optimizer.weight_decay"),
    number("optimizer.adam_beta1", "optimizer.beta1"),
    number("optimizer.adam_beta2", "optimizer.beta2"),
    number("optimizer.adam_eps", "optimizer.epsilon"),
    number("optimizer.clip_grad", "optimizer.clip"),
    words("optimizer.optimizer", "optimizer", {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "muon": "muon"},
        "{}: set optimizer.name"),
    usual("optimizer.main_grads_dtype optimizer.main_params_dtype optimizer.exp_avg_dtype optimizer.exp_avg_sq_dtype",
          _DTYPES, "states are in fp32 here: set precision.optimizer_states"),
    usual("optimizer.bf16 optimizer.fp16 optimizer.class scheduler.class", (True, False), ""),
    by("optimizer.use_distributed_optimizer ddp.use_distributed_optimizer", "zero=1", "", _shards),
    idle("ddp.grad_reduce_in_fp32", "mixed_precision decides it"),
    usual("ddp.data_parallel_sharding_strategy", ("no_shard", "optim_grads_params"),
        "Megatron-FSDP alone reads it: set zero.stage"),
    idle("ddp.check_for_nan_in_grad ddp.check_for_large_grads ddp.average_in_collective",
        "of how gradients are averaged"),
    count("scheduler.lr_warmup_iters", "optimizer.warmup_steps"),
    number("scheduler.lr_warmup_init", "optimizer.warmup_lr"),
    by("scheduler.lr_decay_iters", "optimizer.decay_steps", "", lambda reading, key: reading.say_count(key,
        "optimizer.decay_steps", 1)
       if reading.value(key) != reading.value("train.train_iters") else reading.ledger.default(key)),
    words("scheduler.lr_decay_style", "optimizer.schedule", {"cosine": "cosine", "linear": "linear",
        "constant": "constant",
          "wsd": "wsd", "inverse-square-root": "inverse_sqrt"}, "{}: set optimizer.schedule"),
    words("scheduler.weight_decay_incr_style", "", {"constant": None},
        "weights decay alike all the time here, not {}: set optimizer.weight_decay"),
    idle("scheduler.start_weight_decay scheduler.end_weight_decay", "the decay of weights does not change"),
    by("dataset.blend dataset.data_path dataset.blend_per_split", "data=tokens, data.path",
        "one prefix; a blend is refused", _data),
    count("dataset.num_workers", "data.workers"),
    count("dataset.random_seed dataset.seed rng.seed", "train.seed"),
    words("dataset.split", "data.eval_fraction", {"9999,8,2": None}, "set data.eval_fraction"),
    words("dataset.dataloader_type", "", {"single": None, "cyclic": None, "batch": None}, "{}: set data.shuffle"),
    usual("dataset.reset_attention_mask dataset.reset_position_ids dataset.eod_mask_loss", (False,),
        "set data.packing"),
    text("tokenizer.tokenizer_model", "data.tokenizer", "of data that are not made up"),
    idle("tokenizer", "the vocabulary is the model's"),
    idle("dataset", "of how the data are prepared"),
    count("checkpoint.save_interval", "save.every", least=1),
    flag("checkpoint.async_save", "save.async"),
    off("checkpoint.pretrained_checkpoint", "its form of checkpoint is not read here: set model.weights"),
    idle("checkpoint", "of the files of a checkpoint"),
    by("peft", "adapter", "Megatron-LM has no adapters here", _trains_anew),
    by("dist.distributed_timeout_minutes", "train.timeout_s", "", lambda reading, key: reading.say(
        key, {"train.timeout_s": 60 * (reading.number(key) or 30)})),
    idle("env_vars logger profiling rerun_state_machine ft straggler nvrx_straggler inprocess_restart"
        " tensor_inspect rng dist"
         " comm_overlap perf_recipe_name", "of logs, machines and how ranks overlap"),
)  # fmt: skip
