"""Tensors that DeepSpeed keeps, by pile; the names are its own.

``runtime/zero/stage_1_and_2.py``, ``runtime/zero/stage3.py``, ``runtime/bf16_optimizer.py``,
``runtime/fp16/fused_optimizer.py`` and ``unfused_optimizer.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.worker.memory import MemoryTracker
from launcher.worker.piles import Kept, flat, of_model

_MASTERS = (
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
    "fp32_groups_flat_partition",
    "fp32_groups_flat",
    "fp32_groups",
)
_GRADIENTS = ("averaged_gradients", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat")
_BUCKETS = "ipg_buckets"
"""A bucket for each format, in which contiguous gradients wait to be reduced."""


def kept(engine: Any) -> Iterator[Kept]:
    """Of a DeepSpeed engine."""
    wrapper = engine.optimizer
    optimizer = getattr(wrapper, "optimizer", wrapper)
    yield from of_model([engine.module])
    for name in _MASTERS:
        yield "master_weights", list(flat(getattr(wrapper, name, ())))
    for name in _GRADIENTS:
        yield "gradients", list(flat(getattr(wrapper, name, ())))
    for bucket in getattr(wrapper, _BUCKETS, {}).values():
        yield "reduce_buffers", list(flat(bucket.buffer))
    yield "optimizer_states", list(flat(optimizer.state))


def follow_buckets(engine: Any, memory: MemoryTracker) -> None:
    """Tell the tracker of buckets that ZeRO 1 and 2 make in a backward pass and drop at its end."""
    wrapper = engine.optimizer
    if hasattr(wrapper, "setup_buckets"):
        make = wrapper.setup_buckets

        def made() -> None:
            make()
            for bucket in getattr(wrapper, _BUCKETS, {}).values():
                memory.label("reduce_buffers", flat(bucket.buffer))

        wrapper.setup_buckets = made
