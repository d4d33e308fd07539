"""Traits of an engine: what a step holds (``EngineTraits``), and how it executes a step (``Execution``).

The models of memory and speed know no framework by name: what makes one leaner or faster than another is stated here,
feature by feature, by the backend, with the framework's own documents as the source.
"""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from launcher.base.frozen import dataclass
from launcher.spec.values import Hashed


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsBytes:
    """Bytes of one token's logits, for one entry of the vocabulary."""

    output: int | Fraction  # When the output projection has made them.
    loss: int | Fraction  # At the peak of the loss's forward pass.
    backward: int | Fraction  # At the peak of its backward pass.
    source: str  # File or trace that shows it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapping:
    """Host buffers through which states and parameters go to the NVMe disk and back."""

    state_buffers: int  # Buffers for a sub-group's weights, moments and gradients, in fp32.
    parameter_buffers: int  # Buffers for one parameter's share each.
    buffer_elements: int  # Elements of one of those.
    in_memory: int  # Elements of a rank's parameters that stay in host memory.


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Copies of its states that each rank makes on its host to save them; a single tensor on its way is left out."""

    own: Fraction | int = 0  # The share of its states that waits there to be written.
    gathers: bool = False  # True if fp32 weights and moments of all data ranks are gathered there, in all of them.
    # Parameters that are gathered at a time on the first stage; None: all of a model chunk.
    bucket: int | None = None
    weights: bool = False  # True if a copy of the weights that are trained waits there, whole, in all of them.
    exports_whole: bool = False  # True if the first rank gathers all weights there that are exported.


class Quantised(NamedTuple):
    """What linears keep in 8 or in 4 bits, block scales included: bytes of an element of the compute format."""

    columns: Fraction  # Of an input that waits for the backward pass.
    both: Fraction  # Of a weight, or of a gradient, by rows and by columns.
    parameters: bool  # True if the weights themselves are held so, and have no wider copy that is multiplied.
    shares: bool  # True if a linear reads a tensor that is kept in any case as it is, and keeps no copy of its own.
    ends: tuple[int, int]  # The first and the last layers of the model that are not quantised.


class Rounding(NamedTuple):
    """The bytes that autograd saves where linears round their weights in quantization-aware training.

    They are of an element of a weight: fp32 tensors of its shape beside the rounded one (``torchao.quantization.qat``).
    """

    inputs: bool  # True if inputs are rounded to 8 bits, token by token.
    saved: int  # Of a trained weight.
    scales: int  # Saved for a group of inputs of a row.
    kept: int  # Of a group too, what a linear keeps of its last rounding.
    group: int  # Inputs that share a scale.
    codes: Fraction | int = 0  # Of inputs and weights that are saved in 4 bits, with their scales; 0: none are.
    kernel: bool = False  # True if those are multiplied as they are, False if numbers are made of them before.
    trains: bool = False  # True if kernels make the codes, and backward's products are of codes, too.


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits(Hashed):
    """Traits of the engine's implementation that formulas outside of its own overheads depend on."""

    library: Literal["transformers", "megatron"]  # Whose modules run: Hugging Face ``transformers`` or Megatron-core.
    size: int  # Bytes of an element of the compute format.
    residual_size: int  # Bytes of an element of the residual stream; 4 under autocast.
    quantised: Quantised | None = None  # What linears keep in fewer bits; None: everything is in the compute format.
    rounding: Rounding | None = None  # What linears round in quantization-aware training; None: there is none.
    unfused: bool = False  # True if Megatron-core's norms and gates are operations of torch and not kernels.
    unfused_norm: int = 0  # Bytes that a norm then keeps of each value beyond those of its input.
    weighting: bool = False  # True if one kernel squares a ReLU and weights the expert's token.
    rotary: int = 0  # Bytes of a token's cosines and sines for each value of a head that is rotated.
    autocast: bool = False  # True if each linear casts its own input, and weights are cast on use.
    sequence_length: int  # Keys that a query meets, for attention that stores its scores.
    scores: bool = False  # True if attention stores its scores.
    # True if torch has no kernel for this attention, whose softmax it then keeps in fp32.
    unfused_attention: bool = False
    exchanged_heads: bool = False  # True if ranks exchange tokens for heads around attention (Ulysses).
    # Bytes of an element of the saved softmax over the scores, where it is not the compute format's.
    softmax_size: int | None = None
    # True if attention's output is kept twice, in the layouts of its kernel and of the block.
    attention_copy: bool = False
    expert_outputs: bool = False  # True if the outputs of routed experts are kept.
    # True if linears save their input after their product: they are autograd functions written in Python.
    saves_after_products: bool = False
    # The elements, or bytes of packed ones, up to which a weight that is sharded stays whole beside its shard.
    kept_whole: int = 0
    cpu: bool = False  # True if the kernels are those of the CPU.
    # True if scans of state spaces and of linear attention are Triton's kernels, and not operations of torch.
    scan_kernels: bool = False
    vocabulary_multiple: int = 1  # The vocabulary is padded to a multiple of it.
    shard_rows: bool = False  # True if shards are cut by rows of each tensor (FSDP2), False if from one flat buffer.
    gradients_stay: bool = False  # True if gradient buffers live from the first step to the last.
    # True if parameters, gradients and their shards are parts of a few buffers that live as long as the run.
    states_in_buffers: bool = False
    # Groups that it computes over besides the world and those of the degrees; None: its backend counts them all.
    further_groups: int | None = 0
    gradients_leave: bool = False  # True if gradients of a shard go to the host as soon as they are reduced.
    gradients_last: bool = False  # True if there are shards of gradients after the last micro-batch alone.
    grouped_experts: bool = False  # True if routed experts run in grouped products, all at once; False if in a loop.
    # True if ranks that see different tokens share the experts, and the engine counts their exchange.
    shared_experts: bool = False
    # True if the gradients of a rank's shard are put into a buffer, which its backend counts.
    partition_buffer: bool = False
    own_streams: tuple[str, ...] = ()  # Piles made in streams of their own, whose memory no other stream uses.
    whole_blocks: bool = False  # True if an 8-bit optimizer codes tensors of whole blocks alone (torchao).
    flat_states: bool = False  # True if the optimizer steps one flat tensor of each group of weights (ZeRO).
    # How the step is computed: one kernel, or torch's lists or loop with their temporaries.
    optimizer: Literal["fused", "foreach", "loop"] = "fused"
    # True if every tensor parallel rank holds the whole token embedding, and a tied projection.
    whole_embedding: bool = False
    vocabulary_parallel: bool = False  # True if the loss works on the rank's own part of the vocabulary.
    # True if RMSNorm is one kernel, which saves its input as it is and the reciprocal deviation.
    fused_norm: bool = False
    # True if the gated activation is one kernel, which saves gate and up, and writes their gradients over them.
    fused_activation: bool = False
    compiled: bool = False  # True if each block is compiled, and computes values between products again in backward.
    casts_again: bool = False  # True if backward's products read other casts than forward's (``torchao.float8``).
    key_heads: int | None = None  # Heads that keys and values are copied to before attention; None are the model's own.
    core_inputs: bool = False  # True if attention's core is recomputed, and what it reads before such copies is kept.
    causal_mask: int = 0  # Bytes of a token in the mask that each layer makes for attention.
    one_sequence: bool = False  # True if a micro-batch is one sequence, whose tensors some products need not copy.
    # True if attention is given a mask that keeps the documents of each sequence apart.
    documents_mask: bool = False
    # True if an adapter's matrices and their linear layer are one operation (Unsloth's kernels).
    fused_adapters: bool = False
    # True if adapters are fp32 in a model of 16 bits under autocast, as ``peft`` makes them.
    wide_adapters: bool = False
    logits: LogitsBytes | None = None  # Bytes of the full loss; None is torch's cross entropy on an fp32 copy.
    # Bytes of an element of the master copy, where only the bits that the parameters lack are kept.
    master_size: int | None = None
    swapping: Swapping | None = None  # The buffers of NVMe offload; None: there is none.
    saving: Saving = Saving()
    loads: int = 0  # Bytes of each parameter of the whole model on the host of every rank while it loads the model.

    @property
    def recompute_method(self) -> Literal["uniform", "block"]:
        """The layers of ``checkpointing.layers`` without ``checkpointing.method``: groups of so many, or the first."""
        return "uniform" if self.library == "megatron" else "block"

    @property
    def mask_size(self) -> int:
        """Bytes of an element of a dropout mask: a bool on CUDA, the input's own format on the CPU."""
        return self.size if self.cpu else 1


