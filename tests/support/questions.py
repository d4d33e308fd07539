"""Small questions for the planner: 350 million parameters, one engine, and cards of a chosen size."""

from __future__ import annotations

from launcher.planner.question import Question, ask
from tests.support.helpers import CPU_HOST

QUARTER = 2**28
"""A quarter of a GiB, in bytes."""

WORDS = (
    "model=350m",
    "hardware=h100_80g",
    "parallel=fsdp",
    "zero.offload_optimizer=none",
    "parallel.context=1",
    "parallel.ulysses=1",
    "train.global_batch_size=8",
    "train.sequence_length=2048",
)


def card(quarters: int) -> str:
    """The word for a card with a memory in quarters of a GiB."""
    return f"hardware.memory_bytes={quarters * QUARTER}"


def asked(*words: str, engine: str = "parallel=fsdp") -> Question:
    """A question with these words after the others, optionally for another engine."""
    return ask((*(word.replace("parallel=fsdp", engine) for word in WORDS), *words), facts=CPU_HOST)
