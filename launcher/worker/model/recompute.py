"""Activation checkpointing: blocks, or single operations of them, that backward runs again instead of keeping."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from launcher.spec import RunSpec

_aten = torch.ops.aten
_PRODUCTS = frozenset(("aten::mm", "aten::addmm", "bitsandbytes::gemm_4bit"))
_KEPT = frozenset((
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
))
"""Dear to compute again and small to keep: attention, and communication (torchtitan, ``activation_checkpoint.py``)."""


def apply(blocks: nn.ModuleList, spec: RunSpec) -> None:
    """Wrap the forward functions of the blocks that are recomputed; their parameters keep their names."""
    settings = spec.checkpointing
    if settings.mode == "none":
        return
    chosen = list(blocks)
    if settings.mode == "full" and settings.method == "block" and settings.layers is not None:
        chosen = chosen[: settings.layers]
    random = spec.model.dropout > 0 or spec.adapter.dropout > 0
    contexts = {"context_fn": _selective} if settings.mode == "selective" else {}
    for block in chosen:
        block.forward = functools.partial(
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=random, **contexts
        )


def _selective() -> Any:
    return create_selective_checkpoint_contexts(_policy())  # type: ignore[no-untyped-call]


def _policy() -> Callable[..., CheckpointPolicy]:
    """Keep attention, communication and every second matrix product, counted alike in forward and recomputation."""
    counts = {False: 0, True: 0}

    def decide(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        keep = operation in _KEPT
        if operation.name() in _PRODUCTS:
            counts[context.is_recompute] += 1
            keep = counts[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return decide
