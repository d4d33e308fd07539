"""Keys of Hugging Face's Trainer (transformers 5.23, ``training_args.py``), which axolotl, LLaMA-Factory and TRL share.

An evaluation, a save or a warm-up that is a share of the run is one here where the length of the run says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.importers import _table
from launcher.importers._reading import Reading
from launcher.importers._table import (
    Row,
    by,
    choose,
    count,
    flag,
    idle,
    later,
    number,
    off,
    other,
    switch,
    text,
    usual,
    words,
)  # fmt: skip

_OPTIMIZERS: Mapping[str, Any] = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw", "adamw_apex_fused"), "adamw"),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit", "ao_adamw_8bit"), "adamw_8bit"),
    "paged_adamw_8bit": "paged_adamw_8bit",
    **dict.fromkeys(("paged_adamw_32bit", "paged_adamw"), "adamw"),
    "adafactor": "adafactor",
    "sgd": "sgd",
    **dict.fromkeys(("lion_32bit", "lion"), "lion"),
    "muon": "muon",
}
_OTHER_OPTIMIZER = "{} takes other steps or keeps other states than the optimizers here: set optimizer.name"

_SCHEDULES: Mapping[str, Any] = {
    **dict.fromkeys(("linear", "polynomial"), "linear"),
    **dict.fromkeys(("cosine", "cosine_with_min_lr", "cosine_with_restarts"), "cosine"),
    **dict.fromkeys(("constant", "constant_with_warmup"), "constant"),
    "inverse_sqrt": "inverse_sqrt",
    "warmup_stable_decay": "wsd",
}
_DECAYS = {"linear": "linear", "cosine": "cosine", "1-sqrt": "minus_sqrt"}

DEFAULTS: Mapping[str, Any] = {
    "optimizer.weight_decay": 0.0, "optimizer.beta2": 0.999, "train.epochs": 3.0,
    "optimizer.schedule": "linear", "optimizer.lr": 5e-5, "train.micro_batch_size": 8, "data.eval_fraction": 0.0,
}  # fmt: skip
"""What the Trainer takes for what a file does not say, where a run here takes another value."""

_LESS = {"sgd": ("optimizer.beta2", "optimizer.epsilon"), "lion": ("optimizer.epsilon",),
         "adafactor": ("optimizer.beta1", "optimizer.beta2", "optimizer.epsilon")}  # fmt: skip
"""Settings that an optimizer does not read."""


def finish(reading: Reading, defaults: Mapping[str, Any]) -> None:
    """Settings for what the file does not say, less those that its optimizer does not read."""
    if "train.steps" in reading.settings:
        reading.settings.pop("train.epochs", None)
        defaults = {key: value for key, value in defaults.items() if key != "train.epochs"}
    if reading.choose.get("parallel") == "zero3" and reading.settings.get("train.loss") == "fused":
        reading.settings["train.loss"] = "chunked"  # ZeRO 3 gathers the head for its own call alone.
    _table.defaults(reading, defaults)
    _one_row(reading)
    for setting in _LESS.get(reading.choose.get("optimizer", ""), ()):
        reading.settings.pop(setting, None)


def _one_row(reading: Reading) -> None:
    """Packed rows one at a time where the kernel finds documents in one row alone: the same batch by accumulation."""
    settings, size = reading.settings, reading.settings.get("train.micro_batch_size", 1)
    packed = settings.get("data.packing") == "documents" and settings.get("model.attention") == "flash"
    if not packed or not isinstance(size, int) or size < 2:
        return
    steps = settings.get("train.gradient_accumulation") or 1
    said = {"train.micro_batch_size": 1, "train.gradient_accumulation": size * steps}
    for setting in said:
        for key in reading.ledger.saying(setting):
            reading.ledger.say(key, *said)
    settings |= said


def _steps(reading: Reading, key: str) -> None:
    """``max_steps``, which comes before epochs; -1 leaves it to these."""
    if (reading.number(key) or 0) > 0:
        reading.say_count(key, "train.steps", 1)
    else:
        reading.ledger.default(key)


def _epochs(reading: Reading, key: str) -> None:
    if any((reading.number(other) or 0) > 0 for other in ("max_steps",)):
        reading.idle("max_steps comes before it", key)
    else:
        reading.say_number(key, "train.epochs")


def _warmup(reading: Reading, key: str) -> None:
    """Steps, or below 1 their share; steps come before a ratio."""
    found = reading.number(key)
    if found is None:
        return
    if key.endswith("warmup_ratio") and reading.number(key.replace("_ratio", "_steps")):
        reading.idle("warmup_steps comes before it", key)
    elif found < 1 and found:
        reading.say(key, {"optimizer.warmup_ratio": found})
    elif found:
        reading.say_count(key, "optimizer.warmup_steps")
    else:
        reading.ledger.default(key)


def often(reading: Reading, key: str, steps: str, per_epoch: str) -> None:
    """Say how often something is done: every so many steps, or, below 1, after that share of the run."""
    found = reading.number(key)
    if found is None:
        return
    if found >= 1:
        reading.say_count(key, steps)
        return
    epochs = reading.number("num_train_epochs") or reading.number("num_epochs") or 0
    times = 1 / (found * epochs) if found > 0 and epochs else 0
    if times and abs(times - round(times)) < 1e-6:
        reading.say(key, {per_epoch: round(times)})
    else:
        effect = f"it is a share of the run, and steps are counted here: {steps} says them"
        reading.ledger.leave(key, effect, matters=False)


def _evaluates(reading: Reading, key: str) -> None:
    """``eval_strategy``."""
    word = str(reading.value(key)).lower()
    if word in ("no", "false"):
        reading.ledger.default(key)
    elif word == "epoch":
        reading.say(key, {"train.evals_per_epoch": 1})
    elif word == "steps":
        if reading.value("eval_steps") is None:
            reading.say(key, {"train.eval_every": int(reading.number("logging_steps") or 500)})
        else:
            reading.ledger.default(key)
    else:
        reading.wrong(key, "is no, steps or epoch")


def _eval_steps(reading: Reading, key: str) -> None:
    strategy = reading.value("eval_strategy") or reading.value("evaluation_strategy") or "no"
    if str(strategy).lower() == "steps":
        often(reading, key, "train.eval_every", "train.evals_per_epoch")
    else:
        reading.idle(f"eval_strategy is {strategy}", key)


def saves(reading: Reading, key: str) -> None:
    """``save_strategy``."""
    word = str(reading.value(key)).lower()
    if word in ("no", "false"):
        reading.say(key, {"save.last": False})
    elif word == "epoch":
        reading.say(key, {"save.per_epoch": 1})
    elif word == "steps":
        if reading.value("save_steps") is None:
            reading.say(key, {"save.every": 500})
        else:
            reading.ledger.default(key)
    else:
        reading.ledger.leave(
            key, "checkpoints are written as save.every says, and RUN@best finds the best", matters=False
        )


def _save_steps(reading: Reading, key: str) -> None:
    strategy = str(reading.value("save_strategy") or "steps").lower()
    if strategy == "steps":
        often(reading, key, "save.every", "save.per_epoch")
    else:
        reading.idle(f"save_strategy is {strategy}", key)


def times(share: float | None, rate: Any) -> float:
    """A share of a rate, in as many digits as one would write."""
    return float(f"{(share or 0.0) * float(rate or 0.0):.12g}")


def _waits(reading: Reading, key: str) -> None:
    """``ddp_timeout``; numbers that stand for ever are common."""
    if (reading.number(key) or 0) > _DAY:
        reading.say(key, {"train.timeout_s": _DAY})
    else:
        reading.say_count(key, "train.timeout_s", 1)


def tracks(reading: Reading, key: str) -> None:
    """``report_to``: the first tracker that there is here."""
    value = reading.value(key)
    names = [str(each).lower() for each in (value if isinstance(value, list) else [value])]
    known = [name for name in names if name in ("wandb", "tensorboard", "mlflow")]
    if known:
        choose(reading, key, {"tracking": known[0]})
    elif set(names) <= {"none", "all", "[]", ""} or not names:
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, "no such tracker here: tracking=wandb, tensorboard or mlflow", matters=False)


def checkpoints(reading: Reading, key: str) -> None:
    """``gradient_checkpointing``: whole blocks are recomputed; ``offload`` moves their inputs to the host."""
    value = str(reading.value(key)).lower()
    if value in ("false", "none"):
        reading.ledger.default(key)
    elif value in ("true", "unsloth"):
        choose(reading, key, {"checkpointing": "full"})
    elif value == "offload":
        choose(reading, key, {"checkpointing": "full", "checkpointing.offload": True})
    else:
        reading.ledger.leave(key, "whole blocks are recomputed here: set checkpointing.mode")


def schedule_arguments(reading: Reading, key: str) -> None:
    """``lr_scheduler_kwargs``: the lowest rate, and the shape of a decay at the end."""
    name = key.rpartition(".")[2]
    schedule = reading.settings.get("optimizer.schedule")
    if name == "min_lr":
        reading.say_number(key, "optimizer.min_lr")
    elif name in ("min_lr_rate", "min_lr_ratio"):
        rate = reading.number(key) or 0.0
        reading.say(key, {"optimizer.min_lr": times(rate, reading.settings.get("optimizer.lr", 5e-5))})
    elif name == "num_decay_steps" and schedule == "wsd":
        reading.say_count(key, "optimizer.wsd_decay_steps", 1)
    elif name == "decay_type" and schedule == "wsd" and str(reading.value(key)) in _DECAYS:
        reading.say(key, {"optimizer.wsd_decay": _DECAYS[str(reading.value(key))]})
    elif (name, reading.value(key)) in _AS_HERE:
        reading.ledger.default(key)
    else:
        reading.ledger.leave(key, "the schedule has no such form here: set optimizer.schedule and optimizer.min_lr")


_DAY = 86400  # Seconds; a collective that waits longer is lost.
LIGER: Mapping[str, Any] = {"train.loss": "fused", "train.kernels": "liger"}
_AS_HERE: tuple[tuple[str, Any], ...] = (
    ("num_cycles", 0.5), ("num_cycles", 1), ("num_stable_steps", 0), ("warmup_type", "linear"), ("power", 1.0),
    ("lr_end", 0.0), ("num_stable_steps", None),
)  # fmt: skip

OPTIMIZER: tuple[Row, ...] = (
    number("learning_rate", "optimizer.lr"),
    words("optim optimizer", "optimizer", _OPTIMIZERS, _OTHER_OPTIMIZER,
        "8-bit AdamW is torchao's, Lion bitsandbytes'; paged 32-bit states stay on the GPU"),
    number("weight_decay", "optimizer.weight_decay", "left out it is 0"),
    number("adam_beta1", "optimizer.beta1"),
    number("adam_beta2", "optimizer.beta2", "left out it is 0.999"),
    number("adam_epsilon", "optimizer.epsilon"),
    number("max_grad_norm", "optimizer.clip"),
    words("lr_scheduler_type lr_scheduler", "optimizer.schedule", _SCHEDULES,
          "{} has learning rates of its own: set optimizer.schedule to take others",
          "warmup_stable_decay is wsd; restarts and polynomials of higher order are refused"),
    by("lr_scheduler_kwargs", "optimizer.min_lr, optimizer.wsd_decay_steps, optimizer.wsd_decay",
       "other arguments are refused", schedule_arguments),
    by("warmup_steps warmup_ratio", "optimizer.warmup_steps, optimizer.warmup_ratio", "a number below 1 is a ratio",
        _warmup),
    off("optim_args optim_target_modules", "the optimizer has no such argument here"),
)  # fmt: skip

ROWS: tuple[Row, ...] = (
    *OPTIMIZER,
    count("per_device_train_batch_size", "train.micro_batch_size", "left out it is 8", least=1),
    count("gradient_accumulation_steps", "train.gradient_accumulation", least=1),
    by("max_steps", "train.steps", "comes before epochs", _steps),
    by("num_train_epochs", "train.epochs", "left out it is 3", _epochs),
    count("seed", "train.seed"),
    by("eval_strategy evaluation_strategy", "train.eval_every, train.evals_per_epoch", "", _evaluates),
    by("eval_steps", "train.eval_every", "a share of the run is said where it is one of an epoch", _eval_steps),
    by("save_strategy", "save.every, save.per_epoch, save.last", "`best` saves by steps here", saves),
    by("save_steps", "save.every", "a share of the run is said where it is one of an epoch", _save_steps),
    count("save_total_limit", "save.keep", least=1),
    by("gradient_checkpointing activation_checkpointing", "checkpointing=full", "", checkpoints),
    idle("gradient_checkpointing_kwargs activation_checkpointing_kwargs", "the same tensors are recomputed either way"),
    by("report_to", "tracking", "other trackers are left out", tracks),
    text("run_name", "run.name"),
    count("dataloader_num_workers", "data.workers"),
    flag("torch_compile", "train.compile", "each block is compiled"),
    later("bf16 bfloat16 fp16 float16", "precision", "with precision.parameters where weights are loaded in 16 bits"),
    number("label_smoothing_factor", "train.label_smoothing"),
    flag("trust_remote_code", "model.trust_remote_code"),
    by("ddp_timeout", "train.timeout_s", "at most a day", _waits),
    switch("use_liger_kernel", LIGER),
    other("liger_kernel_config", "all of Liger's kernels that there are here are taken"),
    off("neftune_noise_alpha", "embeddings get no noise here (NEFTune)"),
    usual("train_sampling_strategy", ("random",), "samples come in the order of train.seed here, not by their length"),
    off("group_by_length", "samples come in the order of train.seed here, not by their length"),
    off("auto_find_batch_size", "the batch is what the settings say here: set train.micro_batch_size"),
    off("load_best_model_at_end", "the newest checkpoint is the run's end here; save.load=RUN@best takes the best"),
    off("deepspeed_plugin galore_target", "there is no such thing here"),
    usual("average_tokens_across_devices", (True,), "the loss is the mean over the tokens of the whole batch here"),
    off("resume_from_checkpoint", "a run starts afresh here: set save.load, or launch resume"),
    off("ignore_data_skip", "a run that goes on takes up its data where it was"),
    off("parallelism_config", "degrees are those of parallel here: set parallel.tensor"),
    off("use_cpu no_cuda use_mps_device", "the device is that of hardware here: set hardware.device"),
    other("save_only_model", "whole checkpoints are written, from which the run goes on"),
    count("ddp_bucket_cap_mb", "backend.bucket_cap_mb", "of DDP alone"),
    idle("output_dir overwrite_output_dir", "a run has a directory of its own: run.directory"),
    idle("logging_steps logging_strategy logging_first_step logging_dir logging_nan_inf_filter log_level"
         " log_level_replica log_on_each_node disable_tqdm include_num_input_tokens_seen include_tokens_per_second"
         " project trackio_space_id trackio_bucket_id trackio_static_space_id debug skip_memory_metrics plot_loss",
         "of logs: every step is a line of metrics.jsonl"),
    idle("push_to_hub hub_model_id hub_strategy hub_token hub_private_repo hub_always_push hub_revision"
         " push_to_hub_model_id push_to_hub_organization push_to_hub_token hub_license hub_model_id_prefix",
         "nothing is sent to the Hub: hf upload does it"),
    idle("tf32 bf16_full_eval fp16_full_eval torch_empty_cache_steps ddp_find_unused_parameters ddp_broadcast_buffers"
         " ddp_static_graph ddp_backend local_rank full_determinism data_seed jit_mode_eval half_precision_backend"
         " torch_compile_backend torch_compile_mode torchdynamo fp16_opt_level fp16_backend include_inputs_for_metrics",
         "of how ranks and kernels do the same"),
    idle("do_train do_eval do_predict per_device_eval_batch_size eval_delay eval_on_start eval_accumulation_steps"
         " prediction_loss_only eval_do_concat_batches eval_use_gather_object include_for_metrics batch_eval_metrics"
         " metric_for_best_model greater_is_better use_legacy_prediction_loop predict_with_generate"
         " generation_max_length"
         " generation_num_beams generation_config label_names past_index",
         "of evaluation and of what is made of it"),
    idle("save_safetensors save_on_each_node enable_jit_checkpoint restore_callback_states_from_checkpoint"
         " use_cache accelerator_config length_column_name remove_unused_columns mp_parameters",
         "of files and of what the Trainer keeps"),
    idle("dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor dataloader_in_order"
         " dataloader_multiprocessing_context dataloader_drop_last dispatch_batches split_batches",
         "of how batches are loaded; every batch is whole here"),
)  # fmt: skip


def precision(reading: Reading, *, pure: bool, otherwise: str = "fp32") -> None:
    """Say ``bf16`` and ``fp16``, or ``otherwise`` where the file has none of them.

    ``pure`` says that the parameters themselves are in 16 bits, as they are loaded.
    """
    chosen = None
    for key, name in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16"), ("float16", "fp16")):
        if not reading.ledger.is_open(key):
            continue
        if str(reading.value(key)).lower() in ("auto", "full", "true") and chosen in (None, name):
            chosen = name
            choose(reading, key, {"precision": name})
        else:
            reading.ledger.default(key)
    said = any(reading.value(key) is not None for key in ("bf16", "fp16"))
    reading.choose.setdefault("precision", "fp32" if said else otherwise)
    if "task" in reading.choose:  # TRL keeps what it trains in fp32.
        return
    if pure and chosen == "bf16" and reading.choose.get("parallel") in ("fsdp", "ddp", "hsdp"):
        same = {
            f"precision.{key}": "bf16"
            for key in ("parameters", "gradients", "accumulate", "optimizer_states", "reduce")
        }
        reading.settings |= same
        for key in ("bf16", "bfloat16"):
            reading.ledger.say(key, *same) if reading.value(key) else None
