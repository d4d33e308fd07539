"""Context parallelism: a rank has some tokens of every sequence, and keys and values travel around a ring of ranks.

This is the ring attention (arXiv:2310.01889) of ``torch.distributed.tensor.experimental``, with two chunks of the
sequence on each rank, one from each end, so that the causal mask gives every rank the same work.
"""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._attention import (
    _context_parallel_shard,
    _enable_context_parallel_dispatcher,
    _HeadTailLoadBalancer,
    set_rotate_method,
)
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from launcher.worker import TrainingError
from launcher.worker.engine import Context
from launcher.worker.fsdp import sharding

_TOKENS = 2  # The tokens' dimension in (batch, heads, tokens, head size).
_KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
"""Kernels with ring attention; torch's math attention would see the tokens of one rank in the wrong order."""


class Ring:
    """One rank's view of the ring that shares a sequence: its tokens, and attention over all tokens."""

    def __init__(self, context: Context) -> None:
        """Set up ring attention; called by all ranks together."""
        self._mesh = sharding.sequence_mesh(context)
        self._order = _HeadTailLoadBalancer(context.spec.sequence_length, self._mesh.size(), context.device)
        if context.device.type == "cpu":
            install_cpu_kernel()
        set_rotate_method("alltoall")  # Holds keys and values of two neighbours in memory, not of the whole ring.
        _enable_context_parallel_dispatcher()

    def share(self, *rows: torch.Tensor) -> list[torch.Tensor]:
        """This rank's tokens of rows of shape (batch, sequence)."""
        return cast("list[torch.Tensor]", _context_parallel_shard(self._mesh, rows, [1] * len(rows), self._order))

    def attention(
        self, _: object, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *__: object, **options: Any
    ) -> tuple[torch.Tensor, None]:
        """Causal attention of this rank's tokens to all earlier ones, as ``transformers`` calls it."""
        mine: Any = _sharded((query, key, value), self._mesh)
        grouped, scale = key.shape[1] != query.shape[1], options.get("scaling")
        settings: Any = {"is_causal": True, "scale": scale, "enable_gqa": grouped}
        with sdpa_kernel(_KERNELS):
            found: Any = functional.scaled_dot_product_attention(*mine, **settings)
        return found.to_local().transpose(1, 2).contiguous(), None


_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def install_cpu_kernel() -> None:
    """Add the CPU's attention kernel to ring attention's table, which has only GPU kernels; refused if there is a GPU.

    The ring itself is unchanged: the order of keys and values, how results are merged and how gradients travel back are
    those of ``torch.distributed.tensor.experimental._context_parallel._attention`` in torch 2.15.
    """
    if torch.cuda.is_available():
        raise TrainingError(
            "hardware.device=cpu would put the CPU's kernel into torch's ring attention, but this node has a GPU: "
            "set hardware=auto"
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
