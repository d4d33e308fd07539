"""How the worker of DeepSpeed executes a step: transformers' modules under ZeRO's hooks."""

from __future__ import annotations

from launcher.backends.deepspeed.traits import engine
from launcher.rank.execution import Execution
from launcher.spec import RunSpec


def execution(spec: RunSpec) -> Execution:
    """Eager transformers; ZeRO's hooks run in Python around each module."""
    return Execution(
        framework="DeepSpeed",
        related=("Hugging Face Trainer", "llm-foundry"),
        attention={"flash": "flash_2", "sdpa": "sdpa", "eager": "unfused"}[spec.model.attention],  # type: ignore[arg-type]
        reduces_each=spec.zero.stage >= 2,
        fused_loss=spec.train.loss == "fused",
        compiled=spec.train.compile,
        gradient_overlap=spec.zero.overlap_comm is not False,
        parameter_overlap=spec.zero.stage == 3,
        fused_optimizer=engine(spec).optimizer == "fused",
    )
