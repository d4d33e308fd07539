"""QLoRA's frozen weights in 4-bit NormalFloat (arXiv:2305.14314, section 3), packed and unpacked by bitsandbytes.

From the meta device on, a weight is its packed bytes, two values in each, which ranks replicate or shard as those of
any parameter; it is quantised on the device, one weight at a time. The quantisation constants are no parameters: every
rank has all of them. The experts of a layer, one tensor of three dimensions, are unpacked for each of its passes by a
parametrization of torch's.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import bitsandbytes
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from bitsandbytes.nn import Linear4bit, Params4bit
from torch import nn
from torch.nn.utils import parametrize
from transformers.pytorch_utils import Conv1D

from launcher.estimate import families
from launcher.estimate.rank.counts import block_weights
from launcher.spec import RunSpec
from launcher.worker.model import initial, network

_KIND = "nf4"
_EXPERTS = 3  # Dimensions of the weights of all experts of a layer.


class Linear(Linear4bit):  # type: ignore[misc]  # Frameworks are not type-checked.
    """A frozen linear in 4 bits, on the meta device; under autocast it computes in autocast's format, as others do."""

    def __init__(self, like: nn.Linear | Conv1D, compute: torch.dtype, *, double: bool) -> None:
        """Stand for a linear, computing in ``compute``; ``double`` quantises the quantisation constants, too.

        GPT-2's ``Conv1D`` has a transposed weight, which is drawn and read so, and packed by rows of outputs.
        """
        self._transposed = isinstance(like, Conv1D)
        rows, columns = like.weight.shape[::-1] if self._transposed else like.weight.shape
        super().__init__(columns, rows, bias=False, compute_dtype=compute, device="meta")
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
    def filling(self, device: torch.device, access: initial.Access) -> Any:
        """The whole weight to be filled in the compute format; this rank then keeps its part in 4 bits."""
        values = torch.empty(self.out_features, self.in_features, dtype=self.compute_dtype, device=device)
        if self._transposed:
            values = values.t().contiguous()
        yield values
        if self._transposed:
            values = values.t().contiguous()
        self.quant_state = _pack(values, self.weight, access, double=self._double)


class Unpacked(nn.Module):
    """A parametrization of the weights of all experts of a layer: from packed bytes to values, at each use."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, *, double: bool) -> None:
        super().__init__()
        self._shape, self._dtype, self._double = shape, dtype, double
        self._state: Any = None

    @torch.no_grad()
    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the values; on the meta device a tensor without any."""
        if self._state is None:
            return packed.new_empty(self._shape, dtype=self._dtype)
        values: torch.Tensor = dequantize_4bit(packed, self._state)
        return values

    @contextlib.contextmanager
    def filling(self, packed: torch.Tensor, device: torch.device, access: initial.Access) -> Iterator[torch.Tensor]:
        """The whole weights to be filled; this rank then keeps its part of them in 4 bits."""
        values = torch.empty(self._shape, dtype=self._dtype, device=device)
        yield values
        self._state = _pack(values, packed, access, double=self._double)


def _pack(values: torch.Tensor, into: torch.Tensor, access: initial.Access, *, double: bool) -> Any:
    """Put this rank's part of quantised values into a packed parameter; the constants of all of them."""
    packed, state = quantize_4bit(values, compress_statistics=double, quant_type=_KIND)
    with access(into) as opened:
        if opened is not None:
            part = initial.local(opened)
            part.tensor.copy_(packed[part.region])
    return state


def quantise(made: Any, spec: RunSpec, compute: torch.dtype, experts: torch.dtype) -> None:
    """Pack the linears and the experts in the blocks of a network on the meta device; formats of what is unpacked.

    Routers, convolutions and the linears whose weights other code reads stay whole.
    """
    adapter, family = spec.adapter, families.of(spec.model)
    for number, block in network.numbered(made).items():
        whole = {row.name.removesuffix(".weight") for row in block_weights(family, spec.model, number) if row.whole}
        for path, module in list(block.named_modules()):
            if path in whole or path.rpartition(".")[2] in ("gate", "router") or isinstance(module, nn.Conv1d):
                continue
            if isinstance(module, nn.Linear | Conv1D):
                block.set_submodule(path, Linear(module, compute, double=adapter.double_quant))
                continue
            for name, weight in list(module.named_parameters(recurse=False)):
                if weight.dim() == _EXPERTS:
                    packed = torch.empty((weight.numel() + 1) // 2, 1, dtype=torch.uint8, device="meta")
                    setattr(module, name, nn.Parameter(packed, requires_grad=False))
                    unpacked = Unpacked(weight.shape, experts, double=adapter.double_quant)
                    parametrize.register_parametrization(module, name, unpacked, unsafe=True)
    made.is_loaded_in_4bit = True  # ``peft`` knows it by this.


def access(made: nn.Module, device: torch.device, otherwise: initial.Access) -> initial.Access:
    """The context in which a parameter of a network is filled (``initial.fill``), ``otherwise`` if it is not packed."""
    packed: dict[int, Callable[[], contextlib.AbstractContextManager[torch.Tensor]]] = {}
    for module in made.modules():
        if isinstance(module, Linear):
            packed[id(module.weight)] = functools.partial(module.filling, device, otherwise)
        elif isinstance(module, parametrize.ParametrizationList) and isinstance(module[0], Unpacked):
            packed[id(module.original)] = functools.partial(module[0].filling, module.original, device, otherwise)

    def opened(parameter: torch.Tensor) -> contextlib.AbstractContextManager[torch.Tensor | initial.Local | None]:
        filling = packed.get(id(parameter))
        return otherwise(parameter) if filling is None else filling()

    return opened
