"""A Slurm job's time limit against the predicted time of its steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.base.errors import ConfigError
from launcher.estimate.speed.calibration import Constant
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight import assess, saving
from launcher.spec import RunSpec
from tests.support.helpers import make_spec
from tests.support.rule_cases import NODE

SPEED = SpeedEstimate(
    step_seconds=6.0,
    tokens=4096,
    gpus=8,
    model_flops=1.0,
    hardware_flops=1.0,
    peak_flops=1.0,
    bubble=0.0,
    terms=(),
    stages=(),
    constant=Constant(value=1.0, low=0.8, high=1.2, rows=10, whose="a framework on a GPU"),
)
"""A step takes 5 to 7.5 s."""


def run(minutes: int | None, steps: int = 1000, margin: int = 60, **cluster: object) -> RunSpec:
    """A Slurm job of some minutes."""
    plain = make_spec(*NODE, "model=tiny")
    changes = {"kind": "slurm", "time_limit_min": minutes, "save_margin_s": margin, "requeues": 3, **cluster}
    limited = replace(plain.cluster, **changes)  # type: ignore[arg-type]
    return replace(plain, cluster=limited, train=replace(plain.train, steps=steps))


def said(spec: RunSpec, speed: SpeedEstimate | None = SPEED) -> list[ConfigError]:
    return list(saving.too_late(spec, speed, saving.predicted(spec, assess.estimated(spec).disk)))


def test_steps_that_even_at_the_fastest_take_longer_than_the_limit_are_warned_of_with_a_limit_that_suffices() -> None:
    [warning] = said(run(30))
    assert (warning.where, warning.way_out) == ("cluster.time_limit_min=30", ("cluster.time_limit_min=130",))
    assert warning.rule == (
        "1,000 steps take an estimated 83 min to 2 h 05 min: the job saves, is requeued and continues from there,"
        " at least 2 times"
    )
    assert said(run(130)) == []
    [ends] = said(run(30, requeues=0))
    assert ends.rule.endswith("with cluster.requeues=0 the job saves and ends; launch resume continues it")


@pytest.mark.parametrize(("minutes", "warned"), [(84, True), (85, False)])
def test_the_fast_end_of_the_band_decides_with_the_margin_to_save_in(minutes: int, warned: bool) -> None:
    assert bool(said(run(minutes))) == warned, "5,000 s of steps and 60 s to save in"


def test_a_step_that_is_longer_than_the_margin_to_save_in_is_warned_of() -> None:
    [warning] = said(run(600, margin=4))
    assert (warning.where, warning.way_out) == ("cluster.save_margin_s=4", ("cluster.save_margin_s=16",))
    assert warning.rule == (
        "the job is told to save 4 s before its time limit, and first finishes its current step, which takes an"
        " estimated 5 s to 8 s"
    )
    assert said(run(600, margin=6)) == []


def test_nothing_is_said_where_the_speed_or_the_limit_is_unknown_or_no_queue_ends_the_job() -> None:
    assert said(run(30), None) == []
    assert said(run(None)) == []
    assert said(run(30, kind="local")) == []
    assert said(replace(run(30), script="train.py")) == []


def test_the_pre_flight_says_it() -> None:
    words = ("cluster=slurm", "cluster.time_limit_min=5", "cluster.save_margin_s=30", "train.steps=100000")
    spec = make_spec("hardware=h100_80g", *words, "cluster.gpus_per_node=8", "model=llama3_8b", "parallel=fsdp")
    warnings = [warning for warning in assess.assess(spec).warnings if warning.path == "cluster.time_limit_min"]
    assert len(warnings) == 1
