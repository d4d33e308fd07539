"""Bytes that layers beside an adapter move, counted operator by operator while ``peft`` runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from launcher.estimate.rank.engine import Execution
from launcher.estimate.rank.tensors import Weight
from launcher.estimate.speed import adapted
from launcher.estimate.speed.network import Network
from launcher.estimate.speed.shape import Shape
from launcher.spec import AdapterSpec
from tests.speed.cards import H100
from tests.support.helpers import needs

if TYPE_CHECKING:
    import torch

needs("torch")
needs("peft")

NETWORK = Network(links="nvlink4", link_bandwidth=450e9, link_gpus=8, gpus_per_node=8, network_bandwidth=50e9)
TOKENS, OUTPUTS, INPUTS = 2048, 192, 256


@pytest.mark.parametrize("dimension", [0, 1], ids=["input of the residual stream", "input of 16 bits"])
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("autocast", [False, True], ids=["bf16", "autocast"])
def test_an_adapter_moves_the_bytes_that_peft_moves(autocast: bool, dora: bool, dimension: int) -> None:
    import torch

    low = torch.bfloat16
    held = torch.float32 if autocast else low
    given = held if dimension == 0 else low
    alone = torch.nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=held).requires_grad_(False)
    plain, plain_back = _moved(alone, given, autocast=autocast)
    beside, beside_back = _moved(_wrapped(alone, dora=dora), given, autocast=autocast)

    ahead, behind = adapted.passes([_weight(dimension)], _adapter(dora=dora), (), _shape(autocast=autocast))
    of_base = 6 * OUTPUTS * INPUTS if autocast else 0  # The cast of the frozen weight, which it has without adapters.
    assert ahead.moved - of_base == pytest.approx(beside - plain, rel=0.005)
    assert behind.moved == pytest.approx(beside_back - plain_back, rel=0.005)


def _wrapped(layer: torch.nn.Module, *, dora: bool) -> torch.nn.Module:
    import peft
    import torch

    settings = peft.LoraConfig(r=2, target_modules=["0"], use_dora=dora)
    return cast(torch.nn.Module, peft.inject_adapter_in_model(settings, torch.nn.Sequential(layer)))


def _moved(layer: torch.nn.Module, dtype: torch.dtype, *, autocast: bool) -> tuple[int, int]:
    """Bytes that operators but products read and write, forward and backward."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        bytes = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func.overloadpacket.__name__ not in ("mm", "t", "view", "detach", "_unsafe_view", "expand", "alias"):
                tensors = [one for one in (*args, result) if isinstance(one, torch.Tensor)]
                self.bytes += sum(one.numel() * one.element_size() for one in tensors)
            return result

    inputs = torch.randn(TOKENS, INPUTS, dtype=dtype, requires_grad=True)
    hidden = inputs.view_as(inputs)  # No leaf, whose cast autocast would keep for the next layer.
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), Counting() as forward:  # type: ignore[no-untyped-call]
        result = layer(hidden)
    gradient = torch.randn_like(result)
    with Counting() as backward:  # type: ignore[no-untyped-call]
        torch.autograd.backward(result, gradient)
    return forward.bytes, backward.bytes


def _weight(dimension: int) -> Weight:
    name = "self_attn.q_proj.weight" if dimension == 0 else "self_attn.o_proj.weight"
    return Weight(name=name, shape=(OUTPUTS, INPUTS), split="tensor", dimension=dimension)


def _adapter(*, dora: bool) -> AdapterSpec:
    targets = ("q_proj", "o_proj")
    return AdapterSpec(name="lora", rank=2, alpha=4, dropout=0.0, targets=targets, double_quant=False, dora=dora)


def _shape(*, autocast: bool) -> Shape:
    wide = 4 if autocast else 2
    return Shape(
        sequences=1, queries=TOKENS, keys=TOKENS, tensor=1, split_sequence=False, context=1, ulysses=1, expert=1,
        expert_tensor=1, dtype="bf16", size=2, residual_size=wide, megatron=False, autocast=autocast,
        fused_adapters=False, adapter_size=wide, scores=False, execution=Execution(framework="F"), card=H100,
        network=NETWORK,
    )  # fmt: skip
