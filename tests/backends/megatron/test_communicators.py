"""The groups that Megatron-core's steps compute over, each with a communicator."""

from __future__ import annotations

import pytest

from launcher.backends.megatron import layout
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec
from tests.support.megatron_terms import EXPERTS, MODEL


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        ("cluster.gpus_per_node=1", [(0, 5)]),
        ("cluster.gpus_per_node=4 zero=0", [(2, 2)]),
        ("cluster.gpus_per_node=8 parallel.tensor=2", [(5, 0)]),
        ("cluster.gpus_per_node=8 parallel.pipeline=2 parallel.tensor=2", [(6, 0)] * 2),
        ("cluster.gpus_per_node=8 parallel.pipeline=4", [(5, 0)] * 3 + [(5, 1)]),
        (
            "cluster.gpus_per_node=8 parallel.pipeline=4 parallel.virtual_pipeline=2 model.num_hidden_layers=8"
            " model.tie_word_embeddings=true",
            [(7, 0), (6, 0), (6, 0), (7, 1)],
        ),
    ],
)
def test_a_communicator_is_for_each_group_that_a_recorded_step_computed_over(
    words: str, recorded: list[tuple[int, int]]
) -> None:
    found = [layout.groups(rank.model) for rank in ranks_of(make_spec(*MODEL, "hardware=h100_80g", *words.split()))]
    counted = [(sum(size > 1 for size in sizes), sum(size == 1 for size in sizes)) for sizes in found]
    assert counted == recorded


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        ("cluster.gpus_per_node=4", [1, 1, 1, 4, 4, 4]),
        ("cluster.gpus_per_node=8 parallel.expert=2", [1, 1, 1, 2, 2, 4, 8, 8, 8]),
        ("cluster.gpus_per_node=4 parallel.expert=2 zero=0", [1, 1, 1, 2, 2, 2, 2, 4, 4]),
        ("cluster.gpus_per_node=8 parallel.expert=2 parallel.tensor=2", [1, 2, 2, 2, 2, 2, 4, 4, 8, 8]),
    ],
)
def test_experts_bring_groups_of_their_exchange_and_of_their_gradients(words: str, recorded: list[int]) -> None:
    (rank,) = ranks_of(make_spec(*MODEL, *EXPERTS, "hardware=h100_80g", *words.split()))
    assert sorted(layout.groups(rank.model)) == recorded
