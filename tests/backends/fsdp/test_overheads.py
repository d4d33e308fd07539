"""FSDP2's and DDP's overheads, each alone, by the numbers of Llama-3 8B on 8 GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from launcher.backends.fsdp import ring
from launcher.backends.fsdp.autocast import weight_cache
from launcher.backends.fsdp.overheads import (
    block_instants,
    block_reduction,
    buckets,
    exchanged,
    gathered,
    kept_after_forward,
    output_gradient,
    root_reduction,
    unreduced,
    untied,
)
from launcher.backends.fsdp.split import received, sent, waiting_losses
from launcher.estimate.memory import states
from launcher.estimate.memory.activations import running_blocks
from launcher.estimate.memory.moments import Moment
from launcher.estimate.memory.terms import MemoryTerm
from launcher.estimate.rank.model import RankModel
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec
from tests.support.overheads import at, rank

BLOCK, HEAD = 218_112_000, 128_256 * 4096 + 4096
"""Parameters of one layer of Llama-3 8B, and of its last norm and output projection."""

TABLE, LAYERS, TOKENS, HIDDEN, WIDTH = 128_256 * 4096, 32, 2048, 4096, 14336
ROOT = TABLE + HEAD
WHOLE = ROOT + LAYERS * BLOCK

type Overhead = Callable[[RankModel], Iterable[MemoryTerm]]


@pytest.mark.parametrize(
    ("moment", "blocks"),
    [
        ("forward", 2),
        ("output", 1),
        ("loss_backward", 1),
        ("block_backward", 2),
        ("next_block_backward", 2),
        ("second_layer_backward", 2),
        ("first_layer_backward", 1),
    ],
)
def test_the_root_stays_gathered_and_blocks_are_gathered_one_ahead(moment: Moment, blocks: int) -> None:
    assert at(gathered(rank("parallel=fsdp")), moment) == 2 * (ROOT + blocks * BLOCK)


def test_without_resharding_every_block_stays_until_its_own_backward_pass() -> None:
    found = list(gathered(rank("parallel=fsdp", "zero.stage=2")))
    assert at(found, "forward") == 2 * (ROOT + (LAYERS + 1) * BLOCK)
    assert at(found, "block_backward") == 2 * (ROOT + LAYERS * BLOCK)
    assert at(found, "next_block_backward") == 2 * (ROOT + (LAYERS - 1) * BLOCK)


def test_a_block_is_reduced_in_fp32_beside_the_output_projections_gradient() -> None:
    found = list(block_reduction(rank("parallel=fsdp")))
    assert at(found, "block_backward", "") == 2 * HEAD
    assert at(found, "next_block_backward", "") == 4 * BLOCK + 2 * HEAD


def test_a_reduction_takes_its_input_and_the_gradients_in_place_of_the_gathered_block_and_gloos_copy() -> None:
    """The gradient of the block's input stays; a later reduction's input takes the place of the one before."""
    found, on_cpus = (list(block_reduction(rank("parallel=fsdp", *where))) for where in ((), ("hardware=cpu",)))
    assert at(found, "block_backward", "reduction") == 4 * BLOCK + 2 * HIDDEN * TOKENS
    assert at(found, "next_block_backward", "reduction") == 2 * HIDDEN * TOKENS
    more = 4 * (BLOCK + BLOCK // 8) - 2 * BLOCK
    assert at(on_cpus, "next_block_backward", "reduction") == 2 * HIDDEN * TOKENS + more


def test_gradients_that_wait_for_the_last_micro_batch_are_whole_and_fp32() -> None:
    batches = ("parallel=fsdp", "train.global_batch_size=64")
    assert not list(unreduced(rank(*batches)))
    assert at(unreduced(rank(*batches, "backend.micro_step_sync=false")), "forward") == 4 * WHOLE


def test_a_shard_over_four_ranks_is_kept_of_every_block_until_its_backward_pass_begins() -> None:
    found = list(kept_after_forward(rank("parallel=fsdp", "backend.reshard_after_forward=4")))
    kept = {"forward": LAYERS - 1, "loss": LAYERS, "block_backward": LAYERS - 1, "second_layer_backward": 1}
    for moment, blocks in kept.items():
        assert at(found, moment) == 2 * blocks * BLOCK // 4  # type: ignore[arg-type]
    assert not list(kept_after_forward(rank("parallel=fsdp")))


def test_products_that_exchange_their_parts_have_two_of_them_in_symmetric_memory() -> None:
    assert at(exchanged(rank("parallel=fsdp_tp", "parallel.async_tensor=true")), "idle") == 2 * 2 * HIDDEN * TOKENS // 2


def test_the_end_of_backward_has_three_instants_and_states_what_each_holds() -> None:
    found = list(root_reduction(rank("parallel=fsdp")))
    shards = 4 * LAYERS * BLOCK // 8
    assert at(found, "root_backward", "root gradients") == shards + 2 * (ROOT + ROOT) + 4 * BLOCK
    assert at(found, "root_backward", "root reduction") == shards + (2 + 4) * ROOT
    assert at(found, "root_backward", "all gradients") == 4 * ROOT


def test_a_block_holds_its_last_weights_gradient_early_and_all_of_them_at_its_end() -> None:
    model = rank("parallel=fsdp")
    ((moments, kind),) = running_blocks(model)
    found = [term for term in block_instants(model, kind, moments) if term.pile == "temporary"]
    inside = 2 * 2 * WIDTH * TOKENS + 2 * HIDDEN * TOKENS
    assert at(found, "next_block_backward", "weight gradient") == inside + 2 * HIDDEN * WIDTH
    assert at(found, "next_block_backward", "block gradients") == 2 * BLOCK


def test_ddp_has_half_of_the_gradients_inside_the_mlp_and_an_fp32_copy_of_one_weights() -> None:
    model = rank("parallel=ddp")
    ((moments, kind),) = running_blocks(model)
    found = [term for term in block_instants(model, kind, moments) if term.pile == "temporary"]
    inside = 2 * 2 * WIDTH * TOKENS + 4 * HIDDEN * TOKENS
    assert at(found, "block_backward", "weight gradient") == inside // 2 + (2 + 4) * HIDDEN * WIDTH


def test_autocast_keeps_a_copy_of_every_linear_and_of_a_checkpointed_block_one_at_a_time() -> None:
    found = list(weight_cache(rank("parallel=ddp")))
    assert at(found, "forward") == 2 * LAYERS * BLOCK
    assert at(found, "loss") == 2 * (LAYERS * BLOCK + HEAD)
    assert at(found, "next_block_backward") == 2 * (LAYERS - 1) * BLOCK
    assert at(weight_cache(rank("parallel=ddp", "checkpointing=full")), "block_backward") == 2 * BLOCK


def test_ddps_buckets_are_as_large_as_the_model_unless_gradients_are_views_of_them() -> None:
    assert at(buckets(rank("parallel=ddp", "backend.bucket_view=false")), "idle") == 4 * WHOLE
    views = ("parallel=ddp", "backend.bucket_view=true", "train.global_batch_size=64")
    found = list(buckets(rank(*views)))
    assert at(found, "forward") == 4 * WHOLE
    assert at(found, "next_block_backward") == 4 * ((LAYERS - 1) * BLOCK + TABLE)


@pytest.mark.parametrize(
    ("overhead", "moment", "elements"),
    [(output_gradient, "block_backward", HEAD + TABLE), (untied, "load", TABLE)],
)
def test_a_tied_output_projection_has_a_gradient_and_until_it_is_tied_memory_of_its_own(
    overhead: Overhead, moment: Moment, elements: int
) -> None:
    tied = rank("parallel=ddp", "backend.bucket_view=false", "model.tie_word_embeddings=true")
    # The table is the output projection, so that the head alone has the last norm.
    assert at(overhead(tied), moment) == 4 * (elements - (HEAD - HIDDEN if overhead is output_gradient else 0))
    assert not list(overhead(rank("parallel=ddp")))


def test_constants_of_other_ranks_4_bit_weights_are_on_every_rank() -> None:
    model = rank("parallel=fsdp", "adapter=qlora")
    (found,) = states.constants(model)
    linears = LAYERS * (BLOCK - 2 * HIDDEN)
    # Double quantisation: 8 bits for 64 values, and an fp32 constant for 256 of those.
    assert found.bytes == pytest.approx(linears * 7 / 8 * (8 / 64 + 32 / (64 * 256)) / 8, rel=1e-6)


def test_gpipe_keeps_the_losses_of_all_other_micro_batches_on_its_last_stage() -> None:
    words = ("parallel=fsdp_pp", "parallel.schedule=gpipe", "train.global_batch_size=16")
    last = rank(*words, stage=-1)
    others = last.spec.gradient_accumulation - 1
    assert others > 0
    log_softmax = 4 * 128_256 * TOKENS
    assert at(waiting_losses(last), "forward") == others * (
        log_softmax + last.tokens * last.token_bytes(last.after_blocks)
    )
    assert not list(waiting_losses(rank(*words)))


def test_ring_attention_is_an_instant_of_its_own_in_both_passes() -> None:
    model = rank("parallel=fsdp_cp", "checkpointing=full")
    found = list(ring.overheads(model))
    assert {term.instant for term in found} == {"attention"}
    assert {moment for term in found for moment in term.moments} >= {"forward", "block_backward"}
    assert not list(ring.overheads(rank("parallel=fsdp")))


@pytest.mark.parametrize(("micro_batches", "kept"), [(4, (5 + 2, 2 + 5)), (8, (5 + 6, 2 + 13))])
def test_interleaved_sends_keep_outputs_until_backward_and_gradients_to_the_end(
    micro_batches: int, kept: tuple[int, ...]
) -> None:
    """Of 4 micro-batches a trace of two CPU ranks held 5 outputs and 2 gradients on the first, 2 and 5 on the other."""
    chunks = ("parallel.schedule=interleaved", "parallel.pipeline=2", "parallel.virtual_pipeline=2")
    words = ("parallel=fsdp_pp", *chunks, "train.micro_batch_size=1", f"train.global_batch_size={4 * micro_batches}")
    stages = [rank(*words, stage=stage) for stage in (0, 1)]
    assert {stage.spec.gradient_accumulation for stage in stages} == {micro_batches}
    assert [dict(term.values)["n"] for stage in stages for term in sent(stage)] == list(kept)


@pytest.mark.parametrize(("micro_batches", "stage", "held"), [(4, 1, 4), (16, 1, 16), (16, 0, 0)])
def test_the_last_stage_keeps_the_received_inputs_of_all_micro_batches(
    micro_batches: int, stage: int, held: int
) -> None:
    """As two CPU ranks held them; each is hidden states of ``2 x 256 x 256`` bytes."""
    words = ("model=tiny", "model.num_hidden_layers=2", "parallel=fsdp_pp", "precision=bf16", "hardware=cpu")
    batches = ("train.micro_batch_size=1", f"train.global_batch_size={micro_batches}", "cluster.gpus_per_node=2")
    found = ranks_of(make_spec(*words, *batches))[stage]
    assert received(found.model).bytes == held * 2 * 256 * 256
