"""The groups of keys of CONTRACT.md, one dataclass each, every key once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from launcher.spec.values import (
    Count,
    Device,
    Dtype,
    Layers,
    Natural,
    NonNegative,
    Offload,
    Positive,
    Probability,
    Range,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A transformer by the names of Hugging Face ``config.json`` for Llama and Qwen; sizes are element counts."""

    name: str
    family: str
    num_hidden_layers: Layers
    hidden_size: Count
    intermediate_size: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None
    head_dim: Count | None
    vocab_size: Count
    tie_word_embeddings: bool
    hidden_act: Literal["silu", "gelu", "gelu_new", "relu", "squared_relu"]
    normalization: Literal["rmsnorm", "layernorm"]
    position_embedding: Literal["rope", "learned", "none"]
    rope_theta: Positive
    norm_epsilon: Positive
    attention_bias: bool
    mlp_bias: bool
    qk_norm: bool
    max_position_embeddings: Count
    dropout: Probability
    initializer_range: Positive
    num_experts: Natural
    num_experts_per_tok: Natural
    moe_intermediate_size: Natural
    num_shared_experts: Natural
    first_dense_layers: Natural
    q_lora_rank: Natural
    kv_lora_rank: Natural
    qk_nope_head_dim: Natural
    qk_rope_head_dim: Natural
    v_head_dim: Natural
    attention: Literal["flash", "sdpa", "eager"]
    weights: str | None
    trust_remote_code: bool
    source: str

    @property
    def gated(self) -> bool:
        """Whether the MLP has a gate projection (SwiGLU), as the families with SiLU have."""
        return self.hidden_act == "silu"

    @property
    def query_size(self) -> int:
        """Elements of all query heads of one token."""
        return self.num_attention_heads * self.head_size

    @property
    def head_size(self) -> int:
        """Elements of one head: ``head_dim``, or the hidden size shared among the heads."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        """Key and value heads: as set, or one for every query head (multi-head attention)."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def key_value_size(self) -> int:
        """Elements of all key heads of one token; the values have as many."""
        return self.key_value_heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """The engine that trains and the settings that only that engine has."""

    name: str
    reshard_after_forward: bool | None
    bucket_view: bool
    bucket_cap_mb: Positive
    path: str | None
    micro_step_sync: bool
    extra: Mapping[str, Any]

    def argument(self, name: str, default: Any = None) -> Any:
        """The engine's own argument from ``extra``, spelt there with dashes or underscores, or the default."""
        if not self.extra:
            return default
        spelt = {key.lstrip("-").replace("_", "-"): value for key, value in self.extra.items()}
        return spelt.get(name, default)

    def count(self, name: str) -> int | None:
        """The engine's own argument where it is a whole number above 0; what else it is its backend judges."""
        value = self.argument(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """Parallel degrees as plain words. The data degree is what is left of the world; see :class:`World`."""

    name: str
    tensor: Count
    pipeline: Count
    virtual_pipeline: Count
    first_stage_layers: Count | None
    last_stage_layers: Count | None
    context: Count
    expert: Count
    expert_tensor: Count | None
    sequence: bool
    ulysses: Count
    replicate: Count
    schedule: Literal["1f1b", "gpipe", "interleaved", "zero_bubble", "dualpipe"]
    shard: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSpec:
    """ZeRO stage, offload and DeepSpeed's buffers. Bucket sizes and thresholds are element counts, not bytes."""

    stage: Annotated[int, Range(low=0, high=3)]
    offload_optimizer: Offload
    offload_parameters: Offload
    nvme_path: str | None
    reduce_bucket_size: Count
    allgather_bucket_size: Count
    overlap_comm: bool | None
    prefetch_bucket_size: Natural
    max_live_parameters: Natural
    max_reuse_distance: Natural
    param_persistence_threshold: Natural
    sub_group_size: Count
    hpz: Count
    gather_16bit_weights_on_save: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionSpec:
    """Number formats. ``None`` takes what the word ``compute`` means for the backend (``backends/<name>``)."""

    name: str
    compute: Dtype
    parameters: Dtype | None
    gradients: Dtype | None
    accumulate: Dtype | None
    master: Dtype | Literal["none"] | None
    optimizer_states: Dtype | None
    reduce: Dtype | None
    recipe: Literal["delayed", "tensorwise", "blockwise", "mxfp8"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointingSpec:
    """Activation checkpointing: what is recomputed in the backward pass instead of kept."""

    mode: Literal["none", "selective", "full"]
    method: Literal["uniform", "block"]
    modules: tuple[str, ...]
    layers: Count | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """The optimizer, its schedule and clipping. ``fused``/``foreach`` as in ``torch.optim``; None is torch's choice."""

    name: Literal["adamw", "adamw_8bit", "paged_adamw_8bit", "adafactor", "sgd", "lion", "muon"]
    lr: Positive
    min_lr: NonNegative
    weight_decay: NonNegative
    beta1: Probability
    beta2: Probability
    epsilon: Positive
    clip: NonNegative
    schedule: Literal["constant", "linear", "cosine"]
    warmup_steps: Natural
    fused: bool | None
    foreach: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec:
    """Parameter-efficient fine-tuning: ``targets`` are module names as ``peft`` takes them."""

    name: Literal["none", "lora", "qlora"]
    rank: Count
    alpha: Count
    dropout: Probability
    targets: tuple[str, ...]
    double_quant: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """What is trained and for how long; batch sizes are sequences, lengths are tokens."""

    sequence_length: Count | None
    micro_batch_size: Count
    global_batch_size: Count | None
    steps: Count
    seed: Natural
    eval_every: Count | None
    eval_steps: Count
    log_every: Count
    loss: Literal["full", "chunked", "fused"]
    loss_chunk: Count
    compile: bool
    allocator: Literal["default", "expandable"]
    timeout_s: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveSpec:
    """Checkpoints: every how many steps, how many to keep, where to start from; ``async`` is a Python keyword."""

    every: Count | None
    keep: Count
    load: str | None
    asynchronous: bool
    last: bool
    export: Literal["none", "safetensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """Where tokens come from. ``path`` may hold globs and ``{stdlib}``, the folder of Python's own sources."""

    source: Literal["synthetic", "text", "tokens", "huggingface"]
    path: str | None
    tokenizer: str
    split: str
    column: str
    token_dtype: Literal["uint16", "uint32"]
    eval_fraction: Probability
    workers: Natural
    shuffle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec:
    """One device and its node. Sizes are bytes; ``None`` is unknown, and unknown refuses nothing."""

    name: str
    title: str
    device: Device
    memory_bytes: Count | None
    host_memory_bytes: Count | None
    disk_bytes: Count | None
    dtypes: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingSpec:
    """An experiment tracker beside ``metrics.jsonl``; keys travel by the tracker's own environment variables."""

    kind: Literal["none", "tensorboard", "wandb", "mlflow"]
    project: str | None
    uri: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """The run's name and directory; both null gives ``runs/<time>-<model>-<preset>-<hash>``."""

    name: str | None
    directory: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """How ``launch -m`` explores; not part of what one run is."""

    sampler: Literal["grid", "random", "tpe"]
    budget: Count | None
    parallelism: Count | None
