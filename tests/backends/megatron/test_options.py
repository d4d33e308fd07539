"""``backend.extra``: arguments that change memory uncounted are refused, by their own reason, and others handed on."""

from __future__ import annotations

import pytest

from launcher.backends.megatron import extra, options
from launcher.backends.megatron.implementation import COUNTED
from launcher.preflight import findings
from launcher.spec import RunSpec
from launcher.spec.parse import known_keys
from tests.support.helpers import make_spec

BASE = ("model=tiny", "hardware=h100_80g", "cluster.gpus_per_node=8", "parallel=tp", "data=synthetic")


def spec_of(*overrides: str) -> RunSpec:
    return make_spec(*BASE, *overrides)


@pytest.mark.parametrize(
    ("argument", "rule", "way"),
    [
        ("fp32-residual-connection=true", "it takes buffers that are not counted", None),
        ("cuda_graph_impl=local", "CUDA graphs keep pools and copies of their inputs that are not counted", None),
        ("activation-offload-fraction=0.5", "more activations would stay on the GPU than are counted", None),
        ("distribute-saved-activations=true", "other tensors would wait", "parallel.sequence=true"),
        ("rampup-batch-size=[8,8,100]", "megatron-core 0.19.2 ignores it", None),
        ("moe-expert-capacity-factor=2.0", "experts would take more tokens than an even share", None),
        ("use-torch-fsdp2=true", "torch's FSDP2 would shard", "parallel=fsdp"),
        ("spec=[mine,layers]", "the model would be another than the one that is counted", None),
    ],
)
def test_what_changes_memory_uncounted_is_refused_with_its_reason(argument: str, rule: str, way: str | None) -> None:
    (error,) = findings.errors(spec_of(f"+backend.extra.{argument}"))
    key = argument.partition("=")[0]
    assert error.path == f"backend.extra.{key}"
    assert error.rule.startswith(rule)
    without = f"+backend.extra.{key}=null"
    assert error.way_out == (*([f"{way} {without}"] if way else []), without)


@pytest.mark.parametrize(
    "argument",
    [
        "moe-expert-capacity-factor=1.0",
        "moe-token-dispatcher-type=alltoall",
        "cuda-graph-impl=none",
        "cuda-graph-impl=null",
        "attention-dropout=0.1",
        "log-throughput=true",
    ],
)
def test_values_that_change_nothing_are_handed_on(argument: str) -> None:
    assert not findings.errors(spec_of(f"+backend.extra.{argument}"))


def test_the_dropout_of_scores_in_full_is_the_models() -> None:
    eager = ("model.attention=eager", "+backend.extra.attention-dropout=0.1")
    assert [error.path for error in findings.errors(spec_of(*eager))] == ["backend.extra.attention-dropout"]
    assert not findings.errors(spec_of(*eager, "model.dropout=0.1"))


def test_no_argument_has_two_classes_and_all_settings_exist() -> None:
    names = [name for table in (options.NO_MEMORY, options.REFUSED) for row in table.values() for name in row.split()]
    assert len(names) == len(set(names)) > 300
    assert not set(names) & (set(extra.SETTINGS) | COUNTED)
    assert set(extra.SETTINGS.values()) <= known_keys()
    assert {*options.INSTEAD, *options.LET_THROUGH} <= {
        name for row in options.REFUSED.values() for name in row.split()
    }
