"""The implementation that runs under FSDP2 and DDP, as far as memory depends on it."""

from dataclasses import replace
from functools import lru_cache
from typing import Literal

from launcher.backends._shared import LAUNCH_SECONDS, copies_output, key_heads, masks_documents, unfused_attention
from launcher.backends.fsdp import rounding
from launcher.backends.fsdp.float8 import MXFP8
from launcher.base.units import DTYPE_BYTES
from launcher.estimate.rank.engine import UNEVEN, EngineTraits, Execution, Saving
from launcher.estimate.rank.formats import FP32, Dtypes, refined
from launcher.estimate.rank.stages import SPLIT
from launcher.spec import PrecisionSpec, RunSpec
from launcher.spec.values import beside_products


def engine(spec: RunSpec) -> EngineTraits:
    """Hugging Face modules; FSDP2 casts whole shards to the compute format, DDP runs under autocast.

    Ring attention joins its results with heads before tokens, and the output projection reads a copy the other way;
    Ulysses keeps attention's output with all tokens of some heads, and with all heads of some tokens.
    """
    meaning = dtypes(spec)
    size = DTYPE_BYTES[beside_products(meaning.compute)]
    cpu = spec.hardware.device == "cpu"
    return EngineTraits(
        library="transformers",
        size=size,
        residual_size=4 if meaning.autocast else size,
        autocast=meaning.autocast,
        sequence_length=spec.sequence_length,
        one_sequence=spec.micro_batch_size == 1,
        scores=spec.model.attention == "eager",
        unfused_attention=unfused_attention(spec),
        exchanged_heads=spec.parallel.ulysses > 1,
        attention_copy=spec.parallel.context > 1 or spec.parallel.ulysses > 1 or copies_output(spec),
        key_heads=key_heads(spec),
        documents_mask=masks_documents(spec),
        cpu=cpu,
        scan_kernels=not cpu,
        grouped_experts=True,
        shared_experts=spec.parallel.expert > 1,
        shard_rows=spec.parallel.shard,
        gradients_stay=is_ddp(spec) and spec.backend.bucket_view,
        whole_blocks=True,
        gradients_leave=spec.zero.offload_parameters == "cpu",
        own_streams=("gradients",) if spec.parallel.shard else (),  # ``reduce_scatter_stream``, _fsdp_collectives.py.
        gradients_last=spec.parallel.shard
        and (splits(spec) or (spec.gradient_accumulation > 1 and not reduces_each(spec))),
        optimizer=_step(spec),
        fused_norm=spec.train.kernels == "liger",
        fused_activation=spec.train.kernels == "liger",
        compiled=spec.train.compile and not cpu and _counts_compiled(spec),
        saving=Saving(own=int(spec.save.asynchronous)),
        rounding=rounding.saved(spec.precision, wide=meaning.autocast or size == 4),
        casts_again=meaning.compute == "fp8" and spec.precision.recipe != "rowwise_with_gw_hp",
    )


def _counts_compiled(spec: RunSpec) -> bool:
    """True where what compiled blocks save was measured: without recomputation, with no adapter or a plain LoRA."""
    adapter = spec.adapter
    plain = adapter.name in ("none", "lora") and not (adapter.dora or adapter.dropout or adapter.parameters)
    measured = spec.precision.qat is None and spec.precision.recipe != MXFP8 and spec.precision.compute != "fp4"
    return spec.checkpointing.mode == "none" and plain and measured


def is_ddp(spec: RunSpec) -> bool:
    """True if DistributedDataParallel wraps the model: there are several ranks, and none holds shards."""
    return not spec.parallel.shard and spec.shard_degree * spec.parallel.replicate > 1


def _step(spec: RunSpec) -> Literal["fused", "foreach", "loop"]:
    """The worker's choice where none is set: one kernel on a GPU, torch's loop on the CPU."""
    optimizer = spec.optimizer
    unset = optimizer.fused is None and optimizer.foreach is None
    if optimizer.fused or (unset and spec.hardware.device == "cuda"):
        return "fused"
    return "foreach" if optimizer.foreach else "loop"


def reshards(spec: RunSpec) -> bool | int:
    """FSDP2's ``reshard_after_forward``, False where backward passes are split (``_add_unshard_reshard`` of torch)."""
    if splits(spec):
        return False
    if spec.backend.reshard_after_forward is not None:
        return spec.backend.reshard_after_forward
    return spec.zero.stage != 2


def reduces_each(spec: RunSpec) -> bool:
    """True if gradients are reduced after every micro-batch; where backward passes are split they wait for the last."""
    return spec.parallel.shard and spec.backend.micro_step_sync and not splits(spec)


def splits(spec: RunSpec) -> bool:
    """True if the schedule runs the weights' part of a backward pass apart from that of the inputs."""
    return spec.parallel.pipeline > 1 and spec.parallel.schedule in SPLIT


def execution(spec: RunSpec) -> Execution:
    """Eager transformers: projections one by one, RMSNorm and rotary positions in several kernels each."""
    return Execution(
        framework="PyTorch FSDP",
        related=("torchtitan", "LitGPT", "llm-foundry"),
        masked=masks_documents(spec),
        attention={"flash": "flash_2", "sdpa": "sdpa", "eager": "unfused"}[spec.model.attention],  # type: ignore[arg-type]
        # DDP reduces gradients in buckets (``bucket_cap_mb``), FSDP2 all of a block at once (``foreach_reduce``).
        bucket_bytes=float("inf") if spec.parallel.shard else spec.backend.bucket_cap_mb * 2.0**20,
        regathers=bool(reshards(spec)),
        reduces_each=reduces_each(spec),
        copies="groups" if spec.parallel.shard else "none",
        casts="blocks" if spec.precision.recipe == MXFP8 else "tensor",
        launch_seconds=LAUNCH_SECONDS,
        fused_loss=spec.train.loss == "fused",
        fused_norm=spec.train.kernels == "liger",
        fused_rotary=spec.train.kernels == "liger",
        fused_activation=spec.train.kernels == "liger",
        compiled=spec.train.compile,
        fused_optimizer=_step(spec) == "fused",
        uneven_experts=UNEVEN if spec.parallel.expert > 1 else 1.0,
    )


def dtypes(spec: RunSpec) -> Dtypes:
    """FP32 parameters, compute in the word's format, reduction in fp32, no master copy (docs/engines.md).

    torch's optimizers keep moments, and parameters their sums of gradients, in the parameters' own format.

    FSDP2 casts each gathered shard (``MixedPrecisionPolicy(param_dtype)``), so its gradients arrive in that format;
    DDP runs under ``torch.autocast``, where the fp32 parameters themselves receive fp32 gradients; of parameters in the
    compute format nothing is cast, and their gradients are reduced in it.
    """
    found = _dtypes(spec.precision, shard=spec.parallel.shard)
    lion = spec.optimizer.name == "lion" and spec.precision.optimizer_states is None  # bitsandbytes keeps it in fp32.
    return replace(found, optimizer_states="fp32") if lion else found


@lru_cache(maxsize=256)
def _dtypes(precision: PrecisionSpec, *, shard: bool) -> Dtypes:
    compute, held = precision.compute, precision.parameters or "fp32"
    own = replace(FP32, compute=compute, gradients=held, accumulate=held, optimizer_states=held)
    if compute == "fp32":
        return refined(own, precision)
    if not shard:
        return refined(replace(own, reduce=held, autocast=held != beside_products(compute)), precision)
    return refined(replace(own, gradients=beside_products(compute)), precision)
