"""The document of ``launch plan --json``."""

from __future__ import annotations

import json
import shlex

from launcher.planner import document
from tests.support.layouts import MEGATRON, WORDS, layout, plan_of

FIRST = layout(*MEGATRON, "train.micro_batch_size=2")


def test_a_layout_has_what_it_needs_its_speed_as_check_has_it_and_the_line_to_paste() -> None:
    document_ = json.loads(json.dumps(document.as_dict(plan_of(FIRST))))
    (found,) = document_["plan"]["layouts"]
    assert FIRST.speed is not None
    assert found["speed"] == json.loads(json.dumps(FIRST.speed.as_dict(FIRST.spec)))
    assert (found["used_bytes"], found["capacity_bytes"]) == (FIRST.verdict.used_bytes, FIRST.verdict.capacity_bytes)
    assert found["overrides"] == list(FIRST.overrides)
    assert shlex.split(found["line"]) == ["launch", *WORDS, *FIRST.overrides]


def test_the_counts_of_all_layouts_are_there() -> None:
    found = document.as_dict(plan_of(FIRST))["plan"]
    assert [found[name] for name in ("considered", "invalid", "unfit", "slower")] == [1000, 200, 100, 700]


def test_what_is_not_there_is_null_and_what_was_assumed_has_its_reason() -> None:
    found = document.as_dict(plan_of(tight=FIRST))["plan"]
    assert (found["layouts"], found["nearest"]) == ([], None)
    assert found["tight"]["overrides"] == list(FIRST.overrides)
    assert found["assumptions"] == [{"override": "train.sequence_length=4096", "why": "it is not said"}]
