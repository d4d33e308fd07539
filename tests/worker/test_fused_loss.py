"""``train.loss=fused``: Liger's own function, with stand-ins for its Triton kernels, which need a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")
pytest.importorskip("liger_kernel", reason="the fused loss needs the extra 'kernels'")

import torch
from liger_kernel.ops import fused_linear_cross_entropy as liger
from torch.nn import functional

from launcher.estimate.memory.logits import liger_tokens
from launcher.worker.model import LanguageModel, network
from tests.support.helpers import make_spec

_RUN = ("model=tiny", "parallel=fsdp", "precision=fp32", "hardware=h100_80g", "train.sequence_length=96")
_VOCABULARY = 1000


class _OnTheCpu:
    """Stands for a Triton kernel: called with a grid, then with its arguments, whose tensors it changes in place."""

    def __init__(self, kernel: Callable[..., None]) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._kernel


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each call of the kernel."""
    seen: list[int] = []

    def cross_entropy(**given: Any) -> None:
        made, cap = given["X_ptr"], given["softcap"]
        assert given["reduction"] == "sum"
        seen.append(len(made))
        logits = made.detach().clone().requires_grad_()
        with torch.enable_grad():
            capped = torch.tanh(logits / cap) * cap if cap else logits
            labels, ignored = given["Y_ptr"], given["ignore_index"]
            loss = functional.cross_entropy(capped, labels, reduction="none", ignore_index=ignored)
            loss.sum().backward()  # type: ignore[no-untyped-call]
        given["loss_ptr"].copy_(loss.detach())
        made.copy_(logits.grad)

    def multiplied(tensor: torch.Tensor, stride: int, factor: torch.Tensor, *_: object, **__: object) -> None:
        tensor.mul_(factor)

    monkeypatch.setattr(liger, "liger_cross_entropy_kernel", _OnTheCpu(cross_entropy))
    monkeypatch.setattr(liger, "element_mul_kernel", _OnTheCpu(multiplied))
    return seen


def _trained(loss: str, *more: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of one batch and the gradients of all parameters."""
    spec = make_spec(*_RUN, f"model.vocab_size={_VOCABULARY}", f"train.loss={loss}", *more)
    built = network.network(spec.model, torch.float32).to_empty(device="cpu")
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * 0.1)
        for name, buffer in built.named_buffers():
            is_rotary = "inv_freq" in name
            buffer.copy_(10_000.0 ** -(torch.arange(len(buffer)) / len(buffer)) if is_rotary else torch.tensor(1.0))
    model = LanguageModel(built, spec)
    tokens = torch.randint(0, _VOCABULARY, (2, 97), generator=draw)
    value = model(tokens)
    value.backward()
    return value.detach(), {name: each.grad for name, each in built.named_parameters() if each.grad is not None}


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("model.tie_word_embeddings=true",),
        ("model.family=transformers", "model.model_type=gemma2", "model.attention=eager", "model.hidden_act=gelu"),
    ],
    ids=["llama", "tied", "capped"],
)
def test_liger_gives_the_loss_and_the_gradients_of_torch_beside_a_stand_in_for_its_kernel(
    rows: list[int], more: tuple[str, ...]
) -> None:
    whole, expected = _trained("full", *more)
    assert not rows
    fused, found = _trained("fused", *more)
    assert float(fused) == pytest.approx(float(whole), rel=1e-6)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)


def test_the_estimate_counts_as_many_tokens_at_once_as_liger_takes(rows: list[int]) -> None:
    _trained("fused")
    assert max(rows) == liger_tokens(2 * 96, _VOCABULARY, 256)
    assert sum(rows) == 2 * 96
    assert len(rows) > 1
