"""Which of Megatron-core's implementations a run uses, as decided by settings and ``backend.extra``.

Megatron-core has several modules for one layer (Transformer Engine's or its own, fused or in parts), and which one runs
depends on arguments, on the GPU's compute capability and on other settings. Saved tensors and workspaces depend on it,
so the choice is computed here once, by the rules of Megatron-core and Transformer Engine that each function names, and
read by the overheads, the traits of the engine and the argument list.
"""

from dataclasses import replace
from typing import Literal

from launcher.base.frozen import dataclass
from launcher.estimate.rank.formats import Dtypes, beside_master
from launcher.spec import RunSpec
from launcher.spec.hardware import HOPPER

type Attention = Literal["fused", "flash", "unfused"]

COUNTED = frozenset((
    "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split", "apply-query-key-layer-scaling",
    "attention-softmax-in-fp32", "cp-comm-type", "cross-entropy-fusion-impl", "defer-embedding-wgrad-compute",
    "deterministic-mode", "first-last-layers-bf16",
    "fp4-param-gather", "fp8-param-gather", "init-model-with-meta-device", "make-vocab-size-divisible-by",
    "microbatch-group-size-per-virtual-pipeline-stage", "moe-deepep-num-sms", "moe-enable-deepep",
    "moe-flex-dispatcher-backend", "moe-flex-dispatcher-num-sms", "moe-grouped-gemm", "moe-permute-fusion",
    "no-create-attention-mask-in-dataloader", "no-gradient-accumulation-fusion", "no-masked-softmax-fusion",
    "no-rope-fusion",
    "num-layers-at-end-in-bf16", "num-layers-at-start-in-bf16", "overlap-moe-expert-parallel-comm", "tp-comm-overlap",
    "transformer-impl", "use-fused-weighted-squared-relu",
    "wgrad-deferral-limit",
))  # fmt: skip
"""Arguments of ``backend.extra`` that the memory estimate reads, here, in the overheads and in the pipeline."""

_KERNELS_FROM, _GROUPED_FROM = 8.0, 8.0
"""The first compute capabilities of the fused kernels of attention, and of grouped products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """Choices of implementation that memory depends on beyond the settings."""

    transformer_engine: bool  # True if the layers are Transformer Engine's, False if Megatron-core's own.
    attention: Attention  # cuDNN's fused kernel, flash-attn, or scores in full.
    wide_softmax: bool  # True if attention's softmax is torch's own, in fp32.
    grouped: bool  # True if the experts of a rank are one grouped matrix product.
    attention_mask: bool  # True if batches include an attention mask.
    fused_gradients: bool  # True if gradients of weights are accumulated by the product that computes them.
    # True if the optimizer is Transformer Engine's or Apex', False if torch's own.
    fused_optimizer: bool
    deterministic: bool  # True if torch's algorithms are the deterministic ones.
    deferred: int  # Micro-batches whose gradient of the output projection waits for the end of the pipeline, at most.


def implementation(spec: RunSpec) -> Implementation:
    """Transformer Engine and its kernels on GPUs, unless ``backend.extra`` says otherwise."""
    cuda, extra = spec.hardware.device == "cuda", spec.backend.argument
    engine = cuda and extra("transformer-impl") != "local"
    groups = spec.hardware.effective_capability >= _GROUPED_FROM  # ``validate_args``
    return Implementation(
        transformer_engine=engine,
        attention=_attention(spec) if engine else "unfused",
        wide_softmax=not engine and _wide_softmax(spec),
        grouped=engine and bool(spec.model.num_experts) and extra("moe-grouped-gemm", default=groups) is True,
        attention_mask=cuda and not extra("no-create-attention-mask-in-dataloader", default=True),
        fused_gradients=not extra("no-gradient-accumulation-fusion", default=not engine or fsdp(spec)),
        fused_optimizer=engine or bool(spec.optimizer.fused) or precision_aware(spec),
        deterministic=bool(extra("deterministic-mode")),
        deferred=_deferred(spec),
    )


RECIPES = ("delayed", "tensorwise", "blockwise", "mxfp8")
"""Recipes of ``--fp8-recipe``, Megatron-LM's own default first."""


