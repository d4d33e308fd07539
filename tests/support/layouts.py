"""Layouts of one training on 16 GPUs of two nodes, judged by the pre-flight without a search."""

from __future__ import annotations

from functools import cache

from launcher.planner.judge import Preflight
from launcher.planner.layouts import Assumption, Counts, Layout, Plan
from tests.support.helpers import composed_once

WORDS = (
    "model=7b",
    "hardware=h100_80g",
    "cluster.nodes=2",
    "cluster.gpus_per_node=8",
    "train.global_batch_size=128",
)
"""The words of the question."""

FEW = (
    "model=1b",
    "parallel=fsdp,zero1,zero2,zero3",
    "hardware=h100_80g",
    "cluster.gpus_per_node=2",
    "train.global_batch_size=4",
    "train.sequence_length=2048",
    "parallel.tensor=1",
    "parallel.pipeline=1",
    "parallel.context=1",
    "parallel.ulysses=1",
    "zero.offload_optimizer=none",
    "zero.offload_parameters=none",
)
"""A question with few layouts."""

MEGATRON = ("backend=megatron", "zero.stage=1")


@cache
def layout(*overrides: str, words: tuple[str, ...] = WORDS) -> Layout:
    """The layout of some overrides, without checking rules."""
    spec, judge = composed_once(*words, *overrides), Preflight()
    verdict = judge.verdict(spec)
    return Layout(overrides=overrides, spec=spec, speed=judge.speed(spec, verdict), verdict=verdict)


def plan_of(*layouts: Layout, words: tuple[str, ...] = WORDS, **others: object) -> Plan:
    """An answer with these layouts."""
    found: dict[str, object] = {
        "words": words,
        "single": words,
        "assumptions": (Assumption(override="train.sequence_length=4096", why="it is not said"),),
        "counts": Counts(considered=1000, invalid=200, unfit=100, slower=700),
        "seconds": 1.25,
        **others,
    }
    return Plan(layouts=layouts, **found)  # type: ignore[arg-type]
