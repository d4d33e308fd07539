"""The legend of the formulas of speed holds every name that the terms of the presets use."""

from __future__ import annotations

import pytest

from launcher.base.formula import evaluated, names_in
from launcher.estimate.speed.calibration import UNCALIBRATED
from launcher.estimate.speed.estimate import estimate
from launcher.estimate.speed.terms import symbols
from launcher.preflight.assess import parts
from launcher.spec import edit
from tests.support.helpers import make_spec

MACHINE = ("hardware=h100_80g", "cluster.nodes=2", "cluster.gpus_per_node=8")

CHANGES: tuple[tuple[str, object], ...] = (
    ("checkpointing.mode", "full"),
    ("train.gradient_accumulation", 4),
    ("zero.offload_optimizer", "cpu"),
    ("zero.offload_parameters", "cpu"),
    ("save.every", 100),
    ("optimizer.name", "paged_adamw_8bit"),
)
"""Changes that are made one after the other, so that a composed run is many."""


@pytest.mark.parametrize(
    "words",
    [
        ("parallel=ddp",),
        ("parallel=hsdp", "parallel.replicate=2"),
        ("parallel=zero3", "model=llama3_8b"),
        ("parallel=3d", "model=llama3_8b"),
        ("parallel=ep", "model=mixtral_8x7b"),
        ("parallel=fsdp_cp", "model=7b", "adapter=qlora"),
    ],
    ids=" ".join,
)
def test_each_name_of_a_term_is_in_the_legend_and_its_expression_gives_its_seconds(words: tuple[str, ...]) -> None:
    spec = make_spec(*words, *MACHINE)
    for path, value in (("train.seed", 1), *CHANGES):
        spec = edit.changed(spec, path, value)
        found = estimate(spec, **parts(spec), measured=UNCALIBRATED)
        assert found is not None
        for term in found.terms:
            assert names_in(term.expression) == term.values.keys(), term
            assert names_in(term.expression) <= symbols().keys(), term
            assert evaluated(term.expression, term.values) == pytest.approx(term.seconds), term
            assert term.source
            assert term.what
