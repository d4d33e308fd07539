"""``trl.yaml``, which ``TrlParser --config`` reads: every choice under TRL's and transformers' own names.

What is not written keeps the default of TRL 1.16. The launcher handles sample order, evaluation, checkpoints and
trackers, so their arguments are off here. Keys of ``backend.extra`` come last and are refused where a setting gives
them.
"""

from typing import Any

from launcher.backends._shared import given
from launcher.backends.trl.traits import engine_of, loaded
from launcher.base.files import JsonObject
from launcher.job import RUN
from launcher.spec import RunSpec

START = f"{RUN}/start"  # The model and tokenizer that a run without pretrained weights starts from.
DS_CONFIG = "ds_config.json"

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_ATTENTION = {"flash": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}
_DECAYS = {"linear": "linear", "cosine": "cosine", "minus_sqrt": "1-sqrt"}


def build(spec: RunSpec) -> JsonObject:
    """The arguments of TRL's task configuration, of its model configuration and, for GRPO, of its script."""
    config = {
        "model_name_or_path": spec.model.weights or START,
        "dtype": _DTYPES.get(loaded(spec)),
        "attn_implementation": _ATTENTION[spec.model.attention],
        "output_dir": f"{RUN}/trl",
        "per_device_train_batch_size": spec.micro_batch_size,
        "per_device_eval_batch_size": spec.micro_batch_size,
        "gradient_accumulation_steps": spec.gradient_accumulation,
        "max_steps": spec.steps,
        "seed": spec.train.seed,
        "dataloader_num_workers": spec.data.workers,
        "train_sampling_strategy": "sequential",
        "ignore_data_skip": True,
        **_optimizer(spec),
        **_engine(spec),
        **_adapter(spec),
        **_task(spec),
        # The Trainer's own logs, saves, evaluations and trackers are off: the launcher does them.
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "push_to_hub": False,
    }
    return {**config, **given(spec.backend.extra)}


def text(spec: RunSpec) -> str:
    """The text of ``trl.yaml``."""
    import yaml  # Late, because a check does not write the file.

    return yaml.safe_dump(build(spec), sort_keys=True, width=120)


def _optimizer(spec: RunSpec) -> JsonObject:
    optimizer = spec.optimizer
    name, options = schedule(spec)
    return {
        "optim": optimizer_name(spec),
        "learning_rate": optimizer.lr,
        "weight_decay": optimizer.weight_decay,
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "adam_epsilon": optimizer.epsilon,
        "max_grad_norm": optimizer.clip,
        "lr_scheduler_type": name,
        **({"lr_scheduler_kwargs": options} if options else {}),
        "warmup_steps": spec.warmup_steps,
    }


def optimizer_name(spec: RunSpec) -> str:
    """The name in transformers' ``OptimizerNames``; AdamW defaults to torch's fused kernel on a GPU."""
    optimizer = spec.optimizer
    if optimizer.name == "adamw":
        unset = optimizer.fused is None and optimizer.foreach is None
        fused = optimizer.fused or (unset and spec.hardware.device == "cuda")
        return "adamw_torch_fused" if fused else "adamw_torch"
    return {"adamw_8bit": "adamw_bnb_8bit"}.get(optimizer.name, optimizer.name)


def schedule(spec: RunSpec) -> tuple[str, JsonObject]:
    """The schedule by transformers' name, and its own arguments (``transformers/optimization.py``)."""
    optimizer = spec.optimizer
    if optimizer.schedule == "constant":
        return "constant_with_warmup", {}
    if optimizer.schedule == "cosine":
        return ("cosine_with_min_lr", {"min_lr": optimizer.min_lr}) if optimizer.min_lr else ("cosine", {})
    if optimizer.schedule == "inverse_sqrt":
        return "inverse_sqrt", {"timescale": max(1, spec.warmup_steps)}
    if optimizer.schedule == "wsd":
        options: JsonObject = {
            "num_decay_steps": optimizer.wsd_steps(spec.steps),
            "decay_type": _DECAYS.get(optimizer.wsd_decay, optimizer.wsd_decay),
            "min_lr_ratio": optimizer.min_lr / optimizer.lr,
        }
        return "warmup_stable_decay", options
    return "linear", {}


