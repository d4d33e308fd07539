"""What the estimate says of schedules that split backward passes is what torch's own tables of their passes say."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from launcher.backends.fsdp import split
from launcher.estimate.rank.stages import chunks_of, cut_of, flow_of, in_flight
from launcher.estimate.speed.result import StageTime
from launcher.estimate.speed.schedule import passes
from launcher.estimate.speed.stage import bubble
from launcher.spec import RunSpec
from tests.support.helpers import make_spec
from tests.support.schedules import scheduled

CLASSES: dict[str, Any] = {
    "zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipe_v": schedules.ScheduleDualPipeV,
}
SIZES = [
    *(("zero_bubble", p, m, v) for p, m in ((2, 1), (2, 6), (3, 5), (4, 4), (4, 16)) for v in (1, 2, 3)),
    *(("zbv", p, m, 2) for p, m in ((2, 1), (2, 2), (2, 3), (4, 1), (4, 4), (4, 7), (4, 16))),
    *(("dualpipe_v", p, m, 2) for p, m in ((2, 4), (3, 7), (4, 8), (4, 24))),
]
UNIT = 1.0  # Seconds of a forward pass of a chunk, of its inputs' part and of its weights' part.


def run(schedule: str, stages: int, micro_batches: int, chunks: int) -> RunSpec:
    """A run of a schedule, with one layer in each chunk."""
    plain = make_spec("model=tiny", "train.micro_batch_size=1", "parallel=fsdp_pp")
    return scheduled(plain, schedule, stages, micro_batches, chunks)


def actions(spec: RunSpec, stage: int) -> Iterator[tuple[str, int, int]]:
    """The passes of torch's table: kind, chunk of the model, micro-batch."""
    parallel = spec.parallel
    itself = SimpleNamespace(
        pp_group_size=parallel.pipeline,
        num_stages=parallel.pipeline * parallel.virtual_pipeline,
        n_local_stages=parallel.virtual_pipeline,
        microbatches_per_round=spec.pipeline_round,
        _n_microbatches=spec.gradient_accumulation,
    )
    for action in CLASSES[parallel.schedule]._calculate_single_rank_operations(itself, stage):
        for one in () if action is None else action.sub_actions or (action,):
            yield one.computation_type.name, one.stage_index, one.microbatch_index


def held(spec: RunSpec, stage: int) -> dict[int, int]:
    """By the chunks' micro-batches that a stage holds, the most of them that wait for their weights' part."""
    live = waiting = 0
    found: dict[int, int] = {}
    for kind, chunk, _ in actions(spec, stage):
        live += (kind == "FORWARD") - (kind in ("FULL_BACKWARD", "BACKWARD_WEIGHT"))
        waiting += (chunk > 0) * ((kind == "BACKWARD_INPUT") - (kind == "BACKWARD_WEIGHT"))
        found[live] = max(found.get(live, 0), waiting)
    return found


def makespan(spec: RunSpec) -> float:
    """Seconds of a step in which every stage runs its table as early as it can."""
    orders = [list(actions(spec, stage)) for stage in range(spec.parallel.pipeline)]
    last, free = spec.parallel.pipeline * spec.parallel.virtual_pipeline - 1, [0.0] * len(orders)
    done: dict[tuple[str, int, int], float] = {}
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                kind, chunk, batch = order[0]
                back = kind in ("FULL_BACKWARD", "BACKWARD_INPUT")
                needs = ("B", chunk + 1, batch) if back and chunk < last else ("F", chunk - (not back), batch)
                if kind != "BACKWARD_WEIGHT" and needs[1] >= 0 and needs not in done:
                    break
                start = max(free[stage], 0.0 if kind == "BACKWARD_WEIGHT" else done.get(needs, 0.0))
                free[stage] = start + UNIT * (2 if kind == "FULL_BACKWARD" else 1)
                done["W" if kind == "BACKWARD_WEIGHT" else "B" if back else "F", chunk, batch] = free[stage]
                del order[0]
    return max(free)


def sent_at_most(spec: RunSpec, stage: int) -> int:
    """The gradients that a stage has sent to other ranks when it last holds most micro-batches."""
    live = sent = found = 0
    own, most = chunks_of(cut_of(spec), stage), max(held(spec, stage))
    for kind, chunk, _ in actions(spec, stage):
        live += (kind == "FORWARD") - (kind in ("FULL_BACKWARD", "BACKWARD_WEIGHT"))
        found = sent if live == most else found
        sent += kind in ("FULL_BACKWARD", "BACKWARD_INPUT") and chunk > 0 and chunk - 1 not in own
    return found


@pytest.mark.parametrize(("schedule", "stages", "micro_batches", "chunks"), SIZES)
def test_as_many_gradients_are_sent_when_memory_is_fullest_as_torchs_tables_say(
    schedule: str, stages: int, micro_batches: int, chunks: int
) -> None:
    """Of folded chunks one may be up to two passes ahead."""
    spec, slack = run(schedule, stages, micro_batches, chunks), 0 if schedule == "zero_bubble" else 2
    for stage in range(stages):
        view = SimpleNamespace(stage=stage, in_flight=in_flight(flow_of(spec), stage))
        rank: Any = SimpleNamespace(spec=spec, view=view)
        assert abs(split.sent_gradients(rank) - sent_at_most(spec, stage)) <= slack


@pytest.mark.parametrize(("schedule", "stages", "micro_batches", "chunks"), SIZES)
def test_a_stage_has_the_chunks_holds_the_micro_batches_and_idles_as_torchs_tables_say(
    schedule: str, stages: int, micro_batches: int, chunks: int
) -> None:
    spec = run(schedule, stages, micro_batches, chunks)
    for stage in range(stages):
        found, flow = held(spec, stage), flow_of(spec)
        most = max(found)
        assert in_flight(flow, stage) == Fraction(most, chunks)
        assert {chunk for _, chunk, _ in actions(spec, stage)} == set(chunks_of(cut_of(spec), stage))
        rank: Any = SimpleNamespace(spec=spec, view=SimpleNamespace(stage=stage, in_flight=in_flight(flow, stage)))
        for fewer, waiting in split.waiting(rank):
            assert found[most - fewer] <= waiting <= found[most - fewer] + 1
    times = [
        StageTime(stage=stage, forward_seconds=chunks * UNIT, backward_seconds=2 * chunks * UNIT, send_seconds=0.0)
        for stage in range(stages)
    ]
    idle = makespan(spec) - 3 * chunks * UNIT * micro_batches
    if schedule == "zbv" or micro_batches >= stages:
        assert bubble(spec, times, times[0]).seconds == pytest.approx(idle)


@pytest.mark.parametrize(("stages", "micro_batches", "chunks"), [(2, 6, 1), (4, 8, 2), (3, 5, 3)])
def test_the_drawn_passes_of_zero_bubble_are_torchs(stages: int, micro_batches: int, chunks: int) -> None:
    spec = run("zero_bubble", stages, micro_batches, chunks)
    kinds = {"forward": "FORWARD", "backward": "BACKWARD_INPUT", "weights": "BACKWARD_WEIGHT"}
    drawn = passes(spec)
    assert drawn is not None
    for stage, order in enumerate(drawn):
        found = [(kinds[one.kind], one.chunk * stages + stage, one.micro_batch) for one in order]
        assert found == list(actions(spec, stage))
