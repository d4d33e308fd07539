"""Small questions: a model of 350 million parameters, one engine, and cards of a size that is chosen."""

from __future__ import annotations

from launcher.planner.question import Question, ask
from tests.support.helpers import CPU_HOST

QUARTER = 2**28
"""Bytes of a quarter of a GiB."""

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
    """The word for a card of so many quarters of a GiB."""
    return f"hardware.memory_bytes={quarters * QUARTER}"


def asked(*words: str, engine: str = "parallel=fsdp") -> Question:
    """A question with these words behind the others, of another engine where it is named."""
    return ask((*(word.replace("parallel=fsdp", engine) for word in WORDS), *words), facts=CPU_HOST)
