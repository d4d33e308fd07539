"""The loss with smoothed labels and a z-loss is that of autograd, in training alone; noise follows NEFTune's rule."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from launcher.preflight import findings
from launcher.worker.model import _add_noise, _WithSquaredDenominator
from tests.support.helpers import make_spec


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_z_loss_and_its_gradient_are_those_of_autograd(smoothing: float) -> None:
    torch.manual_seed(0)
    ours = torch.randn(6, 11, dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    labels = torch.tensor([1, 2, -100, 10, 0, 3])
    found = _WithSquaredDenominator.apply(ours, labels, smoothing, 0.3)
    expected = functional.cross_entropy(theirs, labels, reduction="sum", label_smoothing=smoothing)
    expected = expected + 0.3 * (torch.logsumexp(theirs, -1)[labels != -100] ** 2).sum()
    (2 * found).backward()
    (2 * expected).backward()  # type: ignore[no-untyped-call]
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(found, expected)
    assert torch.allclose(ours.grad, theirs.grad)


def test_noise_is_within_its_bound_and_absent_from_an_evaluation() -> None:
    table = nn.Embedding(7, 16)
    table.register_forward_hook(partial(_add_noise, 5.0))
    rows = torch.arange(4)[None]
    noise = (table(rows) - table.weight[rows]).abs()
    assert 0 < noise.max() <= 5.0 / 8  # sqrt(4 tokens x 16)
    table.eval()
    assert torch.equal(table(rows), table.weight[rows])


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("parallel=tp",), {"train.label_smoothing", "train.z_loss", "train.neftune_alpha"}),
        (("parallel=pp",), {"train.label_smoothing", "train.z_loss", "train.neftune_alpha"}),
        (("task=sft", "data=chat", "data.path=a.jsonl", "parallel=fsdp"), {"train.label_smoothing", "train.z_loss"}),
        (("parallel=zero3",), set()),
    ],
)
def test_an_engine_that_would_drop_them_refuses_them(words: tuple[str, ...], refused: set[str]) -> None:
    settings = ("train.label_smoothing=0.1", "train.z_loss=1e-4", "train.neftune_alpha=5")
    errors = findings.broken_rules(
        make_spec("model=7b", "cluster.gpus_per_node=8", "hardware=h100_80g", *words, *settings)
    )
    assert {error.path for error in errors if error.path in {word.split("=")[0] for word in settings}} == refused
