"""The question: what the words fix, what they leave open, and what is assumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.base.errors import ConfigErrors
from launcher.config.catalog import Catalog
from launcher.planner.layouts import Plan
from launcher.planner.planning import plan
from launcher.planner.question import ask
from launcher.spec.edit import value_at
from tests.support.helpers import CPU_HOST

SMALL = (
    *("model=1b", "hardware=h100_80g", "cluster.nodes=1", "cluster.gpus_per_node=2", "train.global_batch_size=4"),
    *("train.sequence_length=1024", "parallel.context=1", "parallel.ulysses=1", "train.micro_batch_size=1"),
)

CHAT = ("data=chat", "data.path=chat.jsonl")


def planned(*words: str, folder: Path | None = None) -> Plan:
    return plan(ask((*SMALL, *words), catalog=Catalog(folder=folder or Path.cwd()), facts=CPU_HOST))


def values(found: Plan, path: str) -> set[object]:
    shown = (*found.layouts, *found.others)
    assert shown
    return {value_at(each.spec, path) for each in shown}


def test_a_cluster_without_a_size_is_a_node_of_eight_and_the_batch_is_of_the_usual_tokens() -> None:
    """GPT-3 6.7B was trained with 2M tokens a step (arXiv:2005.14165, table 2.1)."""
    question = ask(("model=7b", "hardware=h100_80g"), facts=CPU_HOST)
    assert question.assumed == ("cluster.nodes=1", "cluster.gpus_per_node=8", "train.global_batch_size=512")
    assert 512 * question.openings[0].spec.sequence_length == 2**21
    here = ask(("model=tiny",), facts=CPU_HOST)
    assert here.assumed == (f"train.global_batch_size={4 * here.openings[0].spec.gpus}",)
    tuned = ask(("model=7b", "hardware=h100_80g", "cluster.nodes=3", "task=sft", *CHAT), facts=CPU_HOST)
    assert tuned.assumed == ("cluster.gpus_per_node=8", "train.global_batch_size=144"), "the same on 24 GPUs"
    for words in (CHAT, ("adapter=lora",)):  # Fine-tuning needs no task of TRL.
        assert (
            ask(("model=7b", "hardware=h100_80g", *words), facts=CPU_HOST).assumed[-1] == "train.global_batch_size=128"
        )
    typed = ask(("model=7b", "hardware=h100_80g", "cluster.nodes=2", "train.global_batch_size=64"), facts=CPU_HOST)
    assert typed.assumed == ("cluster.gpus_per_node=8",)


@pytest.mark.parametrize(
    ("words", "path", "tried"),
    [
        (("backend=megatron", "zero=0,1"), "zero.stage", {0, 1}),
        (("parallel=zero1,zero2",), "zero.stage", {1, 2}),
        (("parallel=fsdp,zero1", "checkpointing=selective,full"), "checkpointing.mode", {"selective", "full"}),
        (("parallel=fsdp", "train.loss=full,chunked"), "train.loss", {"full", "chunked"}),
    ],
)
def test_several_options_or_values_are_those_that_are_tried(
    words: tuple[str, ...], path: str, tried: set[object]
) -> None:
    assert values(planned(*words), path) <= tried


def test_an_option_that_is_chosen_fixes_what_its_file_sets_and_a_preset_of_the_users_own_does(tmp_path: Path) -> None:
    preset = tmp_path / "conf" / "parallel" / "mine.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\ndefaults: [fsdp, _self_]\ntrain: {loss: chunked}\n")
    assert values(planned("parallel=mine", folder=tmp_path), "train.loss") == {"chunked"}
    assert values(planned("parallel=fsdp", "checkpointing=full"), "checkpointing.mode") == {"full"}


def test_words_of_one_mode_of_checkpointing_leave_that_mode() -> None:
    words = ("backend=megatron", "zero.stage=1", "checkpointing.layers=8", "checkpointing.method=block")
    assert values(planned(*words), "checkpointing.mode") == {"full"}


def test_one_end_of_a_pipeline_that_is_typed_leaves_the_other_open() -> None:
    words = (
        *("model=125m", "model.num_hidden_layers=13", "backend=megatron", "zero.stage=1", "cluster.gpus_per_node=4"),
        *("parallel.pipeline=4", "parallel.virtual_pipeline=1", "parallel.schedule=1f1b"),
    )
    kept = [word for word in SMALL if not word.startswith(("model", "cluster.gpus"))]
    free = plan(ask((*kept, *words), facts=CPU_HOST)).layouts[0]
    fixed = plan(ask((*kept, *words, "parallel.first_stage_layers=2"), facts=CPU_HOST)).layouts[0]
    assert free.spec.parallel.first_stage_layers == 2
    assert fixed.spec == free.spec


def test_micro_batch_and_accumulation_without_a_batch_are_another_training_with_each_layout() -> None:
    words = [word for word in SMALL if not word.startswith("train.global")]
    with pytest.raises(ConfigErrors) as caught:
        ask((*words, "train.gradient_accumulation=4"), facts=CPU_HOST)
    assert "which changes the training: set the batch" in str(caught.value)


def test_what_is_no_key_of_a_layout_has_one_value() -> None:
    with pytest.raises(ConfigErrors) as caught:
        ask((*SMALL, "optimizer.lr=1e-4,3e-4"), facts=CPU_HOST)
    assert "a plan is for one training on one cluster" in str(caught.value)


def test_a_key_that_is_typed_says_whether_parameters_are_freed_after_forward() -> None:
    found = planned("parallel=fsdp", "backend.reshard_after_forward=true")
    assert values(found, "zero.stage") == {3}
    whole = ask((*SMALL, "backend.reshard_after_forward=true"), facts=CPU_HOST)
    assert {value_at(each.spec, "zero.stage") for each in plan(whole).layouts if each.spec.parallel.shard} == {3}
