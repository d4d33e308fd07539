"""What loading a checkpoint takes, beside ``memory.json`` of runs that went on from one on CPU ranks."""

from __future__ import annotations

import json
from operator import attrgetter
from pathlib import Path

import pytest

from launcher.preflight import assess
from launcher.rundir import contents, results
from launcher.spec import edit
from tests.support.helpers import make_spec
from tests.support.recorded_runs import recorded

WORDS = ("hardware=cpu", "model=tiny", "train.sequence_length=32", "train.micro_batch_size=1")
MEASURED = {
    ("parallel=ddp", "precision=fp32", "cluster.gpus_per_node=1"): 50628856,
    ("parallel=ddp", "precision=fp32"): 62762232,
    ("parallel=fsdp", "precision=fp32"): 25314560,
    ("parallel=fsdp", "precision=bf16"): 25314560,
    ("parallel=fsdp", "precision=fp32", "optimizer=sgd"): 18416776,
    ("parallel=fsdp", "precision=fp32", "adapter=lora"): 8500728,
    ("parallel=zero0", "precision=fp32"): 48533788,
    ("parallel=zero0", "precision=bf16"): 62762232,
    ("parallel=zero1", "precision=fp32"): 36400264,
    ("parallel=zero1", "precision=bf16"): 30333576,
    ("parallel=zero2", "precision=fp32"): 36400264,
    ("parallel=zero3", "precision=fp32"): 2036400265,
    ("parallel=zero3", "precision=bf16"): 1030333577,
}
"""``load`` of the worst rank of two, but for the first; torch 2.15, DeepSpeed 0.19.8, 2026-11-23, in bytes."""

MEGATRON = {("parallel=tp", "precision=fp32"): 53796728, ("parallel=tp", "precision=bf16", "zero=1"): 55423348}


def load(*words: str, restored: bool = True) -> int:
    spec = make_spec(*WORDS, "cluster.gpus_per_node=2", *words)
    return assess.estimated(assess.going_on(spec) if restored else spec).phases["load"]


@pytest.mark.parametrize("words", MEASURED, ids=" ".join)
def test_the_load_of_a_checkpoint_is_within_a_hundredth_of_what_was_measured(words: tuple[str, ...]) -> None:
    assert load(*words) == pytest.approx(MEASURED[words], rel=0.01)
    assert load(*words) >= load(*words, restored=False)


@pytest.mark.parametrize("words", MEGATRON, ids=" ".join)
def test_that_of_megatron_is_within_an_eighth(words: tuple[str, ...]) -> None:
    assert load(*words) == pytest.approx(MEGATRON[words], rel=0.125)


@pytest.mark.parametrize(
    ("words", "measured"),
    [
        ("cluster.gpus_per_node=1 precision=bf16", (30455364, 76003080, 76385824, 59223564)),
        ("cluster.gpus_per_node=2 precision=fp32", (36400192, 73367768, 74290160, 42072028)),
        ("cluster.gpus_per_node=2 precision=bf16 zero=0", (30455364, 76003080, 76385824, 59043340)),
    ],
)
def test_phases_of_megatron_on_the_cpu_are_within_twelve_thousandths(words: str, measured: tuple[int, ...]) -> None:
    """Rank 0 alone by ``launch rehearse``, megatron-core 0.19.2 and torch 2.15."""
    found = assess.estimated(make_spec("hardware=cpu", "model=tiny", "backend=megatron", *words.split())).phases
    taken = [found["load"], found["forward"], found["backward"], found["optimizer"]]
    assert taken == pytest.approx(measured, rel=0.012)


@pytest.mark.parametrize("words", ["parallel=fsdp", "parallel=ddp", "parallel=zero1", "parallel=zero3", "parallel=tp"])
def test_on_a_gpu_files_are_read_on_the_host_and_the_states_alone_are_there(words: str) -> None:
    spec = make_spec("hardware=h100_80g", "model=7b", "cluster.gpus_per_node=8", words)
    fresh, restored = assess.estimated(spec), assess.estimated(assess.going_on(spec))
    assert fresh.phases["load"] <= restored.phases["load"] <= fresh.peak.allocated_bytes
    decisive = attrgetter("allocated_bytes", "needed_bytes", "low_bytes", "high_bytes", "phase")
    assert decisive(fresh.peak) == decisive(restored.peak), "what the allocator keeps depends on the order of blocks"


def test_a_run_that_has_gone_on_is_compared_with_the_load_of_its_checkpoint(tmp_path: Path) -> None:
    run = recorded(tmp_path / "a", "hardware=cpu", "parallel=fsdp")
    spec = contents.spec_of(run)
    plan = json.loads((run / contents.PLAN).read_text())
    plan["phases"] = assess.estimated(spec).phases
    (run / contents.PLAN).write_text(json.dumps(plan))
    for restored, load in ((0, plan["phases"]["load"]), (8, assess.estimated(assess.going_on(spec)).phases["load"])):
        (run / contents.MEMORY).write_text(json.dumps({"ranks": [], "method": "", "restored": restored}))
        assert results.predicted_phases(run) == {**plan["phases"], "load": load}


def test_a_run_that_starts_from_another_runs_checkpoint_is_predicted_with_its_load() -> None:
    spec = make_spec(*WORDS, "parallel=fsdp")
    assert assess.estimated(edit.changed(spec, "save.load", "runs/a")) == assess.estimated(assess.going_on(spec))
