"""Published layouts: each can be typed here, and what is kept of the comparison belongs to the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.known_layouts import NEAR, Published, answer, compared, figures, lines, table
from benchmarks.reporting import RESULTS
from launcher.base import machine
from launcher.config.catalog import Catalog
from launcher.planner.question import ask


@pytest.mark.parametrize("published", table(), ids=lambda published: published.name)
def test_a_published_layout_is_one_that_its_engine_runs(published: Published) -> None:
    assert published.source
    words = (*published.question, *published.engine, *published.layout)
    assert ask(words, catalog=Catalog(folder=Path.cwd()), facts=machine.facts()).openings


def test_the_kept_shares_are_of_the_table_and_what_is_far_from_the_best_is_explained() -> None:
    kept = json.loads((RESULTS / "known_layouts.json").read_text())["figures"]["layouts"]
    assert [row["name"] for row in kept] == [published.name for published in table()]
    explained = {published.name for published in table() if published.because}
    assert {row["name"] for row in kept if row["share_of_best"] < NEAR} == explained
    assert sum(row["share_of_best"] >= NEAR for row in kept) >= len(kept) // 2


ONE = Published(
    name="two GPUs",
    source="a small one",
    question=(
        *("model=llama3_1b", "hardware=h100_80g", "cluster.nodes=1", "cluster.gpus_per_node=2"),
        *("train.global_batch_size=2", "train.sequence_length=2048", "parallel.tensor=1", "parallel.pipeline=1"),
        *("parallel.context=1", "parallel.ulysses=1", "parallel.replicate=1", "zero.offload_optimizer=none"),
    ),
    engine=("parallel=fsdp",),
    layout=("zero.stage=3", "train.micro_batch_size=1", "checkpointing.mode=full"),
    measured={"step_seconds": 1.0},
    row="",
    because="",
)


def test_what_a_source_leaves_open_is_the_planners_and_what_it_states_is_kept() -> None:
    found = compared(ONE, {})
    assert found.own.fits
    assert not any(word.startswith(("zero.stage", "checkpointing.mode")) for word in found.own.words)
    assert any(word.startswith("train.loss") for word in found.own.words) or found.share < 1
    assert found.share <= 1


def test_a_step_that_was_measured_is_tokens_a_second_and_gpu() -> None:
    found = compared(ONE, {})
    assert found.measured == 2 * 2048 / 1.0 / 2
    assert figures(found)["measured_over_predicted"] == round(2048 / found.own.speed.tokens_per_second_per_gpu, 3)
    assert next(lines(found)).startswith("two GPUs: ")


def test_a_run_that_fits_in_no_way_is_judged_as_it_is_typed() -> None:
    words = (*ONE.question, "model=llama3_70b", *ONE.engine, *ONE.layout)
    found = answer(words)
    assert not found.fits
    assert found.words == ()
    assert found.speed.tokens_per_second > 0
