"""The answer of the pre-flight as a document and as text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from launcher.estimate.memory.result import DiskSpace, HostMemory, MemoryEstimate
from launcher.preflight import assess, findings, fixes, saving, verdict
from launcher.preflight.assess import Assessment, as_json, invalid_as_json
from launcher.preflight.fixes import Fix
from launcher.spec import RunSpec, edit
from launcher.views.check.text import as_text, errors_as_text
from tests.support.estimates import GIB, estimate_of
from tests.support.helpers import assert_golden, make_spec
from tests.support.rule_cases import NODE
from tests.support.speeds import speed_of

KEYS = [
    "schema",
    "verdict",
    "spec_hash",
    "warnings",
    "errors",
    "gpu",
    "world",
    "parameters",
    "static_bytes",
    "peak",
    "phases",
    "piles",
    "ranks",
    "host",
    "disk",
    "unmeasured",
    "fixes",
    "speed",
    "data",
    "rehearsed",
]
PEAK = "allocated_bytes needed_bytes reserved_bytes device_bytes low_bytes high_bytes phase stage"

SEVEN = (*NODE, "model=7b", "parallel=fsdp", "train.global_batch_size=64")


def _assessment(spec: RunSpec, estimate: MemoryEstimate, search: fixes.Search | None = None) -> Assessment:
    return Assessment(
        spec=spec,
        errors=(),
        warnings=findings.warnings(spec),
        estimate=estimate,
        verdict=verdict.judge(spec, estimate),
        fixes=search.found if search else (),
        nearest=search.nearest if search else None,
        saves=saving.predicted(spec, estimate.disk),
    )


def _fix(*overrides: str, peak: int, excess: int = 0, **also: Any) -> Fix:
    cost = "a second forward pass, about a third more computation"
    return Fix(overrides=overrides, spec=make_spec(), peak_bytes=peak, excess_bytes=excess, cost=cost, **also)


def _golden_cases() -> dict[str, Assessment]:
    node = make_spec(*SEVEN)
    stages = make_spec(*NODE, "model=7b", "parallel=tp_pp", "train.global_batch_size=16")
    small = estimate_of(low=18 * GIB, needed=20 * GIB, high=22 * GIB)
    large = estimate_of(low=90 * GIB, needed=100 * GIB, high=110 * GIB, stage=1)
    crowded = replace(
        estimate_of(low=100 * GIB, needed=100 * GIB, high=100 * GIB),
        host=HostMemory(bytes_per_node=30 * GIB, capacity_bytes=24 * GIB),
        disk=DiskSpace(checkpoint_bytes=30 * GIB, kept_bytes=90 * GIB, capacity_bytes=80 * GIB),
    )
    priced = _fix("cluster.nodes=2", peak=40 * GIB, speed=1.9, stays="16 GPUs in place of 8")
    found = fixes.Search(found=(_fix("checkpointing=full", peak=30 * GIB, speed=0.76), priced))
    nearest = fixes.Search(nearest=_fix("checkpointing=full", peak=90 * GIB, excess=10 * GIB))
    unknown = edit.changed(node, "hardware.memory_bytes", None)
    paid = edit.changed_at(node, {"cluster.price_per_gpu_hour": 2.5, "train.steps": None, "train.tokens": 10**9})
    return {
        "fits": replace(_assessment(paid, small), speed=speed_of()),
        "tight": _assessment(make_spec(*SEVEN, f"hardware.memory_bytes={22 * GIB}"), small),
        "unknown": replace(_assessment(unknown, small), speed_unknown="the figures of the card are not known"),
        "does_not_fit": replace(_assessment(stages, large, found), speed=speed_of()),
        "nearest": _assessment(node, large, nearest),
        "nothing": _assessment(make_spec("model=7b"), crowded),
        "invalid": assess.assess(make_spec(*NODE, "model=7b", "parallel=tp", "parallel.tensor=3")),
    }


@pytest.mark.parametrize("name", _golden_cases())
def test_the_text_reads_as_pinned(name: str) -> None:
    assert_golden(f"check_{name}.txt", as_text(_golden_cases()[name], 80) + "\n")


@pytest.mark.parametrize("name", _golden_cases())
@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    lines = as_text(_golden_cases()[name], width).splitlines()
    assert len(lines) > 5
    # A way out is one word that is pasted, so it alone may be wider.
    assert [line for line in lines if len(line) > width and "=" not in line.split()[-1]] == []


def test_a_pile_too_small_to_be_shown_has_no_line_and_unknown_host_memory_is_said_to_be() -> None:
    spec = make_spec(*NODE, "model=7b", "parallel=zero3", "zero.offload_optimizer=cpu")
    assessment = assess.assess(spec)
    assert assessment.estimate is not None
    text = " ".join(as_text(assessment).split())
    assert "(capacity unknown: set hardware.host_memory_bytes)" in text
    known = assess.assess(edit.changed(spec, "hardware.host_memory_bytes", 2**41))
    assert "what it has is unknown" not in " ".join(as_text(known).split())
    piles = [replace(pile, bytes=1000) if pile.pile == "logits" else pile for pile in assessment.estimate.piles]
    without = as_text(replace(assessment, estimate=replace(assessment.estimate, piles=tuple(piles))))
    assert "logits" not in without
    assert "activations" in without


def test_a_run_that_is_tight_by_more_than_there_is_has_ways_out() -> None:
    case = (*NODE, "model=70b", "parallel=hsdp", "cluster.nodes=4", "checkpointing=full")
    assessment = assess.assess(make_spec(*case))
    assert (assessment.verdict.name, (assessment.verdict.headroom_bytes or 0) < 0) == ("tight", True)
    assert "what would leave room, cheapest first:" in as_text(assessment)
    after = assess.assess(make_spec(*case, *assessment.fixes[0].overrides))
    assert (after.verdict.headroom_bytes or 0) > 0


def test_the_document_has_exactly_the_keys_of_the_contract() -> None:
    document = as_json(assess.assess(make_spec(*NODE, "model=7b", "parallel=fsdp")))
    assert list(document) == KEYS
    assert json.loads(json.dumps(document)) == document
    assert document["schema"] == 1
    assert document["verdict"] == "fits"
    assert document["gpu"] == {"name": "h100_80g", "memory_bytes": 84556995846}
    assert document["world"] == {
        "gpus": 8,
        "data": 8,
        "tensor": 1,
        "pipeline": 1,
        "context": 1,
        "expert": 1,
        "gradient_accumulation": 1,
    }
    assert list(document["parameters"]) == ["total", "active", "per_rank"]
    assert list(document["peak"]) == PEAK.split()
    assert list(document["phases"]) == ["load", "forward", "backward", "optimizer", "checkpoint_save"]
    assert list(document["host"]) == ["bytes_per_node", "capacity_bytes", "piles"]
    assert list(document["disk"]) == [
        *("checkpoint_bytes", "capacity_bytes", "total_bytes"),
        *("save_seconds", "blocking_seconds", "storage_bandwidth"),
    ]
    assert [list(rank) for rank in document["ranks"]] == [
        ["stage", "static_bytes", "allocated_bytes", "reserved_bytes"]
    ]
    assert document["piles"]
    assert all(list(pile) == ["pile", "bytes", "formula", "source"] for pile in document["piles"])


def test_the_piles_of_the_document_sum_to_the_bytes_of_the_device() -> None:
    document = as_json(assess.assess(make_spec(*NODE, "model=7b", "parallel=ddp")))
    assert document["piles"]
    assert sum(pile["bytes"] for pile in document["piles"]) == document["peak"]["device_bytes"]


def test_fixes_are_listed_with_overrides_peak_and_cost() -> None:
    assessment = _golden_cases()["does_not_fit"]
    assert as_json(assessment)["fixes"] == [
        {
            "overrides": ["checkpointing=full"],
            "peak_bytes": 30 * GIB,
            "speed": 0.76,
            "cost": "a second forward pass, about a third more computation",
        },
        {
            "overrides": ["cluster.nodes=2"],
            "peak_bytes": 40 * GIB,
            "speed": 1.9,
            "cost": "a second forward pass, about a third more computation",
        },
    ]


def test_an_invalid_configuration_has_its_errors_and_null_for_the_rest() -> None:
    assessment = _golden_cases()["invalid"]
    document = as_json(assessment)
    assert set(document) == set(KEYS)
    assert document["verdict"] == "invalid"
    assert [error["path"] for error in document["errors"]] == [error.path for error in assessment.errors]
    assert document["errors"][0]["way_out"] == ["parallel.tensor=2", "parallel.tensor=4"]
    rest = set(KEYS) - {"schema", "verdict", "warnings", "errors"}
    assert {key: document[key] for key in rest} == dict.fromkeys(rest)
    assert invalid_as_json(assessment.errors, assessment.warnings) == document


def test_errors_alone_are_text_for_stderr() -> None:
    text = errors_as_text(findings.errors(make_spec("train.global_batch_size=3", "train.micro_batch_size=2")))
    assert text == (
        "error: train.global_batch_size=3: must be a multiple of micro-batch 2 x data\n"
        "  degree 2 = 4\n"
        "  try  train.global_batch_size=4\n"
        "   or  train.global_batch_size=8"
    )