NVFP4 = "nvfp4"  # The recipe of ``--fp4-recipe``.


def recipe(spec: RunSpec) -> str | None:
    """The recipe of a run in fp8 or fp4; None in other formats."""
    first = {"fp8": RECIPES[0], "fp4": NVFP4}.get(spec.precision.compute)
    return first and (spec.precision.recipe or first)


def fsdp(spec: RunSpec) -> bool:
    """True if Megatron-FSDP shards; ``zero.stage=1`` is the distributed optimizer."""
    return spec.zero.stage >= 2


def precision_aware(spec: RunSpec) -> bool:
    """True if the precision-aware optimizer steps: states are narrower than fp32, or offloaded."""
    meaning = dtypes(spec)
    return meaning.optimizer_states != "fp32" or meaning.master == "fp16" or spec.zero.offload_optimizer == "cpu"


def reads_gradients_as_they_are(spec: RunSpec) -> bool:
    """True if the optimizer's kernel takes gradients of any format and keeps the master copy itself.

    ``use_precision_aware_optimizer_no_fp8_or_ds_fp8`` of ``optimizer/optimizer_config.py``; Megatron-FSDP's gradients
    are read so with every recipe.
    """
    delayed = recipe(spec) in (None, "delayed")
    wide = dtypes(spec).master == "fp32" and spec.zero.offload_optimizer == "none"
    return precision_aware(spec) and (delayed or not wide or fsdp(spec))


def _attention(spec: RunSpec) -> Attention:
    """The kernel that Transformer Engine selects (``attention/dot_product_attention/utils.py``, its filters).

    Both kernels need compute capability 8.0. If both run, cuDNN's is preferred from 9.0 on, flash-attn below. The
    backward pass of cuDNN's kernel is deterministic only on Hopper.
    """
    found = spec.hardware.effective_capability
    if spec.model.attention == "eager" or found < _KERNELS_FROM:
        return "unfused"
    deterministic = spec.cluster.environment.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0"
    if spec.model.attention == "flash" or found < HOPPER or (int(found) > HOPPER and deterministic):
        return "flash"
    return "fused"


def _wide_softmax(spec: RunSpec) -> bool:
    """True if torch's softmax runs in fp32 (``forward_torch_softmax``, ``fusions/fused_softmax.py``)."""
    extra = spec.backend.argument
    in_fp32 = extra("attention-softmax-in-fp32") or extra("apply-query-key-layer-scaling")
    return bool(in_fp32 and extra("no-masked-softmax-fusion", default=spec.hardware.device == "cpu"))


def _deferred(spec: RunSpec) -> int:
    """Micro-batches before the last with a deferred gradient: ``--wgrad-deferral-limit``, 0 for all."""
    extra, others = spec.backend.argument, spec.gradient_accumulation - 1
    if not extra("defer-embedding-wgrad-compute") or spec.parallel.pipeline == 1:
        return 0
    return min(spec.backend.count("wgrad-deferral-limit") or others, others)


def dtypes(spec: RunSpec) -> Dtypes:
    """Parameters in the preset's format, fp32 main gradients for bf16, fp32 master and moments (docs/engines.md).

    For fp16 the gradients stay in fp16: only ``--bf16`` implies ``--accumulate-allreduce-grads-in-fp32`` (Megatron-LM
    ``training/arguments.py``). With fp8 products, fp32 parameters are their own main copy, but Megatron-FSDP always
    keeps one (``_init_each_parameter_group_buffers`` of ``param_and_grad_buffer.py``).
    """
    if spec.precision.parameters == "fp32" and spec.precision.master is None and not fsdp(spec):
        return beside_master(replace(spec.precision, master="none"), "bf16", gradients="fp32")
    if spec.precision.compute == "fp16":
        return beside_master(spec.precision, "fp16", gradients="fp16")
    return beside_master(spec.precision, "bf16", gradients="fp32")
