"""The order of passes of a schedule, and the step simulated from it, against the closed forms of the papers."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from launcher.estimate.rank.stages import flow_of, in_flight
from launcher.estimate.speed import schedule
from launcher.estimate.speed.result import StageTime
from launcher.estimate.speed.stage import bubble
from launcher.spec import RunSpec
from tests.support.helpers import make_spec
from tests.support.schedules import scheduled

FORWARD, BACKWARD = 1.0, 2.0


@cache
def _plain() -> RunSpec:
    return make_spec("model=tiny", "train.micro_batch_size=1")


@cache
def run(name: str, stages: int, micro_batches: int, chunks: int = 1) -> RunSpec:
    """A run of a schedule, with as many layers on each stage."""
    return scheduled(_plain(), name, stages, micro_batches, chunks)


def equal(stages: int, send: float = 0.0) -> list[StageTime]:
    """Stages that take the same time."""
    return [
        StageTime(stage=stage, forward_seconds=FORWARD, backward_seconds=BACKWARD, send_seconds=send)
        for stage in range(stages)
    ]


def simulated(spec: RunSpec, stages: list[StageTime] | None = None, *, overlaps: bool = False) -> schedule.Timeline:
    """The step of a run, of equal stages where none are given."""
    times = schedule.simulated(spec, stages or equal(spec.parallel.pipeline), overlaps=overlaps)
    assert times is not None
    return times


def pipelines() -> st.SearchStrategy[RunSpec]:
    """Runs of every schedule that has an order, small enough to simulate at once."""
    plain = st.builds(run, st.sampled_from(["1f1b", "gpipe"]), st.integers(2, 5), st.integers(1, 9))
    interleaved = st.builds(
        lambda stages, rounds, chunks: run("interleaved", stages, stages * rounds, chunks),
        st.integers(2, 4), st.integers(1, 3), st.integers(2, 3),
    )  # fmt: skip
    chunked = st.builds(
        lambda stages, rounds, chunks: run("zero_bubble", stages, stages * rounds, chunks),
        st.integers(2, 4), st.integers(1, 3), st.integers(2, 3),
    )  # fmt: skip
    return plain | interleaved | chunked


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (4, 2), (4, 8), (8, 64)])
def test_equal_stages_take_m_plus_p_minus_1_passes_arxiv_2104_04473(name: str, stages: int, micro_batches: int) -> None:
    took = schedule.makespan(simulated(run(name, stages, micro_batches)))
    assert took == (micro_batches + stages - 1) * (FORWARD + BACKWARD)


@pytest.mark.parametrize(("stages", "micro_batches", "chunks"), [(2, 2, 2), (4, 8, 2), (4, 8, 4), (8, 32, 3)])
def test_interleaving_divides_the_bubble_by_the_chunks_arxiv_2104_04473(
    stages: int, micro_batches: int, chunks: int
) -> None:
    took = schedule.makespan(simulated(run("interleaved", stages, micro_batches, chunks)))
    assert took == pytest.approx((micro_batches + (stages - 1) / chunks) * (FORWARD + BACKWARD))


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 24)])
def test_zero_bubble_idles_p_minus_1_times_f_plus_b_minus_w_arxiv_2401_10241(stages: int, micro_batches: int) -> None:
    took = schedule.makespan(simulated(run("zero_bubble", stages, micro_batches)))
    thirds = BACKWARD / 2  # Forward pass, inputs' and weights' backward pass take 1 each.
    assert took == pytest.approx(micro_batches * 3 + (stages - 1) * (FORWARD + thirds - thirds))


def test_four_stages_of_1f1b_run_in_the_order_of_figure_4_of_arxiv_2104_04473() -> None:
    orders = schedule.passes(run("1f1b", 4, 8))
    assert orders is not None
    said = ["".join(f"{one.kind[0]}{one.micro_batch + 1}" for one in order) for order in orders]
    assert said[0] == "f1f2f3f4b1f5b2f6b3f7b4f8b5b6b7b8"
    assert said[3] == "f1b1f2b2f3b3f4b4f5b5f6b6f7b7f8b8"


def test_folded_stages_are_not_drawn() -> None:
    assert schedule.passes(run("zbv", 4, 8, 2)) is None


@given(pipelines())
def test_every_micro_batch_passes_every_chunk_once_each_way(spec: RunSpec) -> None:
    kinds = ["forward", "backward", *(["weights"] if spec.parallel.schedule == "zero_bubble" else [])]
    chunks = spec.parallel.virtual_pipeline
    all_of_them = [(k, m, c) for k in kinds for m in range(spec.gradient_accumulation) for c in range(chunks)]
    orders = schedule.passes(spec)
    assert orders is not None
    assert len(orders) == spec.parallel.pipeline
    for order in orders:
        assert sorted(order) == sorted(all_of_them)


@given(pipelines())
def test_a_stage_holds_as_many_micro_batches_as_the_memory_model_says(spec: RunSpec) -> None:
    freed_by = "weights" if spec.parallel.schedule == "zero_bubble" else "backward"
    for stage, order in enumerate(schedule.passes(spec) or ()):
        held, most = 0, 0
        for one in order:
            held += (one.kind == "forward") - (one.kind == freed_by)
            most = max(most, held)
        assert Fraction(most, spec.parallel.virtual_pipeline) == in_flight(flow_of(spec), stage)


@given(pipelines(), st.booleans(), st.floats(0, 1), st.integers(0, 4))
def test_no_pass_starts_before_its_input_has_arrived_or_while_its_stage_is_busy(
    spec: RunSpec, overlaps: bool, send: float, slow: int
) -> None:
    stages = equal(spec.parallel.pipeline, send)
    slow %= len(stages)
    stages[slow] = StageTime(stage=slow, forward_seconds=1.5, backward_seconds=2.5, send_seconds=send)
    times = simulated(spec, stages, overlaps=overlaps)
    orders = schedule.passes(spec)
    assert [tuple(one.what for one in row) for row in times] == list(orders or ())
    at = {(stage, one.what): one for stage, row in enumerate(times) for one in row}
    for row in times:
        assert all(after.start >= (before.end if overlaps else before.sent) for before, after in pairwise(row))
    for (stage, what), one in at.items():
        if what.kind == "forward" and stage:
            assert one.start >= at[stage - 1, what].sent
        if what.kind == "backward" and stage < len(stages) - 1:
            assert one.start >= at[stage + 1, what].sent
    assert schedule.makespan(times) * (1 + 1e-9) >= spec.gradient_accumulation * 4.0


@given(pipelines(), st.integers(0, 4), st.floats(1, 1.5))
def test_the_closed_form_is_the_simulated_step_where_the_last_stage_is_slowest_and_never_below_it(
    spec: RunSpec, slow: int, factor: float
) -> None:
    count = spec.parallel.pipeline
    slow %= count
    assume(spec.gradient_accumulation >= count)
    stages = equal(count)
    stages[slow] = replace(stages[slow], forward_seconds=factor * FORWARD, backward_seconds=factor * BACKWARD)
    closed = spec.gradient_accumulation * factor * (FORWARD + BACKWARD) + bubble(spec, stages, stages[slow]).seconds
    exact = schedule.makespan(simulated(spec, stages))
    if slow == count - 1 or spec.parallel.schedule == "gpipe":
        assert closed == pytest.approx(exact)
    assert closed > exact * (1 - 1e-9)


def test_gpipe_waits_for_hidden_messages_on_the_way_there_and_back_only_and_1f1b_in_every_round() -> None:
    stages, plain = equal(4, send=0.25), 19 * (FORWARD + BACKWARD)
    assert schedule.makespan(simulated(run("gpipe", 4, 16), stages, overlaps=True)) == plain + 2 * 3 * 0.25
    assert schedule.makespan(simulated(run("gpipe", 4, 16), stages)) == plain + 2 * 3 * 0.25 + 2 * 15 * 0.25
    assert schedule.makespan(simulated(run("1f1b", 4, 16), stages, overlaps=True)) == 64.0
