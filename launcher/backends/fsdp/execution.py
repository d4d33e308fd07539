"""How the worker of FSDP2 and DDP executes a step: transformers' modules, kernel by kernel unless they are compiled."""

from __future__ import annotations

from launcher.backends.fsdp.traits import engine, reshards
from launcher.estimate.rank.execution import Execution
from launcher.spec import RunSpec


def execution(spec: RunSpec) -> Execution:
    """Eager transformers: projections one by one, RMSNorm and rotary positions in several kernels each."""
    return Execution(
        framework="PyTorch FSDP",
        related=("torchtitan", "LitGPT", "llm-foundry"),
        attention={"flash": "flash_2", "sdpa": "sdpa", "eager": "unfused"}[spec.model.attention],  # type: ignore[arg-type]
        bucket_bytes=_bucket_bytes(spec),
        regathers=reshards(spec),
        reduces_each=spec.parallel.shard and spec.backend.micro_step_sync,
        fused_loss=spec.train.loss == "fused",
        compiled=spec.train.compile,
        fused_optimizer=engine(spec).optimizer == "fused",
    )


def _bucket_bytes(spec: RunSpec) -> float:
    """DDP reduces gradients in buckets, FSDP2 all of a block at once.

    ``bucket_cap_mb`` of DistributedDataParallel; ``foreach_reduce`` of ``torch.distributed.fsdp``, one reduce-scatter,
    and of replicas one all-reduce, of each parameter group.
    """
    return float("inf") if spec.parallel.shard else spec.backend.bucket_cap_mb * 2.0**20
