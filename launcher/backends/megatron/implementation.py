"""Which of Megatron-core's implementations run: what the settings and ``backend.extra`` choose, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from launcher.memory import device
from launcher.spec import RunSpec

type Attention = Literal["fused", "flash", "unfused"]

_WITHOUT_KERNELS = ("v100",)
"""``hardware.name`` begins with it below compute capability 8.0, where neither fused kernel of attention runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """What the memory depends on beyond the settings.

    Attributes:
        transformer_engine: Whether the layers are Transformer Engine's, or Megatron-core's own.
        attention: cuDNN's fused kernel, flash-attn, or scores in full.
        wide_softmax: Whether attention's softmax is torch's own, in fp32.
        grouped: Whether the experts of a rank are one grouped matrix product.
        attention_mask: Whether batches bring an attention mask.
        fused_gradients: Whether gradients of weights are accumulated by the product that computes them.
        deterministic: Whether torch's algorithms are the deterministic ones.
        deferred: Micro-batches whose gradient of the output projection waits for the end of the pipeline, at most.
    """

    transformer_engine: bool
    attention: Attention
    wide_softmax: bool
    grouped: bool
    attention_mask: bool
    fused_gradients: bool
    deterministic: bool
    deferred: int


def implementation(spec: RunSpec) -> Implementation:
    """Transformer Engine and its kernels on GPUs, unless ``backend.extra`` says otherwise."""
    cuda, extra = spec.hardware.device == "cuda", spec.backend.argument
    engine = cuda and extra("transformer-impl") != "local"
    return Implementation(
        transformer_engine=engine,
        attention=_attention(spec) if engine else "unfused",
        wide_softmax=not engine and _wide_softmax(spec),
        grouped=engine and bool(spec.model.num_experts) and extra("moe-grouped-gemm", default=True) is not False,
        attention_mask=not extra("no-create-attention-mask-in-dataloader", default=cuda),
        fused_gradients=not extra("no-gradient-accumulation-fusion", default=not engine or spec.zero.stage >= 2),
        deterministic=bool(extra("deterministic-mode")),
        deferred=_deferred(spec),
    )


def _attention(spec: RunSpec) -> Attention:
    """The kernel that Transformer Engine takes (``attention/dot_product_attention/utils.py``, its filters).

    Both kernels need compute capability 8.0. Where both run cuDNN's comes first from 9.0 on, flash-attn below. The
    backward pass of cuDNN's is deterministic on Hopper alone.
    """
    if spec.model.attention == "eager" or spec.hardware.name.startswith(_WITHOUT_KERNELS):
        return "unfused"
    deterministic = spec.cluster.environment.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0"
    if spec.model.attention == "flash":
        return "flash"
    if device.is_hopper(spec):
        return "fused"
    return "fused" if device.is_blackwell(spec) and not deterministic else "flash"


def _wide_softmax(spec: RunSpec) -> bool:
    """``forward_torch_softmax`` of ``fusions/fused_softmax.py``; scaling by layers asks for fp32 as well."""
    extra = spec.backend.argument
    in_fp32 = extra("attention-softmax-in-fp32") or extra("apply-query-key-layer-scaling")
    return bool(in_fp32 and extra("no-masked-softmax-fusion", default=spec.hardware.device == "cpu"))


def _deferred(spec: RunSpec) -> int:
    """``--wgrad-deferral-limit`` micro-batches, 0 for all (``tensor_parallel/layers.py``), of those before the last."""
    extra, others = spec.backend.argument, spec.gradient_accumulation - 1
    if not extra("defer-embedding-wgrad-compute") or spec.parallel.pipeline == 1:
        return 0
    return min(int(extra("wgrad-deferral-limit", default=0)) or others, others)
