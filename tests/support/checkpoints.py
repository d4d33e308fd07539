"""Samples, memory and held-out losses of real runs, recomputed to compare with what the runs recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher.preflight import assess
from launcher.spec import RunSpec
from launcher.spec.parse import parse
from launcher.worker.data.corpus import Part, Synthetic, split
from launcher.worker.data.order import Order


def exported(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def held_out_loss(model: Any, directory: Path) -> float:
    """The final held-out loss of a run, recomputed from its specification."""
    rows = held_out(directory)
    with torch.no_grad():
        logits = model(input_ids=rows[:, :-1]).logits
    return float(torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten()))


def held_out(directory: Path) -> torch.Tensor:
    """The samples that the worker evaluates at the end of a run, of shape (samples, length + 1)."""
    spec = spec_of(directory)
    whole = Synthetic(spec.model.vocab_size, spec.sequence_length, spec.train.seed)
    _, part = split(whole, spec.data.eval_fraction)
    return torch.stack([
        torch.from_numpy(row) for row in evaluated(part, spec.train.eval_steps, spec.global_batch_size)
    ])


def evaluated(part: Part, steps: int, batch: int) -> Iterator[Any]:
    order = _order(part.size, batch, seed=0, shuffle=False)
    for step in range(1, steps + 1):
        yield from (part.sample(index) for index in order.samples(step)[0])


def _order(size: int, batch: int, *, seed: int, shuffle: bool) -> Order:
    return Order(
        size=size,
        seed=seed,
        shuffle=shuffle,
        global_batch_size=batch,
        micro_batch_size=batch,
        data_rank=0,
        data_ranks=1,
    )


def batches(spec: RunSpec, steps: int) -> Iterator[torch.Tensor]:
    """The global batches of a run's first steps on synthetic data, each of shape (samples, length + 1)."""
    rows = Synthetic(spec.model.vocab_size, spec.sequence_length, spec.train.seed)
    order = _order(rows.size, spec.global_batch_size, seed=spec.train.seed, shuffle=spec.data.shuffle)
    for step in range(1, steps + 1):
        yield torch.stack([torch.from_numpy(rows.sample(index)) for index in order.samples(step)[0]])


def descent(made: Any, spec: RunSpec, held: Any = None, *, steps: int = 4) -> list[float]:
    """Losses of plain gradient descent at rate 0.1 in one process, on a run's own batches.

    Each rank's samples are computed by themselves, as in the run, so that both call the same kernels on the same
    shapes: which of the last bits of a product is rounded away depends on these, and on the processor.
    ``held`` has the weights that are stepped, in their own format, if the model computes in another.
    """
    held = made if held is None else held
    stepped, lost = torch.optim.SGD(held.parameters(), lr=0.1), list[float]()
    for tokens in batches(spec, steps):
        gradients = [torch.zeros_like(weight) for weight in held.parameters()]
        ranks = torch.split(tokens, spec.micro_batch_size)
        for rows in ranks:
            logits = made(input_ids=rows[:, :-1]).logits.float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()) / len(ranks)
            computed = torch.autograd.grad(loss, [*made.parameters()], allow_unused=True)
            for whole, part in zip(gradients, computed, strict=True):
                whole += 0 if part is None else part
            lost.append(loss.item())
        lost[-len(ranks) :] = [sum(lost[-len(ranks) :])]
        for own, gradient in zip(held.parameters(), gradients, strict=True):
            own.grad = gradient
        stepped.step()
        for own, computing in zip(held.parameters(), made.parameters(), strict=True):
            computing.data.copy_(own.data)
    return lost


def spec_of(directory: Path) -> RunSpec:
    return parse(json.loads((directory / "spec.json").read_text()))


def assert_memory_is_predicted(directory: Path) -> None:
    """Assert that each rank's peaks, in the passes and in the optimizer step, are within 2% of the prediction."""
    predicted = assess.estimated(spec_of(directory))
    for rank in json.loads((directory / "memory.json").read_text())["ranks"]:
        for phase in ("forward", "backward", "optimizer"):
            assert predicted.phases[phase] == pytest.approx(rank["phases"][phase], rel=0.02), phase
