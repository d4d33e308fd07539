"""Live tensors by purpose, with the block that made them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

import torch
from torch import nn

from launcher.worker.layers import Layers
from launcher.worker.live_piles import LivePiles
from launcher.worker.piles import of_model

VOCABULARY = 640


class Small(nn.Module):
    """Two blocks and an output head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(16, VOCABULARY, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """The mean of the logits' squares."""
        for block in self.blocks:
            states = block(states)
        made: torch.Tensor = self.head(states).square().mean()
        return made


def test_each_tensor_of_a_step_has_its_pile_and_its_block() -> None:
    layers = Layers()
    model, live = Small(), LivePiles(vocabulary=frozenset((VOCABULARY,)), layers=layers)
    layers.follow(dict(enumerate(model.blocks)))
    layers.on = True
    kept = sum(parameter.nbytes for parameter in model.parameters())
    with live:
        live.begin(1, "forward")
        states = torch.ones(8, 16)
        with live.saving():
            loss = model(states)
        forward = live.piles()
        made = {each.layer for each in live.alive() if each.pile == "activations"}
        live.begin(1, "backward")
        loss.backward()
        for pile, tensors in of_model([model]):
            live.label(pile, tensors)
    assert forward["logits"] == 8 * VOCABULARY * 4, "the square needs its input alone"
    assert {0, 1} <= made, "each block's output is saved"
    after = live.piles()
    assert after["parameters"] == after["gradients"] == kept
    assert sum(after.values()) == live.bytes
    peak = live.recording.peaks(1)["backward"]
    assert sum(live.recording.piles(peak.event).values()) == peak.bytes, "piles of a peak sum to it"
    assert live.recording.piles(len(live.recording.events) - 1) == after, "labels given later count for the events"
    assert {each.layer for each in live.alive() if each.pile == "gradients"} >= {0, 1}
    assert live.largest(1)[0].shape == (VOCABULARY, 16)


def test_a_new_recording_begins_with_what_is_alive() -> None:
    live = LivePiles()
    with live:
        live.begin(1, "forward")
        kept = torch.ones(10)
        live.label("parameters", [kept])
        live.restart()
        assert live.piles() == {"parameters": 40}
        other = kept + 1
        assert live.recording.piles(len(live.recording.events) - 1) == {"parameters": 40, "temporary": 40}
        live.label("optimizer_states", [kept], only=frozenset(("temporary",)))
        del kept
    assert live.piles() == {"temporary": other.nbytes}
