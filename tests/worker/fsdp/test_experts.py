"""Ranks that share the experts of a layer lose what one process does, and save what any other layout reads (CPU)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import transformers

from launcher.preflight import findings
from tests.support.helpers import make_spec
from tests.support.training import FAMILIES_OF_EXPERTS, MOE, SMALL, lines, train_all

TOLERANCE = 2e-5
"""Relative, over six steps."""

ONE_RANK = {name: (*family, "parallel=ddp") for name, family in FAMILIES_OF_EXPERTS.items()}
SHARED = ("parallel=fsdp", "parallel.expert=2")
TWO_RANKS = {
    **{name: (*family, *SHARED) for name, family in FAMILIES_OF_EXPERTS.items()},
    "mixtral-recomputed": (*MOE, *SHARED, "checkpointing=full", "train.micro_batch_size=2"),
}
FOUR_RANKS = {
    "mixtral": (
        *(*MOE, *SHARED, "train.micro_batch_size=1", "backend.micro_step_sync=false"),
        *("save.every=3", "save.export=safetensors"),
    )
}
"""It saves in the middle, and writes its weights at the end."""

type Numbers = dict[str, list[tuple[float, float]]]
"""Of each run and step the loss and the norm of the gradients."""


def trained(folder: Path, runs: Mapping[str, Sequence[str]], ranks: int) -> Numbers:
    train_all(folder, {name: ("train.steps=6", *overrides) for name, overrides in runs.items()}, ranks=ranks)
    return {name: [(line["loss"], line["grad_norm"]) for line in lines(folder / name)] for name in runs}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    return trained(tmp_path_factory.mktemp("one"), ONE_RANK, 1)


def same(found: Sequence[tuple[float, float]], wanted: Sequence[tuple[float, float]]) -> None:
    assert [number for step in found for number in step] == pytest.approx(
        [number for step in wanted for number in step], rel=TOLERANCE
    )


@pytest.mark.thorough
def test_two_ranks_that_share_experts_lose_what_one_process_does(expected: Numbers, tmp_path: Path) -> None:
    found = trained(tmp_path, TWO_RANKS, 2)
    assert len(found) == len(FAMILIES_OF_EXPERTS) + 1
    for name, numbers in found.items():
        assert numbers[0][0] > 1.02 * numbers[-1][0], "nothing was learnt, so equal losses would say little"
        same(numbers, expected[name.partition("-")[0]])


@pytest.mark.thorough
def test_experts_on_two_of_four_ranks_are_saved_for_any_other_layout_and_for_transformers(
    expected: Numbers, tmp_path: Path
) -> None:
    found = trained(tmp_path / "four", FOUR_RANKS, 4)
    for numbers in found.values():
        same(numbers, expected["mixtral"])
    saved = tmp_path / "four" / "mixtral" / "checkpoints" / "step-00000003"
    left = trained(tmp_path / "one", {"left": (*MOE, "parallel=ddp", f"save.load={saved}")}, 1)
    same(left["left"], expected["mixtral"][3:])
    folder = tmp_path / "four" / "mixtral" / "export"
    made, loading = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert made.config.model_type == "mixtral"
    assert not any(loading.values()), loading


@pytest.mark.parametrize(
    ("overrides", "path", "rule", "way_out"),
    [
        (
            ("parallel=ddp",),
            "parallel.expert",
            "expert parallelism combines with FSDP2, not with DDP",
            ("parallel=fsdp", "parallel.expert=1"),
        ),
        (
            ("parallel=hsdp", "parallel.expert=4"),
            "parallel.expert",
            "must divide the 2 ranks of a replica, which exchange tokens",
            ("parallel.expert=2", "parallel.expert=1"),
        ),
        (
            ("cluster.gpus_per_node=10", "train.global_batch_size=10"),
            "parallel.expert",
            "5 ranks share the same 2 experts, whose rows do not divide evenly",
            ("parallel.expert=1",),
        ),
        (
            ("train.compile=true",),
            "train.compile",
            "this version does not compile blocks that exchange tokens, whose number varies at run time",
            ("train.compile=false", "parallel.expert=1"),
        ),
        (
            ("precision=fp16",),
            "precision.compute",
            "with expert parallelism this version trains in bf16 or fp32",
            ("precision=bf16", "parallel.expert=1"),
        ),
        (
            ("parallel.pipeline=2",),
            "parallel.expert",
            "the memory of a pipeline with expert parallelism has not been measured",
            ("parallel.expert=1", "parallel.pipeline=1", "parallel=ep"),
        ),
    ],
)
def test_what_the_exchange_cannot_do_is_refused(
    overrides: tuple[str, ...], path: str, rule: str, way_out: tuple[str, ...]
) -> None:
    spec = make_spec(*SMALL, *MOE, *SHARED, "cluster.gpus_per_node=4", "train.micro_batch_size=1", *overrides)
    errors = {error.path: (error.rule, tuple(error.way_out)) for error in findings.errors(spec)}
    assert errors[path] == (rule, way_out)
