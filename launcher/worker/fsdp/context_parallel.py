"""Context parallelism: a rank has some tokens of every sequence, and keys and values pass around a ring of ranks.

``torch.distributed.tensor.experimental``'s ring attention (arXiv:2310.01889), with two chunks of the sequence on each
rank, one from each end, so that the causal mask loads all alike.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._attention import (
    _context_parallel_shard,
    _enable_context_parallel_dispatcher,
    _HeadTailLoadBalancer,
    set_rotate_method,
)
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from launcher.worker.engine import Context
from launcher.worker.fsdp import context_parallel_cpu

_HEADS_FIRST = Shard(2)
"""Tokens in (batch, heads, tokens, head size)."""

_KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
"""Those that ring attention is made of; torch's plain attention would see the tokens of one rank in the wrong order."""


class Ring:
    """The ranks that share a sequence, as one of them sees them."""

    def __init__(self, context: Context) -> None:
        """Called by all ranks together."""
        self._mesh = _mesh(context)
        self._order = _HeadTailLoadBalancer(context.spec.sequence_length, self._mesh.size(), context.device)
        if context.device.type == "cpu":
            context_parallel_cpu.install()
        set_rotate_method("alltoall")  # Two neighbours' keys and values in memory, not those of the whole ring.
        _enable_context_parallel_dispatcher()

    def share(self, *rows: torch.Tensor) -> list[torch.Tensor]:
        """This rank's tokens of rows of shape (batch, sequence)."""
        found = _context_parallel_shard(self._mesh, rows, [1] * len(rows), self._order)
        return cast("list[torch.Tensor]", found)

    def attention(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: object,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Causal attention of this rank's tokens to all before them, as ``transformers`` calls it."""
        mine: Any = [
            DTensor.from_local(part, self._mesh, [_HEADS_FIRST], run_check=False) for part in (query, key, value)
        ]
        options: Any = {"is_causal": True, "scale": scaling, "enable_gqa": key.shape[1] != query.shape[1]}
        with sdpa_kernel(_KERNELS):
            found: Any = functional.scaled_dot_product_attention(*mine, **options)
        return found.to_local().transpose(1, 2).contiguous(), None


def _mesh(context: Context) -> DeviceMesh:
    """The ranks of one sequence: neighbours, with tensor parallel ranks between them."""
    parallel = context.spec.parallel
    degrees = (parallel.context, parallel.tensor)
    sizes = (context.world // (degrees[0] * degrees[1]), *degrees)
    return init_device_mesh(context.device.type, sizes, mesh_dim_names=("data", "context", "tensor"))["context"]
