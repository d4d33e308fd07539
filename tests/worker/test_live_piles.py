"""Live tensors by purpose, with the block that made them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from launcher.worker.memory.live_piles import LivePiles
from launcher.worker.memory.piles import Layers, model_piles

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
        for pile, tensors in model_piles([model]):
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
    assert max(live.alive(), key=lambda each: each.bytes).shape == (VOCABULARY, 16)


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


@pytest.mark.parametrize("recomputed", [False, True])
def test_autocasts_copies_of_weights_are_gathered_weights(recomputed: bool) -> None:
    live, weights = LivePiles(), 2 * 16 * 16
    blocks = [nn.Linear(16, 16, bias=False) for _ in range(3)]
    with live:
        live.begin(1, "load")
        spare = blocks[0].weight.to(torch.bfloat16)
        assert live.piles()["temporary"] >= weights, "a copy that is made while the model is loaded is none of a pass"
        del spare
        live.begin(1, "forward")
        states = torch.ones(8, 16, requires_grad=True)
        with live.saving(), torch.autocast("cpu", torch.bfloat16):
            for block in blocks:
                states = checkpoint(block, states, use_reentrant=False) if recomputed else block(states)
            loss: torch.Tensor = states.float().sum()
            del states
        forward = live.piles()
        live.begin(1, "backward")
        live.end_forward()
        loss.backward()  # type: ignore[no-untyped-call]
    assert forward.get("gather_buffers", 0) == (0 if recomputed else 3 * weights)
    backward = range(live.recording.marks[-1].event, len(live.recording.events))
    peak = max(live.recording.piles(event).get("gather_buffers", 0) for event in backward)
    assert peak == (weights if recomputed else 3 * weights), "a block's that is computed again, or all blocks'"
    assert live.piles().get("gather_buffers", 0) == 0


def test_the_loss_tells_its_logits_where_hidden_states_are_as_wide() -> None:
    live, head, rows = LivePiles(), nn.Linear(16, 16, bias=False), 8
    with live:
        live.begin(1, "forward")
        states = torch.ones(rows, 16)
        with live.saving():
            loss = functional.cross_entropy(head(states), torch.zeros(rows, dtype=torch.int64))
        forward = live.piles()
        live.begin(1, "backward")
        loss.backward()  # type: ignore[no-untyped-call]
    assert forward["logits"] == states.nbytes, "what the loss saves"
    assert forward["activations"] >= states.nbytes, "what the head saves"
    peak = live.recording.piles(live.recording.peaks(1)["backward"].event)
    assert peak["logits"] >= 2 * states.nbytes, "and the gradient of the logits"
