"""The keys of the task, training, data and checkpoints."""

import math
from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Annotated, Any, Literal

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.spec.values import (
    Count,
    Dropped,
    Dtype,
    Factor,
    Hashed,
    Natural,
    NonNegative,
    Positive,
    Probability,
    Range,
    Small,
    Stored,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionSpec(Hashed):
    """Number formats. ``None`` uses what ``compute`` implies for the backend (``backends/<name>``)."""

    name: str
    compute: Dtype
    parameters: Stored | None
    gradients: Stored | None
    accumulate: Stored | None
    master: Stored | Literal["none"] | None
    optimizer_states: Stored | Literal["fp8"] | None
    reduce: Stored | None
    recipe: Literal["delayed", "tensorwise", "rowwise", "rowwise_with_gw_hp", "blockwise", "mxfp8", "nvfp4"] | None
    loss_scale: Positive | None = None  # A constant scale for fp16; None is dynamic.
    initial_loss_scale: Positive | None = None
    loss_scale_window: Count | None = None
    # The quantization that linears are trained for.
    qat: Literal["int8_int4", "int4", "int8_int4_asymmetric", "mxfp4", "nvfp4"] | None = None
    qat_group_size: Count = 32  # Weights along the input dimension that share a scale.
    qat_after: Natural = 0  # Initial steps without fake quantization.


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointingSpec:
    """Activation checkpointing: which activations are recomputed in the backward pass instead of kept."""

    mode: Literal["none", "selective", "full"]
    method: Literal["uniform", "block"] | None
    modules: tuple[str, ...]
    layers: Count | None
    offload: bool = False
    offload_modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """The optimizer, its schedule and clipping. ``fused``/``foreach`` as in ``torch.optim``; None lets torch choose."""

    name: Literal["adamw", "adamw_8bit", "adamw_4bit", "paged_adamw_8bit", "adafactor", "sgd", "lion", "muon"]
    lr: Positive
    min_lr: NonNegative
    weight_decay: NonNegative
    beta1: Annotated[float, Range(low=0, high=1, usual=0.9)]  # As torch.optim requires.
    beta2: Annotated[float, Range(low=0, high=1, usual=0.95)]
    epsilon: Small
    clip: NonNegative
    schedule: Literal["constant", "linear", "cosine", "wsd", "inverse_sqrt"]
    warmup_steps: Natural
    fused: bool | None
    foreach: bool | None
    decay_steps: Count | None = None
    warmup: Literal["linear", "log"] = "linear"
    warmup_lr: NonNegative = 0.0
    adamw_lr: Positive | None = None
    stochastic_rounding: bool = False
    warmup_ratio: Probability | None = None
    wsd_decay_steps: Count | None = None
    wsd_decay: Literal["linear", "cosine", "exponential", "minus_sqrt"] = "linear"

    def schedule_steps(self, steps: int) -> int:
        """Steps after which the schedule has reached ``min_lr``, in a run of ``steps``."""
        return self.decay_steps or steps

    def warm_up(self, steps: int) -> int:
        """Steps of warm-up in a run of ``steps``; a share of the schedule is rounded up, as in transformers."""
        if self.warmup_ratio is None:
            return self.warmup_steps
        return math.ceil(self.warmup_ratio * self.schedule_steps(steps))

    def wsd_steps(self, steps: int) -> int:
        """Steps of the final decay of a WSD schedule in a run of ``steps``: as set, or a tenth of the schedule.

        MiniCPM, which introduced the schedule, found a tenth sufficient (arXiv:2404.06395, section 4.2).
        """
        return self.wsd_decay_steps or max(1, self.schedule_steps(steps) // 10)


DEFAULT_STEPS = 100  # Optimizer steps of a run that sets none of ``train.steps``, ``tokens`` and ``epochs``.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSpec:
    """The steps that torch's profiler records, on chosen ranks."""

    start: Count  # The first step.
    steps: Count = 3  # The number of steps.
    ranks: tuple[Natural, ...] = (0,)  # Global ranks.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """Batches, length and memory settings of the training; batch sizes are in sequences, lengths in tokens.

    Any two of micro-batch, global batch and accumulation give the third; ``RunSpec`` has all three.
    The length is set by ``steps``, ``tokens`` or ``epochs``; ``RunSpec.steps`` gives it in steps.
    """

    sequence_length: Count | None
    micro_batch_size: Count | None
    global_batch_size: Count | None
    steps: Count | None
    seed: Natural
    eval_every: Count | None
    eval_steps: Count
    log_every: Count
    loss: Literal["full", "chunked", "fused"]
    loss_chunk: Count
    compile: bool
    allocator: Literal["default", "expandable"]
    timeout_s: Count
    hang_factor: Factor = 10.0
    on_hang: Literal["report", "restart", "fail"] = "report"
    on_spike: Literal["report", "stop", "rollback"] = "report"
    spike_deviations: Positive = 7.0
    rollbacks: Count = 3
    log_memory_every: Count | None = 250
    gradient_accumulation: Count | None = None
    tokens: Count | None = None
    epochs: Positive | None = None
    evals_per_epoch: Count | None = None
    patience: Count | None = None
    enforce_memory: bool = False
    cuda_graphs: Literal["none", "attention"] = "none"
    profile: ProfileSpec | None = None
    label_smoothing: Dropped = 0.0
    z_loss: NonNegative = 0.0
    neftune_alpha: NonNegative = 0.0
    kernels: Literal["none", "liger"] = "none"  # The source of kernels for norms, rotary embeddings and the gated MLP.


type Source = Literal["synthetic", "text", "chat", "tokens", "huggingface", "rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListItem:
    """An item of a list in ``data``."""

    @property
    def said(self) -> dict[str, object]:
        """All keys that are set in it, as plain data."""
        found = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet(ListItem):
    """One of several data sets; keys that it leaves out are those of ``data``."""

    path: str
    source: Source | None = None
    split: str | None = None
    config: str | None = None
    revision: str | None = None
    column: str | None = None
    template: str | None = None
    max_samples: Count | None = None
    columns: Mapping[str, str] | None = field(default=None, hash=False)

    @property
    def own(self) -> JsonObject:
        """The settings of ``data`` that this data set overrides, by key."""
        return {name: value for name in PART_KEYS if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixPart(DataSet):
    """One data set of ``data.mix``."""

    weight: Positive | None = None  # Its share of the samples, relative to the others.


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStage(ListItem):
    """One stage of ``data.stages``."""

    weights: tuple[NonNegative, ...]  # The share of each data set of ``data.mix``, relative to the others.
    after_tokens: Natural = 0  # Tokens trained before it begins.


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet(DataSet):
    """One data set of ``data.eval_sets``."""

    name: str  # The name under which its loss and perplexity are reported.


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """The source of tokens. ``path`` may hold globs and ``{stdlib}``, the folder of Python's own sources."""

    source: Source
    path: str | None
    tokenizer: str
    split: str
    column: str
    token_dtype: Literal["uint16", "uint32"]
    eval_fraction: Annotated[float, Range(low=0, high=1, usual=0.01)]
    workers: Natural
    shuffle: bool
    template: str | None
    train_on: Literal["assistant", "last", "all"]
    preview: Natural
    on_bad_row: Literal["error", "skip"] = "error"
    revision: str | None = None
    config: str | None = None
    max_samples: Count | None = None
    samples: Count | None = None
    packing: Literal["none", "concat", "documents"] | None = None
    mix: tuple[MixPart, ...] = ()
    stages: tuple[DataStage, ...] = ()
    eval_path: str | None = None
    eval_split: str | None = None
    eval_config: str | None = None
    eval_sets: tuple[EvalSet, ...] = ()
    columns: Mapping[str, str] | None = field(default=None, hash=False)  # Columns of the file by their role.
    special_tokens: Mapping[str, Any] | None = field(default=None, hash=False)  # Special tokens by their role.
    template_values: Mapping[str, Any] | None = field(default=None, hash=False)  # Template variables by name.

    @property
    def roles(self) -> tuple[tuple[str, str], ...]:
        """The special tokens to give the tokenizer: the role of each, and its text."""
        said = {
            role: value if isinstance(value, list | tuple) else [value]
            for role, value in (self.special_tokens or {}).items()
        }
        return tuple((role, str(text)) for role, texts in said.items() for text in texts)

    @property
    def trained(self) -> tuple["DataSpec", ...]:
        """The data sets that are trained on, each as if it were the only one."""
        alone = replace(self, mix=(), stages=(), eval_path=None, eval_split=None, eval_config=None, eval_sets=())
        return tuple(replace(alone, **part.own) for part in self.mix) or (alone,)

    @property
    def evaluated(self) -> dict[str, "DataSpec"]:
        """Evaluation data sets by name, "" for that of ``eval_path``; empty if part of the training data is used."""
        said = {"path": self.eval_path, "split": self.eval_split, "config": self.eval_config}
        unnamed: JsonObject = {name: value for name, value in said.items() if value is not None}
        found = {each.name: each.own for each in self.eval_sets} or ({"": unnamed} if unnamed else {})
        here: JsonObject = {"max_samples": None}
        elsewhere = {**here, "config": None, "revision": None}
        return {
            name: replace(self.trained[0], **(elsewhere if "path" in own else here) | own)
            for name, own in found.items()
        }

    @property
    def sets(self) -> tuple["DataSpec", ...]:
        """Every data set that a run reads, evaluation data sets last."""
        return *self.trained, *self.evaluated.values()

    @property
    def places(self) -> tuple[str, ...]:
        """The key of each of ``sets``: ``data.path`` or ``data.mix.0.path``, ``data.eval_path`` or one in a list."""
        of_a_list = (
            f"data.{key}.{place}.path" for key in ("mix", "eval_sets") for place in range(len(getattr(self, key)))
        )
        trained = () if self.mix else ("data.path",)
        return *trained, *of_a_list, *(() if self.eval_sets else ("data.eval_path",) * len(self.evaluated))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of the training data sets; empty if none is weighted."""
        return tuple(part.weight for part in self.mix if part.weight is not None)

    @property
    def of_the_hub(self) -> bool:
        """True if the source may be a data set on the Hugging Face Hub."""
        return self.source in ("huggingface", "chat", "rows")

    @property
    def is_chat(self) -> bool:
        """True if rows are conversations."""
        return self.source == "chat"

    @property
    def packed(self) -> Literal["none", "concat", "documents"]:
        """The packing in effect: ``data.packing``, or by default none for conversations and rows, else concat."""
        return self.packing or ("none" if self.source in ("chat", "rows") else "concat")

    @property
    def marked(self) -> bool:
        """True if some tokens are masked out of the labels."""
        return self.is_chat or (self.packed != "concat" and self.source != "rows")


SYNTHETIC: dict[str, object] = {
    "data.source": "synthetic", "data.path": None, "data.mix": (), "data.stages": (), "data.eval_path": None,
    "data.eval_split": None, "data.eval_config": None, "data.eval_sets": (),
}  # fmt: skip
"""Settings with which a run reads no data."""

ALONE: dict[str, object] = {
    "tracking.kind": "none", "eval.tasks": (), "eval.limit": None, "eval.num_fewshot": None,
}  # fmt: skip
"""Settings with which a run reports to no tracker and evaluates no tasks."""

PART_KEYS = ("path", "source", "split", "config", "revision", "column", "template", "max_samples", "columns")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSpec:
    """Checkpoints: their interval in steps, how many to keep, which to start from; ``async`` is a Python keyword."""

    every: Count | None
    keep: Count
    load: str | None
    asynchronous: bool
    last: bool
    export: Literal["none", "safetensors"]
    per_epoch: Count | None = None
    reshardable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """The task. ``None`` is TRL's own default; keys of other tasks are refused if set."""

    name: Literal["pretrain", "sft", "dpo", "kto", "reward", "grpo"] = "pretrain"
    beta: NonNegative | None = None  # The weight of the divergence from the reference model.
    loss: str | None = None  # The variant of the loss, by TRL's name.
    label_smoothing: Dropped = 0.0  # The share of preferences assumed to be flipped.
    precompute_reference: bool = False  # True: the reference model's log-probabilities are computed before training.
    desirable_weight: Positive = 1.0  # Weights of KTO's two kinds of rows.
    undesirable_weight: Positive = 1.0
    center_rewards: NonNegative | None = None  # The weight that keeps the mean of rewards near zero.
    generations: Count = 8  # Answers to each prompt of GRPO.
    completion_length: Count = 256  # The most tokens of an answer.
    temperature: Positive = 1.0  # The sampling temperature.
    rewards: tuple[str, ...] = ()  # Reward functions, as module.function or by TRL's names, or a reward model.
    vllm: bool = False  # True: vLLM generates the answers, on the GPUs of the training.

    @property
    def rows(self) -> tuple[str, ...]:
        """The columns that the task's rows need; empty if it trains on tokens."""
        return ROWS.get(self.name, ())

    @property
    def sequences(self) -> int:
        """Sequences per sample that pass through the model together: two for a pair."""
        return 2 if self.name in ("dpo", "reward") else 1

    @property
    def has_reference(self) -> bool:
        """True if the loss compares with a frozen reference model."""
        return self.name in ("dpo", "kto") or (self.name == "grpo" and bool(self.beta))

    @property
    def other_passes(self) -> tuple[int, int]:
        """Extra forward passes without gradients per micro-batch: of the model itself, and of its reference.

        KTO's ``kto`` loss passes mismatched answers through both, to estimate the KL (TRL's ``kto_trainer.py``).
        """
        diverges = int(self.name == "kto" and self.loss in (None, "kto"))
        compares = self.name in ("dpo", "kto") and not self.precompute_reference
        return diverges, (1 + diverges) * compares


ROWS = {
    "dpo": ("chosen", "rejected"),
    "kto": ("prompt", "completion", "label"),
    "reward": ("chosen", "rejected"),
    "grpo": ("prompt",),
}
"""Columns that TRL's trainer of a task requires (``trl/trainer/*_trainer.py``, 1.16).

The prompt of ``chosen`` and ``rejected`` may be a separate column, or their common beginning (``extract_prompt``).
"""

PRETRAIN = TaskSpec()
