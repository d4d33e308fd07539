"""The keys of ``model``, ``adapter``, ``backend``, ``parallel`` and ``zero``: the model, its engine and its layout."""

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from typing import Annotated, Any, Literal

from launcher.base.frozen import dataclass
from launcher.spec.values import Count, Dropped, Factor, Hashed, Natural, NonNegative, Offload, Positive, Range, Small

SCRIPTS_OWN = "what the script builds"
"""The source of a model that is not named because the user's script builds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Hashed):
    """A transformer, with the names of Hugging Face's ``config.json`` for Llama and Qwen; sizes are element counts."""

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
    norm_epsilon: Small
    attention_bias: bool
    mlp_bias: bool
    qk_norm: bool
    max_position_embeddings: Count
    dropout: Dropped
    initializer_range: Small
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
    attention_output_bias: bool | None = None
    gate: bool | None = None
    rope_parameters: Mapping[str, Any] | None = field(default=None, hash=False)
    sliding_window: Count | None = None
    norm_topk_prob: bool | None = None
    routed_scaling_factor: Positive = 1.0
    n_group: Natural = 0
    topk_group: Natural = 0
    router_aux_loss_coef: NonNegative = 0.0
    mtp_layers: Natural = 0
    model_type: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def gated(self) -> bool:
        """True if the MLP has a gate projection: as set, else with SiLU (SwiGLU)."""
        return self.hidden_act == "silu" if self.gate is None else self.gate

    @property
    def shared_width(self) -> int:
        """Width of the MLP that every token passes besides its experts: ``extra.shared_width``, else shared experts."""
        return int(self.extra.get("shared_width") or self.num_shared_experts * self.moe_intermediate_size)

    @property
    def query_size(self) -> int:
        """Elements of all query heads of one token."""
        return self.num_attention_heads * self.head_size

    @property
    def head_size(self) -> int:
        """Elements of one head: ``head_dim``, or the hidden size divided by the heads."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        """Number of key and value heads: as set, or one for every query head (multi-head attention)."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def key_value_size(self) -> int:
        """Elements of all key heads of one token; the same for the value heads."""
        return self.key_value_heads * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec(Hashed):
    """Parameter-efficient fine-tuning: ``targets`` are module names as ``peft`` takes them."""

    name: Literal["none", "lora", "qlora", "oft", "qoft"]
    rank: Count
    alpha: Count
    dropout: Dropped
    targets: tuple[str, ...]  # ``all-linear`` is already replaced by its module names.
    double_quant: bool
    parameters: tuple[str, ...] = ()  # Expert weights that get a low-rank update.
    quant_type: Literal["nf4", "fp4", "int8"] = "nf4"  # The number format of frozen weights of QLoRA and QOFT.
    dora: bool = False  # True if each row of a weight has a trained magnitude beside the low-rank update.
    rslora: bool = False  # True if the update is scaled by alpha over the square root of the rank.
    lora_plus: Factor | None = None  # Learning rate of the B matrices over that of the A matrices; None is 1.
    modules_to_save: tuple[str, ...] = ()  # Modules outside the blocks that are trained in full.
    pissa: Natural | None = None  # SVD iterations that initialize the matrices; 0 is an exact SVD, None starts at zero.
    block_size: Count = 32  # Inputs of a linear layer that OFT rotates together.

    @property
    def low_rank(self) -> bool:
        """True if the adapter is LoRA: two low-rank matrices added to a layer."""
        return self.name in ("lora", "qlora")

    @property
    def rotates(self) -> bool:
        """True if the adapter is OFT: rotations of a layer's inputs."""
        return self.name in ("oft", "qoft")

    @property
    def bits(self) -> int:
        """Bits per weight of quantized frozen linears in the blocks; 0 if they are not quantized."""
        return {"nf4": 4, "fp4": 4, "int8": 8}[self.quant_type] if self.name in ("qlora", "qoft") else 0


@lru_cache(maxsize=64)
def _spelt(keys: tuple[str, ...]) -> dict[str, str]:
    """Keys of an engine's own arguments, by their names with dashes."""
    return {key.lstrip("-").replace("_", "-"): key for key in keys}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """The engine that trains, and settings that only that engine has."""

    name: str
    reshard_after_forward: bool | Count | None
    bucket_view: bool
    bucket_cap_mb: Positive
    path: str | None
    micro_step_sync: bool
    extra: Mapping[str, Any]

    @property
    def kept_over(self) -> int:
        """Ranks over which FSDP2 reshards to a smaller world between forward and backward; 1 if it does not."""
        found = self.reshard_after_forward
        return 1 if found is None or isinstance(found, bool) else found

    def argument(self, name: str, default: Any = None) -> Any:
        """Return an engine's own argument from ``extra``, spelled there with dashes or underscores, or the default."""
        key = _spelt(tuple(self.extra)).get(name) if self.extra else None
        return default if key is None else self.extra[key]

    def count(self, name: str) -> int | None:
        """Return an engine's own argument if it is a positive integer, else None; its backend checks other values."""
        value = self.argument(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """Parallel degrees. The data degree is what remains of the world size: ``RunSpec.data_degree``."""

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
    async_tensor: bool
    ulysses: Count
    replicate: Count
    schedule: Literal["1f1b", "gpipe", "interleaved", "zero_bubble", "zbv", "dualpipe_v"]
    shard: bool
    layout: tuple[str, ...] = ()


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
    sub_group_size: Natural
    hpz: Count
    quantized_weights: bool
    quantized_gradients: bool
    gather_16bit_weights_on_save: bool


OF_ENGINES = (
    "parallel.shard parallel.async_tensor parallel.layout backend.reshard_after_forward backend.micro_step_sync "
    "backend.bucket_view backend.bucket_cap_mb backend.path model.mtp_layers train.cuda_graphs save.reshardable "
    "zero.reduce_bucket_size zero.allgather_bucket_size zero.overlap_comm zero.prefetch_bucket_size "
    "zero.max_live_parameters zero.max_reuse_distance zero.param_persistence_threshold zero.sub_group_size zero.hpz "
    "zero.quantized_weights zero.quantized_gradients zero.gather_16bit_weights_on_save precision.qat"
)
"""Keys that not every engine uses, or not in all of its modes."""
