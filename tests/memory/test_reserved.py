"""Reserved memory played through a model of torch's allocator: what it follows from."""

from __future__ import annotations

import pytest

from launcher.estimate.memory.reserved import reserved
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec

_NODE = ("model=llama3_8b", "hardware=h100_80g", "cluster.gpus_per_node=8", "precision=bf16", "checkpointing=full")
_TRL = ("task=sft",)
RUNS = {"ddp": ("parallel=ddp",), "fsdp": ("parallel=fsdp",), "zero3": ("parallel=zero3",), "trl": _TRL}


@pytest.mark.parametrize("run", RUNS)
def test_what_is_reserved_follows_from_bytes_and_moments_and_reads_no_formula(run: str) -> None:
    (rank,) = ranks_of(make_spec(*_NODE, *RUNS[run]))
    without = [term._replace(expression="size", values={"size": term.bytes}) for term in rank.terms]
    assert rank.peak[0] < reserved(rank.model, without) == reserved(rank.model, rank.terms)


def test_weights_that_trl_gathers_come_by_a_stream_of_their_own() -> None:
    (rank,) = ranks_of(make_spec(*_NODE, *_TRL))
    gathered = [term for term in rank.terms if term.pile == "gather_buffers"]
    rest = [term for term in rank.terms if term.pile != "gather_buffers"]
    elsewhere = [term._replace(pile="temporary") for term in gathered]
    assert gathered
    assert reserved(rank.model, [*rest, *gathered]) > reserved(rank.model, [*rest, *elsewhere])


@pytest.mark.parametrize("stages", [3, 4, 8])
def test_stages_between_the_first_and_the_last_gather_no_embedding_and_are_played(stages: int) -> None:
    ends = ("parallel.first_stage_layers=11", "parallel.last_stage_layers=11") if stages == 3 else ()
    micro_batches = ("train.global_batch_size=48", "cluster.nodes=3")
    spec = make_spec(*_NODE, "parallel=fsdp_pp", f"parallel.pipeline={stages}", *ends, *micro_batches)
    ranks = ranks_of(spec)
    assert len(ranks) == stages
    assert all(rank.peak[0] < reserved(rank.model, rank.terms) for rank in ranks)
