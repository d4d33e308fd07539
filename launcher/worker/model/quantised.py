"""Frozen low-bit weights under an adapter, packed and unpacked by bitsandbytes: QLoRA's 4 bits, LLM.int8's 8 bits.

Already on the meta device, a weight consists of its codes, which ranks replicate or shard like any parameter: bytes of
two values each in 4 bits, a matrix in 8 bits. Weights are quantised on the device, one at a time. The quantisation
constants are not parameters: every rank has all of them. The experts of a layer, one tensor of three dimensions, are
unpacked in each pass by a torch parametrization.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import bitsandbytes
import torch
from bitsandbytes.functional import dequantize_4bit, int8_vectorwise_quant, quantize_4bit
from bitsandbytes.nn import Linear4bit, Linear8bitLt, Params4bit
from peft.tuners.lora import layer
from torch import nn
from torch.nn.utils import parametrize
from transformers.pytorch_utils import Conv1D

from launcher.estimate import families
from launcher.estimate.rank.counts import block_weights
from launcher.spec import RunSpec
from launcher.worker.model import initial, network

_OUTLIER = 6.0  # Larger inputs are multiplied in 16 bits (LLM.int8, arXiv:2208.07339, 3.2; transformers' default).
_EXPERTS = 3  # Dimensions of the tensor with the weights of all experts of a layer.


class Format(NamedTuple):
    """The number format of codes: ``nf4``, ``fp4`` or ``int8``; ``double`` also quantises the constants of 4 bits."""

    kind: str
    double: bool

    def codes(self, shape: torch.Size) -> torch.Tensor:
        """Codes on the meta device for weights of this shape."""
        if self.kind == "int8":
            return torch.empty(shape, dtype=torch.int8, device="meta")
        return torch.empty((prod(shape) + 1) // 2, 1, dtype=torch.uint8, device="meta")

    def parameter(self, shape: torch.Size) -> nn.Parameter:
        """A linear's codes as a parameter; not ``Int8Params``, which would lose its constants when FSDP2 shards it."""
        codes = self.codes(shape)
        if self.kind == "int8":
            return nn.Parameter(codes, requires_grad=False)
        return Params4bit(codes, compress_statistics=self.double, quant_type=self.kind, bnb_quantized=True)  # type: ignore[no-any-return]

    def pack(self, values: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The codes of values, and the constants that :meth:`unpack` needs: in 8 bits each row's largest magnitude."""
        if self.kind == "int8":
            codes, largest, _ = int8_vectorwise_quant(values.reshape(-1, values.shape[-1]).to(torch.float16))
            return codes.view(values.shape), largest.view(values.shape[:-1])
        packed, state = quantize_4bit(values, compress_statistics=self.double, quant_type=self.kind)
        return packed, state

    def unpack(self, codes: torch.Tensor, state: Any, dtype: torch.dtype) -> torch.Tensor:
        """The values of codes; for 8 bits scaled in place, as ``MatMul8bitFp`` of bitsandbytes does."""
        if self.kind == "int8":
            return codes.to(dtype).mul_(state.unsqueeze(-1).mul(1 / 127))
        values: torch.Tensor = dequantize_4bit(codes, state)
        return values


class _Linear(nn.Linear):
    """A frozen low-bit linear on the meta device; under autocast it computes in autocast's dtype, as others do.

    GPT-2's ``Conv1D`` has a transposed weight, which is drawn and read transposed but packed by rows of outputs.
    """

    quant_state: Any = None

    def __init__(self, like: nn.Linear | Conv1D, compute: torch.dtype, form: Format) -> None:
        """Replace the linear ``like``, computing in ``compute``."""
        transposed = isinstance(like, Conv1D)
        rows, columns = like.weight.shape[::-1] if transposed else like.weight.shape
        super().__init__(columns, rows, bias=False, device="meta")  # The bitsandbytes class is next in the MRO.
        self.compute_dtype, self._format, self._transposed = compute, form, transposed
        self.weight, self.bias = form.parameter(torch.Size((rows, columns))), like.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply by the weight, unpacked temporarily to the compute dtype."""
        device = x.device.type
        if torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
        return self._multiplied(x, None if self.bias is None else self.bias.to(x.dtype))

    def _multiplied(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        raise NotImplementedError

    @property
    def W_q(self) -> torch.Tensor:  # noqa: N802
        """The packed weight, under the name by which ``peft`` recognizes a linear that has :meth:`dequantize`."""
        return self.weight

    def dequantize(self) -> torch.Tensor:
        """The weight in the compute dtype, which DoRA needs."""
        return self.unpacked(self.weight)

    def unpacked(self, packed: torch.Tensor) -> torch.Tensor:
        """The weight that these codes encode; on the meta device a tensor without values."""
        if packed.is_meta:
            return torch.empty(self.out_features, self.in_features, dtype=self.compute_dtype, device="meta")
        return self._format.unpack(packed, self.quant_state, self.compute_dtype)

    @contextlib.contextmanager
    def filling(self, device: torch.device, access: initial.Access) -> Any:
        """Yield the whole weight in the compute dtype, to be filled; this rank then stores its part of the codes."""
        shape = (self.in_features, self.out_features) if self._transposed else (self.out_features, self.in_features)
        values = torch.empty(shape, dtype=self.compute_dtype, device=device)
        yield values
        if self._transposed:
            values = values.t().contiguous()
        self.quant_state = _pack(values, self.weight, access, self._format)


class Linear4(_Linear, Linear4bit):  # type: ignore[misc]  # Frameworks are not type-checked.
    """A frozen linear in 4 bits."""

    def _multiplied(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        product: torch.Tensor = bitsandbytes.matmul_4bit(x, self.weight, bias=bias, quant_state=self.quant_state)
        return product


class Linear8(_Linear, Linear8bitLt):  # type: ignore[misc]  # Frameworks are not type-checked.
    """A frozen linear in 8 bits."""

    def _multiplied(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        state = bitsandbytes.MatmulLtState(CB=self.weight, SCB=self.quant_state)
        state.has_fp16_weights = False
        product: torch.Tensor = bitsandbytes.matmul(x, self.weight, state=state, threshold=_OUTLIER, bias=bias)
        return release_input(product)


def release_input(product: torch.Tensor) -> torch.Tensor:
    """The product of 8-bit weights, without the input that bitsandbytes keeps for the gradient of a trained weight.

    That input is an attribute of the autograd node, which recomputation cannot free; only an empty input needs it.
    """
    node: Any = product.grad_fn
    if node is not None and not getattr(node, "is_empty", False):
        node.A, node.tensors = None, (None, None, None)
    return product


class Unpacked(nn.Module):
    """A parametrization that unpacks the weights of all experts of a layer at each use."""

    def __init__(self, shape: torch.Size, dtype: torch.dtype, form: Format) -> None:
        super().__init__()
        self._shape, self._dtype, self._format = shape, dtype, form
        self._state: Any = None

    @torch.no_grad()
    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the values; on the meta device a tensor without values."""
        if self._state is None or packed.is_meta:
            return packed.new_empty(self._shape, dtype=self._dtype)
        return self._format.unpack(packed, self._state, self._dtype)

    @contextlib.contextmanager
    def filling(self, packed: torch.Tensor, device: torch.device, access: initial.Access) -> Iterator[torch.Tensor]:
        """Yield the whole weights, to be filled; this rank then stores its part of the codes."""
        values = torch.empty(self._shape, dtype=self._dtype, device=device)
        yield values
        self._state = _pack(values, packed, access, self._format)


def _pack(values: torch.Tensor, into: torch.Tensor, access: initial.Access, form: Format) -> Any:
    """Quantise values and copy this rank's part of the codes into a parameter; return the constants of all values."""
    packed, state = form.pack(values)
    with access(into) as opened:
        if opened is not None:
            part = initial.local(opened)
            part.tensor.copy_(packed[part.region])
    return state


def quantise(made: Any, spec: RunSpec, compute: torch.dtype, experts: torch.dtype) -> None:
    """Pack the linears and experts in a network's blocks on the meta device, to unpack to these dtypes.

    Routers, convolutions and linears whose weights other code reads are not quantised.
    """
    form, family = Format(spec.adapter.quant_type, spec.adapter.double_quant), families.of(spec.model)
    linear = Linear8 if form.kind == "int8" else Linear4
    for number, block in network.numbered(made).items():
        whole = {row.name.removesuffix(".weight") for row in block_weights(family, spec.model, number) if row.whole}
        for path, module in list(block.named_modules()):
            if path in whole or path.rpartition(".")[2] in ("gate", "router") or isinstance(module, nn.Conv1d):
                continue
            if isinstance(module, nn.Linear | Conv1D):
                block.set_submodule(path, linear(module, compute, form))
                continue
            for name, weight in list(module.named_parameters(recurse=False)):
                if weight.dim() == _EXPERTS:
                    setattr(module, name, nn.Parameter(form.codes(weight.shape), requires_grad=False))
                    unpacked = Unpacked(weight.shape, experts, form)
                    parametrize.register_parametrization(module, name, unpacked, unsafe=True)
    # ``peft`` recognizes a quantised model by this attribute.
    setattr(made, "is_loaded_in_8bit" if form.kind == "int8" else "is_loaded_in_4bit", True)


class ParamWrapper(layer.ParamWrapper):  # type: ignore[misc]  # Frameworks are not type-checked.
    """The adapter of a layer's packed experts; its product is added after they are unpacked.

    It has the name of ``peft``'s own class, which ``peft`` looks for. That class reads such weights while torch caches
    the unpacked values for the pass, and therefore computes without the adapter (0.21.2).
    """

    def get_param(self) -> torch.Tensor:
        """A meta tensor with the shape and dtype of the unpacked weights."""
        unpacked = self.get_base_layer().parametrizations[self.parameter_name]
        values: torch.Tensor = unpacked[0](unpacked.original.to("meta"))
        return values

    @contextlib.contextmanager
    def _activate_lora(self, active_adapters: list[str]) -> Iterator[None]:
        rows = self.get_base_layer().parametrizations[self.parameter_name]
        rows.append(layer._LoraFactorsProxy(*self.get_delta_factors(active_adapters[0])))
        try:
            with parametrize.cached():
                yield
        finally:
            del rows[-1]


def match_packed(settings: Any, made: nn.Module) -> None:
    """Give ``peft`` the full names of packed weights, by which it finds them, and :class:`ParamWrapper` for them."""
    wanted = tuple(f".{name}" for name in settings.target_parameters)
    names = [initial.plain(name) for name, _ in made.named_parameters()]
    settings.target_parameters = [name for name in names if name.endswith(wanted)]
    owners = {made.get_submodule(name.rpartition(".")[0]) for name in settings.target_parameters}
    settings._register_custom_module({type(owner): ParamWrapper for owner in owners})


def access(made: nn.Module, device: torch.device, otherwise: initial.Access) -> initial.Access:
    """The context in which ``initial.fill`` fills a parameter: ``otherwise`` if it is not packed."""
    packed: dict[int, Callable[[], contextlib.AbstractContextManager[torch.Tensor]]] = {}
    for module in made.modules():
        if isinstance(module, _Linear):
            packed[id(module.weight)] = functools.partial(module.filling, device, otherwise)
        elif isinstance(module, parametrize.ParametrizationList) and isinstance(module[0], Unpacked):
            packed[id(module.original)] = functools.partial(module[0].filling, module.original, device, otherwise)

    def opened(parameter: torch.Tensor) -> contextlib.AbstractContextManager[torch.Tensor | initial.Local | None]:
        filling = packed.get(id(parameter))
        return otherwise(parameter) if filling is None else filling()

    return opened
