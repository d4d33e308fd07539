"""What a model family tells the memory model: weights and saved tensors, each with how it is split among ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol

from launcher.spec import ModelSpec

type Split = Literal["replicated", "tensor", "expert"]
type Share = Literal["token", "residual", "tensor", "routed", "routed_tensor"]
type Part = Literal[
    "input", "norm", "attention", "core_attention", "up_projection", "mlp", "moe", "activation", "adapter", "cache"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One parameter tensor, or several equal ones.

    Attributes:
        name: As in the checkpoint of the model, without the layer's prefix.
        shape: Rows first, as ``torch.nn.Linear`` holds it.
        split: ``replicated`` on every tensor-parallel rank, or split over the ``tensor`` or the ``expert`` ranks.
        copies: How many there are: the routed experts of a layer.
        dimension: The dimension that tensor parallelism splits.
        frozen: Whether it is not trained.
        quantised: Whether it is held in 4 bits.
    """

    name: str
    shape: tuple[int, ...]
    split: Split = "replicated"
    copies: int = 1
    dimension: int = 0
    frozen: bool = False
    quantised: bool = False

    @property
    def elements(self) -> int:
        """Elements of all copies."""
        return self.copies * prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A tensor that the forward pass of a block keeps for its backward pass.

    Attributes:
        name: What it is.
        bytes: Bytes for one token.
        share: Which ranks share it: ``token`` is whole on every tensor-parallel rank, ``residual`` is split by
            Megatron's sequence parallelism, ``tensor`` by tensor parallelism; the bytes of ``routed`` ones are those
            of one token sent to one expert.
        part: The module that it belongs to, for selective recomputation.
        kept: Whether per-operator selective checkpointing keeps it.
        made_by: The linear layer whose output it is, where that matters.
        passing: Whether it is alive at the fullest moment of a forward pass that saves nothing.
        last: Whether the block's last operation made it.
        readers: The modules whose weights' gradients are computed from it.
        only_readers: Whether nothing else needs it, so that it is not saved where those weights are frozen.
    """

    name: str
    bytes: int
    share: Share
    part: Part
    kept: bool = False
    made_by: str = ""
    passing: bool = True
    last: bool = False
    readers: tuple[str, ...] = ()
    only_readers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsBytes:
    """Bytes of one token's logits, for one entry of the vocabulary.

    Attributes:
        output: When the output projection has made them.
        loss: At the fullest of the loss's forward pass.
        backward: At the fullest of its backward pass.
        source: Where the loss is written down.
    """

    output: int
    loss: int
    backward: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What of the engine's implementation the formulas outside of its own overheads depend on.

    Attributes:
        library: Whose modules run: Hugging Face ``transformers`` or Megatron-core.
        size: Bytes of an element of the compute format.
        residual_size: Bytes of an element of the residual stream; 4 under autocast.
        autocast: Whether each linear casts its own input, and weights are cast on use.
        sequence_length: Keys that a query meets, for attention that stores its scores.
        scores: Whether attention stores its scores.
        softmax_size: Bytes of an element of the saved softmax over the scores, where it is not the compute format's.
        attention_copy: Whether attention's output is kept twice, in the layouts of its kernel and of the block.
        expert_outputs: Whether the outputs of routed experts are kept.
        cpu: Whether the kernels are those of the CPU.
        vocabulary_multiple: The vocabulary is padded to a multiple of it.
        shard_rows: Whether shards are cut by rows of each tensor (FSDP2), or from one flat buffer.
        gradients_stay: Whether gradient buffers live from the first step to the last.
        grouped_experts: Whether routed experts run in grouped products, all at once, or in a loop.
        partition_buffer: Whether the gradients of a rank's shard are put into a buffer, which its backend counts.
        optimizer: How the step is computed: one kernel, or torch's lists or loop with their temporaries.
        whole_embedding: Whether every tensor parallel rank holds the whole token embedding, and a tied projection.
        vocabulary_parallel: Whether the loss works on the rank's own part of the vocabulary.
        fused_norm: Whether RMSNorm is one kernel, which saves its input as it is and the reciprocal deviation.
        key_heads: Heads that keys and values are copied to before attention; None are the model's own.
        fused_adapters: Whether an adapter's matrices and their linear layer are one operation (Unsloth's kernels).
        logits: What the full loss holds; None is torch's cross entropy on an fp32 copy.
        master_size: Bytes of an element of the master copy, where only what the parameters lack of it is kept.
    """

    library: Literal["transformers", "megatron"]
    size: int
    residual_size: int
    autocast: bool = False
    sequence_length: int
    scores: bool = False
    softmax_size: int | None = None
    attention_copy: bool = False
    expert_outputs: bool = False
    cpu: bool = False
    vocabulary_multiple: int = 1
    shard_rows: bool = False
    gradients_stay: bool = False
    grouped_experts: bool = False
    partition_buffer: bool = False
    optimizer: Literal["fused", "foreach", "loop"] = "fused"
    whole_embedding: bool = False
    vocabulary_parallel: bool = False
    fused_norm: bool = False
    key_heads: int | None = None
    fused_adapters: bool = False
    logits: LogitsBytes | None = None
    master_size: int | None = None

    @property
    def mask_size(self) -> int:
        """Bytes of an element of a dropout mask: a bool on CUDA, the input's own format on the CPU."""
        return self.size if self.cpu else 1


class Family(Protocol):
    """A module of ``launcher.families``: pure functions, whose answers are kept by the module and the model."""

    def __hash__(self) -> int:
        """A module's own."""
        ...

    def embedding(self, model: ModelSpec, vocabulary: int) -> Sequence[Weight]:
        """Weights before the first block."""
        ...

    def block(self, model: ModelSpec, layer: int) -> Sequence[Weight]:
        """Weights of one block."""
        ...

    def head(self, model: ModelSpec, vocabulary: int) -> Sequence[Weight]:
        """Weights after the last block; the output projection is absent where it is the embedding."""
        ...

    def kind(self, model: ModelSpec, layer: int) -> str:
        """Blocks of the same kind are equal."""
        ...

    def saved(self, model: ModelSpec, layer: int, engine: Engine) -> Sequence[Saved]:
        """What the forward pass of one block keeps."""
        ...

    def around(self, model: ModelSpec, engine: Engine) -> Sequence[Saved]:
        """What is kept between the last block and the output projection."""
        ...

    def working(self, model: ModelSpec, layer: int, engine: Engine) -> Sequence[Saved]:
        """What the backward pass of one block adds at its fullest, beyond what the forward pass kept."""
        ...

    def closing(self, model: ModelSpec, engine: Engine) -> Sequence[Saved]:
        """All that is alive at the end of the backward pass of one block, in its first norm."""
        ...
