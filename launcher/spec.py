"""One run as frozen data. Every key of CONTRACT.md once; what can be computed from keys is a property.

Defaults live in ``conf/<group>/_base.yaml`` and nowhere else, so no field here has one.
``None`` means "not set": the property or the backend that needs a value says what it takes instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal


@dataclass(frozen=True, slots=True)
class Range:
    """The closed range that a number must lie in; a missing end is open. Read by ``parse``."""

    low: float | None = None
    high: float | None = None


type Count = Annotated[int, Range(low=1)]
type Natural = Annotated[int, Range(low=0)]
type Positive = Annotated[float, Range(low=1e-30)]
type NonNegative = Annotated[float, Range(low=0)]
type Probability = Annotated[float, Range(low=0, high=1)]
type Dtype = Literal["fp32", "fp16", "bf16", "fp8"]
type Device = Literal["cpu", "cuda"]
type Offload = Literal["none", "cpu", "nvme"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A transformer by the names of Hugging Face ``config.json`` for Llama and Qwen; sizes are element counts."""

    name: str
    family: str
    num_hidden_layers: Count
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
class ClusterSpec:
    """Where the job runs: this machine or a Slurm cluster."""

    kind: Literal["local", "slurm"]
    nodes: Count
    gpus_per_node: Count
    cpus_per_node: Count | None
    time_limit_min: Count | None
    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None
    reservation: str | None
    gpu_request: Literal["gpus_per_node", "gres"]
    exclusive: bool
    environment: Mapping[str, str]
    pass_environment: tuple[str, ...]
    setup: tuple[str, ...]
    interface: str | None
    shared_folder: str | None
    extra: Mapping[str, Any]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The degrees that the ranks are laid out in. ``data`` counts model replicas that see different samples."""

    gpus: int
    data: int
    tensor: int
    pipeline: int
    context: int
    ulysses: int
    expert: int
    replicate: int
    gradient_accumulation: int

    @property
    def shard(self) -> int:
        """Ranks over which FSDP or ZeRO shards: data, context and Ulysses ranks of one HSDP replica."""
        return self.data * self.context * self.ulysses // self.replicate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """Everything that decides what a run is. Built by ``parse`` alone."""

    model: ModelSpec
    backend: BackendSpec
    parallel: ParallelSpec
    zero: ZeroSpec
    precision: PrecisionSpec
    checkpointing: CheckpointingSpec
    optimizer: OptimizerSpec
    adapter: AdapterSpec
    train: TrainSpec
    save: SaveSpec
    data: DataSpec
    hardware: HardwareSpec
    cluster: ClusterSpec
    tracking: TrackingSpec
    run: RunNames
    sweep: SweepSpec
    script: str | None
    script_args: tuple[str, ...]

    @property
    def gpus(self) -> int:
        """Ranks of the job; on the CPU a rank is a process."""
        return self.cluster.nodes * self.cluster.gpus_per_node

    @property
    def model_parallel(self) -> int:
        """Ranks that work on the same samples."""
        return self.parallel.tensor * self.parallel.pipeline * self.parallel.context * self.parallel.ulysses

    @property
    def data_degree(self) -> int:
        """Ranks that see different samples; at least 1, also where the degrees do not divide the world."""
        return max(1, self.gpus // self.model_parallel)

    @property
    def sequence_length(self) -> int:
        """Tokens of one sequence: as set, or the longest that the model takes, at most 4096."""
        return self.train.sequence_length or min(4096, self.model.max_position_embeddings)

    @property
    def global_batch_size(self) -> int:
        """Sequences of one optimizer step: as set, or one micro-batch on every data rank."""
        return self.train.global_batch_size or self.train.micro_batch_size * self.data_degree

    @property
    def gradient_accumulation(self) -> int:
        """Micro-batches of one optimizer step on one rank; with pipelining, those that flow through it."""
        return max(1, self.global_batch_size // (self.train.micro_batch_size * self.data_degree))

    @property
    def world(self) -> World:
        """The layout of the ranks; meaningful once the strategies have found no error."""
        return World(
            gpus=self.gpus,
            data=self.data_degree,
            tensor=self.parallel.tensor,
            pipeline=self.parallel.pipeline,
            context=self.parallel.context,
            ulysses=self.parallel.ulysses,
            expert=self.parallel.expert,
            replicate=self.parallel.replicate,
            gradient_accumulation=self.gradient_accumulation,
        )

    @property
    def rank_memory_bytes(self) -> int | None:
        """What one rank may use: the card's memory, or on the CPU its share of the host's; None is unknown."""
        if self.hardware.device == "cuda":
            return self.hardware.memory_bytes
        if self.hardware.host_memory_bytes is None:
            return None
        return self.hardware.host_memory_bytes // self.cluster.gpus_per_node

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that name what the run is; its name, directory and sweep do not count."""
        content = asdict(self)
        del content["run"], content["sweep"]
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]
