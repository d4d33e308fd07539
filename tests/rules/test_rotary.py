"""Scaled rotary positions: what a scaling needs, and what nobody would read."""

from __future__ import annotations

import pytest

from launcher.preflight import findings
from tests.support.helpers import make_spec

SCALINGS = "supported scalings of rotary positions are"
PATH = "model.rope_parameters"


@pytest.mark.parametrize(
    ("given", "path", "rule", "ways"),
    [
        ("{rope_type:nonsense}", ".rope_type", f"{SCALINGS} default, linear, llama3, yarn", None),
        ("{rope_type:linar,factor:2.0}", ".rope_type", SCALINGS, [f"{PATH}.rope_type=linear"]),
        ("{rope_type:linear}", ".factor", "rope_type=linear requires it, as a number", None),
        ("{rope_type:yarn,factor:big}", ".factor", "rope_type=yarn requires it, as a number", None),
        ("{rope_theta:5}", ".rope_theta", "set it as model.rope_theta", ["model.rope_theta=5"]),
        ("{rope_type:linear,factor:2.0,fctor:3}", ".fctor", "rope_type=linear does not use it", None),
        ("{partial_rotary_factor:0.5}", ".partial_rotary_factor", "transformers' class rotates whole", ["parallel=tp"]),
    ],
)  # fmt: skip
def test_a_scaling_that_no_class_computes_is_refused(given: str, path: str, rule: str, ways: list[str] | None) -> None:
    [error] = findings.errors(make_spec("model=tiny", f"{PATH}={given}"))
    assert error.path == PATH + path
    assert error.rule.startswith(rule)
    assert ways is None or set(ways) <= {*error.way_out}


@pytest.mark.parametrize(
    "given",
    [
        "{rope_type:yarn,factor:4.0,beta_fast:32,original_max_position_embeddings:64}",
        "{rope_type:llama3,factor:8.0,low_freq_factor:1.0,high_freq_factor:4.0,original_max_position_embeddings:64}",
        "{rope_type:default,partial_rotary_factor:1.0}",
    ],
)
def test_a_whole_scaling_is_taken(given: str) -> None:
    assert not findings.errors(make_spec("model=tiny", f"{PATH}={given}"))


def test_a_window_over_ranks_of_megatron_needs_another_exchange() -> None:
    words = ("model=7b", "parallel=cp", "model.sliding_window=1024", "hardware=h100_80g", "cluster.gpus_per_node=8")
    [error] = findings.errors(make_spec(*words))
    assert error.path == "parallel.context"
    assert error.way_out == ("parallel.context=1", "+backend.extra.cp-comm-type=a2a")
    assert not findings.errors(make_spec(*words, "+backend.extra.cp-comm-type=a2a"))
