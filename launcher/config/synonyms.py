"""Words that stand for others: keys and verbs of other tools, named in ways out, and ``plan=best``.

A tool's own spelling counts as the same word in any case, with hyphens or underscores, and behind ``--``. ``{}`` in a
way out is the value that was typed, ``{m}`` that in minutes; a way without it holds whatever was typed.

``plan=best`` stands for the words of the layout that ``launch plan`` puts first. It is no setting: it is taken out of a
command line before anything composes it, and refused where nobody does. So is ``checkpointing=auto``, for the words of
the least recomputation with which the run fits.
"""

from __future__ import annotations

from collections.abc import Sequence

from launcher.base.errors import ConfigError, ConfigErrors
from launcher.base.units import seconds_of

_KEYS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("micro_bs", "micro_batch", "mbs", "device_batch_size", "per_device_batch_size", "per_gpu_batch_size",
      "per_device_train_batch_size", "train_micro_batch_size_per_gpu", "local_batch_size"),
     ("train.micro_batch_size={}",)),
    (("global_bs", "gbs", "global_batch", "train_batch_size", "total_batch_size", "effective_batch_size"),
     ("train.global_batch_size={}",)),
    (("gradient_accumulation_steps", "gradient_accumulation", "grad_accum", "grad_accumulation_steps",
      "accumulate_grad_batches", "accumulation_steps", "accumulation", "ga"), ("train.gradient_accumulation={}",)),
    (("batch_size", "bs", "batch"), ("train.micro_batch_size={}", "train.global_batch_size={}")),
    (("seq", "seqlen", "seq_len", "seq_length", "sequence", "sequence_len", "max_seq_len", "max_seq_length",
      "max_length", "block_size", "context_length", "ctx_len", "cutoff_len"), ("train.sequence_length={}",)),
    (("max_steps", "num_steps", "total_steps", "train_iters", "max_iters", "iterations", "iters"), ("train.steps={}",)),
    (("max_tokens", "num_tokens", "total_tokens", "train_tokens", "token_budget"), ("train.tokens={}",)),
    (("epochs", "num_epochs", "max_epochs", "num_train_epochs"), ("train.epochs={}",)),
    (("learning_rate", "base_lr", "max_lr"), ("optimizer.lr={}",)),
    (("wd",), ("optimizer.weight_decay={}",)),
    (("warmup", "num_warmup_steps", "warmup_iters", "lr_warmup_steps"), ("optimizer.warmup_steps={}",)),
    (("warmup_fraction", "lr_warmup_fraction"), ("optimizer.warmup_ratio={}",)),
    (("lr_scheduler", "lr_scheduler_type", "scheduler", "lr_decay_style"), ("optimizer.schedule={}",)),
    (("grad_clip", "clip_grad", "max_grad_norm", "gradient_clipping", "gradient_clip_val"), ("optimizer.clip={}",)),
    (("optim", "optimiser"), ("optimizer={}",)),
    (("gpu", "gpus", "ngpus", "n_gpus", "num_gpus", "devices", "ngpus_per_node", "num_gpus_per_node",
      "nproc_per_node", "num_processes", "gpus_per_task", "world_size", "dp", "dp_size", "data_parallel",
      "data_parallel_size"), ("cluster.gpus_per_node={}",)),
    (("nnodes", "num_nodes", "n_nodes"), ("cluster.nodes={}",)),
    (("tp", "tp_size", "tensor_parallel", "tensor_parallel_size", "tensor_parallel_degree",
      "tensor_model_parallel_size"), ("parallel.tensor={}",)),
    (("pp", "pp_size", "pipeline_parallel", "pipeline_parallel_size", "pipeline_parallel_degree",
      "pipeline_model_parallel_size"), ("parallel.pipeline={}",)),
    (("cp", "cp_size", "context_parallel", "context_parallel_size"), ("parallel.context={}",)),
    (("sp", "sp_size", "sequence_parallel_size", "ulysses_degree"), ("parallel.ulysses={}",)),
    (("sequence_parallel",), ("parallel.sequence=true",)),
    (("ep", "ep_size", "expert_parallel", "expert_model_parallel_size"), ("parallel.expert={}",)),
    (("vpp", "virtual_pipeline_model_parallel_size"), ("parallel.virtual_pipeline={}",)),
    (("zero_stage", "zero_level", "zero_optimization.stage"), ("zero={}",)),
    (("cpu_offload", "offload", "offload_optimizer_device"), ("zero.offload_optimizer=cpu",)),
    (("strategy", "distributed"), ("parallel={}",)),
    (("framework", "engine"), ("backend={}",)),
    (("deepspeed",), ("parallel=zero3",)),
    (("megatron",), ("parallel=tp",)),
    (("dtype", "torch_dtype", "mixed_precision", "compute_dtype", "autocast"), ("precision={}",)),
    (("activation_checkpointing", "gradient_checkpointing", "recompute", "recompute_activations", "remat"),
     ("checkpointing=full", "checkpointing=selective")),
    (("lora", "peft", "use_lora"), ("adapter=lora",)),
    (("qlora", "load_in_4bit"), ("adapter=qlora",)),
    (("r", "lora_r", "lora_rank"), ("adapter.rank={}",)),
    (("lora_alpha",), ("adapter.alpha={}",)),
    (("dora", "use_dora"), ("adapter.dora={}",)),
    (("rslora", "use_rslora"), ("adapter.rslora={}",)),
    (("loraplus_lr_ratio",), ("adapter.lora_plus={}",)),
    (("lora_modules_to_save",), ("adapter.modules_to_save={}",)),
    (("num_layers", "n_layers", "n_layer", "layers"), ("model.num_hidden_layers={}",)),
    (("num_heads", "n_heads", "n_head"), ("model.num_attention_heads={}",)),
    (("attn_implementation", "flash_attention", "use_flash_attention_2"), ("model.attention={}",)),
    (("model_name", "model_name_or_path", "model_id"), ("model={}",)),
    (("dataset", "data_path", "train_file", "data_files"), ("data.path={}",)),
    (("num_workers", "dataloader_num_workers"), ("data.workers={}",)),
    (("save_steps", "save_interval", "save_every", "checkpoint_interval"), ("save.every={}",)),
    (("save_total_limit", "keep_last_n"), ("save.keep={}",)),
    (("resume", "resume_from_checkpoint", "load_checkpoint", "ckpt"), ("save.load={}",)),
    (("eval_interval", "val_check_interval", "evaluation_interval"), ("train.eval_every={}",)),
    (("logging_steps", "log_interval", "log_every_n_steps"), ("train.log_every={}",)),
    (("output", "output_dir", "out_dir", "save_dir", "run_dir", "log_dir"), ("run.directory={}",)),
    (("name", "run_name", "exp_name", "experiment", "job_name"), ("run.name={}",)),
    (("report_to", "logger"), ("tracking={}",)),
    (("wandb_project",), ("tracking.project={}",)),
    (("time", "walltime", "time_limit", "timelimit", "timeout_min", "cluster.time", "cluster.walltime",
      "cluster.time_limit", "cluster.timelimit", "cluster.time_min", "cluster.timeout_min"),
     ("cluster.time_limit_min={m}",)),
    (("mail_user", "mail_type", "cluster.mail_user", "cluster.mail_type"), ("cluster.mail={}",)),
    (("cpus_per_task", "cluster.cpus_per_task"), ("cluster.cpus_per_node={}",)),
    (("mem", "cluster.mem"), ("cluster.memory={}",)),
    (("exclude", "cluster.exclude"), ("cluster.extra.exclude={}",)),
    (("env",), ("cluster.environment.NAME={}",)),
    (("plot",), ("--plot {}",)),
)  # fmt: skip
"""Words of other tools, and the ways out of each."""

