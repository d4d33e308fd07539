"""The answer's figures agree with one another."""

from __future__ import annotations

import pytest

from launcher.estimate.speed.calibration import UNCALIBRATED
from launcher.estimate.speed.estimate import estimate
from launcher.preflight.assess import parts
from tests.support.helpers import make_spec
from tests.support.speeds import speed_of


def test_the_stages_are_after_the_constant_as_the_parts_are() -> None:
    words = ("model=llama3_8b", "parallel=tp_pp", "hardware=h200", "cluster.gpus_per_node=8", "parallel.tensor=2")
    spec = make_spec(*words, "parallel.pipeline=4", "train.global_batch_size=32")
    found, plain = estimate(spec, **parts(spec)), estimate(spec, **parts(spec), measured=UNCALIBRATED)
    assert found is not None
    assert plain is not None
    assert found.constant.value != 1
    for one, other in zip(found.stages, plain.stages, strict=True):
        assert one.backward_seconds == pytest.approx(other.backward_seconds / found.constant.value)
        assert one.send_seconds == pytest.approx(other.send_seconds / found.constant.value)


def test_rounding_errors_are_no_part_of_the_document() -> None:
    document = speed_of().as_dict(make_spec())
    assert isinstance(document["parts"], list)
    assert "host" not in {part["part"] for part in document["parts"]}
