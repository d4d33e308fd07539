"""QLoRA's frozen linears in 4-bit NormalFloat (arXiv:2305.14314, section 3), packed and multiplied by bitsandbytes.

From the meta device on, a weight is its packed bytes, two values in each, which ranks replicate or shard as those of
any parameter. It is drawn or read whole, one linear at a time, and quantised on the device, so that the model never
stands there in the compute format. The quantisation constants are no parameters: every rank has all of them.
"""

from __future__ import annotations

import contextlib
from typing import Any

import bitsandbytes
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from bitsandbytes.nn import Linear4bit, Params4bit
from torch import nn

from launcher.spec import AdapterSpec
from launcher.worker.model import initial, network

_KIND = "nf4"


class Linear(Linear4bit):  # type: ignore[misc]  # Frameworks are not type-checked.
    """A frozen linear in 4 bits, on the meta device; under autocast it computes in autocast's format, as others do."""

    def __init__(self, like: nn.Linear, compute: torch.dtype, *, double: bool) -> None:
        """Stand for a linear, computing in ``compute``; ``double`` quantises the quantisation constants, too."""
        super().__init__(like.in_features, like.out_features, bias=False, compute_dtype=compute, device="meta")
        packed = torch.empty((like.weight.numel() + 1) // 2, 1, dtype=torch.uint8, device="meta")
        self.weight = Params4bit(packed, compress_statistics=double, quant_type=_KIND, bnb_quantized=True)
        self.bias, self._double = like.bias, double

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply with the weight, for the time being in the compute format."""
        device = x.device.type
        if torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        bias = None if self.bias is None else self.bias.to(x.dtype)
        product: torch.Tensor = bitsandbytes.matmul_4bit(x, self.weight, bias=bias, quant_state=self.quant_state)
        return product

    @property
    def W_q(self) -> torch.Tensor:  # noqa: N802
        """The packed weight, by the name at which ``peft`` knows a linear that it must ask to :meth:`dequantize`."""
        packed: torch.Tensor = self.weight
        return packed

    def dequantize(self) -> torch.Tensor:
        """The weight in the compute format, which DoRA needs."""
        return self.unpacked(self.weight)

    def unpacked(self, packed: torch.Tensor) -> torch.Tensor:
        """The weight of which these are the bytes; on the meta device one without values."""
        if packed.is_meta:
            return torch.empty(self.out_features, self.in_features, dtype=self.compute_dtype, device="meta")
        values: torch.Tensor = dequantize_4bit(packed, self.quant_state)
        return values

    @contextlib.contextmanager
    def filling(self, device: torch.device) -> Any:
        """The whole weight to be filled in the compute format; this rank then keeps its part in 4 bits."""
        values = torch.empty(self.out_features, self.in_features, dtype=self.compute_dtype, device=device)
        yield values
        packed, self.quant_state = quantize_4bit(values, compress_statistics=self._double, quant_type=_KIND)
        part = initial.local(self.weight)
        part.tensor.copy_(packed[part.region])


def quantise(made: Any, adapter: AdapterSpec, compute: torch.dtype) -> None:
    """Replace the linears in the blocks of a network on the meta device by ones in 4 bits."""
    for block in network.blocks(made):
        for path, module in list(block.named_modules()):
            if isinstance(module, nn.Linear):
                block.set_submodule(path, Linear(module, compute, double=adapter.double_quant))
    made.is_loaded_in_4bit = True  # ``peft`` knows it by this.


def access(made: nn.Module, device: torch.device) -> initial.Access:
    """The context in which a parameter of a network is filled (``initial.fill``)."""
    quantised = {id(module.weight): module for module in made.modules() if isinstance(module, Linear)}

    def opened(parameter: torch.Tensor) -> contextlib.AbstractContextManager[torch.Tensor]:
        module = quantised.get(id(parameter))
        return contextlib.nullcontext(parameter) if module is None else module.filling(device)

    return opened
