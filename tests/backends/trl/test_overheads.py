"""What TRL holds beside its engine: the loss's tile, and the reference model, gathered as a whole."""

from __future__ import annotations

from launcher.preflight import assess
from tests.support.helpers import composed_once

NODE = ("model=llama3_8b", "hardware=h100_80g", "cluster.gpus_per_node=8", "precision=bf16", "checkpointing=full")
ROWS = ("data=rows", "data.path=rows/*.jsonl")


def peak(*words: str) -> int:
    return assess.estimated(composed_once(*words, *NODE)).peak.allocated_bytes


def test_the_logits_of_a_tile_are_256_mib_however_long_the_micro_batch_is() -> None:
    """4,096 tokens x 32,768 words x 2 bytes (``trl/kernels/chunked_logprob.py``)."""
    for size in (1, 4):
        found = assess.estimated(composed_once("task=sft", f"train.micro_batch_size={size}", *NODE))
        logits = sum(pile.bytes for pile in found.piles if pile.pile == "logits")
        assert logits == 4096 * 32768 * 2


def test_a_reference_model_on_fsdp_is_gathered_whole_and_twice() -> None:
    """``prepare_fsdp`` shards it as one group: its parameters, and the output of their all-gather."""
    parameters = 8_030_261_248
    without = peak("task=dpo", "task.precompute_reference=true", *ROWS)
    found = peak("task=dpo", *ROWS)
    assert found - without > 2 * 2 * parameters * 0.9
    assert peak("task=dpo", "parallel=zero3", *ROWS) < found - 2 * parameters


def test_an_adapter_needs_no_reference() -> None:
    words = ("task=dpo", "adapter=lora", *ROWS)
    assert peak(*words) == peak(*words, "task.precompute_reference=true")


def test_a_reference_model_is_whole_on_the_device_while_it_is_sharded() -> None:
    parameters = 8_030_261_248
    load = assess.estimated(composed_once("task=dpo", *ROWS, *NODE)).phases["load"]
    assert load >= 4 * parameters * (1 + 2 / 8)  # In fp32, beside an eighth of it and of the policy.
    assert assess.estimated(composed_once("task=sft", *NODE)).phases["load"] < 4 * parameters * 2 / 8


def test_the_gradient_of_a_tied_table_is_added_up_in_fp32_too() -> None:
    """Where the head is the table, its group has the last norm as its other weight."""
    small = ("model=1b", "hardware=h100_80g", "cluster.gpus_per_node=8", "precision=bf16", "parallel=fsdp")
    table = 128256 * 2048
    tied = assess.estimated(composed_once(*small, "task=sft", "train.sequence_length=128", "checkpointing=full"))
    assert tied.phases["backward"] > tied.static_bytes + (2 + 4 + 2) * table
