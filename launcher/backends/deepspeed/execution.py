"""How the worker of DeepSpeed executes a step: transformers' modules under ZeRO's hooks."""

from __future__ import annotations

from launcher.backends.deepspeed.dtypes import dtypes
from launcher.backends.deepspeed.traits import engine
from launcher.base.units import DTYPE_BYTES
from launcher.estimate.rank.execution import Execution
from launcher.spec import RunSpec


def execution(spec: RunSpec) -> Execution:
    """Eager transformers; ZeRO's hooks run in Python around each module.

    Below stage 3 nothing overlaps unless it is asked for (``deepspeed/runtime/zero/config.py``, ``overlap_comm``), and
    without ZeRO and in a pipeline gradients are reduced after the backward pass (``runtime/engine.py``).
    """
    zero = spec.zero
    overlaps = zero.stage == 3 if zero.overlap_comm is None else zero.overlap_comm
    return Execution(
        framework="DeepSpeed",
        related=("Hugging Face Trainer", "llm-foundry"),
        attention={"flash": "flash_2", "sdpa": "sdpa", "eager": "unfused"}[spec.model.attention],  # type: ignore[arg-type]
        reduces_each=zero.stage >= 2,
        fused_loss=spec.train.loss == "fused",
        compiled=spec.train.compile,
        gradient_overlap=overlaps and zero.stage > 0 and spec.parallel.pipeline == 1,
        parameter_overlap=overlaps and zero.stage == 3,
        bucket_bytes=float(zero.reduce_bucket_size * DTYPE_BYTES[dtypes(spec).reduce]),
        fused_optimizer=engine(spec).optimizer == "fused",
    )
