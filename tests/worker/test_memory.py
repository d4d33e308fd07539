"""Memory by phase and pile: on the CPU of a real step, on a GPU by counters that are stood in for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="workers need the extra 'fsdp'")

import torch
from torch import nn

from launcher.worker import memory
from launcher.worker.memory import CudaTracker, MemoryTracker
from launcher.worker.memory.live_bytes import LiveBytes
from launcher.worker.memory.piles import SavedBytes, divided, model_piles

WIDTH, VOCABULARY = 32, 640


def model() -> nn.Sequential:
    """Two blocks and an output head."""
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, VOCABULARY, bias=False))


def step(tracker: MemoryTracker, made: nn.Module, optimizer: torch.optim.Optimizer, rows: int = 8) -> None:
    with tracker.measuring("forward"):
        loss = made(torch.ones(rows, WIDTH)).square().mean()
        tracker.enter("backward")
        loss.backward()
        tracker.enter("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        del loss
        tracker.rest(())


def test_on_the_cpu_the_piles_of_each_phase_sum_to_it() -> None:
    made = model()
    optimizer = torch.optim.Adam(made.parameters())
    tracker = MemoryTracker(vocabulary=frozenset((VOCABULARY,)))
    tracker.layers.follow(dict(enumerate(made[:2])))
    tracker.kept = lambda: [
        *model_piles([made]),
        ("optimizer_states", [each for state in optimizer.state.values() for each in state.values()]),
    ]
    step(tracker, made, optimizer)
    step(tracker, made, optimizer)
    sample, kept = tracker.take(), sum(parameter.nbytes for parameter in made.parameters())
    assert set(sample.phases) == {"forward", "backward", "optimizer"}
    for phase, peak in sample.phases.items():
        assert sum(peak.piles.values()) == peak.allocated_bytes, phase
        assert peak.piles["parameters"] == kept
    assert sample.phases["forward"].piles["logits"] == 2 * 8 * VOCABULARY * 4, "the logits and their squares"
    assert sample.phases["forward"].piles["activations"] >= 2 * 8 * WIDTH * 4, "the two blocks' outputs"
    assert sample.phases["optimizer"].piles["gradients"] == kept
    assert sample.static is not None
    assert 2 * kept <= sample.static["optimizer_states"] <= 2 * kept + 64, "two moments, and the count of steps"
    assert tracker.summary()["phases"]["optimizer"] == sample.phases["optimizer"].allocated_bytes
    assert tracker.take().phases == {}


def test_a_sample_is_no_part_of_the_summary() -> None:
    made = model()
    tracker = MemoryTracker()
    with tracker.measuring("forward", summary=False):
        made(torch.ones(8, WIDTH))
        tracker.rest((), summary=False)
    assert tracker.take().phases["forward"].allocated_bytes > 0
    assert not tracker.has("forward")
    assert tracker.summary()["static_bytes"] is None


def test_a_buffer_that_a_collectives_thread_still_holds_is_not_counted_between_steps() -> None:
    """A thread that holds it stands in for gloo's, which holds it for so long on a busy machine alone."""
    tracker, holds = MemoryTracker(), threading.Event()

    def held_by_a_thread(buffers: list[torch.Tensor]) -> None:
        holds.set()
        time.sleep(0.05)
        buffers.clear()

    with tracker.measuring("forward"):
        gathered = [torch.ones(1000)]
        tracker.label("gather_buffers", gathered)
        threading.Thread(target=held_by_a_thread, args=(gathered,)).start()
        holds.wait()
        tracker.rest(())
    assert tracker.summary()["static_bytes"] == 0
    assert tracker.summary()["phases"]["forward"] >= 4000


