"""The prediction for a moment: its phase, the pipeline stage of the rank, the block at work."""

from __future__ import annotations

import pytest

from launcher.estimate.memory.moments import MOMENTS, PHASES
from launcher.preflight import assess
from launcher.why import comparison
from tests.support.ended_runs import GPUS
from tests.support.helpers import composed_once

EIGHT = ("cluster.gpus_per_node=8", "parallel.tensor=2")


@pytest.mark.parametrize("phase", PHASES)
def test_the_sum_of_a_phase_is_that_of_the_check(phase: str) -> None:
    spec = composed_once(*GPUS)
    assert comparison.predict(spec, 0, phase, None).total_bytes == assess.estimated(spec).phases[phase]  # type: ignore[index]


def test_a_rank_has_the_piles_of_its_own_stage() -> None:
    spec = composed_once("model=llama3_8b", "parallel=tp_pp", "parallel.pipeline=4", "hardware=h100_80g", *EIGHT)
    assert [spec.stage_of(rank) for rank in (0, 1, 2, 7)] == [0, 0, 1, 3]
    first, last = (comparison.predict(spec, rank, "forward", None).piles for rank in (0, 7))
    assert "logits" in last
    assert "logits" not in first
    worst = max(comparison.predict(spec, rank, "forward", None).total_bytes for rank in (0, 2, 4, 6))
    assert comparison.predict(spec, None, "forward", None).total_bytes == worst


def test_the_block_tells_the_moment_of_the_backward_pass() -> None:
    layers = range(8)
    found = {layer: comparison.moments_of("backward", layer, layers) for layer in layers}
    assert found[7] == {"block_backward"}
    assert found[6] == {"next_block_backward"}
    assert found[5] == found[2] == {"next_block_backward", "second_layer_backward"}
    assert found[1] == {"second_layer_backward"}
    assert found[0] == {"first_layer_backward"}
    assert comparison.moments_of("backward", 40, layers) == set().union(*found.values()) | {"block_backward"}
    assert comparison.moments_of("forward", 3, layers) == {"forward"}


def test_an_evaluation_is_a_forward_pass_and_an_unknown_phase_is_any() -> None:
    assert comparison.moments_of("evaluation") == {"forward", "output", "loss"}
    assert comparison.moments_of(None) == comparison.moments_of("of another version") == set(MOMENTS)


def test_the_largest_term_of_a_pile_says_how_it_was_predicted() -> None:
    found = comparison.predict(composed_once(*GPUS), 3, "backward", 17)
    term = found.largest_term("activations")
    assert term is not None
    assert term.bytes <= found.piles["activations"]
    assert found.largest_term("no_such_pile") is None
