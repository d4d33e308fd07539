"""Linears of the blocks in fp8 by ``torchao.float8``, which scales and casts inputs, weights and gradients of each.

What is saved for backward stays in 16 bits (``torchao/float8/float8_linear.py``, ``matmul_with_hp_or_float8_args``).
The output projection stays as it is. On the CPU torchao emulates the products: operands of fp8 values, multiplied in
fp32.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from launcher.backends.fsdp.float8 import recipe
from launcher.spec import RunSpec
from launcher.worker.model import network


def convert(made: Any, spec: RunSpec) -> None:
    """Make the linears of a network's blocks, on the meta device, those of torchao where the run computes in fp8."""
    if spec.precision.compute != "fp8":
        return
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # Late: it takes a second.

    on_cpu = spec.hardware.device == "cpu"
    settings = replace(Float8LinearConfig.from_recipe_name(recipe(spec)), emulate=on_cpu)
    for block in network.blocks(made):
        convert_to_float8_training(block, config=settings)
        if on_cpu and not spec.parallel.shard:
            for module in block.modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_pre_hook(_cast)


def _cast(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """What torchao does to the input of a linear under CUDA's autocast, and not under the CPU's."""
    return (inputs[0].to(network.DTYPES["fp8"]), *inputs[1:])
