"""The search behind ``plan=best``: once for all points that ask the same."""

from __future__ import annotations

from pathlib import Path

from launcher.config.catalog import Catalog
from launcher.planner.best import Searches, chosen, none_fits, remarks
from launcher.planner.layouts import Plan
from launcher.planner.planning import plan
from launcher.planner.question import Question
from tests.support.helpers import CPU_HOST

SMALL = ("model=tiny", "hardware=h100_80g", "cluster.nodes=1", "cluster.gpus_per_node=2", "parallel=fsdp")
FIXED = (*SMALL, "train.global_batch_size=4", "train.micro_batch_size=1", "checkpointing=none", "train.loss=full")


def test_points_that_differ_in_what_no_layout_depends_on_share_a_search() -> None:
    searched: list[tuple[str, ...]] = []

    def noted(question: Question) -> Plan:
        searched.append(question.words)
        return plan(question)

    searches = Searches(Catalog(folder=Path.cwd()), CPU_HOST, noted)
    plans = [
        searches.plan([*FIXED, f"optimizer.lr={rate}", f"train.seed={seed}"]) for rate in (1, 2) for seed in (3, 4)
    ]
    assert searched == [FIXED]
    assert all(found is plans[0] for found in plans)
    searches.plan([*FIXED, "train.sequence_length=128"])
    searches.plan([*FIXED, "train.seed=0"])  # Megatron-LM refuses it.
    assert searched[1:] == [(*FIXED, "train.sequence_length=128"), (*FIXED, "train.seed=0")]


def test_the_words_in_its_place_are_the_first_layouts_with_what_is_assumed() -> None:
    words = [word for word in FIXED if not word.startswith("cluster.nodes=")]
    found = Searches(Catalog(folder=Path.cwd()), CPU_HOST).plan(words)
    assert chosen(found) == found.layouts[0].overrides
    assert chosen(found)[0] == "cluster.nodes=1"
    assert list(remarks(found)) == ["plan=best assumes cluster.nodes=1: the cluster's size is not set"]


def test_where_nothing_fits_only_the_assumed_words_are_left_and_the_reason_has_the_counts() -> None:
    words = [word for word in FIXED if not word.startswith("cluster.nodes=")]
    found = Searches(Catalog(folder=Path.cwd()), CPU_HOST).plan([*words, "hardware.memory_bytes=1e8"])
    assert chosen(found) == ("cluster.nodes=1",)
    counts = found.counts
    assert counts.unfit > 0
    assert none_fits(found).startswith(f"none of {counts.considered} layouts fits ({counts.unfit} need more memory, ")
