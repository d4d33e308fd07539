"""Memory terms of Megatron-LM for a model like those of its functional tests."""

from __future__ import annotations

from launcher.estimate.memory.moments import Moment
from launcher.estimate.memory.terms import MemoryTerm
from tests.support.estimates import ranks_of
from tests.support.helpers import make_spec

MIB = 2**20
MODEL = (
    "model=tiny",
    "model.num_hidden_layers=12",
    "model.hidden_size=512",
    "model.num_attention_heads=8",
    "model.num_key_value_heads=null",
    "model.head_dim=null",
    "model.intermediate_size=2048",
    "model.vocab_size=50257",
    "train.sequence_length=1024",
    "train.micro_batch_size=4",
    "train.global_batch_size=32",
    "parallel=tp",
    "parallel.tensor=1",
    "parallel.sequence=false",
    "precision=bf16",
    "cluster.gpus_per_node=8",
    "hardware=a100_80g",
)
EXPERTS = ("model.family=moe", "model.num_experts=8", "model.num_experts_per_tok=2", "model.moe_intermediate_size=512")


def terms_of(*overrides: str, stage: int = -1) -> tuple[MemoryTerm, ...]:
    """The terms of one stage, by default the last."""
    return ranks_of(make_spec(*MODEL, *overrides))[stage].terms


def megabytes(terms: tuple[MemoryTerm, ...], formula: str, moment: Moment) -> float:
    """MiB at one moment of the terms whose formula contains these words."""
    return sum(term.bytes for term in terms if formula in term.formula and moment in term.moments) / MIB
