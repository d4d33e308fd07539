"""The CPU's attention kernel in torch's ring attention, whose table of kernels names those of GPUs alone.

Nothing of the ring is replaced: which rank's keys and values are attended to in what order, how results are joined and
how gradients travel back is ``torch.distributed.tensor.experimental._context_parallel._attention`` of torch 2.15.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention

from launcher.worker.errors import TrainingError

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
_TOKENS = 2
"""Their dimension in (batch, heads, tokens, head size)."""


def install() -> None:
    """Add the kernel to the table, for the rest of the process.

    Raises:
        TrainingError: There is a GPU, whose kernels torch knows itself.
    """
    if torch.cuda.is_available():
        raise TrainingError(
            "hardware.device=cpu puts the CPU's kernel into torch's ring attention, and this node has a GPU: "
            "hardware=auto"
        )
    operations: dict[Any, Any] = _attention.custom_ops
    operations |= {_FORWARD: _forward, _BACKWARD: _backward}


def _forward(operation: object, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """``(query, key, value, dropout_p=0, is_causal=False, *, attn_mask, scale)``."""
    query, key, value, dropout, causal = arguments
    found = _attention._templated_ring_attention(
        query.device_mesh.get_group(),
        _TOKENS,
        _FORWARD,
        query=query.to_local(),
        key=key.to_local(),
        value=value.to_local(),
        is_causal=causal,
        dropout_p=dropout,
        scale=options.get("scale"),
    )
    return _sharded(found, query.device_mesh)


def _backward(operation: object, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    """``(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask, scale)``."""
    *tensors, dropout, causal = arguments
    gradient, query, key, value, out, logsumexp = (part.to_local() for part in tensors)
    mesh = tensors[1].device_mesh
    found = _attention._templated_ring_attention_backward(
        mesh.get_group(),
        _TOKENS,
        _BACKWARD,
        grad_out=gradient,
        grad_out_name="grad_out",
        query=query,
        key=key,
        value=value,
        out=out,
        logsumexp=logsumexp,
        is_causal=causal,
        dropout_p=dropout,
        scale=options.get("scale"),
    )
    return _sharded(found, mesh)


def _sharded(tensors: Iterable[torch.Tensor], mesh: DeviceMesh) -> tuple[DTensor, ...]:
    return tuple(DTensor.from_local(part, mesh, [Shard(_TOKENS)], run_check=False) for part in tensors)
