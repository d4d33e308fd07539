"""Ranks that share a sequence by ring attention, or by Ulysses, lose what one process does (fp32, CPU)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from launcher.worker import TrainingError
from launcher.worker.fsdp import context_parallel
from tests.support.training import GPT, lines, train_all

TOLERANCE = 2e-5
"""Relative, over four steps."""

STEPS = "train.steps=4"
EVALUATED = ("train.eval_every=2", "train.eval_steps=1")
SAVED = "save.load={folder}/{run}/checkpoints/step-{step:08d}"
LORA = ("adapter=lora", "optimizer.lr=1e-2")
UNGROUPED_GPT = (*GPT, "model.num_key_value_heads=4")

ONE_RANK = {
    "single": ("parallel=ddp",),
    "evaluated": ("parallel=ddp", *EVALUATED),
    "gpt": ("parallel=ddp", *UNGROUPED_GPT),
    "lora": ("parallel=ddp", *LORA),
}

SHARED = ("parallel=fsdp_cp", "train.micro_batch_size=8")
TWO_RANKS = {
    "single": (*SHARED, "checkpointing=selective", "train.loss=chunked", "train.loss_chunk=50"),
    "gpt": ("parallel=ddp", "parallel.context=2", "train.micro_batch_size=4", "checkpointing=full", *UNGROUPED_GPT),
    "lora": (*SHARED, *LORA),
    "single_ulysses": ("parallel=fsdp", "parallel.ulysses=2", "train.micro_batch_size=8", "checkpointing=selective"),
    "evaluated": (*SHARED, *EVALUATED, "save.every=2"),
    "evaluated_left": ("parallel=fsdp", *EVALUATED, "save.every=3", SAVED),
    "evaluated_entered": (*SHARED, *EVALUATED, SAVED),
}
"""By the run of one rank that they are held against; the last two load what those before them saved."""

LOADED = {"evaluated_left": ("evaluated", 2), "evaluated_entered": ("evaluated_left", 3)}

FOUR_RANKS = {
    "context": (*SHARED, "parallel.context=4"),
    "fsdp": ("parallel=fsdp_cp", "train.micro_batch_size=2", "backend.micro_step_sync=false"),
    "ulysses": ("parallel=ddp", "parallel.ulysses=2", "train.micro_batch_size=2"),
    "tensor": ("parallel=fsdp_tp", "parallel.context=2", "train.micro_batch_size=8"),
}

type Numbers = dict[str, list[tuple[float, ...]]]
"""Of each run and step the loss, the norm of the gradients and, every second step, the loss on held-out samples."""


def numbers(folder: Path, runs: Mapping[str, Sequence[str]], ranks: int) -> Numbers:
    wanted: dict[str, list[str]] = {}
    for name, overrides in runs.items():
        run, step = LOADED.get(name, ("", 0))
        wanted[name] = [STEPS, *(text.format(folder=folder, run=run, step=step) for text in overrides)]
    train_all(folder, wanted, ranks=ranks)
    keys = ("loss", "grad_norm", "eval_loss")
    return {name: [tuple(line[key] for key in keys if key in line) for line in lines(folder / name)] for name in runs}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    return numbers(tmp_path_factory.mktemp("one"), ONE_RANK, 1)


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    return numbers(tmp_path_factory.mktemp("two"), TWO_RANKS, 2)


@pytest.mark.parametrize("name", TWO_RANKS)
def test_two_ranks_of_a_sequence_lose_what_one_process_does(
    name: str, expected: Numbers, on_two_ranks: Numbers
) -> None:
    reference = expected[name.partition("_")[0]]
    assert reference[-1][0] < 0.99 * reference[0][0], "nothing was learnt, so equal losses would say little"
    _, step = LOADED.get(name, ("", 0))
    _compare(on_two_ranks[name], reference[step:])


def test_four_ranks_on_two_axes_lose_what_one_process_does(expected: Numbers, tmp_path: Path) -> None:
    found = numbers(tmp_path, FOUR_RANKS, 4)
    assert found.keys() == FOUR_RANKS.keys()
    for each in found.values():
        _compare(each, expected["single"])


def _compare(found: list[tuple[float, ...]], reference: list[tuple[float, ...]]) -> None:
    assert len(found) == len(reference) > 0
    for mine, theirs in zip(found, reference, strict=True):
        assert mine == pytest.approx(theirs, rel=TOLERANCE)


def test_the_kernel_of_the_cpu_stays_away_from_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(TrainingError) as caught:
        context_parallel.install_cpu_kernel()
    assert str(caught.value) == (
        "hardware.device=cpu would put the CPU's kernel into torch's ring attention, but this node has a GPU: "
        "set hardware=auto"
    )
