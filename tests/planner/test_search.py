"""The search against brute force: it is complete in its space, and its bounds are bounds."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.estimate.memory.estimate import needs
from launcher.estimate.speed.estimate import estimate
from launcher.planner import parallel_search
from launcher.planner.candidates import SHOWN, Candidate, Found, effort
from launcher.planner.judge import Preflight
from launcher.planner.layouts import Kind
from launcher.planner.parallel_search import searched
from launcher.planner.question import Question, ask
from launcher.planner.search import Search
from launcher.planner.space import Space
from launcher.preflight import assess, findings, verdict
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.spec.edit import changed_at

QUESTIONS = {
    "dense, short of memory": (
        "model=1b hardware=h100_80g hardware.memory_bytes=12000000000 cluster.nodes=2 cluster.gpus_per_node=2"
        " train.global_batch_size=4 train.micro_batch_size=1 train.sequence_length=2048 parallel.context=1"
        " parallel.tensor=1,2 parallel.pipeline=1,2 parallel.ulysses=1"
    ),
    "pipelines of uneven stages": (
        "model=125m model.num_hidden_layers=7 hardware=h100_80g cluster.nodes=1 cluster.gpus_per_node=4"
        " train.global_batch_size=16 train.sequence_length=1024 backend=megatron parallel.tensor=1,2"
        " train.micro_batch_size=1,4 hardware.memory_bytes=6900000000"
    ),
    "experts": (
        "model=qwen3_30b_a3b model.num_hidden_layers=4 hardware=h100_80g cluster.nodes=1 cluster.gpus_per_node=4"
        " train.global_batch_size=8 train.micro_batch_size=1,2 train.sequence_length=2048"
        " hardware.memory_bytes=24000000000 backend=megatron zero.stage=1,2"
    ),
    "long sequences": (
        "model=llama3_1b model.num_hidden_layers=4 hardware=h100_80g cluster.nodes=1 cluster.gpus_per_node=4"
        " train.global_batch_size=4 train.micro_batch_size=1 train.sequence_length=16384"
        " hardware.memory_bytes=9000000000 parallel.pipeline=1"
    ),
    "one backend on several engines": (
        "model=llama3_8b model.num_hidden_layers=8 task=sft data=chat data.path=chat.jsonl adapter=lora"
        " hardware=h100_80g cluster.nodes=1 cluster.gpus_per_node=8 train.global_batch_size=64"
        " train.micro_batch_size=1,2"
    ),
}


def spaces(question: Question) -> list[Space]:
    errors = Preflight().errors
    return [Space.of(each.spec, each.fixed, question.choices, errors) for each in question.openings]


def every_layout(space: Space) -> Iterator[RunSpec]:
    """All combinations of all steps and savings, valid or not, with nothing pruned."""
    for degrees in space._degrees({}):
        for experts in space._experts(degrees):
            for size in space._micro_batches({**degrees, **experts}):
                settings = {**degrees, **experts, **size}
                for sharding, chunks in itertools.product(space._sharding(settings), space._chunks(settings)):
                    variant = changed_at(space.base, {**settings, **sharding, **chunks})
                    for place in space.savings.places:
                        yield from (changed_at(variant, saving) for saving in space.savings.at(*place))


def wholly_judged(spec: RunSpec) -> tuple[Verdict, float] | None:
    """The verdict and the seconds by the whole estimates; None of an invalid run."""
    if next(findings.broken_rules(spec), None) is not None:
        return None
    parts = assess.parts(spec)
    speed = estimate(spec, **parts)
    assert speed is not None
    return verdict.judge(spec, needs(spec, **parts)), speed.step_seconds


def by_brute_force(question: Question) -> Found:
    found = Found()
    for number, space in enumerate(spaces(question)):
        for order, spec in enumerate(every_layout(space)):
            found.considered += 1
            answer = wholly_judged(spec)
            if answer is not None and answer[0].fits and answer[0].chance:
                candidate = Candidate(answer[1], effort(spec), order, number, spec, answer[0])
                adds = set(assess.unmeasured(spec)) - set(assess.unmeasured(space.base))
                known = found.untried if adds else found.best
                known[Kind.of(spec)] = min(candidate, known.get(Kind.of(spec), candidate))
    return found


def fastest(found: Found) -> list[tuple[float, Kind]]:
    return [(each.expected, Kind.of(each.spec)) for each in found.shown()]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=name, marks=[pytest.mark.thorough] if name.startswith("dense") else [])
        for name, words in QUESTIONS.items()
    ],
)
def test_the_search_finds_what_brute_force_finds(words: str) -> None:
    question = ask(words.split())
    found, best = searched(spaces(question), Preflight()), by_brute_force(question)
    assert best.considered > 400
    assert len(best.shown()) >= SHOWN / 2
    assert [kind for _, kind in fastest(found)] == [kind for _, kind in fastest(best)]
    assert [seconds for seconds, _ in fastest(found)] == pytest.approx([seconds for seconds, _ in fastest(best)])
    engines = {kind.engine for kinds in (best.best, best.untried) for kind, each in kinds.items() if each.is_likely}
    assert {each.spec.backend.name for each in (*found.shown(), *found.others())} == engines
    for each in found.others():
        own = next(other for other in best.others() if other.spec.backend.name == each.spec.backend.name)
        assert each.expected == pytest.approx(own.expected)


def test_a_search_in_two_halves_is_the_same_search(monkeypatch: pytest.MonkeyPatch) -> None:
    question = ask(QUESTIONS["long sequences"].split())
    whole = searched(spaces(question), Preflight())
    monkeypatch.setattr(parallel_search, "_FEW", 0)
    parts = searched(spaces(question), Preflight())
    assert fastest(parts) == fastest(whole)
    assert [each.spec for each in parts.shown()] == [each.spec for each in whole.shown()]


def test_a_first_layout_is_found_before_all_are_bounded() -> None:
    question = ask(QUESTIONS["long sequences"].split())
    listed = spaces(question)
    search = Search(listed, Preflight())
    opened = [(number, each) for number, space in enumerate(listed) for each in space.degrees(Preflight().errors)]
    early = next(found.first for found in search.run(opened) if found.first is not None)
    assert early.verdict.name == "fits"
    assert early.seconds >= searched(listed, Preflight()).shown()[0].seconds


UNEVEN = (
    "model=qwen3_30b_a3b hardware=h100_80g cluster.nodes=2 cluster.gpus_per_node=8 parallel=fsdp parallel.pipeline=4"
    " parallel.virtual_pipeline=1 parallel.schedule=1f1b parallel.first_stage_layers=11 parallel.last_stage_layers=11"
    " parallel.tensor=1 parallel.context=1 parallel.ulysses=1 parallel.expert=1 train.micro_batch_size=4"
    " parallel.replicate=2 train.global_batch_size=1024"
)


@pytest.mark.parametrize("offload", ["none", "cpu"])
def test_what_saves_memory_never_shortens_a_step_of_uneven_stages(offload: str) -> None:
    """The stage whose traffic and optimizer take longest need not be the one whose passes do."""
    words = f"{UNEVEN} zero.stage=3 zero.offload_optimizer={offload} zero.offload_parameters={offload}"
    (space,) = spaces(ask(words.split()))
    judge = Preflight()
    for degrees in space.degrees(judge.errors):
        for variant in space.variants(degrees, judge.errors):
            places = space.savings.places
            seconds = {at: judge.seconds(changed_at(variant, space.savings.at(*at)[0])) or 0.0 for at in places}
            assert len(seconds) > 3
            for mode, loss in seconds:
                assert seconds[mode, loss] >= seconds[max(0, mode - 1), loss]
                assert seconds[mode, loss] >= seconds[mode, max(0, loss - 1)]


def test_a_bound_with_the_traffic_of_the_states_lies_below_the_seconds_of_every_schedule() -> None:
    said = ("virtual_pipeline", "schedule", "stage_layers")
    words = [word for word in f"{UNEVEN} zero.offload_optimizer=none".split() if not any(key in word for key in said)]
    (space,) = spaces(ask(words))
    assert {"1f1b", "interleaved", "zero_bubble", "zbv"} <= set(space.schedules)
    judge, mildest, seen = Preflight(), space.savings.at(0, 0)[0], set[str]()
    for settings in (each for degrees in space.degrees(judge.errors) for each in space.sharded(degrees, judge.errors)):
        variants = list(space.staged(settings, judge.errors))
        chunkings = [(one.parallel.schedule, one.parallel.virtual_pipeline) for one in variants]
        bounds = judge.least_of_schedules(changed_at(variants[0], mildest), chunkings) or ()
        for variant, bound in zip(variants, bounds, strict=True):
            assert bound <= (judge.seconds(changed_at(variant, mildest)) or 0.0)
            seen.add(variant.parallel.schedule)
    assert len(seen) > 3


def test_a_second_process_that_is_killed_leaves_its_half_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Preflight):
        def least_seconds(self, spec: RunSpec, chunkings: Sequence[tuple[str, int]]) -> float | None:
            if os.getpid() != first:
                os._exit(9)
            return super().least_seconds(spec, chunkings)

    first = os.getpid()
    monkeypatch.setattr(parallel_search, "_FEW", 0)
    listed = spaces(ask(QUESTIONS["long sequences"].split()))
    assert fastest(searched(listed, Killed())) == fastest(searched(listed, Preflight()))


@cache
def runs_of_two_kinds() -> list[RunSpec]:
    words = QUESTIONS["long sequences"]
    return [
        ask(f"{words} {layout}".split()).openings[0].spec
        for layout in ("parallel.tensor=1", "parallel.tensor=1 train.seed=1", "parallel.tensor=2")
    ]


def candidates() -> st.SearchStrategy[list[Candidate]]:
    """Layouts of which most tie in all that the search knows of them: seconds, effort, order and opening."""
    few = st.integers(0, 1)
    one = st.builds(
        lambda seconds, effort, order, opening, chance, run: Candidate(
            float(seconds), (effort,), order, opening, runs_of_two_kinds()[run], Verdict(name="fits", chance=chance)
        ),
        *(few, few, few, few),
        st.sampled_from((0.5, 0.75, 1.0)),
        st.integers(0, 2),
    )
    return st.lists(one, min_size=1, max_size=6)


def half(listed: list[Candidate]) -> Found:
    found = Found()
    for each in listed:
        kind = Kind.of(each.spec)
        found.best[kind] = min(each, found.best.get(kind, each))
        found.note(each)
    return found


def merged(first: list[Candidate], second: list[Candidate]) -> Found:
    found = half(first)
    found.merge(half(second))
    return found


@given(candidates(), candidates())
def test_two_halves_make_one_answer_in_either_order_also_where_layouts_tie(
    first: list[Candidate], second: list[Candidate]
) -> None:
    answers = [merged(first, second), merged(second, first), half([*second, *first])]
    shown = [(found.first, found.shown(), found.others(), found.edge) for found in answers]
    assert shown[0] == shown[1] == shown[2]
    assert shown[0][1]
