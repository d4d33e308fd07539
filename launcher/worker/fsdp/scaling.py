"""Scaling of narrow formats: fp16's loss by torch's own scaler, operands in fp8 and fp4 by torchao's linears.

In fp16 the loss is scaled before the backward pass, so that gradients do not underflow; gradients are unscaled before
clipping. If gradients are not finite on any rank, all ranks skip the step and halve the scale.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from launcher.backends.fsdp.float8 import MXFP8, NVFP4, recipe
from launcher.spec import RunSpec
from launcher.worker.engine import Context, LossScale
from launcher.worker.model import network

INITIAL_SCALE, GROWTH_INTERVAL = 2.0**16, 2000  # Torch's own defaults (``torch.amp.GradScaler``).
_SAVED = {"scale": "scale", "steps": "_growth_tracker"}  # Names in a checkpoint to torch's names.


class Scaler(GradScaler):
    """The loss scale of a run in fp16; in other formats every call returns its argument unchanged.

    All ranks skip a step if any must, including pipeline stages and data parallel ranks. (``ShardedGradScaler`` of
    ``torch.distributed.fsdp`` does so, too, but fused optimizers fail on its flag of shape (1,): ``_foreach_sub_`` in
    torch 2.15's ``_fused_adamw``.)
    """

    def __init__(self, context: Context) -> None:
        precision = context.spec.precision
        self._constant = precision.loss_scale
        super().__init__(
            context.device.type,
            init_scale=precision.loss_scale or precision.initial_loss_scale or INITIAL_SCALE,
            growth_interval=precision.loss_scale_window or GROWTH_INTERVAL,
            enabled=precision.compute == "fp16",
        )
        if self.is_enabled():
            self._one = torch.ones((), device=context.device)
            self._skipped = torch.zeros((), device=context.device)
            self.scale(self._one)  # Initializes the scale on ranks that never have a loss: a pipeline's first stages.

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale; all ranks learn whether any rank's are infinite."""
        super().unscale_(optimizer)
        if self.is_enabled():
            for found in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
                dist.all_reduce(found, op=dist.ReduceOp.MAX)

    def step_all(self, optimizers: Iterable[Optimizer], norm: torch.Tensor) -> LossScale | None:
        """Step unless gradients are infinite, and update the scale; ``norm`` is the gradients' norm.

        The host does not wait for the device: a step counts as skipped if the norm is not finite.
        """
        for each in optimizers:
            self.step(each)
        if not self.is_enabled():
            return None
        self.update(self._constant)
        self._skipped += ~norm.isfinite()
        return LossScale(scale=self.scale(self._one), skipped=self._skipped)

    def saved(self) -> dict[str, torch.Tensor]:
        """The scale and the steps since it last changed, for a checkpoint; empty if nothing is scaled."""
        state = self.state_dict()
        return {name: torch.tensor(float(state[key])) for name, key in _SAVED.items()} if state else {}

    def restore(self, saved: dict[str, torch.Tensor]) -> None:
        """Restore the state of a checkpoint, unless the run sets a constant scale."""
        if self._constant is not None:
            return
        found = {_SAVED[name]: value.item() for name, value in saved.items()}
        found["_growth_tracker"] = int(found["_growth_tracker"])
        self.load_state_dict(self.state_dict() | found)


def convert(made: Any, spec: RunSpec) -> None:
    """Replace the linears of a network's blocks, on the meta device, by torchao's if the run computes in fp8 or fp4.

    Tensors saved for backward stay in 16 bits (``torchao/float8/float8_linear.py``,
    ``matmul_with_hp_or_float8_args``). On the CPU torchao emulates the products: fp8 operands multiplied in fp32.
    """
    found, on_cpu = recipe(spec), spec.hardware.device == "cpu"
    if found is None:
        return
    if found in (MXFP8, NVFP4):
        for block in network.blocks(made):
            _share_scales(block, emulate=on_cpu, four_bits=found == NVFP4)
        return
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # Late: it takes a second.

    settings = replace(
        Float8LinearConfig.from_recipe_name(found),
        emulate=on_cpu,
        enable_fsdp_float8_all_gather=spec.zero.quantized_weights,
    )
    for block in network.blocks(made):
        convert_to_float8_training(block, config=settings)
        if on_cpu and not spec.parallel.shard:
            for module in block.modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_pre_hook(_cast)


def _share_scales(block: nn.Module, *, emulate: bool, four_bits: bool) -> None:
    """Replace a block's linears by ones whose operands have block scales; every product rounds its operands again."""
    from torchao.prototype.moe_training.mxfp8_linear import MXFP8Linear
    from torchao.quantization.quantize_.common import KernelPreference

    kernels = (
        {} if four_bits else {"kernel_preference": KernelPreference.EMULATED if emulate else KernelPreference.AUTO}
    )
    kind: Any = _Nvfp4Linear if four_bits else MXFP8Linear
    for name, linear in [*block.named_modules()]:
        if isinstance(linear, nn.Linear):
            how = {"bias": linear.bias is not None, "dtype": linear.weight.dtype, "device": "meta", **kernels}
            block.set_submodule(name, kind(linear.in_features, linear.out_features, **how))


_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
"""Signs of nvfp4's Hadamard transform, the same on all ranks (torchtitan 0.3 ``components/quantization/nvfp4.py``)."""


class _Nvfp4Linear(nn.Linear):
    """A linear in nvfp4 without buffers; those of torchao's ``NVFP4Linear`` would end up in checkpoints."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        from torchao.prototype.moe_training.nvfp4_training.nvfp4_linear import nvfp4_linear  # Late: it takes a second.

        made: torch.Tensor = nvfp4_linear(input, self.weight, self.bias, sign_vector=_SIGNS)
        return made


def rescale(made: nn.Module, spec: RunSpec) -> None:
    """Recompute the scales of weights gathered in fp8 after they changed, with one collective for all of them."""
    if spec.zero.quantized_weights:
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp  # Late: it takes a second.

        precompute_float8_dynamic_scale_for_fsdp(made)


def _cast(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Cast a linear's input, which torchao does under CUDA's autocast but not under the CPU's."""
    return (inputs[0].to(network.DTYPES["fp8"]), *inputs[1:])
