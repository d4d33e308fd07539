"""What the pre-flight says about wrong configurations, and whether its ways out are ways out."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from launcher.base.errors import ConfigError
from launcher.preflight import findings
from tests.support.helpers import assert_golden, make_spec
from tests.support.rule_cases import ERRORS, NODE
from tests.support.warning_cases import WARNINGS

type Case = tuple[str, ...]

ALL_ERRORS = [case for cases in ERRORS.values() for case in cases]


def _listed(kind: str, case: Case, found: Iterable[ConfigError]) -> str:
    lines = ["launch " + " ".join(case)]
    for finding in found:
        lines += [f"  {kind} {finding}", *(f"    {way}" for way in finding.way_out)]
    return "\n".join(lines) + "\n"


def _facts(found: Iterable[ConfigError]) -> set[tuple[str, str]]:
    """Path and rule of each finding; numbers are left out, since a change elsewhere may change them."""
    return {(finding.path, re.sub(r"\d+", "#", finding.rule)) for finding in found}


@pytest.mark.parametrize("subject", ERRORS)
def test_every_error_says_where_what_the_rule_and_the_way_out(subject: str) -> None:
    listed = [_listed("error", case, findings.errors(make_spec(*case))) for case in ERRORS[subject]]
    assert len(listed) > 5
    assert_golden(f"rules_{subject}.txt", "\n".join(listed))


def test_every_warning_says_where_what_bites_and_the_way_out() -> None:
    listed = [_listed("warning", case, findings.warnings(make_spec(*case))) for case in WARNINGS]
    assert len(listed) > 20
    assert_golden("rules_warnings.txt", "\n".join(listed))


@pytest.mark.parametrize("case", ALL_ERRORS, ids=" ".join)
def test_every_way_out_ends_its_error(case: Case) -> None:
    found = findings.errors(make_spec(*case))
    assert found
    for error in found:
        assert error.way_out, error
        for way in error.way_out:
            left = findings.errors(make_spec(*case, *way.split()))
            assert not _facts([error]) & _facts(left), f"{way} leaves {error}"


@pytest.mark.parametrize("case", WARNINGS, ids=" ".join)
def test_every_way_out_ends_its_warning(case: Case) -> None:
    found = findings.warnings(make_spec(*case))
    assert found
    assert not findings.errors(make_spec(*case))
    for warning in found:
        assert warning.way_out, warning
        for way in warning.way_out:
            left = findings.warnings(make_spec(*case, *way.split()))
            assert not _facts([warning]) & _facts(left), f"{way} leaves {warning}"


def test_a_way_out_into_another_error_is_not_offered_where_there_is_a_better_one() -> None:
    spec = make_spec(*NODE, "parallel=tp", "parallel.tensor=3", "model=7b", "train.sequence_length=4092")
    world, heads = findings.errors(spec)
    assert "32 attention heads" in heads.rule
    assert "8 GPUs" in world.rule
    assert world.way_out == ("parallel.tensor=2", "parallel.tensor=4")
    assert heads.way_out == ("parallel.tensor=2", "parallel.tensor=4")  # 8 ranks would not divide 4092 tokens.


def test_all_errors_of_a_configuration_come_at_once() -> None:
    spec = make_spec("optimizer.min_lr=1", "cluster.partition=gpu", "train.global_batch_size=3", "tracking.project=a")
    paths = {error.path for error in findings.errors(spec)}
    assert {"optimizer.min_lr", "cluster.partition", "train.global_batch_size", "tracking.project"} <= paths


def test_no_finding_is_listed_twice() -> None:
    for case in ALL_ERRORS:
        found = [(error.path, error.rule) for error in findings.errors(make_spec(*case))]
        assert len(found) == len(set(found)), case


@pytest.mark.parametrize(
    "preset",
    [
        "ddp",
        "fsdp",
        "hsdp",
        "fsdp_tp",
        "fsdp_cp",
        "ulysses",
        "zero0",
        "zero1",
        "zero2",
        "zero3",
        "tp",
        "pp",
        "tp_pp",
        "3d",
        "cp",
    ],
)
def test_every_preset_is_valid_on_two_nodes(preset: str) -> None:
    spec = make_spec(*NODE, "cluster.nodes=2", "model=7b", f"parallel={preset}")
    assert [str(error) for error in findings.errors(spec)] == []


@pytest.mark.parametrize("backend", ["fsdp", "deepspeed", "megatron"])
def test_every_backend_alone_is_valid_on_two_nodes(backend: str) -> None:
    spec = make_spec(*NODE, "cluster.nodes=2", "model=7b", f"backend={backend}")
    assert [str(error) for error in findings.errors(spec)] == []


def test_expert_parallelism_is_valid_for_a_model_with_experts() -> None:
    spec = make_spec(*NODE, "cluster.nodes=2", "model=mixtral_8x7b", "parallel=ep")
    assert [str(error) for error in findings.errors(spec)] == []


def test_stages_that_do_not_divide_the_layers_are_answered_with_sizes_and_degrees_that_divide_the_world() -> None:
    words = (*NODE, "model=llama3_405b", "parallel=3d", "parallel.tensor=8", "parallel.pipeline=16")
    (error,) = findings.errors(make_spec(*words, "cluster.nodes=128", "train.global_batch_size=256"))
    assert error.way_out == ("parallel.first_stage_layers=6", "parallel.pipeline=2")
    assert not findings.errors(
        make_spec(*words, "cluster.nodes=128", "train.global_batch_size=256", "parallel.first_stage_layers=6")
    )


def test_more_replicas_than_gpus_are_refused_with_experts_on_ranks_of_their_own_too() -> None:
    words = ("model=mixtral_8x7b", "parallel=hsdp", "hardware=h100_80g", "cluster.gpus_per_node=1")
    assert findings.errors(make_spec(*words, "parallel.expert=4"))


def test_a_card_without_bf16_is_not_told_to_take_it() -> None:
    words = ("model=llama3_8b", "parallel=fsdp", "precision=fp16", "hardware=v100_32g", "cluster.gpus_per_node=8")
    (warning,) = (each for each in findings.warnings(make_spec(*words)) if "grouped-query heads" in each.rule)
    assert warning.way_out == ("checkpointing=full", "model.num_key_value_heads=32")


def test_no_pipeline_is_told_to_take_fewer_micro_batches_and_then_more() -> None:
    words = (*NODE, "model=7b", "parallel=pp", "parallel.pipeline=4")
    (idle,) = findings.warnings(make_spec(*words))
    assert "each stage is idle 75% of the time" in idle.rule
    assert findings.warnings(make_spec(*words, *idle.way_out)) == ()


def test_the_demo_has_neither_errors_nor_warnings() -> None:
    spec = make_spec("model=tiny", "parallel=fsdp", "precision=bf16")
    assert findings.errors(spec) == ()
    assert [str(warning) for warning in findings.warnings(spec)] == []
