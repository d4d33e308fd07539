"""The ways out of a run that does not fit."""

from __future__ import annotations

import pytest

from launcher.preflight import assess, changes, findings, fixes
from launcher.preflight.changes import NEIGHBOURS
from launcher.preflight.verdict import Verdict, VerdictName
from launcher.spec import RunSpec, edit
from launcher.spec.change import Neighbour
from tests.support.helpers import composed_once, make_spec
from tests.support.rule_cases import NODE
from tests.support.starts import STARTS


@pytest.mark.parametrize("neighbour", NEIGHBOURS, ids=lambda neighbour: neighbour.__name__)
def test_pasting_the_overrides_gives_the_run_that_was_judged(neighbour: Neighbour) -> None:
    changes = [(start, change) for start in STARTS for change in neighbour(composed_once(*start))]
    assert changes
    for start, change in changes:
        pasted = make_spec(*start, *change.overrides)
        assert pasted == change.spec, (start, change.overrides)
        assert pasted.hash == change.spec.hash
        assert change.cost


def test_no_neighbour_is_the_run_itself() -> None:
    for start in STARTS:
        spec = composed_once(*start)
        changes = [change for neighbour in NEIGHBOURS for change in neighbour(spec)]
        assert len(changes) > 3
        assert all(change.spec != spec for change in changes)


def test_no_neighbour_breaks_a_rule_that_the_search_leaves_out() -> None:
    for start in STARTS:
        spec = composed_once(*start)
        for rules in findings.LEFT_OUT_OF_CHANGES:
            before = list(rules.check(spec))
            changes = [change for neighbour in NEIGHBOURS for change in neighbour(spec)]
            assert all(list(rules.check(change.spec)) == before for change in changes), rules.__name__


def test_a_smaller_micro_batch_keeps_the_optimizer_step() -> None:
    spec = make_spec(*NODE, "parallel=fsdp", "train.micro_batch_size=4")
    changes = [c for neighbour in NEIGHBOURS if neighbour.__name__ == "smaller_micro_batch" for c in neighbour(spec)]
    assert [change.overrides for change in changes] == [
        ("train.micro_batch_size=2", "train.global_batch_size=32"),
        ("train.micro_batch_size=1", "train.global_batch_size=32"),
    ]
    assert all(change.spec.global_batch_size == spec.global_batch_size == 32 for change in changes)


UNFIT = (
    ("model=7b", "parallel=ddp", *NODE),
    ("model=7b", "parallel=zero0", *NODE),
    ("model=7b", "parallel=fsdp", "train.micro_batch_size=8", *NODE),
    ("model=70b", "parallel=fsdp", *NODE),
    ("model=70b", "parallel=zero3", "train.micro_batch_size=4", *NODE),
    ("model=13b", "parallel=tp", "zero=0", *NODE),
    ("model=3b", "parallel=fsdp", "hardware=rtx4090", "cluster.gpus_per_node=1"),
)


@pytest.mark.parametrize("case", UNFIT, ids=" ".join)
def test_every_fix_can_be_pasted_and_then_fits(case: tuple[str, ...]) -> None:
    assessment = assess.assess(make_spec(*case))
    assert assessment.verdict.name == "does_not_fit"
    assert 1 <= len(assessment.fixes) <= 5
    assert assessment.nearest is None
    for fix in assessment.fixes:
        after = assess.assess(make_spec(*case, *fix.overrides))
        assert after.errors == ()
        assert after.verdict.fits
        assert after.verdict.used_bytes == fix.peak_bytes
        assert after.verdict.headroom_bytes is not None
        assert after.verdict.headroom_bytes >= 0
        assert fix.cost
        assert fix.excess_bytes == 0


def test_sharding_is_the_fix_for_whole_copies_that_do_not_fit() -> None:
    assessment = assess.assess(make_spec("model=7b", "parallel=ddp", *NODE))
    assert assessment.fixes[0].overrides == ("parallel=fsdp",)
    assert "parallel=fsdp" in [way for warning in assessment.warnings for way in warning.way_out]


