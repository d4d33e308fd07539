"""Traits of an engine: what a step holds (``EngineTraits``), and how it executes a step (``Execution``).

The memory and speed models know no framework by name: each backend states here, feature by feature, what makes its
framework leaner or faster than another, with the framework's own documents as the source.
"""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from launcher.base.frozen import dataclass
from launcher.spec.values import Hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsBytes:
    """Bytes of logits per token and entry of the vocabulary."""

    output: int | Fraction  # After the output projection.
    loss: int | Fraction  # At the peak of the loss's forward pass.
    backward: int | Fraction  # At the peak of its backward pass.
    source: str  # File or trace that shows it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapping:
    """Host buffers through which states and parameters are swapped to the NVMe disk and back."""

    state_buffers: int  # Buffers for a sub-group's weights, moments and gradients, in fp32.
    parameter_buffers: int  # Buffers that hold one parameter's shard each.
    buffer_elements: int  # Elements of one parameter buffer.
    in_memory: int  # Elements of a rank's parameters that stay in host memory.


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Copies of its states that each rank makes on its host to save them, apart from a single parameter in transit."""

    own: Fraction | int = 0  # The share of its states that waits there to be written.
    gathers: bool = False  # True if every data rank gathers the fp32 weights and moments of all of them.
    # Parameters that are gathered at a time on the first stage; None: all of a model chunk.
    bucket: int | None = None
    weights: bool = False  # True if every rank copies its trained weights.
    writer: bool = False  # True if another process of each rank writes them, which has a CUDA context of its own.
    files: bool = False  # True if each rank has its own file, which holds flat tensors of its states.
    exports_whole: bool = False  # True if the first rank gathers all exported weights; False if each rank a share.


class Quantised(NamedTuple):
    """What linear layers keep in 8 or 4 bits, block scales included: bytes per element of the compute format."""

    columns: Fraction  # Of an input kept for the backward pass.
    both: Fraction  # Of a weight, or a gradient, by rows and by columns.
    parameters: bool  # True if the weights themselves are held so, without a wider copy that is multiplied.
    shares: bool  # True if a linear layer reads a tensor that is kept anyway, and keeps no copy of its own.
    ends: tuple[int, int]  # The numbers of first and last layers of the model that are not quantised.


class Rounding(NamedTuple):
    """Bytes that autograd saves where linear layers round their weights in quantization-aware training.

    They are per element of a weight: fp32 tensors of its shape beside the rounded one (``torchao.quantization.qat``).
    """

    inputs: bool  # True if inputs are rounded to 8 bits, token by token.
    saved: int  # Saved per element of a trained weight.
    scales: int  # Saved per group of inputs of a row.
    kept: int  # Kept per group of inputs by a linear layer from its last rounding.
    group: int  # Inputs that share a scale.
    codes: Fraction | int = 0  # Per element of inputs and weights saved in 4 bits, with scales; 0: none are.
    kernel: bool = False  # True if codes are multiplied directly, False if they are decoded before.
    trains: bool = False  # True if kernels encode operands, and backward's products also use codes.


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits(Hashed):
    """Traits of the engine's implementation that formulas outside its own overheads depend on."""

    library: Literal["transformers", "megatron"]  # Whose modules run: Hugging Face ``transformers`` or Megatron-core.
    size: int  # Bytes of an element of the compute format.
    residual_size: int  # Bytes of an element of the residual stream; 4 under autocast.
    quantised: Quantised | None = None  # What linear layers keep in fewer bits; None: all in the compute format.
    rounding: Rounding | None = None  # What linear layers round in quantization-aware training; None: nothing.
    unfused: bool = False  # True if Megatron-core's norms and gates are torch operations, not kernels.
    unfused_norm: int = 0  # Bytes per value that such a norm keeps beyond its input.
    weighting: bool = False  # True if one kernel squares a ReLU and weights the expert's token.
    rotary: int = 0  # Bytes of a token's cosines and sines per rotated value of a head.
    autocast: bool = False  # True if each linear layer casts its own input, and weights are cast on use.
    sequence_length: int  # Keys that a query attends to, for attention that stores its scores.
    scores: bool = False  # True if attention stores its scores.
    # True if torch has no kernel for this attention, so that its softmax is kept in fp32.
    unfused_attention: bool = False
    exchanged_heads: bool = False  # True if ranks exchange tokens for heads around attention (Ulysses).
    # Bytes of an element of the saved softmax of the scores; None is the compute format's.
    softmax_size: int | None = None
    # True if attention's output is kept twice, in the layouts of its kernel and of the block.
    attention_copy: bool = False
    expert_outputs: bool = False  # True if the outputs of routed experts are kept.
    # True if linear layers save their input after their product, as autograd functions written in Python do.
    saves_after_products: bool = False
    # Elements, or bytes if quantised, of the largest sharded weight that also stays whole beside its shard.
    kept_whole: int = 0
    cpu: bool = False  # True if the kernels are those of the CPU.
    # True if scans of state spaces and linear attention are Triton kernels, not torch operations.
    scan_kernels: bool = False
    vocabulary_multiple: int = 1  # The vocabulary is padded to a multiple of it.
    shard_rows: bool = False  # True if shards are cut by rows of each tensor (FSDP2), False if from one flat buffer.
    gradients_stay: bool = False  # True if gradient buffers live from the first step to the last.
    # True if parameters, gradients and their shards are parts of a few buffers that live as long as the run.
    states_in_buffers: bool = False
    # Process groups besides the world and those of the parallel degrees; None: the backend counts all groups.
    further_groups: int | None = 0
    gradients_leave: bool = False  # True if a shard's gradients move to the host as soon as they are reduced.
    gradients_last: bool = False  # True if gradient shards exist only after the last micro-batch.
    grouped_experts: bool = False  # True if routed experts run in grouped products, all at once; False if in a loop.
    # True if ranks with different tokens share the experts, and the engine counts their exchange.
    shared_experts: bool = False
    # True if the gradients of a rank's shard are copied into a buffer, which its backend counts.
    partition_buffer: bool = False
    own_streams: tuple[str, ...] = ()  # Piles allocated in separate streams, whose memory no other stream uses.
    whole_blocks: bool = False  # True if an 8-bit optimizer quantises only tensors of whole blocks (torchao).
    flat_states: bool = False  # True if the optimizer steps one flat tensor of each group of weights (ZeRO).
    # How the step is computed: one kernel, or torch's foreach or loop with their temporaries.
    optimizer: Literal["fused", "foreach", "loop"] = "fused"
    # True if every tensor parallel rank holds the whole token embedding, and a tied projection.
    whole_embedding: bool = False
    vocabulary_parallel: bool = False  # True if the loss works on the rank's own part of the vocabulary.
    # True if RMSNorm is one kernel, which saves its input as it is and the reciprocal deviation.
    fused_norm: bool = False
    # True if the gated activation is one kernel, which saves gate and up and overwrites them with their gradients.
    fused_activation: bool = False
    compiled: bool = False  # True if each block is compiled, and recomputes values between products in backward.
    casts_again: bool = False  # True if backward's products read other casts than forward's (``torchao.float8``).
    key_heads: int | None = None  # Heads that keys and values are repeated to before attention; None: the model's own.
    core_inputs: bool = False  # True if core attention is recomputed, and its inputs before such repeats are kept.
    causal_mask: int = 0  # Bytes per token of the mask that each layer makes for attention.
    one_sequence: bool = False  # True if a micro-batch is one sequence, whose tensors some products need not copy.
    # True if attention gets a mask that separates the documents of each sequence.
    documents_mask: bool = False
    # True if an adapter's matrices and their linear layer are one operation (Unsloth's kernels).
    fused_adapters: bool = False
    # True if adapters are fp32 in a 16-bit model under autocast, as ``peft`` makes them.
    wide_adapters: bool = False
    logits: LogitsBytes | None = None  # Bytes of the full loss; None is torch's cross entropy on an fp32 copy.
    # Bytes of an element of the master copy, if it keeps only the bits that the parameters lack.
    master_size: int | None = None
    swapping: Swapping | None = None  # The buffers of NVMe offload; None: there is none.
    saving: Saving = Saving()
    loads: int = 0  # Host bytes per parameter of the whole model in every rank while it loads the model.

    @property
    def recompute_method(self) -> Literal["uniform", "block"]:
        """The default of ``checkpointing.method``: groups of ``checkpointing.layers`` layers, or so many first ones."""
        return "uniform" if self.library == "megatron" else "block"

    @property
    def mask_size(self) -> int:
        """Bytes of an element of a dropout mask: a bool on CUDA, the input's own format on the CPU."""
        return self.size if self.cpu else 1