def test_what_autograd_saves_is_counted_once_until_it_is_gone_and_parameters_are_not() -> None:
    made, saved = model(), SavedBytes(frozenset((VOCABULARY,)))
    with saved.following(model_piles([made])):
        value = torch.ones(8, WIDTH)
        loss = made(value).square().mean()
    blocks = 2 * 8 * WIDTH * 4
    assert saved.now == Counter(logits=8 * VOCABULARY * 4, activations=value.nbytes + blocks)
    loss.backward()
    del loss, value
    assert saved.now.total() == 0
    assert sum(saved.peak.values()) > blocks
    saved.forget_peak()
    assert sum(saved.peak.values()) == 0


@pytest.mark.parametrize(("name", "copies"), [("AdamW8bit", 5), ("Lion", 3)])
def test_what_bitsandbytes_makes_inside_a_step_on_the_cpu_is_counted(name: str, copies: int) -> None:
    """Five or three fp32 copies of a parameter, as the estimate has it; it moves as if nobody looked."""
    kind = getattr(pytest.importorskip("bitsandbytes").optim, name)
    stepped = []
    for followed in (True, False):
        parameter = nn.Parameter(torch.linspace(-1, 1, 64 * 1024).view(64, 1024))
        optimizer, live = kind([parameter]), LiveBytes()
        with live if followed else contextlib.nullcontext():
            for _ in range(2):
                parameter.grad = parameter.detach().sin()
                live.peak = live.bytes
                optimizer.step()
        if followed:
            assert live.peak - live.bytes == pytest.approx(copies * parameter.nbytes, rel=0.02)
        stepped.append(parameter.detach())
    assert torch.equal(*stepped)


@given(
    st.integers(0, 10**12),
    st.dictionaries(st.sampled_from(["parameters", "gradients", "activations", "logits"]), st.integers(0, 10**12)),
)
def test_divided_piles_sum_to_what_is_allocated(allocated: int, known: dict[str, int]) -> None:
    found = divided(allocated, known)
    assert sum(found.values()) == allocated
    assert all(0 < size <= max(known.get(pile, 0), allocated) for pile, size in found.items())
    if sum(known.values()) <= allocated:
        assert {pile: size for pile, size in known.items() if size} == {
            pile: size for pile, size in found.items() if pile != "temporary"
        }


@pytest.mark.parametrize("recomputes", [False, True])
def test_on_a_gpu_the_highest_look_between_two_blocks_is_a_phases_peak(
    recomputes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters are the bytes that the CPU's follower would see at most; only what is done with them is tested here."""
    readings = {"max_memory_allocated": 10_000, "max_memory_reserved": 20_000, "memory_allocated": 9_000}
    for name in readings:
        monkeypatch.setattr(torch.cuda, name, lambda device, name=name: readings[name])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(memory, "kept_bytes", lambda kept, device: {"parameters": 4_000})
    made = model()
    tracker: Any = CudaTracker(torch.device("cuda", 0), vocabulary=frozenset((VOCABULARY,)))
    tracker.layers.follow(dict(enumerate(made[:2])))
    tracker.recomputes = recomputes
    with tracker.measuring("forward"):
        states = made[0](torch.ones(8, WIDTH))
        readings |= {"max_memory_allocated": 50_000}
        states = made[1](states)
        readings |= {"max_memory_allocated": 30_000}
        tracker.enter("backward")
        readings |= {"max_memory_allocated": 70_000}
        states.sum().backward()
        tracker.rest(())
    sample = tracker.take()
    assert sample.phases["forward"].allocated_bytes == 50_000
    assert sample.phases["backward"].allocated_bytes == 70_000
    assert sample.reserved_bytes == 20_000
    forward = sample.phases["forward"].piles
    assert forward["parameters"] == 4_000
    assert forward["activations"] >= 2 * 8 * WIDTH * 4
    assert sum(forward.values()) == 50_000
    assert sum(sample.static.values()) == 9_000
    assert forward["temporary"] > 5_000, "the workspaces of a forward pass"
    backward = sample.phases["backward"].piles
    assert sum(backward.values()) == 70_000
    assert (backward["temporary"] == 9_000 - 4_000) == recomputes, "beyond what is temporary between two steps"
