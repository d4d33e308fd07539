"""Each of the workers' engines under fake tensors, with its tensors by purpose."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from launcher.backends.deepspeed import ds_config
from launcher.memory.terms import Pile
from launcher.worker.engine import Context, Engine
from launcher.worker.trace import shims


@contextlib.contextmanager
def prepared(context: Context) -> Iterator[Callable[[], Engine]]:
    """Run the preparations that fake tensors do not allow; the function that is yielded makes the engine under them."""
    if context.spec.backend.name == "deepspeed":
        with shims.deepspeed(context):
            from launcher.worker.deepspeed.engine import build

            (context.directory / "ds_config.json").write_text(json.dumps(ds_config.build(context.spec)))
            yield lambda: build(context)
    else:
        with shims.ddp():
            from launcher.worker.fsdp.engine import filled, rank_parts

            model = rank_parts(context)
            yield lambda: filled(context, model)


def parameters(engine: Engine) -> Iterator[object]:
    """Parameters and buffers, right after the engine has been made."""
    for tensor in _tensors(engine):
        yield getattr(tensor, "ds_tensor", tensor)


def gradients(engine: Engine) -> Iterator[object]:
    """Gradients after the backward pass."""
    for tensor in _tensors(engine):
        if tensor.grad is not None:
            yield tensor.grad


def states(engine: Any) -> Iterator[tuple[Pile, Iterable[object]]]:
    """Optimizer states, and the pile that they belong to."""
    wrapper = engine._optimizer if hasattr(engine, "_optimizer") else engine._engine.optimizer
    optimizer = getattr(wrapper, "optimizer", wrapper)
    for name in _MASTERS:
        yield "master_weights", _flat(getattr(wrapper, name, ()))
    for name in _GRADIENTS:
        yield "gradients", _flat(getattr(wrapper, name, ()))
    for state in optimizer.state.values():
        yield "optimizer_states", _flat(state)


_MASTERS = (
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
    "fp32_groups_flat_partition",
    "fp32_groups_flat",
    "fp32_groups",
)
_GRADIENTS = ("averaged_gradients", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat")
"""DeepSpeed's own names, runtime/zero/stage_1_and_2.py, stage3.py, bf16_optimizer.py, fp16/unfused_optimizer.py."""


def _tensors(engine: Any) -> Iterator[torch.Tensor]:
    """The parameters of an engine, and other tensors that it counts among them."""
    if hasattr(engine, "_engine"):
        yield from engine._engine.module.parameters()
        yield from engine._engine.module.buffers()
    else:
        yield from (tensor for tensor in engine.tensors() if isinstance(tensor, nn.Parameter) or tensor.is_leaf)


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _flat(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _flat(part)
