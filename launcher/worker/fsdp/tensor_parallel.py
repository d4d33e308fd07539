"""Tensor parallelism of Llama-like networks by ``parallelize_module`` (Megatron-LM's cut, arXiv:1909.08053)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from launcher.worker.model import network


class Replicated(ParallelStyle):
    """A module that every rank computes whole.

    Its parameters become DTensors all the same: gradient norms of one mesh and of two cannot be combined
    (``clip_grad_norm_`` fails with "All operands in aten.stack.default must have the same mesh").
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, input_fn=self._enter, output_fn=self._leave)  # type: ignore[arg-type]

    @staticmethod
    def _enter(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        return (DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False), *inputs[1:])

    @staticmethod
    def _leave(module: nn.Module, output: Any, mesh: DeviceMesh) -> torch.Tensor:
        local: torch.Tensor = output.to_local()
        return local


def apply(made: Any, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Cut a Llama, Qwen2 or Qwen3 network on the meta device over a one-dimensional mesh.

    Args:
        made: The network.
        mesh: The tensor parallel ranks.
        sequence: True to split residuals and norms along the sequence between the matrix products.
    """
    residual = Shard(1) if sequence else Replicate()
    for block in network.blocks(made):
        parallelize_module(block, mesh, _block_plan(block, residual))
    around: dict[nn.Module, ParallelStyle] = {
        made.base_model.embed_tokens: RowwiseParallel(input_layouts=Replicate(), output_layouts=residual),
        made.base_model.norm: _norm(residual),
        made.lm_head: ColwiseParallel(input_layouts=residual, output_layouts=Replicate()),
    }
    for module, style in around.items():
        if not isinstance(module, network.Absent):
            parallelize_module(module, mesh, style)
    network.retie(made)


def _norm(residual: Shard | Replicate) -> ParallelStyle:
    return SequenceParallel() if isinstance(residual, Shard) else Replicated()


def _block_plan(block: nn.Module, residual: Shard | Replicate) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "input_layernorm": _norm(residual),
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": residual}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
        ),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=residual),
        "post_attention_layernorm": _norm(residual),
        "mlp": PrepareModuleInput(input_layouts=(residual,), desired_input_layouts=(Replicate(),)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=residual),
    }
    if hasattr(block.self_attn, "q_norm"):  # Over heads, which are the third dimension of (batch, sequence, heads, _).
        plan |= {"self_attn.q_norm": SequenceParallel(sequence_dim=2, use_local_output=True)}
        plan |= {"self_attn.k_norm": SequenceParallel(sequence_dim=2, use_local_output=True)}
    return plan