type AttentionKernel = Literal["flash", "flash_2", "flash_1", "sdpa", "fused_softmax", "masked_in_place", "unfused"]
"""``flash`` is the best that the card has; ``flash_2`` and ``flash_1`` FlashAttention of these versions, on Hopper too;
``sdpa`` what torch chooses;
``fused_softmax`` scores in memory with mask and softmax in one kernel (Megatron-LM); ``masked_in_place`` and
``unfused`` one kernel each, in the compute format and in fp32."""

type Copies = Literal["none", "groups", "zero_1_2", "zero_3"]
"""The engine's own copies of states on the device, beside its collectives (``launcher/estimate/speed/states.py``)."""

type Dispatcher = Literal["all_to_all", "all_gather", "deepep", "hybridep"]
"""``all_to_all`` sends a token to each of its experts by NCCL, ``all_gather`` to every rank of experts; ``deepep`` once
to each rank of these, and once over the network; ``hybridep`` does so too, and sorts the tokens on the way."""

EXPERT_OVERLAP = 0.75
"""Share of the exchange with experts that another micro-batch hides [inferred: NVIDIA-NeMo/Megatron-Bridge prints that
it makes a step of Qwen3-30B-A3B on 16 H100 1.177 times as fast, of which the exchange is a fifth by our tables]."""

