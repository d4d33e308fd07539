"""``backend.extra``: Megatron-LM arguments as they are, put in their places. None may rival a setting.

An argument that a setting gives is refused with the setting to use, because the estimate and the record read settings.
Those whose effect on memory the estimate knows (``implementation.COUNTED``) are read there; those on which no memory
depends are handed on, and the others are refused (``options``). Names are compared as Megatron-LM spells them, with
dashes; whether an argument exists is the business of its own validator (``launcher.backends.megatron.validator``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.backends.megatron import options
from launcher.backends.megatron.implementation import COUNTED, implementation, recipe
from launcher.backends.megatron.translate import name
from launcher.base.errors import ConfigError
from launcher.spec import RunSpec, edit

SETTINGS: Mapping[str, str] = {
    "accumulate-allreduce-grads-in-fp32": "precision.accumulate", "adam-beta1": "optimizer.beta1",
    "adam-beta2": "optimizer.beta2", "adam-eps": "optimizer.epsilon", "add-qkv-bias": "model.attention_bias",
    "async-save": "save.async", "attention-backend": "model.attention", "bf16": "precision.compute",
    "clip-grad": "optimizer.clip", "context-parallel-size": "parallel.context",
    "cross-entropy-loss-fusion": "train.loss", "data-parallel-sharding-strategy": "zero.stage",
    "decoder-first-pipeline-num-layers": "parallel.first_stage_layers",
    "decoder-last-pipeline-num-layers": "parallel.last_stage_layers",
    "cuda-graph-impl": "train.cuda_graphs", "cuda-graph-modules": "train.cuda_graphs",
    "cuda-graph-scope": "train.cuda_graphs", "disable-bias-linear": "model.mlp_bias",
    "enable-cuda-graph": "train.cuda_graphs", "external-cuda-graph": "train.cuda_graphs",
    "eval-interval": "train.eval_every", "eval-iters": "train.eval_steps",
    "exp-avg-dtype": "precision.optimizer_states", "exp-avg-sq-dtype": "precision.optimizer_states",
    "expert-model-parallel-size": "parallel.expert", "expert-tensor-parallel-size": "parallel.expert_tensor",
    "cpu-offloading-num-layers": "checkpointing.layers", "fine-grained-activation-offloading": "checkpointing.offload",
    "offload-modules": "checkpointing.offload_modules",
    "ffn-hidden-size": "model.intermediate_size", "fp16": "precision.compute", "fp4-format": "precision.compute",
    "fp4-recipe": "precision.recipe", "fp8-recipe": "precision.recipe",
    "global-batch-size": "train.global_batch_size", "grad-reduce-in-bf16": "precision.reduce",
    "hidden-dropout": "model.dropout", "hidden-size": "model.hidden_size", "init-method-std": "model.initializer_range",
    "kv-channels": "model.head_dim", "kv-lora-rank": "model.kv_lora_rank", "load": "save.load",
    "initial-loss-scale": "precision.initial_loss_scale", "log-interval": "train.log_every",
    "loss-scale": "precision.loss_scale", "loss-scale-window": "precision.loss_scale_window", "lr": "optimizer.lr",
    "lr-decay-style": "optimizer.schedule", "lr-warmup-fraction": "optimizer.warmup_ratio",
    "lr-wsd-decay-iters": "optimizer.wsd_decay_steps", "lr-wsd-decay-style": "optimizer.wsd_decay",
    "lr-warmup-iters": "optimizer.warmup_steps", "main-params-dtype": "precision.master",
    "max-position-embeddings": "model.max_position_embeddings", "megatron-fsdp-grad-comm-dtype": "precision.reduce",
    "megatron-fsdp-main-grads-dtype": "precision.accumulate", "megatron-fsdp-main-params-dtype": "precision.master",
    "micro-batch-size": "train.micro_batch_size", "min-lr": "optimizer.min_lr", "mock-data": "data.source",
    "moe-ffn-hidden-size": "model.moe_intermediate_size", "moe-layer-freq": "model.first_dense_layers",
    "moe-router-topk": "model.num_experts_per_tok", "moe-shared-expert-intermediate-size": "model.num_shared_experts",
    "mtp-num-layers": "model.mtp_layers", "multi-latent-attention": "model.kv_lora_rank",
    "norm-epsilon": "model.norm_epsilon", "normalization": "model.normalization",
    "num-attention-heads": "model.num_attention_heads",
    "num-distributed-optimizer-instances": "parallel.replicate", "num-experts": "model.num_experts",
    "num-layers": "model.num_hidden_layers", "num-layers-per-virtual-pipeline-stage": "parallel.virtual_pipeline",
    "num-query-groups": "model.num_key_value_heads",
    "num-virtual-stages-per-pipeline-rank": "parallel.virtual_pipeline", "num-workers": "data.workers",
    "optimizer": "optimizer.name", "optimizer-cpu-offload": "zero.offload_optimizer",
    "pipeline-model-parallel-layout": "parallel.layout", "pipeline-model-parallel-size": "parallel.pipeline",
    "position-embedding-type": "model.position_embedding",
    "q-lora-rank": "model.q_lora_rank", "qk-head-dim": "model.qk_nope_head_dim", "qk-layernorm": "model.qk_norm",
    "qk-pos-emb-head-dim": "model.qk_rope_head_dim", "recompute-granularity": "checkpointing.mode",
    "recompute-method": "checkpointing.method", "recompute-modules": "checkpointing.modules",
    "recompute-num-layers": "checkpointing.layers", "rotary-base": "model.rope_theta", "save": "run.directory",
    "save-interval": "save.every", "seed": "train.seed", "seq-length": "train.sequence_length",
    "sequence-parallel": "parallel.sequence", "squared-relu": "model.hidden_act", "swiglu": "model.hidden_act",
    "tensor-model-parallel-size": "parallel.tensor", "train-iters": "train.steps", "train-samples": "train.steps",
    "untie-embeddings-and-output-weights": "model.tie_word_embeddings", "use-distributed-optimizer": "zero.stage",
    "use-megatron-fsdp": "zero.stage", "v-head-dim": "model.v_head_dim", "vocab-size": "model.vocab_size",
    "wandb-project": "tracking.project", "weight-decay": "optimizer.weight_decay",
}  # fmt: skip
"""Arguments that have a setting of their own, which the memory estimate and the record of the run read as well."""

BEYOND: Mapping[str, tuple[str, ...]] = {
    "position-embedding-type": ("yarn",),
}
"""Values of such arguments that no setting says: those alone are handed on."""

_NUMBERS = {
    "make-vocab-size-divisible-by": 1,
    "microbatch-group-size-per-virtual-pipeline-stage": 1,
    "num-layers-at-end-in-bf16": 0,
    "num-layers-at-start-in-bf16": 0,
    "wgrad-deferral-limit": 0,
}
"""Arguments whose numbers the memory estimate reads, with the least that each may be."""


def check(spec: RunSpec) -> Iterator[ConfigError]:
    """Arguments that a setting gives already, and words where the estimate reads a number."""
    for key, value in spec.backend.extra.items():
        if (why := _refused(spec, name(key), value)) is not None:
            without, instead = f"+backend.extra.{key}=null", options.INSTEAD.get(name(key))
            ways = [*([f"{instead} {without}"] if instead else []), without]
            yield ConfigError(f"backend.extra.{key}", _plain(value), why, ways)
        if name(key) == "cross-entropy-fusion-impl" and value == "te" and not spec.backend.path:
            rule = f"megatron-core {options.VERSION} refuses Transformer Engine's loss, which older checkouts have"
            yield ConfigError(f"backend.extra.{key}", value, rule, [f"+backend.extra.{key}=null"])
        least = _NUMBERS.get(name(key))
        if least is not None and value not in (None, False) and not _is_count(value, least):
            rule = f"it is a whole number of at least {least}"
            yield ConfigError(f"backend.extra.{key}", _plain(value), rule, [f"+backend.extra.{key}=null"])
        setting = SETTINGS.get(name(key))
        if setting is not None and value not in BEYOND.get(name(key), ()):
            rule = f"it has a setting of its own, {setting}, which the memory estimate reads too"
            yield ConfigError(f"backend.extra.{key}", _plain(value), rule, [_by_setting(spec, setting, value)])


def _refused(spec: RunSpec, argument: str, value: Any) -> str | None:
    """The reason why an argument is not handed on; None where it is, or takes something away."""
    reason, is_refused = options.line(argument) or ("", False)
    if argument == "attention-dropout" and implementation(spec).attention == "unfused":
        same = bool(value) == (spec.model.dropout > 0)
        return None if same else "scores are counted with a mask of their dropout where model.dropout is above 0"
    if value and argument in ("fp8-param-gather", "fp4-param-gather"):
        return _parameters_refused(spec, argument[:3])
    even = argument == "moe-expert-capacity-factor" and isinstance(value, int | float) and value <= 1
    if not is_refused or even or value is None or value is False or argument in SETTINGS or argument in COUNTED:
        return None
    return None if value in options.LET_THROUGH.get(argument, ()) else reason


def _parameters_refused(spec: RunSpec, word: str) -> str | None:
    """``fp8_param`` of ``core/transformer/transformer_config.py``, ``--fp8-param-gather`` of ``validate_args``."""
    if spec.precision.compute != word:
        return f"parameters are in {word} beside products in {word} alone (precision.compute={word})"
    if spec.zero.stage == 0:
        return f"the distributed optimizer gathers parameters in {word}, which is zero.stage=1, or Megatron-FSDP"
    if spec.zero.offload_optimizer == "cpu" and recipe(spec) != "delayed":
        return "beside zero.offload_optimizer=cpu parameters are in fp8 with precision.recipe=delayed alone"
    return None


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and value is not True and value >= least


def warnings(spec: RunSpec) -> Iterator[ConfigError]:
    """Arguments that are handed through: nothing but Megatron-LM itself judges them."""
    groups = dict[str, list[str]]()
    for key in spec.backend.extra:
        line = options.line(name(key))
        if name(key) not in COUNTED and name(key) not in SETTINGS and not (line and line[1]):
            known = line is not None
            version = (
                f"unclassified: what memory it takes is not known (known are those of megatron-core {options.VERSION})"
            )
            groups.setdefault("judged by it alone; no memory depends on it" if known else version, []).append(name(key))
    for rule, names in groups.items():
        words = f"handed to Megatron-LM as it is and {rule}: {', '.join(f'--{each}' for each in names)}"
        yield ConfigError("backend.extra", {key: _plain(value) for key, value in spec.backend.extra.items()}, words)


def _by_setting(spec: RunSpec, setting: str, value: Any) -> str:
    """The setting with the argument's number, or where its words are."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and not isinstance(edit.value_at(spec, setting), bool | str | tuple):
        return edit.override(setting, value)
    return f"launch show {setting.partition('.')[0]}"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
