"""How the worker of FSDP2 and DDP executes a step: transformers' modules, kernel by kernel unless they are compiled."""

from __future__ import annotations

from launcher.backends.fsdp.traits import engine, reshards
from launcher.rank.execution import Execution
from launcher.spec import RunSpec


def execution(spec: RunSpec) -> Execution:
    """Eager transformers: projections one by one, RMSNorm and rotary positions in several kernels each."""
    return Execution(
        framework="PyTorch FSDP",
        related=("torchtitan", "LitGPT", "llm-foundry"),
        attention={"flash": "flash_2", "sdpa": "sdpa", "eager": "unfused"}[spec.model.attention],  # type: ignore[arg-type]
        bucket_bytes=spec.backend.bucket_cap_mb * 2**20,
        regathers=reshards(spec),
        reduces_each=spec.parallel.shard and spec.backend.micro_step_sync,
        fused_loss=spec.train.loss == "fused",
        compiled=spec.train.compile,
        fused_optimizer=engine(spec).optimizer == "fused",
    )
