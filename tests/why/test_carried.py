"""What was measured is carried to the neighbours by one rule: ratios of piles by size, differences of the rest."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launcher.estimate.memory.estimate import needs
from launcher.estimate.memory.moments import MOMENTS, Moment
from launcher.estimate.memory.result import Needs
from launcher.job.memory import OutOfMemory
from launcher.preflight import assess, verdict
from launcher.spec import RunSpec, edit
from launcher.why import comparison, ways_out
from launcher.why.ways_out import AddedBytes, Corrections
from tests.support.ended_runs import GIB, GPUS
from tests.support.helpers import composed_once

SPEC = composed_once(*GPUS)


def needed(spec: RunSpec, rule: Corrections | None) -> Needs:
    return needs(spec, **assess.parts(spec), adjusted=rule)


def at(found: Needs, moment: Moment) -> int:
    return found.moments[list(MOMENTS).index(moment)]


def test_nothing_measured_changes_nothing() -> None:
    assert needed(SPEC, Corrections(ratios={})) == needed(SPEC, None)


@given(st.fractions(min_value=1, max_value=4, max_denominator=16))
def test_a_ratio_of_activations_halves_with_the_micro_batch(ratio: Fraction) -> None:
    rule = Corrections(ratios={"activations": ratio})
    two, one = edit.changed(SPEC, "train.micro_batch_size", 2), SPEC
    plain, grown = ([needed(spec, each).peak.allocated_bytes for spec in (two, one)] for each in (None, rule))
    extra = [after - before for before, after in zip(plain, grown, strict=True)]
    assert abs(extra[0] - 2 * extra[1]) <= 4096, "both have the moment of their peak in the same block"


@given(st.integers(min_value=0, max_value=20 * GIB))
def test_a_difference_in_bytes_stays_whatever_the_micro_batch_is(size: int) -> None:
    rule = Corrections(ratios={}, added=(AddedBytes(pile="temporary", moments=frozenset(("forward",)), bytes=size),))
    for micro in (1, 2):
        spec = edit.changed(SPEC, "train.micro_batch_size", micro)
        before, after = needed(spec, None), needed(spec, rule)
        assert at(after, "idle") == at(before, "idle")
        assert abs(at(after, "forward") - at(before, "forward") - 1.0625 * size) <= 2


def test_what_the_allocator_could_not_use_is_left_behind_by_another_allocator() -> None:
    rule = Corrections(ratios={}, unusable_bytes=9 * GIB)
    other = edit.changed(SPEC, "train.allocator", "expandable")
    assert needed(SPEC, rule).peak.allocated_bytes == needed(SPEC, None).peak.allocated_bytes + 9 * GIB
    assert needed(other, rule) == needed(other, None)


def rule_of(grown: dict[str, int], *, grows: bool = False, **facts: Any) -> Corrections:
    """The rule that a run with these differences gives."""
    usual: dict[str, Any] = {"phase": "backward", "layer": 17, "requested_bytes": 0}
    oom = OutOfMemory(**{"kind": "device", "place": "device", "time": 0.0, "rank": 3, "node": None, **usual, **facts})
    foreseen = comparison.predict(SPEC, 3, oom.phase, oom.layer)
    piles = {pile: foreseen.piles.get(pile, 0) + grown.get(pile, 0) for pile in {*foreseen.piles, *grown}}
    oom = replace(oom, piles=piles, allocated_bytes=sum(piles.values()))
    found = comparison.compare(SPEC, foreseen, oom)
    return ways_out.carried(SPEC, found, oom, foreseen.moments, grows=grows)


def test_piles_by_size_keep_their_ratio_and_all_others_their_bytes() -> None:
    before = comparison.predict(SPEC, 3, "backward", 17).piles["activations"]
    rule = rule_of({"activations": 60 * GIB, "temporary": 3 * GIB})
    assert rule.ratios == {"activations": Fraction(before + 60 * GIB, before)}
    assert [(each.pile, each.bytes) for each in rule.added] == [("temporary", 3 * GIB)]


def test_loading_and_saving_keep_their_bytes_at_their_own_moment() -> None:
    rule = rule_of({"parameters": 90 * GIB}, phase="load", layer=None)
    assert not rule.ratios
    assert rule.added == (AddedBytes(pile="parameters", moments=frozenset(("load",)), bytes=90 * GIB),)


def test_what_grows_from_step_to_step_keeps_its_bytes_in_every_moment_of_training() -> None:
    [added] = rule_of({"activations": 60 * GIB}, grows=True).added
    assert added.bytes == 60 * GIB
    assert "idle" in added.moments
    assert "load" not in added.moments


def test_other_processes_take_their_bytes_from_every_neighbour() -> None:
    [added] = rule_of({}, others_bytes=50 * GIB).added
    assert (added.pile, added.bytes) == ("context", 50 * GIB)
    other = edit.changed(SPEC, "train.micro_batch_size", 2)
    rule = Corrections(ratios={}, added=(added,))
    assert needed(other, rule).outside_bytes == needed(other, None).outside_bytes + 50 * GIB


def test_a_run_that_did_not_fit_never_fits_by_what_was_measured_of_it() -> None:
    rule = rule_of({})
    assert verdict.judge(SPEC, needed(SPEC, rule)).excess_bytes > 0
    assert [each.pile for each in rule.added] == ["temporary"]
