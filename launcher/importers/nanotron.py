"""nanotron's YAML: keys and defaults of nanotron 0.4 (``config/config.py``), and those of its later main branch.

Its ranks are laid out like Megatron-LM's: tensor and pipeline parallel ranks, and ZeRO-1 over the data ranks. The batch
is said by all of its three numbers, since ``parallelism.dp`` is what the ranks make of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.config.ledger import Ledger, name_from
from launcher.importers import Imported, _data, _foreign
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
    say_text,
    switch,
    usual,
    words,
)  # fmt: skip

_M, _P, _O = "model.model_config", "parallelism", "optimizer"
_S = f"{_O}.learning_rate_scheduler"
_F = f"{_O}.optimizer_factory"
_DEFAULTS: Mapping[str, Any] = {"parallel": "3d", "data.eval_fraction": 0.0, "optimizer.clip": 0.0}
_SMALL = 2**16  # Ids below it take two bytes.
_LLAMA: Mapping[str, Any] = {
    "model.family": "llama", "model.normalization": "rmsnorm", "model.position_embedding": "rope",
    "model.weights": None,
    "model.norm_epsilon": 1e-6, "model.hidden_act": "silu", "model.rope_theta": 10000.0,
    "model.head_dim": None, "model.num_key_value_heads": None, "model.attention_bias": False,
}  # fmt: skip


def read(text: str, path: str) -> Imported:
    """Read a nanotron configuration; ``path`` is for messages; raises ConfigErrors where the text is none."""
    content = _foreign.content_of(text, path, "a configuration of nanotron")
    reading = Reading(path=path, lenient=True, file="nanotron's YAML", ledger=Ledger(_foreign.flat(content)))
    _data_sets(reading)
    apply(TABLE, reading)
    defaults(reading, {**_DEFAULTS, **_LLAMA})
    _batch(reading)
    _schedule(reading)
    reading.settings["model.name"] = name_from(
        str(reading.value("general.run") or reading.value("general.project") or path)
    )
    return imported(reading, summary=f"{reading.settings['model.name']} by nanotron", source="a nanotron configuration")


def _batch(reading: Reading) -> None:
    """The global batch: micro-batch, accumulation and data ranks."""
    micro = reading.settings.get("train.micro_batch_size", 1)
    steps = reading.settings.get("train.gradient_accumulation", 1)
    ranks = reading.count(f"{_P}.dp", 1)
    if ranks is not None:
        reading.say(f"{_P}.dp", {"train.global_batch_size": micro * steps * ranks})
    reading.settings = {
        "parallel.tensor": 1,
        "parallel.pipeline": 1,
        **reading.settings,
    }  # Of parallel=3d they are others.
    degrees = [int(reading.settings.get(f"parallel.{name}", 1)) for name in ("tensor", "pipeline")]
    if ranks is not None:
        reading.notes.append(f"it runs on {ranks * degrees[0] * degrees[1]} GPUs")
    if degrees[0] == 1:
        reading.settings["parallel.sequence"] = False


def _schedule(reading: Reading) -> None:
    """A decay that starts after the warm-up reaches to its end; one that starts later is a ``wsd``."""
    steps = reading.settings.get("train.steps")
    warmup = reading.settings.get("optimizer.warmup_steps", 0)
    style = str(reading.value(f"{_S}.lr_decay_style") or "linear").lower()
    start, length = reading.number(f"{_S}.lr_decay_starting_step"), reading.number(f"{_S}.lr_decay_steps")
    keys = [f"{_S}.{name}" for name in ("lr_decay_style", "lr_decay_starting_step", "lr_decay_steps")]
    begin = int(start if start is not None else warmup)
    end = begin + int(length) if length else steps
    if reading.value(f"{_S}.min_decay_lr") is None and "optimizer.lr" in reading.settings:
        reading.settings["optimizer.min_lr"] = reading.settings["optimizer.lr"]  # LRSchedulerArgs.__post_init__
    if end is None or style not in ("linear", "cosine", "1-sqrt"):
        for key in keys:
            if reading.ledger.is_open(key):
                reading.ledger.leave(key, "the schedule has learning rates of its own: set optimizer.schedule")
        return
    said: dict[str, Any] = {"optimizer.decay_steps": end} if end != steps else {}
    if begin <= warmup and style != "1-sqrt":
        said["optimizer.schedule"] = style
    else:
        said |= {"optimizer.schedule": "wsd", "optimizer.wsd_decay_steps": max(1, end - begin),
                 "optimizer.wsd_decay": {"1-sqrt": "minus_sqrt"}.get(style, style)}  # fmt: skip
    reading.settings |= said
    for key in keys:
        reading.ledger.say(key, *said)


def _data_sets(reading: Reading) -> None:
    """The data of the first stage, or of a file without stages; later stages are refused."""
    stages = _foreign.parts(reading.ledger.values, "data_stages")
    block = f"{stages[0]}.data" if stages else "data"
    for stage in stages[1:]:
        reading.leave("one set of data is read from beginning to end here: set data.mix", stage)
    if stages:
        reading.idle("of the one stage that there is", f"{stages[0]}.name", f"{stages[0]}.start_training_step")
    hub, splits = (
        reading.value(f"{block}.dataset.hf_dataset_or_datasets"),
        reading.value(f"{block}.dataset.hf_dataset_splits"),
    )
    names = {"hf_dataset_or_datasets": "path", "hf_dataset_splits": "split", "hf_dataset_config_name": "config",
             "text_column_name": "column"}  # fmt: skip
    if isinstance(hub, str):
        said = {
            "path": hub,
            "split": splits if isinstance(splits, str) and splits != "train" else None,
            "config": reading.value(f"{block}.dataset.hf_dataset_config_name"),
            "column": reading.value(f"{block}.dataset.text_column_name"),
        }
        keys = tuple(f"{block}.dataset.{name}" for name in names)
        _data.say(reading, [_data.DataSet(keys=keys, source=_data.source_of(hub, chat=False), said=said)])
    if not _folders(reading, f"{block}.dataset") and reading.ledger.values.get(f"{block}.dataset", "") is None:
        choose(reading, f"{block}.dataset", {"data": "synthetic"})
    count(f"{block}.num_loading_workers", "data.workers").enter(reading, f"{block}.num_loading_workers")
    count(f"{block}.seed", "train.seed").enter(reading, f"{block}.seed")
    apply((
        idle(f"{block}.dataset.dataset_processing_num_proc_per_process {block}.dataset.dataset_overwrite_cache"
             f" {block}.dataset.vocab_size {block}.dataset.token_size_in_bytes {block}.dataset.return_positions"
             f" {block}.dataset.skip_tokens", "of how the data are prepared"),
        off(f"{block}.dataset", "one set is read here, by its name on the Hub or its folder: set data.path"),
    ), reading)  # fmt: skip


def _folders(reading: Reading, block: str) -> bool:
    """Folders of token ids, several by their weights; False where there are none."""
    folder, shares = reading.value(f"{block}.dataset_folder"), reading.value(f"{block}.dataset_weights")
    folders = [each for each in (folder if isinstance(folder, list) else [folder]) if isinstance(each, str)]
    weights = shares if isinstance(shares, list) and len(shares) == len(folders) else [None] * len(folders)
    keys = (f"{block}.dataset_folder", f"{block}.dataset_weights")
    said = [{"path": each, "weight": weight} for each, weight in zip(folders, weights, strict=True)]
    _data.say(reading, [_data.DataSet(keys=keys, source="tokens", said=each) for each in said])
    wide = (
        max(reading.number(f"{block}.vocab_size") or 0, reading.number("model.model_config.vocab_size") or 0) > _SMALL
    )
    if folders and (wide or reading.number(f"{block}.token_size_in_bytes") == 4):
        reading.settings["data.token_dtype"] = "uint32"
        for name in ("vocab_size", "token_size_in_bytes"):
            reading.ledger.say(f"{block}.{name}", "data.token_dtype")
    return bool(folders)


def _evaluates(reading: Reading, key: str) -> None:
    if (reading.number(key) or -1) > 0 and (reading.number("tokens.limit_val_batches") or 0) > 0:
        reading.say_count(key, "train.eval_every", 1)
    else:
        reading.idle("nothing validates: no batch of a validation is asked for", key)


def _tokenizer(reading: Reading, key: str) -> None:
    if reading.choose.get("data") in ("tokens", "synthetic"):
        reading.idle("token ids are there already", key)
    else:
        say_text(reading, key, "data.tokenizer")


def _sequence(reading: Reading, key: str) -> None:
    """``REDUCE_SCATTER`` splits norms along the sequence, ``ALL_REDUCE`` does not."""
    reading.say(key, {"parallel.sequence": str(reading.value(key)).upper().endswith("REDUCE_SCATTER")})


def _accumulates(reading: Reading, key: str) -> None:
    if reading.flag(key):
        reading.ledger.default(key)
    else:
        reading.say(key, {"precision.accumulate": "bf16", "precision.gradients": "bf16"})


TABLE: tuple[Row, ...] = (
    count(f"{_M}.hidden_size", "model.hidden_size", least=1),
    count(f"{_M}.num_hidden_layers", "model.num_hidden_layers", least=1),
    count(f"{_M}.num_attention_heads", "model.num_attention_heads", least=1),
    count(f"{_M}.num_key_value_heads", "model.num_key_value_heads", least=1),
    count(f"{_M}.intermediate_size", "model.intermediate_size", least=1),
    count(f"{_M}.vocab_size", "model.vocab_size", least=1),
    count(f"{_M}.max_position_embeddings", "model.max_position_embeddings", least=1),
    number(f"{_M}.rms_norm_eps", "model.norm_epsilon", "left out it is 1e-6"),
    number(f"{_M}.rope_theta", "model.rope_theta"),
    number(f"{_M}.initializer_range", "model.initializer_range"),
    flag(f"{_M}.tie_word_embeddings", "model.tie_word_embeddings"),
    flag(f"{_M}.attention_bias", "model.attention_bias"),
    words(f"{_M}.hidden_act", "model.hidden_act", {"silu": "silu", "gelu": "gelu"},
        "{} is no activation here: set model.hidden_act"),
    words(f"{_M}._attn_implementation", "model.attention", {"flash_attention_2": "flash", "sdpa": "sdpa",
        "eager": "eager"},
          "{}: set model.attention"),
    usual(f"{_M}.is_llama_config {_M}.is_qwen2_config", (True,), "the model is another than Llama: set model.family"),
    off(f"{_M}.rope_scaling", "set model.rope_parameters"),
    idle(f"{_M}.pretraining_tp", "of a kernel that is not there any more"),
    usual(f"{_M}.rope_interleaved {_M}._use_qkv_packed {_M}._use_doc_masking {_M}._fused_rotary_emb"
        f" {_M}._fused_rms_norm",
          (True, False), ""),
    idle(f"{_M}.bos_token_id {_M}.eos_token_id {_M}.pad_token_id {_M}.use_cache", "of generation"),
    by("model.model_config.z_loss_coefficient", "train.z_loss", "where z_loss_enabled is true",
       lambda reading, key: reading.say_number(key, "train.z_loss") if reading.flag("model.model_config.z_loss_enabled")
       else reading.idle("it is switched off", key)),
    usual("model.model_config.z_loss_enabled", (True, False), ""),
    off("model.model_config", "the model is another than Llama: set model.family"),
    number("model.init_method.std", "model.initializer_range"),
    off("model.init_method.path", "its form of checkpoint is not read here: set model.weights"),
    words("model.dtype", "precision", {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"},
        "{}: set precision.compute"),
    by("model.make_vocab_size_divisible_by", "backend.extra", "", lambda reading, key: (
        reading.ledger.default(key) if reading.number(key) == 1
        else reading.say(key, {"backend.extra.make-vocab-size-divisible-by": int(reading.number(key) or 1)}))),
    idle("model.ddp_bucket_cap_mb", "of how gradients are reduced"),
    by("tokenizer.tokenizer_name_or_path", "data.tokenizer", "of text alone", _tokenizer),
    idle("tokenizer", "of the tokenizer's files"),
    count("tokens.sequence_length", "train.sequence_length", least=1),
    count("tokens.train_steps", "train.steps", least=1),
    count("tokens.micro_batch_size", "train.micro_batch_size", least=1),
    count("tokens.batch_accumulation_per_replica", "train.gradient_accumulation", least=1),
    by("tokens.val_check_interval", "train.eval_every", "", _evaluates),
    by("tokens.limit_val_batches", "train.eval_steps", "", lambda reading, key: reading.say_count(key,
        "train.eval_steps", 1)
       if (reading.number(key) or 0) > 0 and (reading.number("tokens.val_check_interval") or -1) > 0
       else reading.idle("nothing validates", key)),
    idle("tokens.limit_test_batches", "of a test that is none of the training"),
    later(f"{_P}.dp", "train.global_batch_size", "with micro-batch and accumulation"),
    count(f"{_P}.pp", "parallel.pipeline", least=1),
    count(f"{_P}.tp", "parallel.tensor", least=1),
    count(f"{_P}.context_parallel_size", "parallel.context", least=1),
    count(f"{_P}.expert_parallel_size", "parallel.expert", least=1),
    words(f"{_P}.pp_engine", "parallel.schedule", {"1f1b": "1f1b", "afab": "gpipe"}, "{}: set parallel.schedule"),
    by(f"{_P}.tp_mode", "parallel.sequence", "REDUCE_SCATTER", _sequence),
    switch(f"{_P}.recompute_layer", {"checkpointing": "full"}),
    off(f"{_P}.moe_layer_recompute", "set checkpointing.modules"),
    idle(f"{_P}.tp_linear_async_communication {_P}.tp_recompute_allgather", "of how ranks exchange the same"),
    by(f"{_O}.zero_stage", "zero", "", lambda reading, key: choose(reading, key, {"zero": int(reading.number(key)
        or 0)})),
    number(f"{_O}.weight_decay", "optimizer.weight_decay"),
    number(f"{_O}.clip_grad", "optimizer.clip", "left out nothing is clipped"),
    by(f"{_O}.accumulate_grad_in_fp32", "precision.accumulate", "", _accumulates),
    number(f"{_O}.adam_eps {_F}.adam_eps", "optimizer.epsilon"),
    number(f"{_O}.adam_beta1 {_F}.adam_beta1", "optimizer.beta1"),
    number(f"{_O}.adam_beta2 {_F}.adam_beta2", "optimizer.beta2"),
    idle(f"{_O}.torch_adam_is_fused {_F}.torch_adam_is_fused", "of how the step is computed"),
    words(f"{_F}.name", "optimizer", {"adamw": "adamw", "sgd": "sgd"}, "{}: set optimizer.name"),
    off(f"{_O}.weight_decay_exclude_named_params", "weights decay as the engine chooses here"),
    number(f"{_S}.learning_rate", "optimizer.lr"),
    count(f"{_S}.lr_warmup_steps", "optimizer.warmup_steps"),
    usual(f"{_S}.lr_warmup_style", ("linear",), "the warm-up is linear here: set optimizer.warmup"),
    number(f"{_S}.min_decay_lr", "optimizer.min_lr"),
    later(f"{_S}.lr_decay_style {_S}.lr_decay_steps {_S}.lr_decay_starting_step",
        "optimizer.schedule, optimizer.wsd_decay_steps", "a decay that starts after the warm-up is wsd"),
    count("checkpoints.checkpoint_interval", "save.every", least=1),
    off("checkpoints.resume_checkpoint_path", "a run starts afresh here: set save.load, or launch resume"),
    idle("checkpoints", "of the files of a checkpoint"),
    count("general.seed", "train.seed"),
    idle("general", "of logs and names: run.name"),
    idle("logging profiler lighteval s3_upload metrics_logging", "of logs, profiles and what evaluates a checkpoint"),
    off("data_stages data", "one set is read here: set data.path"),
)  # fmt: skip
