"""DeepSpeed's overheads, each alone, by the numbers of Llama-3 8B on 8 GPUs and its own defaults."""

from __future__ import annotations

import pytest

from launcher.backends.deepspeed import gathered, partition
from launcher.backends.deepspeed.overheads import (
    block_instants,
    bucket,
    bucket_copy,
    first_step,
    fp32_partition,
    offloading,
    start,
    step_copies,
    waiting_gradient,
    whole_gradients,
    whole_reduction,
)
from launcher.estimate.memory import states
from launcher.estimate.memory.activations import content, running_blocks
from launcher.estimate.memory.moments import BLOCK_BACKWARD, ROOT_BACKWARD
from tests.support.overheads import at, rank

BLOCK, LAYERS, TOKENS, HIDDEN, WIDTH = 218_112_000, 32, 2048, 4096, 14336
TABLE = 128_256 * HIDDEN
HEAD = TABLE + HIDDEN
WHOLE = TABLE + HEAD + LAYERS * BLOCK
BUCKET = 500_000_000
"""DeepSpeed's default of ``reduce_bucket_size``."""


def test_zero_1_and_2_have_a_flat_copy_first_and_zeros_for_gradients_later() -> None:
    found = list(start(rank("parallel=zero2")))
    assert at(found, "load", "flat copy") == 2 * WHOLE
    assert at(found, "load", "states") == 4 * WHOLE // 8


