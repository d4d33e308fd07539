"""The table of settings that mean something only beside another one."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from launcher.base.package import shipped
from launcher.preflight import findings
from launcher.rules.dependencies import REFUSED, WARNED, Row
from launcher.spec import edit
from launcher.spec.parse import applied
from tests.support.helpers import make_spec
from tests.support.rule_cases import ERRORS
from tests.support.warning_cases import WARNINGS

ROWS = [*REFUSED, *WARNED]


def test_a_default_is_what_the_base_of_the_group_says() -> None:
    for group in ("adapter", "cluster", "model", "optimizer", "train", "zero"):
        base: dict[str, Any] = yaml.safe_load((shipped("conf") / group / "_base.yaml").read_text())
        for key, value in base.items():
            assert edit.default(f"{group}.{key}") == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.path)
def test_what_a_row_needs_makes_its_key_active(row: Row) -> None:
    assert row.active(make_spec(*row.needs.split()))


def test_every_row_has_a_case_that_pins_its_message() -> None:
    cases = {override.partition("=")[0] for case in (*ERRORS["dependencies"], *WARNINGS) for override in case}
    assert len(ROWS) > 40
    missing = [row.path for row in ROWS if not any(f"{key}.".startswith(f"{row.path}.") for key in cases)]
    assert missing == []


def test_ways_round_trip_every_kind_of_value() -> None:
    spec = make_spec()
    for path, value in {
        "parallel.tensor": 4,
        "save.async": True,
        "train.eval_every": None,
        "optimizer.lr": 0.1,
    }.items():
        text = edit.override(path, value)
        changed = applied(spec, text)
        assert changed is not None
        assert edit.value_at(changed, path) == value
        assert make_spec(text) == changed


@pytest.mark.parametrize(
    "text",
    ["parallel=fsdp", "adapter.targets=[a,b]", "+backend.extra.wandb=1", "data=tokens data.path=x", "launch show data"],
)
def test_a_way_out_that_is_no_plain_setting_cannot_be_applied(text: str) -> None:
    assert applied(make_spec(), text) is None


def test_a_way_out_is_read_as_the_type_of_its_key() -> None:
    named = applied(make_spec(), "hardware.card=1")
    assert named is not None
    assert named.hardware.card == "1"


def test_a_way_out_of_several_settings_is_applied_as_a_whole() -> None:
    changed = applied(make_spec(), "train.steps=7 parallel.sequence=true")
    assert changed == make_spec("train.steps=7", "parallel.sequence=true")


def test_a_misspelt_key_of_an_engine_is_answered_with_the_nearest() -> None:
    spec = make_spec("parallel=zero1", "+backend.extra.wall_clock_breakdwn=true")
    (error,) = [error for error in findings.errors(spec) if error.path.startswith("backend.extra")]
    assert error.way_out == ("+backend.extra.wall_clock_breakdown=true",)
