"""The ways out of a run that does not fit."""

from __future__ import annotations

import pytest

from launcher.neighbours import NEIGHBOURS, Neighbour
from tests.helpers import make_spec
from tests.rule_cases import NODE

STARTS = (
    ("parallel=ddp", "model=7b", *NODE),
    ("parallel=ddp", "precision=fp32", "train.micro_batch_size=12", *NODE),
    ("parallel=fsdp", "train.micro_batch_size=4", "train.global_batch_size=64", *NODE),
    ("parallel=fsdp", "zero=2", "precision=fp32", "precision.reduce=fp32", *NODE),
    ("parallel=hsdp", "optimizer.foreach=true", *NODE),
    ("parallel=ddp", "backend.bucket_view=false", "optimizer.fused=false", *NODE),
    ("parallel=zero0", "train.sequence_length=256", *NODE),
    ("parallel=zero1", "zero=2", *NODE),
    ("parallel=zero3", "optimizer.fused=true", *NODE),
    ("parallel=tp", "parallel.sequence=false", "model=7b", *NODE),
    ("parallel=pp", "model=7b", "train.micro_batch_size=2", "cluster.nodes=2", *NODE),
    ("parallel=tp", "checkpointing=selective", "checkpointing.modules=[mlp]", "zero=0", *NODE),
    ("parallel=fsdp", "hardware=h100_80g", "cluster.gpus_per_node=2"),
    ("parallel=fsdp",),
)


@pytest.mark.parametrize("neighbour", NEIGHBOURS, ids=lambda neighbour: neighbour.__name__)
def test_pasting_the_overrides_gives_the_run_that_was_judged(neighbour: Neighbour) -> None:
    changes = [(start, change) for start in STARTS for change in neighbour(make_spec(*start))]
    assert changes
    for start, change in changes:
        pasted = make_spec(*start, *change.overrides)
        assert pasted == change.spec, (start, change.overrides)
        assert pasted.hash == change.spec.hash
        assert change.cost


def test_no_neighbour_is_the_run_itself() -> None:
    for start in STARTS:
        spec = make_spec(*start)
        changes = [change for neighbour in NEIGHBOURS for change in neighbour(spec)]
        assert len(changes) > 3
        assert all(change.spec != spec for change in changes)


def test_a_smaller_micro_batch_keeps_the_optimizer_step() -> None:
    spec = make_spec(*NODE, "parallel=fsdp", "train.micro_batch_size=4")
    changes = [c for neighbour in NEIGHBOURS if neighbour.__name__ == "smaller_micro_batch" for c in neighbour(spec)]
    assert [change.overrides for change in changes] == [
        ("train.micro_batch_size=2", "train.global_batch_size=32"),
        ("train.micro_batch_size=1", "train.global_batch_size=32"),
    ]
    assert all(change.spec.global_batch_size == spec.global_batch_size == 32 for change in changes)
