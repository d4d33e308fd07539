"""The bounds of every numeric key: what is nonsense is refused with its reason, and no real run is."""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin

import pytest

from launcher.spec.bounds import BOUNDS
from launcher.spec.parse import accepts, kinds
from tests.support.helpers import ask


def _is_number(kind: Any) -> bool:
    """True for a number whose type does not say itself how large it can be."""
    kind = getattr(kind, "__value__", kind)
    if get_origin(kind) is Annotated:
        return get_args(kind)[1].high is None and _is_number(get_args(kind)[0])
    return kind in (int, float) or any(map(_is_number, get_args(kind)))


def test_every_numeric_key_has_its_bound_and_every_bound_its_key() -> None:
    numeric = {key for key, kind in kinds().items() if kind is not None and _is_number(kind)}
    numeric -= {key for key in numeric if get_origin(kinds()[key]) in (tuple, dict)}
    assert len(numeric) > 80
    assert numeric - BOUNDS.keys() == set(), "launcher/spec/bounds.py says how large each can be, and why"
    assert BOUNDS.keys() - kinds().keys() == set()


NONSENSE = [
    ("data.workers=3000", "must be at most 1,024: they are processes of one rank"),
    ("data.preview=1000000000", "must be at most 10,000: this many samples are read"),
    ("cluster.requeues=1000000000", "must be at most 10,000: a job that saves nothing"),
    ("cluster.time_limit_min=1000000000", "must be at most 5,256,000: that is ten years"),
    ("cluster.save_margin_s=70000", "must be at most 65,535: sbatch allows no more"),
    ("cluster.nodes=1000000000", "must be at most 1,000,000: the largest machine has 158,976 nodes"),
    ("cluster.gpus_per_node=100000000", "must be at most 4,096: no node has that many GPUs"),
    ("train.micro_batch_size=1000000000", "must be at most 1,048,576: one device computes"),
    ("train.steps=1e12", "must be at most 1,000,000,000: that is three years"),
    ("optimizer.weight_decay=1e9", "must be at most 10000: a step subtracts lr x weight_decay"),
    ("optimizer.clip=1e-300", "must be 0 or at least 1e-12"),
    ("optimizer.clip=1e19", "must be at most 1e+18"),
    ("hardware.compute_capability=90", None),
    ("hardware.compute_capability=900", "must be at most 99: it is 9.0 for what the compiler calls sm_90"),
    (f"run.name={'a' * 300}", "must be at most 200 bytes, since it names a folder"),
    (f"run.name='sets/{'ä' * 101}'", "must be at most 200 bytes"),
]


@pytest.mark.parametrize(("word", "rule"), NONSENSE, ids=[word[:40] for word, _ in NONSENSE])
def test_what_nobody_means_is_refused_with_the_bound_and_its_reason(word: str, rule: str | None) -> None:
    found = ask("cluster=slurm", "hardware=h100_80g", word).errors
    assert [error.path for error in found] == ([] if rule is None else [word.partition("=")[0]])
    assert rule is None or found[0].rule.startswith(rule)


def test_the_way_out_of_a_bound_is_the_bound() -> None:
    words = ("hardware=h100_80g", "adapter=lora", "adapter.rank=100000000000", "optimizer.clip=1e-300")
    assert [error.way_out for error in ask(*words).errors] == [("optimizer.clip=1e-12",), ("adapter.rank=1048576",)]


REAL = {
    "cluster.nodes": (1, 2_048, 25_000, 158_976),
    "cluster.gpus_per_node": (1, 8, 72, 768),
    "cluster.time_limit_min": (1, 7 * 1440, 365 * 1440),
    "cluster.requeues": (0, 3, 1_000),
    "train.sequence_length": (32, 131_072, 10_000_000, 100_000_000),
    "train.micro_batch_size": (1, 512, 65_536),
    "train.global_batch_size": (1, 65_536, 16_777_216),
    "train.steps": (1, 1_000_000, 20_000_000),
    "train.tokens": (1, 15 * 10**12, 10**15),
    "train.seed": (0, 2**64 - 1),
    "train.eval_every": (1, 10**9),
    "optimizer.weight_decay": (0, 0.1, 100.0),
    "optimizer.clip": (0, 1e-6, 1.0, 1e9),
    "optimizer.lr": (1e-12, 6e-4, 10.0),
    "model.num_experts": (0, 256, 2_048, 1_048_576),
    "model.rope_theta": (1e4, 5e8, 1e11),
    "model.vocab_size": (256, 262_144, 1_000_000),
    "zero.max_live_parameters": (0, 10**9, 10**12),
    "data.workers": (0, 8, 64, 192),
    "hardware.memory_bytes": (16 * 2**30, 309_237_645_312),
    "hardware.host_memory_bytes": (2**30, 64 * 2**40),
    "hardware.compute_capability": (7.0, 12.1),
    "save.keep": (1, 10**6),
}


@pytest.mark.parametrize("key", REAL)
def test_no_bound_refuses_what_people_have_trained(key: str) -> None:
    assert all(accepts(key, value) for value in REAL[key])


def test_a_run_of_a_hundred_thousand_gpus_and_of_ten_million_tokens_a_sequence_has_no_error_of_size() -> None:
    words = ("cluster=slurm", "hardware=h100_80g", "model=7b", "cluster.nodes=12500", "train.sequence_length=10000000")
    assert ask(*words, "train.steps=5000000").errors == ()
