"""What autograd saves, by pile, without following operations: as on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from launcher.worker.memory.piles import SavedBytes, model_piles
from launcher.worker.model.network import _selective

ROWS, WIDTH = 8, 32


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def linears() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))


@pytest.mark.parametrize("shape", [(ROWS, WIDTH), (2, ROWS, WIDTH)])
def test_autocasts_copies_of_weights_are_gathered_weights(shape: tuple[int, ...]) -> None:
    made, saved = linears(), SavedBytes(frozenset())
    with saved.following(model_piles([made])), torch.autocast("cpu", torch.bfloat16):
        states = torch.ones(shape, requires_grad=True)
        loss: torch.Tensor = made(states).float().sum()
        inside = saved.now.copy()
        assert inside["gather_buffers"] == 3 * WIDTH * WIDTH * 2
        assert inside["activations"] == 3 * states.numel() * 2
    loss.backward()  # type: ignore[no-untyped-call]
    del loss
    assert saved.now.total() == 0
    saved.forget_peak()
    assert saved.peak == {}, "a pile of nothing would stand for what the engine gathers"


def test_a_copy_of_activations_is_no_weight() -> None:
    made, saved = nn.Linear(WIDTH, WIDTH, bias=False), SavedBytes(frozenset())
    with saved.following(model_piles([made])):
        states = made(torch.ones(ROWS, WIDTH)).to(torch.bfloat16)
        loss = (states * states).sum()
    assert saved.now == {"activations": ROWS * WIDTH * (4 + 2)}
    loss.backward()


def test_the_loss_tells_its_logits() -> None:
    made, saved = nn.Linear(WIDTH, WIDTH, bias=False), SavedBytes(frozenset())
    labels = torch.zeros(ROWS, dtype=torch.int64)
    with saved.following(model_piles([made])):
        loss = functional.cross_entropy(made(torch.ones(ROWS, WIDTH)), labels)
    assert saved.now["logits"] == ROWS * WIDTH * 4
    loss.backward()  # type: ignore[no-untyped-call]


def test_weights_that_fsdp_gathers_are_no_activations(alone: None) -> None:
    made, saved = linears(), SavedBytes(frozenset())
    mesh = init_device_mesh("cpu", (1,))
    for block in made:
        fully_shard(block, mesh=mesh)
    fully_shard(made, mesh=mesh)
    for _ in range(2):
        states = torch.ones(ROWS, WIDTH)
        with saved.following(model_piles([made])):
            loss = made(states).sum()
            assert saved.now == {"activations": 3 * states.nbytes}
            loss.backward()
        del loss, states
        assert saved.now.total() == 0


def test_selective_checkpointing_says_nothing_of_the_hooks() -> None:
    block: Any = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    saved = SavedBytes(frozenset())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with saved.following(model_piles([block])):
            states = torch.ones(ROWS, WIDTH, requires_grad=True)
            checkpoint(block, states, use_reentrant=False, context_fn=_selective).sum().backward()
    assert states.grad is not None