def test_the_weakest_variant_that_fits_is_offered() -> None:
    assessment = assess.assess(make_spec("model=7b", "parallel=fsdp", "train.micro_batch_size=8", *NODE))
    smaller = [fix for fix in assessment.fixes if fix.overrides[0].startswith("train.micro_batch_size=")]
    assert len(smaller) == 1
    size = smaller[0].spec.micro_batch_size
    assert size > 1
    larger = assess.assess(make_spec("model=7b", "parallel=fsdp", f"train.micro_batch_size={2 * size}", *NODE))
    assert not larger.verdict.fits


def test_a_run_that_fits_is_offered_nothing() -> None:
    assessment = assess.assess(make_spec())
    assert assessment.verdict.name == "fits"
    assert assessment.fixes == ()
    assert assessment.nearest is None


def test_where_nothing_suffices_the_nearest_is_named_and_is_not_a_fix() -> None:
    case = ("model=175b", "parallel=ddp", "hardware=rtx4090", "cluster.gpus_per_node=1", "train.global_batch_size=1")
    assessment = assess.assess(make_spec(*case))
    assert assessment.verdict.name == "does_not_fit"
    assert assessment.fixes == ()
    assert assessment.nearest is not None
    assert assessment.nearest.excess_bytes > 0
    assert assessment.verdict.used_bytes is not None
    assert assessment.nearest.peak_bytes < assessment.verdict.used_bytes
    keys = [override.partition("=")[0] for override in assessment.nearest.overrides]
    assert len(keys) == len(set(keys))


def test_a_pair_is_offered_where_no_single_change_suffices() -> None:
    case = ("model=70b", "parallel=fsdp", *NODE)
    assessment = assess.assess(make_spec(*case))
    assert assessment.fixes
    for fix in assessment.fixes:
        assert len(fix.overrides) > 1
        for override in fix.overrides:
            alone = assess.assess(make_spec(*case, override))
            assert not alone.verdict.fits or (alone.verdict.headroom_bytes or 0) < 0, override


def test_more_gpus_and_sharding_are_found_together_where_one_gpu_cannot_shard() -> None:
    case = ("model=7b", "parallel=ddp", "hardware=rtx4090", "cluster.gpus_per_node=1", "checkpointing=full")
    assessment = assess.assess(make_spec(*case, "model.weights=/weights"))
    assert assessment.verdict.name == "does_not_fit"
    overrides = [set(fix.overrides) for fix in assessment.fixes]
    assert {"cluster.gpus_per_node=8", "parallel=fsdp"} in overrides
    assert overrides[0] == {"adapter=qlora"}, "another training, but on the one GPU that there is"
    assert [fix.spec.gpus > 1 for fix in assessment.fixes[1:]] == [True] * (len(overrides) - 1)


def test_an_adapter_is_offered_beside_weights_alone_and_never_to_a_run_that_has_begun() -> None:
    case = ("model=7b", "parallel=ddp", "hardware=rtx4090", "cluster.gpus_per_node=1", "checkpointing=full")

    def adapters(found: fixes.Search) -> list[str]:
        return [word for fix in found.found for word in fix.overrides if word.startswith("adapter")]

    from_scratch, tuned = make_spec(*case), make_spec(*case, "model.weights=/weights")
    assert not adapters(fixes.Search(found=assess.assess(from_scratch).fixes))
    assert adapters(fixes.Search(found=assess.assess(tuned).fixes)) == ["adapter=qlora"]
    assert not adapters(assess.ways_out(from_scratch))
    assert not adapters(assess.ways_out(tuned))
    assert assess.ways_out(tuned).found, "the rest is offered"