def _engine(spec: RunSpec) -> JsonObject:
    compute, full = spec.precision.compute, spec.checkpointing.mode == "full"
    found: JsonObject = {
        "bf16": compute == "bf16",
        "fp16": compute == "fp16",
        "use_cpu": spec.hardware.device == "cpu",
        "gradient_checkpointing": full,
        "ddp_timeout": spec.train.timeout_s,
    }
    if spec.train.kernels == "liger":
        found["use_liger_kernel"] = True
    if spec.train.neftune_alpha:
        found["neftune_noise_alpha"] = spec.train.neftune_alpha
    if engine_of(spec) == "fsdp":
        synced = {"sync_each_batch": spec.backend.micro_step_sync}
        found["accelerator_config"] = {"gradient_accumulation_kwargs": synced}
    if full:
        found["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if engine_of(spec) == "deepspeed":
        found["deepspeed"] = f"{RUN}/{DS_CONFIG}"
    return found


def _adapter(spec: RunSpec) -> JsonObject:
    adapter = spec.adapter
    found: JsonObject = {"use_peft": adapter.low_rank}
    if adapter.low_rank:  # TRL has no arguments for OFT; the worker reads ``spec.json``.
        found |= {
            "lora_r": adapter.rank,
            "lora_alpha": adapter.alpha,
            "lora_dropout": adapter.dropout,
            "lora_target_modules": list(adapter.targets),
            "use_rslora": adapter.rslora,
            "use_dora": adapter.dora,
            "lora_task_type": "SEQ_CLS" if spec.task.name == "reward" else "CAUSAL_LM",
        }
    if adapter.parameters:
        found["lora_target_parameters"] = list(adapter.parameters)
    if adapter.modules_to_save:
        found["lora_modules_to_save"] = list(adapter.modules_to_save)
    if adapter.bits == 8:
        found["load_in_8bit"] = True
    elif adapter.bits == 4:
        double = adapter.double_quant
        found |= {"load_in_4bit": True, "bnb_4bit_quant_type": adapter.quant_type, "use_bnb_nested_quant": double}
        if spec.parallel.shard:
            found["bnb_4bit_quant_storage"] = _DTYPES.get(spec.precision.compute)
    return found


def _task(spec: RunSpec) -> JsonObject:
    task, found = spec.task, dict[str, Any]()
    if task.beta is not None:
        found["beta"] = task.beta
    if task.loss is not None:
        found["loss_type"] = [task.loss] if task.name == "dpo" else task.loss
    if task.name == "sft":
        if spec.data.packed == "documents":  # Samples arrive packed; TRL's collator keeps their documents apart.
            found |= {"packing": True, "packing_strategy": "bfd"}
        return found | {"dataset_kwargs": {"skip_prepare_dataset": True}}
    if task.name == "grpo":
        return found | _generation(spec)
    found["max_length"] = spec.sequence_length
    if task.name == "dpo":
        found |= {"label_smoothing": task.label_smoothing, "precompute_ref_log_probs": task.precompute_reference}
    if task.name == "kto":
        found |= {
            "precompute_ref_log_probs": task.precompute_reference,
            "desirable_weight": task.desirable_weight,
            "undesirable_weight": task.undesirable_weight,
        }
    if task.name == "reward" and task.center_rewards is not None:
        found["center_rewards_coefficient"] = task.center_rewards
    return found


def _generation(spec: RunSpec) -> JsonObject:
    task = spec.task
    return {
        "num_generations": task.generations,
        "max_completion_length": task.completion_length,
        "temperature": task.temperature,
        "use_vllm": task.vllm,
        **({"chat_template_kwargs": dict(spec.data.template_values)} if spec.data.template_values else {}),
        "reward_funcs": list(task.rewards),
        "shuffle_dataset": spec.data.shuffle,
        **({"vllm_mode": "colocate"} if task.vllm else {}),
    }
