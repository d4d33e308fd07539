"""Traits of an engine's implementation that formulas outside of its own overheads depend on."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from launcher.spec.values import Hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsBytes:
    """Bytes of one token's logits, for one entry of the vocabulary.

    Attributes:
        output: When the output projection has made them.
        loss: At the peak of the loss's forward pass.
        backward: At the peak of its backward pass.
        source: File or trace that shows it.
    """

    output: int | Fraction
    loss: int
    backward: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits(Hashed):
    """Traits of the engine's implementation that formulas outside of its own overheads depend on.

    Attributes:
        library: Whose modules run: Hugging Face ``transformers`` or Megatron-core.
        size: Bytes of an element of the compute format.
        residual_size: Bytes of an element of the residual stream; 4 under autocast.
        autocast: True if each linear casts its own input, and weights are cast on use.
        sequence_length: Keys that a query meets, for attention that stores its scores.
        scores: True if attention stores its scores.
        softmax_size: Bytes of an element of the saved softmax over the scores, where it is not the compute format's.
        attention_copy: True if attention's output is kept twice, in the layouts of its kernel and of the block.
        expert_outputs: True if the outputs of routed experts are kept.
        cpu: True if the kernels are those of the CPU.
        vocabulary_multiple: The vocabulary is padded to a multiple of it.
        shard_rows: True if shards are cut by rows of each tensor (FSDP2), False if from one flat buffer.
        gradients_stay: True if gradient buffers live from the first step to the last.
        grouped_experts: True if routed experts run in grouped products, all at once; False if in a loop.
        partition_buffer: True if the gradients of a rank's shard are put into a buffer, which its backend counts.
        optimizer: How the step is computed: one kernel, or torch's lists or loop with their temporaries.
        whole_embedding: True if every tensor parallel rank holds the whole token embedding, and a tied projection.
        vocabulary_parallel: True if the loss works on the rank's own part of the vocabulary.
        fused_norm: True if RMSNorm is one kernel, which saves its input as it is and the reciprocal deviation.
        key_heads: Heads that keys and values are copied to before attention; None are the model's own.
        fused_adapters: True if an adapter's matrices and their linear layer are one operation (Unsloth's kernels).
        logits: Bytes of the full loss; None is torch's cross entropy on an fp32 copy.
        master_size: Bytes of an element of the master copy, where only the bits that the parameters lack are kept.
    """

    __hash__ = Hashed.__hash__

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


@lru_cache(maxsize=256)
def kept(engine: EngineTraits) -> EngineTraits:
    """Equal traits as one object, which caches of counts and rows then find without comparing every trait."""
    return engine
