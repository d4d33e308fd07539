"""The groups that Megatron-core's steps compute over, each with a communicator, and messages that it still names."""

from __future__ import annotations

import pytest

from launcher.backends.megatron import layout
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec
from tests.support.megatron_terms import EXPERTS, MIB, MODEL, megabytes, terms_of


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


EXTRA = "+backend.extra."


@pytest.mark.parametrize(
    ("stage", "extra", "forward", "backward"),
    [
        (3, "", 3, 4),  # As `gpt3_mcore_te_tp1_pp4_vp1` of Megatron-LM's functional tests recorded at its peak.
        (3, "overlap-p2p-communication-warmup-flush=true", 1, 2),
        (3, "microbatch-group-size-per-virtual-pipeline-stage=5", 4, 4),
        (3, "no-overlap-p2p-communication=true", 1, 1),
        (1, "", 4, 5),
        (1, "no-overlap-p2p-communication=true", 2, 1),
        (0, "", 2, 3),  # As a traced run of two CPU ranks held.
    ],
)
def test_interleaved_stages_still_name_the_warm_ups_last_input_and_messages(
    stage: int, extra: str, forward: int, backward: int
) -> None:
    steady = ("parallel.pipeline=4", "parallel.virtual_pipeline=3", "train.global_batch_size=80")
    terms = terms_of(*steady, *([EXTRA + extra] if extra else []), stage=stage)
    found = [megabytes(terms, "messages of pipeline", moment) for moment in ("loss", "loss_backward")]
    assert found == [n * 2 * 512 * 4 * 1024 / MIB for n in (forward, backward)]


def test_a_stage_whose_passes_are_all_warm_up_names_no_messages() -> None:
    few = (
        "parallel.pipeline=4",
        "parallel.virtual_pipeline=3",
        "cluster.gpus_per_node=4",
        "train.global_batch_size=16",
    )
    assert [megabytes(terms_of(*few, stage=stage), "messages of", "loss") > 0 for stage in (0, 3)] == [False, True]