def test_changes_of_the_training_say_that_they_are() -> None:
    small = make_spec("model=7b", "parallel=ddp", "precision=fp32", "hardware=h100_80g", "cluster.gpus_per_node=4")
    tuned = edit.changed(small, "model.weights", "/weights")
    numbers = [*changes.bf16(small), *changes.eight_bit_optimizer(small)]
    other = [*changes.low_rank_adapter(tuned), *changes.shorter_sequences(small), *changes.whole_node(small)]
    assert len(numbers) == 2
    assert {change.overrides[0].partition("=")[0] for change in other} == {
        *("adapter", "train.sequence_length", "cluster.gpus_per_node"),
    }
    assert all("change the training numerically" in change.cost for change in numbers)
    assert all("change of the training" in change.cost for change in other)


def test_a_change_counts_although_the_peak_of_another_moment_hides_its_help() -> None:
    activations = {"none": 30, "selective": 20, "full": 5}

    def judge(run: RunSpec, *, roughly: bool = False) -> Verdict:
        backward = 25 if run.checkpointing.modules else activations[run.checkpointing.mode]
        step = 10 if run.parallel.shard else 40
        used, lacking = max(backward, step), (backward - 20, step - 20)
        name: VerdictName = "does_not_fit" if used > 20 else "fits"
        return Verdict(name=name, used_bytes=used, capacity_bytes=20, shortfall_by_moment=lacking)

    found = fixes.search(make_spec("model=7b", "parallel=ddp", *NODE), judge).found
    assert [fix.overrides for fix in found] == [
        ("checkpointing=selective", "parallel=fsdp"),
        ("parallel=fsdp", "checkpointing=full"),
    ]


def test_layers_that_do_not_divide_are_shared_out_with_fewer_on_the_first_and_the_last_stage() -> None:
    case = ("model=llama3_405b", "parallel=3d", "cluster.nodes=64", *NODE)
    [fix] = assess.assess(make_spec(*case)).fixes
    assert fix.overrides == (
        "parallel.pipeline=8",
        "parallel.first_stage_layers=15",
        "parallel.last_stage_layers=15",
        "train.global_batch_size=32",
    )
    assert assess.assess(make_spec(*case, *fix.overrides)).verdict.name == "fits"


@pytest.mark.parametrize(("parallel", "axis"), [("fsdp", "context"), ("zero3", "ulysses")])
def test_long_sequences_are_split_over_ranks(parallel: str, axis: str) -> None:
    long = ("train.sequence_length=32768", "model.max_position_embeddings=32768")
    overrides = [
        fix.overrides for fix in assess.assess(make_spec("model=llama3_8b", f"parallel={parallel}", *long, *NODE)).fixes
    ]
    assert (f"parallel.{axis}=8", "train.global_batch_size=8") in overrides


def test_many_times_the_gpus_are_no_answer_where_two_changes_together_are() -> None:
    case = ("model=mixtral_8x7b", "parallel=ep", *NODE)
    spec = make_spec(*case)
    found = assess.assess(spec).fixes
    assert ("zero.stage=2", "cluster.nodes=4") in [fix.overrides for fix in found]
    assert all(fix.spec.gpus <= 4 * spec.gpus for fix in found)


def test_the_gpus_of_the_run_are_tried_before_more_of_them() -> None:
    case = ("model=deepseek_v3", "parallel=ep", "cluster.nodes=16", *NODE)
    gpus = [fix.spec.gpus for fix in assess.assess(make_spec(*case)).fixes]
    assert gpus == [128, 1024]


@pytest.mark.parametrize(
    ("asked", "way"),
    [("save.async=true", "save.async=false"), ("save.export=safetensors", "save.export=none")],
)
def test_a_host_that_is_short_of_what_a_save_copies_is_offered_one_without(asked: str, way: str) -> None:
    """Four bytes a parameter for an export, twelve for a copy of the states, and no room on the host for either."""
    node = ("model=7b", "parallel=fsdp", "checkpointing=full", "save.every=10", *NODE)
    short = assess.assess(make_spec(*node, asked, "hardware.host_memory_bytes=20000000000"))
    assert [each.place for each in short.verdict.shortages] == ["host"]
    assert (way,) in {fix.overrides for fix in short.fixes}
