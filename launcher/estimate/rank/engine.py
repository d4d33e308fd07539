"""Traits of an engine: what a step holds (``EngineTraits``), and how it executes a step (``Execution``).

The models of memory and speed know no framework by name: what makes one leaner or faster than another is stated here,
feature by feature, by the backend, with the framework's own documents as the source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

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


type AttentionKernel = Literal["flash", "flash_2", "flash_1", "sdpa", "fused_softmax", "unfused"]
"""``flash`` is the best that the card has; ``flash_2`` and ``flash_1`` FlashAttention of these versions, on Hopper too;
``sdpa`` what torch chooses;
``fused_softmax`` scores in memory with mask and softmax in one kernel (Megatron-LM); ``unfused`` one kernel each."""

type Dispatcher = Literal["all_to_all", "deepep", "hybridep"]
"""``all_to_all`` sends a token to each of its experts by NCCL; ``deepep`` once to each rank of these, and once over the
network; ``hybridep`` does so too, and sorts the tokens on the way."""

EXPERT_OVERLAP = 0.75
"""Share of the exchange with experts that another micro-batch hides [inferred: NVIDIA-NeMo/Megatron-Bridge prints that
it makes a step of Qwen3-30B-A3B on 16 H100 1.177 times as fast, of which the exchange is a fifth by our tables]."""

UNEVEN = 1.11
"""Factor by which the experts of a step are slower with the routing of a trained model than with even routing: of a
power law with exponent 1.01 (ai-dynamo/aiconfigurator, tables of experts on H100; 1.18 with exponent 1.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution(Hashed):
    """The way in which an engine executes a step.

    Attributes:
        framework: The name under which ``launcher/estimate/speed/calibration.json`` has what was measured of it.
        related: The nearest of the measured frameworks, whose runs count beside its own.
        attention: The kernel of attention.
        fused_projections: True if queries, keys and values are one product, and so gate and up.
        fused_norm: True if a norm is one kernel.
        fused_rotary: True if the rotation of queries and keys is one kernel.
        fused_activation: True if the activation of the MLP, with gate or bias, is one kernel.
        fused_residual: True if bias, dropout and the residual sum are one kernel.
        fused_loss: True if the cross entropy is one kernel that reads the logits once.
        compiled: True if a compiler joins what is not a product (``torch.compile``, XLA).
        graphs: True if CUDA graphs replay the step, so that the host starts no kernel.
        launch_seconds: The host's time to start one kernel of the forward pass, Python around it included.
        staged_seconds: The host's time that a tensor parallel rank adds to a block where stages exchange messages.
        tensor_overlap: Share of tensor parallel traffic that products hide.
        gradient_overlap: True if gradients are reduced while the backward pass runs.
        parameter_overlap: True if parameters are gathered while the pass before or around it runs.
        regathers: True if sharded parameters are gathered again for the backward pass.
        reduces_each: True if gradients are reduced after each micro-batch, not only after the last of a step.
        pipeline_overlap: True if stages send while they compute.
        fused_accumulation: True if the weights' gradients are added up in fp32 by the product that makes them.
        fused_optimizer: True if the optimizer's step is one kernel over all parameters.
        message_seconds: The host's time to send or receive one message between stages, where it waits for each.
        bucket_bytes: Bytes of gradients that one collective reduces at once.
        dispatcher: The exchange of tokens with the ranks of their experts.
        uneven_experts: Factor by which routing that is not even slows the products of experts.
        expert_overlap: Share of that exchange that the products of another micro-batch hide.
        fused_permutation: True if tokens are sorted to their experts by one kernel.
        blockwise_experts: True if experts run in a loop, one after the other, and not in grouped products.
    """

    __hash__ = Hashed.__hash__

    framework: str
    related: tuple[str, ...] = ()
    attention: AttentionKernel = "flash"
    fused_projections: bool = False
    fused_norm: bool = False
    fused_rotary: bool = False
    fused_activation: bool = False
    fused_residual: bool = False
    fused_loss: bool = False
    compiled: bool = False
    graphs: bool = False
    launch_seconds: float = 8e-6
    staged_seconds: float = 0.0
    tensor_overlap: float = 0.0
    gradient_overlap: bool = True
    parameter_overlap: bool = True
    regathers: bool = True
    reduces_each: bool = False
    pipeline_overlap: bool = False
    fused_accumulation: bool = False
    fused_optimizer: bool = True
    message_seconds: float = 0.0
    bucket_bytes: float = 2.0**28
    dispatcher: Dispatcher = "all_to_all"
    uneven_experts: float = 1.0
    expert_overlap: float = 0.0
    fused_permutation: bool = False
    blockwise_experts: bool = False


_KEPT: dict[Any, Any] = {}


def kept[T: Hashed](traits: T) -> T:
    """Return equal traits as one object, which caches of rows and blocks then find without comparing every trait."""
    found: T = _KEPT.setdefault(traits, traits)
    return found


_OF_STATES = (
    "framework",
    "related",
    "gradient_overlap",
    "parameter_overlap",
    "regathers",
    "reduces_each",
    "pipeline_overlap",
    "fused_accumulation",
    "fused_optimizer",
    "bucket_bytes",
)
"""Traits of the traffic of model states and of the optimizer, which the passes of a micro-batch do not depend on."""


@lru_cache(maxsize=256)
def of_passes(execution: Execution) -> Execution:
    """Return the traits that the passes of a micro-batch depend on, the others neutral.

    Layouts that differ in those alone then find each other's blocks in the caches.
    """
    neutral = Execution(framework="")
    return kept(replace(execution, **{name: getattr(neutral, name) for name in _OF_STATES}))


@lru_cache(maxsize=256)
def of_blocks(execution: Execution) -> Execution:
    """Return the traits that blocks depend on, as :func:`of_passes` does, without the loss."""
    return kept(replace(of_passes(execution), fused_loss=False))
