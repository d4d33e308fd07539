"""How an engine executes a step, as far as its time depends on it: kernels, overlap, and the host's time.

``EngineTraits`` says what a step holds; this says what it takes. The model of speed knows no framework by name: what
makes one faster than another is stated here, feature by feature, by the backend, with the framework's own documents as
the source.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from launcher.spec.values import Hashed

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


@lru_cache(maxsize=256)
def kept(execution: Execution) -> Execution:
    """Equal ones as one object, which the caches of blocks then find without comparing every trait."""
    return execution


@lru_cache(maxsize=256)
def of_passes(execution: Execution) -> Execution:
    """As far as the passes of a micro-batch depend on it: without what is of the states' traffic and the optimizer.

    Layouts that differ in that alone then find each other's blocks in the caches.
    """
    neutral = Execution(framework="")
    return kept(
        replace(
            execution,
            framework=neutral.framework,
            related=neutral.related,
            gradient_overlap=neutral.gradient_overlap,
            parameter_overlap=neutral.parameter_overlap,
            regathers=neutral.regathers,
            reduces_each=neutral.reduces_each,
            pipeline_overlap=neutral.pipeline_overlap,
            fused_accumulation=neutral.fused_accumulation,
            fused_optimizer=neutral.fused_optimizer,
            bucket_bytes=neutral.bucket_bytes,
        )
    )


@lru_cache(maxsize=256)
def of_blocks(execution: Execution) -> Execution:
    """As far as blocks depend on it: without the loss, too."""
    return kept(replace(of_passes(execution), fused_loss=False))