def test_zero_3_copies_one_weight_or_makes_zeros_beside_its_shard() -> None:
    found = list(start(rank("parallel=zero3")))
    assert at(found, "load", "states") == 2 * TABLE
    assert at(found, "load", "zeros") == 4 * (WHOLE // 8 + 10**9), "a sub-group has at most 10^9 elements"


def test_gradients_of_offloaded_states_are_the_hosts_but_for_a_bucket_and_a_buffer() -> None:
    offloaded = rank("parallel=zero3", "zero.offload_optimizer=cpu")
    assert not list(states.gradients(offloaded))
    assert bucket_copy(offloaded, ROOT_BACKWARD).bytes == 2 * BUCKET + 2 * BUCKET // 8
    assert bucket_copy(rank("parallel=zero3"), ROOT_BACKWARD).bytes == 2 * BUCKET
    second = rank("parallel=zero2", "zero.offload_optimizer=cpu")
    assert not list(states.gradients(second))
    assert at(offloading(second), "idle") == 2 * TABLE
    assert not list(offloading(offloaded))


def test_below_stage_2_the_output_projections_gradient_stays_whole() -> None:
    assert at(whole_gradients(rank("parallel=zero1")), "first_layer_backward") == 2 * HEAD
    assert not list(whole_gradients(rank("parallel=zero2")))


@pytest.mark.parametrize(("stage", "weight"), [(1, 2 * HIDDEN * WIDTH), (2, 0), (3, 0)])
def test_beside_a_bucket_that_is_copied_stand_half_of_the_gradients_inside_the_mlp(stage: int, weight: int) -> None:
    model = rank(f"parallel=zero{stage}", "zero.overlap_comm=true")
    ((moments, kind),) = running_blocks(model)
    found = [term for term in block_instants(model, kind, moments) if term.pile != "activations"]
    inside = 2 * 2 * WIDTH * TOKENS + 2 * HIDDEN * TOKENS
    assert at(found, "next_block_backward", "reduction") == inside // 2 + weight + 2 * BUCKET
    assert at(found, "block_backward", "weight gradient") == inside + weight
    assert not [term for term in found if "block_backward" in term.moments and term.instant == "reduction"]


def test_stage_1_reduces_after_the_last_micro_batch_and_keeps_its_bucket_until_then() -> None:
    first, second = (rank(f"parallel=zero{stage}", "train.gradient_accumulation=2") for stage in (1, 2))
    ((moments, kind),) = running_blocks(first)
    assert not [term for term in block_instants(first, kind, moments) if term.instant == "reduction"]
    assert at(bucket(first), "forward") == 2 * BUCKET
    assert not [term for term in bucket(second) if "forward" in term.moments]


def test_in_zero_2_a_gradient_of_more_than_a_bucket_waits_for_the_next() -> None:
    model = rank("parallel=zero2", "zero.reduce_bucket_size=50_000_000")
    expression, values = waiting_gradient(model)
    assert (expression, values) == ("z * w", {"z": 2, "w": HIDDEN * WIDTH})


def test_buckets_are_two_with_overlapping_communication_and_one_without() -> None:
    assert at(bucket(rank("parallel=zero1", "zero.overlap_comm=false")), "block_backward") == 2 * BUCKET
    assert at(bucket(rank("parallel=zero1", "zero.overlap_comm=true")), "block_backward") == 2 * 2 * BUCKET


def test_stage_0_flattens_at_most_a_bucket_and_bf16_optimizer_casts_it_too() -> None:
    assert at(whole_reduction(rank("parallel=zero0")), "root_backward") == 2 * BUCKET
    wide = rank("parallel=zero1", "precision.accumulate=fp32")
    found = list(whole_reduction(wide))
    assert at(found, "step") == 2 * WHOLE
    assert at(found, "root_backward") == 2 * WHOLE + (4 + 2) * 500_000_000, "its buckets are of 500 million elements"


def test_the_step_of_a_shard_has_flat_gradients_their_fp32_copy_and_an_fp64_norm() -> None:
    found = list(step_copies(rank("parallel=zero2")))
    assert at(found, "step", "") == 4 * WHOLE // 8
    assert at(found, "step", "flattening") == 2 * WHOLE // 8
    assert at(found, "clip") == 8 * TABLE


def test_zero_3_prefetches_until_the_bound_of_live_parameters_or_keeps_what_is_reused() -> None:
    def window(*words: str) -> int:
        return at(gathered.window(rank("parallel=zero3", "zero.prefetch_bucket_size=50_000_000", *words)), "loss")

    norms = rank("parallel=zero3").elements.kept
    weight = HIDDEN * WIDTH + norms
    assert window("zero.max_reuse_distance=100_000_000") == 2 * (10**9 + weight)
    assert window("zero.max_live_parameters=700_000_000") == 2 * (700_000_000 + weight)
    assert window("zero.max_reuse_distance=1_600_000_000") == 2 * (10**9 + weight)
    without = ("zero.prefetch_bucket_size=0", "zero.max_reuse_distance=1_600_000_000")
    assert window(*without) == 2 * (800_000_000 + weight)
    adapted = 2 * (rank("parallel=zero3", "adapter=lora").elements.whole - TABLE)
    assert window("adapter=lora") == adapted, "autograd keeps views of what an adapter's linears multiply by"
    found = list(gathered.window(rank("parallel=zero3", "zero.prefetch_bucket_size=50_000_000")))
    assert at(found, "forward") - at(found, "loss") == 2 * (TABLE + 50_000_000)


def test_zero_3_keeps_small_weights_whole_between_steps() -> None:
    """Norms, and an adapter's matrices of up to 100,000 elements; packed weights are as small as their bytes."""

    def kept(*words: str) -> int:
        return at(gathered.window(rank("parallel=zero3", *words)), "idle")

    blocks = len(rank().view.layers)
    assert kept() == 2 * (2 * blocks + 1) * HIDDEN
    assert kept("zero.param_persistence_threshold=1000") == 0
    small = 8 * HIDDEN  # Of rank 8: both matrices of an output projection.
    lora = ("adapter=lora", "adapter.rank=8", "adapter.targets=[o_proj]")
    assert kept(*lora) == kept() + 2 * blocks * 2 * small
    whole = kept(*lora, "adapter.name=qlora", f"zero.param_persistence_threshold={HIDDEN * HIDDEN // 2}")
    assert whole == kept(*lora) + blocks * 2 * HIDDEN * (HIDDEN + HIDDEN // 4) // 2


def test_recomputation_takes_the_mlps_output_out_of_the_cache_where_linears_save_after_their_product() -> None:
    def recomputed(*words: str) -> int:
        held = rank(*words, "checkpointing=selective")
        return content(held, held.blocks[-1], BLOCK_BACKWARD).bytes

    output, second = 2 * HIDDEN * TOKENS, recomputed("parallel=zero2")
    assert second - recomputed("parallel=zero3") == output
    lora = [recomputed(f"parallel={stage}", "adapter=lora") for stage in ("zero2", "zero3")]
    assert lora[0] == lora[1], "adapters' linears are torch's own"


def test_a_secondary_partition_is_shared_by_the_ranks_of_hpz() -> None:
    assert at(gathered.secondary_partition(rank("parallel=zero3", "zero.hpz=8")), "idle") == 2 * WHOLE // 8
    assert not list(gathered.secondary_partition(rank("parallel=zero3")))


def test_zero_clones_an_fp32_shard_in_fp32() -> None:
    assert at(fp32_partition(rank("parallel=zero2", "precision=fp32")), "idle") == 4 * WHOLE // 8
    assert not list(fp32_partition(rank("parallel=zero2")))


def test_stage_0_steps_once_while_it_starts() -> None:
    found = list(first_step(rank("parallel=zero0")))
    assert at([term for term in found if term.pile == "optimizer_states"], "load") == 2 * 4 * WHOLE
    assert at([term for term in found if term.pile == "gradients"], "load") == (2 + 4) * WHOLE


def test_a_partitions_gradients_are_buffered_whole_parameter_by_parameter() -> None:
    found = list(partition.gradients(rank("parallel=zero1")))
    own = [term for term in found if term.pile == "gradients"]
    assert {term.bytes for term in own} == {2 * WHOLE // 8}
    assert at(found, "step") >= own[0].bytes
    assert not list(partition.tied(rank("parallel=zero2")))
    tied = rank("parallel=zero2", "model.tie_word_embeddings=true")
    assert at(partition.tied(tied), "block_backward") == 2 * TABLE


def test_stages_keep_what_they_exchange_until_its_backward_pass() -> None:
    words = ("parallel=zero1", "parallel.pipeline=2", "train.global_batch_size=16")
    first, states = rank(*words), 2 * HIDDEN * TOKENS
    assert first.view.in_flight == 2
    found = list(partition.stage_buffers(first))
    assert at(found, "idle") == states
    assert at(found, "forward") == (1 + 2) * states
    last = list(partition.stage_buffers(rank(*words, stage=-1)))
    assert at(last, "idle") == (1 + 2) * states
    assert at(partition.stage_buckets(first), "root_backward") == 2 * BUCKET