UNEVEN = 1.11
"""Factor by which the experts of a step are slower with the routing of a trained model than with even routing: of a
power law with exponent 1.01 (ai-dynamo/aiconfigurator, tables of experts on H100; 1.18 with exponent 1.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution(Hashed):
    """The way in which an engine executes a step."""

    framework: str  # The name under which ``launcher/estimate/speed/calibration.json`` has what was measured of it.
    related: tuple[str, ...] = ()  # The nearest of the measured frameworks, whose runs count beside its own.
    attention: AttentionKernel = "flash"  # The kernel of attention.
    masked: bool = False  # True if attention is given a mask, so that it counts every pair of tokens.
    fused_projections: bool = False  # True if queries, keys and values are one product, and so gate and up.
    fused_norm: bool = False  # True if a norm is one kernel.
    fused_rotary: bool = False  # True if the rotation of queries and keys is one kernel.
    fused_activation: bool = False  # True if the activation of the MLP, with gate or bias, is one kernel.
    fused_residual: bool = False  # True if bias, dropout and the residual sum are one kernel.
    # How operands are cast to fp8: with their products, or apart by torch (torchao), by one scale or one of each block.
    casts: Literal["products", "tensor", "blocks"] = "products"
    fused_loss: bool = False  # True if the cross entropy is one kernel that reads the logits once.
    compiled: bool = False  # True if a compiler joins what is not a product (``torch.compile``, XLA).
    graphs: bool = False  # True if CUDA graphs replay the step, so that the host starts no kernel.
    launch_seconds: float = 8e-6  # The host's time to start one kernel of the forward pass, Python around it included.
    # The host's time that a tensor parallel rank adds to a block where stages exchange messages.
    staged_seconds: float = 0.0
    hook_seconds: float = 0.0  # The host's time for the engine's own hooks around a weight's module, in each pass.
    tensor_overlap: float = 0.0  # Share of tensor parallel traffic that products hide.
    gradient_overlap: bool = True  # True if gradients are reduced while the backward pass runs.
    parameter_overlap: bool = True  # True if parameters are gathered while the pass before or around it runs.
    regathers: bool = True  # True if sharded parameters are gathered again for the backward pass.
    # Bytes of an element of the parameters that are gathered, where they travel in another format than they have.
    gathered_size: float | None = None
    # Bytes of an element of the gradients that all-to-alls carry from node to node in place of a reduce-scatter.
    exchanged_size: float | None = None
    # True if gradients are reduced after each micro-batch, not only after the last of a step.
    reduces_each: bool = False
    # True if gradients are reduced by all-reduces of all of them, though each rank keeps its shard alone.
    reduces_whole: bool = False
    copies: Copies = "none"  # Whose copies of parameters and gradients are made around the collectives.
    pipeline_overlap: bool = False  # True if stages send while they compute.
    # True if the weights' gradients are added up in fp32 by the product that makes them.
    fused_accumulation: bool = False
    fused_optimizer: bool = True  # True if the optimizer's step is one kernel over all parameters.
    # The host's time to send or receive one message between stages, where it waits for each.
    message_seconds: float = 0.0
    bucket_bytes: float = 2.0**28  # Bytes of gradients that one collective reduces at once.
    dispatcher: Dispatcher = "all_to_all"  # The exchange of tokens with the ranks of their experts.
    uneven_experts: float = 1.0  # Factor by which routing that is not even slows the products of experts.
    expert_overlap: float = 0.0  # Share of that exchange that the products of another micro-batch hide.
    fused_permutation: bool = False  # True if tokens are sorted to their experts by one kernel.
    blockwise_experts: bool = False  # True if experts run in a loop, one after the other, and not in grouped products.


_KEPT: dict[Any, Any] = {}


def kept[T: Hashed](traits: T) -> T:
    """Return equal traits as one object, which caches of rows and blocks then find without comparing every trait."""
    found: T = _KEPT.setdefault(traits, traits)
    return found


_OF_STATES = (
    "framework", "related", "gradient_overlap", "parameter_overlap", "regathers", "reduces_each", "reduces_whole",
    "gathered_size", "exchanged_size", "copies", "pipeline_overlap", "fused_accumulation", "fused_optimizer",
    "bucket_bytes",
)  # fmt: skip
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