type AttentionKernel = Literal["flash", "flash_2", "flash_1", "sdpa", "fused_softmax", "masked_in_place", "unfused"]
"""``flash`` is the fastest on the card; ``flash_2`` and ``flash_1`` are these FlashAttention versions, on Hopper too;
``sdpa`` is what torch chooses; ``fused_softmax`` keeps scores in memory, with mask and softmax in one kernel
(Megatron-LM); ``masked_in_place`` and ``unfused`` use one kernel each, in the compute format and in fp32."""

type Copies = Literal["none", "groups", "zero_1_2", "zero_3"]
"""The engine's own copies of states on the device, beside its collectives (``launcher/estimate/speed/states.py``)."""

type Dispatcher = Literal["all_to_all", "all_gather", "deepep", "hybridep"]
"""``all_to_all`` sends a token to each of its experts with NCCL, ``all_gather`` to every rank of experts; ``deepep``
once to each rank of its experts, and once over the network; ``hybridep`` too, and it sorts the tokens on the way."""

EXPERT_OVERLAP = 0.75
"""Share of the exchange with experts that another micro-batch hides [inferred: NVIDIA-NeMo/Megatron-Bridge reports that
this makes a step of Qwen3-30B-A3B on 16 H100 1.177 times as fast, of which the exchange is a fifth by our tables]."""

