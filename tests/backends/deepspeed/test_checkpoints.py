"""Which setting a checkpoint that DeepSpeed cannot go on from is refused by, and what is offered for it."""

from __future__ import annotations

import pytest

from launcher.backends.deepspeed.checkpoints import unreadable
from tests.support.helpers import make_spec

OPTIMIZER, PARAMETERS = "zero.offload_optimizer", "zero.offload_parameters"
DISK = "zero.nvme_path=/x"
OTHERWISE = ", or export there (save.export=safetensors) and start here with model.weights"
OTHER = "the checkpoint was written with {} and this run has {}, which DeepSpeed does not convert: keep it" + OTHERWISE
FILES = (
    "the checkpoint was written by 2 ranks with zero.sub_group_size=1000000000 and offload of optimizer to NVMe, whose "
    "files no others read: run on 2 ranks with zero.sub_group_size=1000000000" + OTHERWISE
)
STATES, WEIGHTS = "offload of optimizer to NVMe", "offload of parameters to NVMe"


def refusals(before: tuple[str, ...], after: tuple[str, ...]) -> list[tuple[str, object, str, tuple[str, ...]]]:
    words = ("model=tiny", "parallel=zero3", "cluster.gpus_per_node=2", DISK)
    errors = unreadable(make_spec(*words, *before), make_spec(*words, *after))
    return [(error.path, error.found, error.rule, tuple(error.way_out)) for error in errors]


def test_groups_of_lora_plus_stay() -> None:
    lora, plus = ("adapter=lora",), ("adapter=lora", "adapter.lora_plus=8")
    rule = "the checkpoint has parameters grouped without LoRA+, and this run groups them with: keep it" + OTHERWISE
    assert refusals(lora, plus) == [("adapter.lora_plus", 8.0, rule, ("adapter.lora_plus=null",))]
    assert refusals(plus, ("adapter=lora", "adapter.lora_plus=4")) == []


@pytest.mark.parametrize("part", [OPTIMIZER, PARAMETERS])
def test_a_run_on_nvme_goes_on_from_its_own_checkpoint(part: str) -> None:
    assert refusals((f"{part}=nvme",), (f"{part}=nvme",)) == []


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (
            (f"{OPTIMIZER}=nvme",),
            (f"{OPTIMIZER}=nvme", "cluster.gpus_per_node=1"),
            ("cluster.gpus_per_node", 1, FILES, ("cluster.gpus_per_node=2",)),
        ),
        (
            (f"{OPTIMIZER}=nvme",),
            (f"{OPTIMIZER}=nvme", "zero.sub_group_size=5000000"),
            ("zero.sub_group_size", 5_000_000, FILES, ("zero.sub_group_size=1000000000",)),
        ),
        (
            (f"{OPTIMIZER}=nvme",),
            (),
            (OPTIMIZER, "none", OTHER.format(STATES, "no offload to NVMe"), (f"{OPTIMIZER}=nvme",)),
        ),
        (
            (),
            (f"{PARAMETERS}=nvme",),
            (PARAMETERS, "nvme", OTHER.format("no offload to NVMe", WEIGHTS), (f"{PARAMETERS}=none",)),
        ),
    ],
)
def test_swapped_files_are_read_by_a_run_of_the_same_layout_alone(
    before: tuple[str, ...], after: tuple[str, ...], found: tuple[str, object, str, tuple[str, ...]]
) -> None:
    assert refusals(before, after) == [found]


@pytest.mark.parametrize(
    ("before", "after", "path", "way_out"),
    [
        (
            ("parallel=zero1", "parallel.pipeline=2"),
            ("parallel=zero1", "cluster.gpus_per_node=1"),
            "parallel.pipeline",
            "parallel.pipeline=2 cluster.gpus_per_node=2",
        ),
        (
            ("parallel=zero1", "optimizer=lion"),
            ("parallel=zero2", "optimizer=lion", "cluster.gpus_per_node=1"),
            "zero.stage",
            "zero.stage=1 cluster.gpus_per_node=2",
        ),
        (
            ("parallel=zero2", "adapter=lora", "cluster.nodes=2"),
            ("parallel=zero2", "adapter=lora"),
            "cluster.nodes",
            "cluster.nodes=2",
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2"),
            ("parallel=zero2",),
            "parallel.pipeline",
            "parallel.pipeline=2",
        ),
    ],
    ids=["stages", "states", "nodes", "stages and ZeRO"],
)
def test_the_way_out_sets_back_all_that_the_checkpoint_depends_on(
    before: tuple[str, ...], after: tuple[str, ...], path: str, way_out: str
) -> None:
    [(named, _, _, ways)] = refusals(before, after)
    assert (named, ways) == (path, (way_out,))
    assert refusals(before, (*after, *way_out.split())) == []