_BY_KEY = {word: ways for words, ways in _KEYS for word in words}

OPTIONS = {
    **{word: f"--{word}" for word in ("json", "force", "debug", "trust", "help")},
    "plot": "--plot FILE.png",
    "explain": "--explain activations",
    "points": "--points FILE.jsonl",
    "trace": "--engine trace",
    "multirun": "-m",
}
"""Options that people type as words."""

VERBS = {
    "run": "start train launch submit sbatch exec finetune pretrain fit srun torchrun begin",
    "check": "validate verify estimate dryrun dry-run test preflight memory fits lint predict",
    "show": "print config explain render compile describe inspect",
    "status": "ls list ps jobs runs state squeue queue info",
    "logs": "log tail follow output",
    "cancel": "stop kill scancel abort delete rm end",
    "resume": "continue restart requeue retry",
    "doctor": "diagnose setup system env hardware-info",
    "import": "convert from load",
    "recipe": "recipes template",
}
"""Words for a verb of ours, behind it."""


ABSENT = dict.fromkeys(
    ("task=orpo", "task=cpo", "task=gkd"),
    "it is experimental in TRL 1.16 (trl.experimental) and no task of this version, which has sft, dpo, kto, reward and"
    " grpo",
)
"""Options of other tools that a group has on purpose not, and why."""

BEST_KEY = "plan"
BEST = f"{BEST_KEY}=best"
AUTO = "checkpointing=auto"
AUTO_ALONE = "it is chosen for one run of check, show, run, prepare and rehearse; `launch plan` searches it in any case"


def plain(word: str) -> str:
    """A word as the tables have it."""
    return word.lstrip("-+").replace("-", "_").lower()


def ways(key: str, value: str) -> list[str]:
    """Overrides for a key of another tool; none where it is not known."""
    seconds = seconds_of(value)
    minutes = value if seconds is None else str(-(-seconds // 60))
    found = _BY_KEY.get(plain(key), ())
    return [way.replace("{}", value or "...").replace("{m}", minutes or "...") for way in found]


def verbs(word: str) -> list[str]:
    """Verbs that a word may stand for."""
    return [verb for verb, words in VERBS.items() if word.lower() in words.split()]


def without_best(texts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """The words without ``plan=best``, and True if it was there; raises ConfigErrors for another value of it."""
    rest = tuple(text for text in texts if text.partition("=")[0] != BEST_KEY or "=" not in text)
    if len(rest) < len(texts) and (wrong := [text for text in texts if text not in (*rest, BEST)]):
        raise ConfigErrors(best_refused(text.partition("=")[2]) for text in wrong)
    return rest, len(rest) < len(texts)


def without_auto(texts: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """The words without ``checkpointing=auto``, and True if it was there; ConfigErrors for its keys beside it."""
    rest = tuple(text for text in texts if text != AUTO)
    if len(rest) < len(texts):
        rule = f"{AUTO} chooses the keys of this group"
        beside = [text for text in rest if text.startswith("checkpointing")]
        if beside:
            pairs = (text.partition("=") for text in beside)
            raise ConfigErrors(ConfigError(key, value, rule, [AUTO, beside[0]]) for key, _, value in pairs)
    return rest, len(rest) < len(texts)


def best_refused(value: str) -> ConfigError:
    """The error of ``plan=VALUE`` where it means nothing."""
    if value == "best":
        rule = "it stands for a layout in check, show, run and -m: here type the words that `launch plan` prints"
        return ConfigError(BEST_KEY, value, rule, ["launch plan"])
    rule = "its one value is best, the layout that `launch plan` puts first; a layout of your own is words of its own"
    return ConfigError(BEST_KEY, value, rule, [BEST, "parallel=fsdp"])
