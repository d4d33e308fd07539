"""Preparations before DeepSpeed starts, and side effects of its start that are undone after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import deepspeed.ops
import torch
from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.runtime.utils import is_model_parallel_parameter

from launcher.worker import TrainingError


def prepare(device: torch.device, config: dict[str, Any]) -> None:
    """Leave out an operator that the CPU does not need, and look for the headers of the one for NVMe offload.

    On the CPU DeepSpeed compiles a shared-memory allreduce (``deepspeed_shm_comm``) at the first use of a process
    group: minutes, and 69 MB of /dev/shm for each rank, where containers often have 64 MB in all.

    Raises:
        TrainingError: NVMe offload is asked for and its operator cannot be compiled here.
    """
    if device.type == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_init_required=False)
    if "aio" in config and not AsyncIOBuilder().is_compatible(verbose=False):
        raise TrainingError(
            "offload to NVMe needs DeepSpeed's async_io, which is compiled with libaio's headers, and this node lacks "
            "them: install libaio-dev (Debian, Ubuntu) or libaio-devel (Red Hat), or set zero.offload_optimizer=cpu "
            "zero.offload_parameters=none"
        )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Say the way out where an operator of DeepSpeed's cannot be compiled.

    Raises:
        TrainingError: In place of the compiler's error.
    """
    try:
        yield
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if not any(mark in text for mark in ("JIT load", "building extension", "CUDA_HOME", "CUDAMismatchException")):
            raise
        raise TrainingError(
            f"DeepSpeed could not compile one of its operators on this node ({text.splitlines()[0]}): "
            "load a compiler and the CUDA toolkit, or take torch's own kernel with optimizer.fused=true"
        ) from error


@torch.no_grad()
def undo_first_step(engine: Any) -> None:
    """Start from step 0 without ZeRO in 16 bits, where DeepSpeed 0.19.8 makes a step with gradients of zero to begin.

    (``FP16_UnfusedOptimizer.initialize_optimizer_states``.) It would decay the weights once and count in Adam's bias
    correction, so that the first losses differ from those of every other stage.
    """
    wrapper = engine.optimizer
    if hasattr(wrapper, "fp32_groups"):
        pairs = [
            pair
            for masters, held in zip(wrapper.fp32_groups, wrapper.fp16_groups, strict=True)
            for pair in zip(masters, held, strict=True)
        ]
    elif hasattr(wrapper, "fp32_groups_flat"):
        pairs = list(zip(wrapper.fp32_groups_flat, wrapper.fp16_groups_flat, strict=True))
    else:
        return
    for master, held in pairs:
        master.copy_(held)
    wrapper.optimizer.state.clear()


def total_norm(engine: Any) -> torch.Tensor:
    """The norm of all averaged gradients without ZeRO, each counted once among the model parallel ranks.

    As ``clip_grad_norm_`` of DeepSpeed's ``runtime/utils.py`` counts them, which then keeps the norm to itself.
    """
    mpu = engine.mpu
    everything = mpu is None or mpu.get_model_parallel_rank() == 0
    gradients = [
        parameter.grad
        for parameter in engine.module.parameters()
        if parameter.grad is not None and (everything or is_model_parallel_parameter(parameter))
    ]
    norm = torch.nn.utils.get_total_norm(gradients)
    if mpu is None:
        return norm
    squared = norm.square()
    torch.distributed.all_reduce(squared, group=mpu.get_model_parallel_group())
    return squared.sqrt()
