"""The same seed and global batch give the same losses, however the run is spread over ranks (fp32, CPU)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import cover, training

TOLERANCE = 1e-4
"""Relative, over four steps; the bare frameworks agree within 2e-5 on such a model."""

STEPS = "train.steps=4"
ONE_RANK = {"single": ("parallel=ddp",)}

FSDP = {
    "ddp": ("parallel=ddp",),
    "ddp_full": ("parallel=ddp", "checkpointing=full"),
    "ddp_accumulating": ("parallel=ddp", "train.micro_batch_size=1", "backend.bucket_view=false"),
    "fsdp": ("parallel=fsdp",),
    "fsdp_full": ("parallel=fsdp", "checkpointing=full"),
    "fsdp_full_block": ("parallel=fsdp", "checkpointing=full", "checkpointing.method=block", "checkpointing.layers=1"),
    "fsdp_modules": (
        *("parallel=fsdp", "checkpointing=selective", "checkpointing.modules=[attention,mlp,norm]"),
        "checkpointing.layers=1",
    ),
    "fsdp_selective": ("parallel=fsdp", "checkpointing=selective"),
    "fsdp_accumulating": (
        "parallel=fsdp",
        "train.micro_batch_size=1",
        "checkpointing=full",
        "checkpointing.offload=true",
    ),
    "fsdp_accumulating_unsynchronised": ("parallel=fsdp", "train.micro_batch_size=2", "backend.micro_step_sync=false"),
    "fsdp_zero2": ("parallel=fsdp", "zero=2"),
    "fsdp_offloaded": ("parallel=fsdp", "zero.offload_parameters=cpu"),
    "fsdp_chunked_loss": ("parallel=fsdp", "train.loss=chunked", "train.loss_chunk=50"),
    "tensor": ("parallel=fsdp_tp", "parallel.sequence=false", "train.micro_batch_size=8"),
    "tensor_sequence": ("parallel=fsdp_tp", "train.micro_batch_size=8", "checkpointing=selective"),
    "tensor_sequence_eager": ("parallel=fsdp_tp", "train.micro_batch_size=8", "model.attention=eager"),
}
"""Runs on two ranks, by name."""

HALF = {
    "fp16": ("parallel=fsdp", "precision=fp16"),
    "fp16_ddp": ("parallel=ddp", "precision=fp16", "optimizer.fused=true"),
    "fp16_tensor": ("parallel=fsdp_tp", "precision=fp16", "train.micro_batch_size=8", "optimizer.fused=true"),
    "fp16_pipeline": ("parallel=fsdp_pp", "precision=fp16", "precision.loss_scale=4096", "train.micro_batch_size=2"),
}
FP8 = {
    "fp8": ("parallel=fsdp", "precision=fp8"),
    "fp8_gathered": ("parallel=fsdp", "precision=fp8", "zero.quantized_weights=true", "checkpointing=full"),
    "fp8_ddp": ("parallel=ddp", "precision=fp8", "precision.recipe=rowwise", "checkpointing=full"),
    "fp8_pipeline": (
        *("parallel=fsdp_pp", "precision=fp8", "precision.recipe=rowwise_with_gw_hp"),
        "train.micro_batch_size=2",
    ),
}
EIGHT_BITS = 3e-3
"""Relative: emulated on the CPU; the losses of these runs differ from those in fp32 by 1.6e-3 at most."""

HALF_PRECISION = 1e-3
"""Relative: a number of fp16 has 11 bits; here the losses differ by 2e-4 at most."""

QUICK = {"ddp", "fsdp", "fsdp_zero2", "tensor_sequence", "fp16"}
"""A way of each kind, which `make test` trains, too; the rest of the matrix is in `make test-all`."""

FOUR_RANKS = {
    "hsdp": ("parallel=hsdp", "train.micro_batch_size=2"),
    "fsdp_tensor": ("parallel=fsdp_tp", "train.micro_batch_size=4"),
}


def _trained(folder: Path, runs: Mapping[str, Sequence[str]], *, ranks: int) -> dict[str, list[float]]:
    return training.train_all(folder, {name: (STEPS, *each) for name, each in runs.items()}, ranks=ranks)


def cells(runs: Mapping[str, Sequence[str]]) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in runs]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return _trained(tmp_path_factory.mktemp("one"), ONE_RANK, ranks=1)["single"]


@pytest.fixture(scope="module")
def on_two_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The runs of this session's tests, and the one that those in fp8 are compared with."""
    asked = cover.asked(request)
    runs = {name: words for name, words in (FSDP | HALF | FP8).items() if name in asked or name == "fsdp"}
    return _trained(tmp_path_factory.mktemp("two"), runs, ranks=2)


@pytest.mark.parametrize("name", cells(FSDP))
def test_two_ranks_lose_what_one_process_does(
    name: str, expected: list[float], on_two_ranks: dict[str, list[float]]
) -> None:
    assert expected[-1] < 0.95 * expected[0], "nothing was learnt, so equal losses would say little"
    assert on_two_ranks[name] == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("name", cells(HALF))
def test_two_ranks_in_fp16_lose_what_one_process_does_in_fp32(
    name: str, expected: list[float], on_two_ranks: dict[str, list[float]]
) -> None:
    assert on_two_ranks[name] == pytest.approx(expected, rel=HALF_PRECISION)


@pytest.mark.parametrize("name", cells(FP8))
def test_two_ranks_in_fp8_lose_what_one_process_does_in_fp32(
    name: str, expected: list[float], on_two_ranks: dict[str, list[float]]
) -> None:
    assert on_two_ranks[name] == pytest.approx(expected, rel=EIGHT_BITS)
    assert on_two_ranks[name] != on_two_ranks["fsdp"], "nothing was in fp8"


@pytest.mark.thorough
def test_four_ranks_on_two_axes_lose_what_one_process_does(expected: list[float], tmp_path: Path) -> None:
    found = _trained(tmp_path, FOUR_RANKS, ranks=4)
    assert found.keys() == FOUR_RANKS.keys()
    for name, losses in found.items():
        assert losses == pytest.approx(expected, rel=TOLERANCE), name
