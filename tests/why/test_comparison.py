"""The pile that explains the end of memory: what deviates most from the prediction, or what was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from launcher.job.memory import MemoryRecord, OutOfMemory, PhaseMemory
from launcher.why import comparison
from launcher.why.comparison import Comparison, compare, measured_piles
from tests.support.ended_runs import GIB, GPUS
from tests.support.helpers import composed_once

SPEC = composed_once(*GPUS)
OOM = OutOfMemory(
    kind="device",
    place="device",
    time=0.0,
    rank=3,
    node="gpu07",
    phase="backward",
    layer=17,
    operation="aten.mm.default",
    requested_bytes=GIB // 8,
    capacity_bytes=SPEC.rank_memory_bytes,
)


def compared(*, grown: dict[str, int] | None = None, words: tuple[str, ...] = (), **facts: Any) -> Comparison:
    """A comparison of a run whose piles are as predicted but for these."""
    spec, oom = composed_once(*GPUS, *words), replace(OOM, **facts)
    foreseen = comparison.predict(spec, oom.rank, oom.phase, oom.layer)
    piles = {pile: foreseen.piles.get(pile, 0) for pile in {*foreseen.piles, *(grown or {})}}
    piles = {pile: max(0, size + (grown or {}).get(pile, 0)) for pile, size in piles.items()}
    return compare(spec, foreseen, replace(oom, piles=piles, allocated_bytes=sum(piles.values())))


@pytest.mark.parametrize("pile", ["activations", "gradients", "gather_buffers", "optimizer_states", "temporary"])
def test_the_pile_that_grew_most_explains_the_end(pile: str) -> None:
    found = compared(grown={pile: 30 * GIB, "parameters": 2 * GIB})
    assert (found.kind, found.pile) == ("grown", pile)
    assert [row.pile for row in found.grown] == [pile, "parameters"]
    assert found.grown[0].grown_bytes == 30 * GIB
    assert found.rest == "the rest is within 5% of the total"


def test_what_agrees_is_said_to_be_within_two_percent() -> None:
    assert compared(grown={"activations": 30 * GIB}).rest == "the rest is within 2% of the total"
    early = compared(grown={"activations": 30 * GIB, "gradients": -3 * GIB})
    assert early.rest == "no other pile is above its prediction by more than 2% of the total"


def test_other_processes_and_what_the_allocator_could_not_use_compete_with_the_piles() -> None:
    found = compared(grown={"activations": 2 * GIB}, others_bytes=30 * GIB)
    assert (found.kind, found.pile) == ("other_processes", "other_processes")
    found = compared(grown={"activations": 2 * GIB}, reserved_bytes=75 * GIB)
    assert (found.kind, found.pile) == ("fragmentation", "fragmentation")
    found = compared(grown={"activations": 30 * GIB}, others_bytes=2 * GIB, reserved_bytes=75 * GIB)
    assert (found.kind, found.pile) == ("grown", "activations")


def test_a_prediction_above_the_capacity_came_true() -> None:
    found = compared(capacity_bytes=30 * GIB, operation="c10d._allgather_base_.default")
    assert (found.kind, found.pile) == ("as_predicted", "gather_buffers")
    found = compared(grown={"activations": 4 * GIB}, capacity_bytes=30 * GIB)
    assert found.kind == "as_predicted", "it would have ended even without what grew"
    found = compared(grown={"activations": 24 * GIB}, capacity_bytes=30 * GIB)
    assert (found.kind, found.pile) == ("grown", "activations"), "that was the larger part"


def test_where_all_agrees_and_was_to_fit_it_is_the_estimate() -> None:
    assert compared().kind == "estimate"


@pytest.mark.parametrize(
    ("facts", "pile"),
    [
        ({"phase": "load", "layer": None}, "parameters"),
        ({"phase": "forward", "layer": 3}, "activations"),
        ({"phase": "forward", "layer": None}, "logits"),
        ({"phase": "evaluation", "layer": None}, "logits"),
        ({"phase": "optimizer", "layer": None}, "temporary"),
        ({"phase": "backward", "operation": "resize_"}, "gather_buffers"),
        ({"phase": "backward", "operation": "fsdp.chunk_cat.default"}, "reduce_buffers"),
        ({"phase": "checkpoint_save", "layer": None}, "temporary"),
    ],
)
def test_a_request_belongs_to_the_pile_of_its_place(facts: dict[str, Any], pile: str) -> None:
    assert compared(**facts).asked == pile


def test_tensors_of_the_loss_that_nobody_saved_are_logits_as_they_were_on_an_h100() -> None:
    """Before the third copy of the logits was asked for, the two others had no name there."""
    at: dict[str, Any] = {"phase": "forward", "layer": None, "operation": None}
    whole = comparison.predict(SPEC, OOM.rank, "forward", None).piles["logits"]
    asked = whole // 5 * 2
    found = compared(**at, grown={"logits": -whole, "temporary": whole - asked}, requested_bytes=asked)
    assert [row.pile for row in found.grown] == []
    assert {row.pile: row.measured_bytes for row in found.rows}["logits"] == whole
    more = compared(**at, grown={"temporary": whole}, requested_bytes=asked)
    assert [row.pile for row in more.grown] == ["temporary", "logits"]


def test_the_first_step_of_an_optimizer_asks_for_its_states() -> None:
    found = compared(phase="optimizer", layer=None, grown={"optimizer_states": -7 * GIB}, capacity_bytes=10 * GIB)
    assert (found.kind, found.pile) == ("as_predicted", "optimizer_states")


def test_in_a_block_what_lacks_to_the_prediction_was_asked_for() -> None:
    assert compared(grown={"gather_buffers": -GIB}, operation="aten.split.Tensor").asked == "gather_buffers"
    assert compared(grown={"gradients": -GIB}, operation="aten.split.Tensor").asked == "gradients"


def test_without_piles_of_that_moment_the_last_record_stands_in_with_the_tokens_since() -> None:
    phases = {"backward": PhaseMemory(allocated_bytes=6, piles={"parameters": 2, "activations": 4})}
    last = MemoryRecord(step=1, rank=3, node="n", time=0.0, tokens=100, phases=phases)
    oom = replace(OOM, last=last, tokens=150, allocated_bytes=11)
    assert measured_piles(oom) == {"parameters": 2, "activations": 6, "logits": 0, "temporary": 3}
    assert measured_piles(replace(oom, phase="forward")) == {}
    assert measured_piles(replace(oom, piles={"parameters": 5})) == {"parameters": 5}


def test_without_any_piles_nothing_is_said_to_have_been_measured() -> None:
    foreseen = comparison.predict(SPEC, 3, "backward", 17)
    found = compare(SPEC, foreseen, OOM)
    assert {row.measured_bytes for row in found.rows} == {None}
    assert (found.kind, found.grown) == ("estimate", ())