UNEVEN = 1.11
"""Factor by which a step's experts are slower with the routing of a trained model than with even routing: a power law
with exponent 1.01 (ai-dynamo/aiconfigurator, tables of experts on H100; 1.18 with exponent 1.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution(Hashed):
    """How an engine executes a step."""

    framework: str  # Its name in ``launcher/estimate/speed/calibration.json``.
    related: tuple[str, ...] = ()  # The most similar measured frameworks, whose runs count beside its own.
    attention: AttentionKernel = "flash"  # The kernel of attention.
    masked: bool = False  # True if attention gets a mask, so that it computes every pair of tokens.
    fused_projections: bool = False  # True if queries, keys and values are one product, as are gate and up.
    fused_norm: bool = False  # True if a norm is one kernel.
    fused_rotary: bool = False  # True if the rotation of queries and keys is one kernel.
    fused_activation: bool = False  # True if the activation of the MLP, with gate or bias, is one kernel.
    fused_residual: bool = False  # True if bias, dropout and the residual sum are one kernel.
    # How operands are cast to fp8: fused with products, or separately by torchao with a scale per tensor or block.
    casts: Literal["products", "tensor", "blocks"] = "products"
    fused_loss: bool = False  # True if the cross entropy is one kernel that reads the logits once.
    compiled: bool = False  # True if a compiler fuses everything but products (``torch.compile``, XLA).
    graphs: bool = False  # True if CUDA graphs replay the step, so that the host launches no kernels.
    launch_seconds: float = 8e-6  # The host's time to launch one kernel of the forward pass, including Python.
    # The host's time that a tensor parallel rank adds to a block where stages exchange messages.
    staged_seconds: float = 0.0
    hook_seconds: float = 0.0  # The host's time for the engine's own hooks around a weight's module, in each pass.
    tensor_overlap: float = 0.0  # Share of tensor parallel communication that products hide.
    gradient_overlap: bool = True  # True if gradients are reduced while the backward pass runs.
    parameter_overlap: bool = True  # True if parameters are gathered while the previous or the same pass runs.
    regathers: bool = True  # True if sharded parameters are gathered again for the backward pass.
    # Bytes per element of gathered parameters, if they are sent in another format than they are held in.
    gathered_size: float | None = None
    # Bytes per element of gradients that all-to-alls between nodes carry in place of a reduce-scatter.
    exchanged_size: float | None = None
    # True if gradients are reduced after each micro-batch, not only after the last of a step.
    reduces_each: bool = False
    # True if gradients are all-reduced, though each rank keeps only its shard.
    reduces_whole: bool = False
    copies: Copies = "none"  # The copies of parameters and gradients made around the collectives.
    pipeline_overlap: bool = False  # True if stages send while they compute.
    # True if weight gradients are accumulated in fp32 by the product that computes them.
    fused_accumulation: bool = False
    fused_optimizer: bool = True  # True if the optimizer's step is one kernel over all parameters.
    # The host's time to send or receive one message between stages, if it waits for each.
    message_seconds: float = 0.0
    bucket_bytes: float = 2.0**28  # Bytes of gradients that one collective reduces at once.
    dispatcher: Dispatcher = "all_to_all"  # The exchange of tokens with the ranks of their experts.
    uneven_experts: float = 1.0  # Factor by which uneven routing slows the products of experts.
    expert_overlap: float = 0.0  # Share of the exchange that the products of another micro-batch hide.
    fused_permutation: bool = False  # True if one kernel sorts tokens by expert.
    blockwise_experts: bool = False  # True if experts run one after the other in a loop, not in grouped products.


_KEPT: dict[Any, Any] = {}


def kept[T: Hashed](traits: T) -> T:
    """Return one object for equal traits, so that caches of rows and blocks find it without comparing every trait."""
    found: T = _KEPT.setdefault(traits, traits)
    return found


_OF_STATES = (
    "framework", "related", "gradient_overlap", "parameter_overlap", "regathers", "reduces_each", "reduces_whole",
    "gathered_size", "exchanged_size", "copies", "pipeline_overlap", "fused_accumulation", "fused_optimizer",
    "bucket_bytes",
)  # fmt: skip
"""Traits of the communication of model states and of the optimizer, which do not affect a micro-batch's passes."""


@lru_cache(maxsize=256)
def of_passes(execution: Execution) -> Execution:
    """Return the traits that a micro-batch's passes depend on, with the others reset to defaults.

    Layouts that differ only in the others then share cached blocks.
    """
    neutral = Execution(framework="")
    return kept(replace(execution, **{name: getattr(neutral, name) for name in _OF_STATES}))


@lru_cache(maxsize=256)
def of_blocks(execution: Execution) -> Execution:
    """Return the traits that blocks depend on: those of :func:`of_passes` without the loss."""
    return kept(replace(of_passes(execution), fused_loss=False))
