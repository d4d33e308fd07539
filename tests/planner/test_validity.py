"""Words that are wrong with every layout are errors, and no answer that nothing fits."""

from __future__ import annotations

import pytest

from launcher.base.errors import ConfigErrors
from launcher.cli import main
from launcher.planner.planning import plan, require_valid
from launcher.planner.question import ask
from tests.support.helpers import CPU_HOST

SMALL = ("model=tiny", "hardware=h100_80g", "cluster.nodes=1", "cluster.gpus_per_node=2")
FIXED = (*SMALL, "train.global_batch_size=4", "train.micro_batch_size=1", "checkpointing=none", "train.loss=full")


def errors(*words: str) -> dict[str, object]:
    question = ask(words, facts=CPU_HOST)
    with pytest.raises(ConfigErrors) as refused:
        require_valid(question, plan(question))
    return {error.path: error.found for error in refused.value.errors}


@pytest.mark.parametrize("engine", [(), ("parallel=fsdp",)])
@pytest.mark.parametrize("word", ["parallel.tensor=3", "parallel.expert=2", "model.num_key_value_heads=3"])
def test_what_is_wrong_with_every_layout_is_said_once(engine: tuple[str, ...], word: str) -> None:
    key, _, value = word.partition("=")
    assert errors(*FIXED, *engine, word)[key] == int(value)


def test_values_that_a_key_does_not_take_are_errors_of_the_question() -> None:
    with pytest.raises(ConfigErrors) as refused:
        ask(
            [*FIXED, "parallel.tensor=1,x", "parallel.context=1,2.0", "train.allocator=1,expandable"],
            facts=CPU_HOST,
        )
    assert [(error.path, error.found) for error in refused.value.errors] == [
        ("parallel.tensor", "x"),
        ("train.allocator", 1),
    ]
    assert ask([*FIXED, "parallel.context=1,2,2"], facts=CPU_HOST).choices == {"parallel.context": (1, 2)}


def test_ends_of_a_pipeline_that_take_more_layers_than_there_are_leave_no_layout() -> None:
    assert errors(*FIXED, "parallel=fsdp", "parallel.pipeline=1,2", "parallel.last_stage_layers=99")


def test_what_no_layout_is_asked_about_is_found_in_the_first() -> None:
    secret = "hf_" + "a" * 34
    assert list(errors(*FIXED, "parallel=fsdp", f"data.path={secret}", "data=text")) == ["data.path"]


def test_where_valid_layouts_do_not_fit_it_is_no_error_of_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *FIXED, "parallel=fsdp", "hardware.memory_bytes=1e8"]) == 3
    assert main(["plan", *FIXED, "parallel=fsdp", "parallel.tensor=3"]) == 2
    assert "error: parallel.tensor=3: " in capsys.readouterr().err
