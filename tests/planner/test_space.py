"""The space: what is tried that no single key says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from launcher.base import machine
from launcher.base.errors import ConfigError
from launcher.config.catalog import Catalog
from launcher.planner.judge import Preflight
from launcher.planner.planning import plan, spaces_of
from launcher.planner.question import ask
from launcher.spec import RunSpec

WORDS = (
    *("model=llama3_1b", "model.num_hidden_layers=14", "backend=megatron", "hardware=h100_80g", "cluster.nodes=1"),
    *("cluster.gpus_per_node=4", "train.global_batch_size=8", "train.sequence_length=1024", "parallel.tensor=1"),
    *("parallel.pipeline=4", "parallel.context=1", "parallel.ulysses=1", "parallel.schedule=interleaved"),
)


def test_schedules_are_tried_with_the_chunks_that_they_take() -> None:
    words = ("model=llama3_8b", "hardware=h100_80g", "cluster.gpus_per_node=8", "cluster.nodes=1")
    found = ask(words, catalog=Catalog(folder=Path.cwd()), facts=machine.facts())
    spaces = spaces_of(found, Preflight())
    assert {"megatron", "fsdp"} <= {space.base.backend.name for space in spaces}
    assert all("interleaved" in space.schedules for space in spaces if space.base.backend.name != "deepspeed")


def test_interleaved_stages_whose_ends_have_a_layer_less_are_tried_and_compose() -> None:
    """14 layers on 4 stages: 16 with the embedding and the loss, in chunks of one or two."""
    question = ask(WORDS, catalog=Catalog(folder=Path.cwd()), facts=machine.facts())
    first = plan(question).layouts[0]
    counted = [word for word in first.overrides if word.startswith("backend.extra=")]
    assert len(counted) == 1
    assert "account-for-embedding-in-pipeline-split:true" in counted[0]
    assert question.compose(first.overrides).require() == first.spec


def test_a_stage_has_no_more_chunks_than_it_takes_for_a_pipeline_to_idle_little() -> None:
    """80 layers on 8 stages, with 64 micro-batches: 7 / 64 idle, 7 / 128, 7 / 320, and at last 7 / 640 or 1.1%."""
    words = ("model=llama3_70b", "backend=megatron", "hardware=h100_80g", "cluster.nodes=1", "cluster.gpus_per_node=8")
    for batch, most in ((64, 10), (320, 5), (400, 2), (1024, 1)):
        question = ask((*words, "parallel.pipeline=8", f"train.global_batch_size={batch}", "parallel.tensor=1"))
        (space,) = spaces_of(question, Preflight())
        degrees = [each.settings for each in space.degrees(Preflight().errors)]
        even = next(each for each in degrees if each["train.micro_batch_size"] == 1 and not each["backend.extra"])
        assert max(chunks for _, chunks in space.chunkings(even)) == most


def test_the_size_of_degrees_counts_each_way_to_share_out_the_states_with_each_chunking() -> None:
    question = ask(WORDS, catalog=Catalog(folder=Path.cwd()), facts=machine.facts())
    (space,) = spaces_of(question, Preflight())
    for degrees in space.degrees(Preflight().errors):
        staged = [space.chunkings(settings) for settings in space.sharded(degrees, lambda _: ())]
        assert degrees.size == sum(map(len, staged)) * space.savings.size


def test_a_layout_that_several_steps_lead_to_is_asked_about_once() -> None:
    question = ask(WORDS, catalog=Catalog(folder=Path.cwd()), facts=machine.facts())
    (space,), judge, asked = spaces_of(question, Preflight()), Preflight(), list[str]()

    def errors(spec: RunSpec) -> Iterator[ConfigError]:
        asked.append(repr(spec))
        return judge.errors(spec)

    listed = [list(space.variants(degrees, errors)) for degrees in space.degrees(errors)]
    assert listed
    before = len(asked)
    assert [list(space.variants(degrees, errors)) for degrees in space.degrees(errors)] == listed
    assert before == len(asked)
    assert before < 1.1 * len(set(asked))


def test_a_sequence_is_split_where_each_rank_keeps_4096_tokens() -> None:
    words = ("model=llama3_8b", "backend=megatron", "hardware=h100_80g", "cluster.nodes=1", "cluster.gpus_per_node=8")
    for length, degrees in ((4096, {1}), (8192, {1, 2})):
        (space,) = spaces_of(ask((*words, f"train.sequence_length={length}", "parallel.pipeline=1")), Preflight())
        assert {each.settings["parallel.context"] for each in space.degrees(Preflight().errors)} == degrees
