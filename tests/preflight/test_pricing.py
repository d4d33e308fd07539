"""Ways out priced in percent of speed, the cheapest first among those that give up the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.base.units import compared
from launcher.estimate.speed.estimate import estimate
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight import assess, findings, fixes, pricing
from launcher.preflight.changes import GIVES_UP, NEIGHBOURS
from launcher.preflight.fixes import Fix, Search
from launcher.spec import RunSpec
from launcher.spec.change import Neighbour
from tests.support.helpers import composed_once
from tests.support.rule_cases import NODE
from tests.support.speeds import speed_of
from tests.support.starts import STARTS

UNFIT = ("model=7b", "parallel=fsdp", "train.micro_batch_size=8", *NODE)


def speed(spec: RunSpec, crowding: float | None = None) -> SpeedEstimate:
    found = estimate(spec, **assess.parts(spec), crowding=crowding)
    assert found is not None
    return found


def work(spec: RunSpec) -> list[tuple[str, float]]:
    """The parts of a step, also what of them is hidden."""
    return [(term.part, term.seconds) for term in speed(spec).terms]


def way(cost: str, *, gpus: int = 8, group: int = 0, stays: str = "") -> Fix:
    spec = composed_once("parallel=fsdp", "model=7b", *NODE)
    spec = replace(spec, cluster=replace(spec.cluster, nodes=gpus // 8))
    return Fix(overrides=(f"{cost}=1",), spec=spec, peak_bytes=1, excess_bytes=0, cost=cost, stays=stays, group=group)


def ordered(monkeypatch: pytest.MonkeyPatch, ratios: dict[str, float], *ways: Fix) -> list[str]:
    """The costs of ways out as they are ordered where each is so many times as fast as the run."""
    before = speed_of()
    turns = iter(ways)

    def told(spec: RunSpec, **_: object) -> float:
        return spec.tokens_per_step / (ratios[next(turns).cost] * before.tokens_per_second)

    monkeypatch.setattr("launcher.estimate.speed.estimate.step_seconds", told)
    found = pricing.priced(Search(found=ways), ways[0].spec, before, assess.parts)
    return [fix.cost for fix in found.found]


def test_a_way_out_has_the_speed_of_the_run_that_it_makes_over_that_of_the_run_as_asked() -> None:
    found = assess.assess(composed_once(*UNFIT))
    assert found.verdict.name == "does_not_fit"
    assert found.speed is not None
    assert found.speed.step_seconds == speed(found.spec).step_seconds
    assert len(found.fixes) > 1
    for fix in found.fixes:
        full = fix.peak_bytes / (fix.spec.rank_memory_bytes or 1)
        expected = speed(fix.spec, full).tokens_per_second / found.speed.tokens_per_second
        assert fix.speed == pytest.approx(expected), fix.overrides
        assert fix.price.startswith(compared(expected))


def test_ways_out_are_the_fastest_first_where_they_give_up_the_same() -> None:
    seen = 0
    for words in (UNFIT, ("model=70b", "parallel=zero3", "train.micro_batch_size=4", *NODE)):
        found = assess.assess(composed_once(*words))
        for group in range(4):
            speeds = [fix.speed for fix in found.fixes if fix.group == group and fix.spec.gpus <= found.spec.gpus]
            seen += len(speeds)
            assert [round(each or 0, 2) for each in speeds] == sorted((round(e or 0, 2) for e in speeds), reverse=True)
    assert seen > 3


def test_what_gives_up_more_stands_behind_and_more_gpus_stand_last(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = {"slow": 0.5, "fast": 1.1, "adapter": 2.0, "trial": 3.0, "twice": 1.9, "four": 3.9}
    ways = (
        way("slow"),
        way("trial", group=2),
        way("adapter", group=3),
        way("fast"),
        way("four", gpus=32),
        way("twice", gpus=16),
    )
    assert ordered(monkeypatch, ratios, *ways) == ["fast", "slow", "trial", "adapter", "twice", "four"]


def test_speeds_that_are_told_alike_leave_the_order_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = {"first": 0.901, "second": 0.904}
    assert ordered(monkeypatch, ratios, way("first"), way("second")) == ["first", "second"]


def test_words_stay_beside_the_percentage_where_the_cost_is_more_than_time() -> None:
    fix = way("older checkpoints; a second forward pass", stays="older checkpoints")
    assert fix.price == "costs older checkpoints; a second forward pass"
    assert replace(fix, speed=0.76).price == "24% slower; costs older checkpoints"
    assert replace(fix, speed=0.76, stays="").price == "24% slower"


@pytest.mark.parametrize("neighbour", NEIGHBOURS, ids=lambda neighbour: neighbour.__name__)
def test_words_give_way_to_a_percentage_only_where_the_model_of_speed_counts_the_change(neighbour: Neighbour) -> None:
    """What costs no time needs no formula; a percentage of a change that no formula sees would hide its cost."""
    for start in STARTS:
        spec = composed_once(*start)
        if spec.hardware.device != "cuda" or next(findings.broken_rules(spec), None) is not None:
            continue
        for change in neighbour(spec):
            free = change.cost.startswith(("nothing", "almost nothing", "no more"))
            if not change.stays and not free and next(findings.broken_rules(change.spec), None) is None:
                assert work(change.spec) != work(spec), (start, change.overrides)


def test_what_is_given_up_for_memory_is_a_change_that_is_tried_and_whose_words_stay() -> None:
    assert GIVES_UP.keys() <= set(NEIGHBOURS)
    for neighbour in GIVES_UP:
        changes = [change for start in STARTS for change in neighbour(composed_once(*start))]
        assert changes
        assert all(change.stays for change in changes)


def test_where_the_speed_is_unknown_the_words_and_the_order_are_those_of_the_table() -> None:
    spec = composed_once(*UNFIT)
    unknown = replace(spec, hardware=replace(spec.hardware, cores=None))
    known, found = assess.assess(spec), assess.assess(unknown)
    assert found.speed is None
    assert found.speed_unknown is not None
    assert found.fixes == fixes.search(unknown, assess._judge(unknown, assess.estimated(unknown))).found
    assert {fix.overrides for fix in found.fixes} == {fix.overrides for fix in known.fixes}
    assert all(fix.speed is None and fix.price == f"costs {fix.cost}" for fix in found.fixes)
