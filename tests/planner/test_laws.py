"""Laws of an answer: whatever is asked, these hold."""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.api import check
from launcher.planner.keys import SEARCHED
from launcher.planner.layouts import Layout, Plan
from launcher.planner.planning import plan
from launcher.planner.question import ask
from launcher.spec.edit import override, value_at

WORDS: tuple[str, ...] = (
    "model=1b",
    "hardware=h100_80g",
    "cluster.nodes=2",
    "cluster.gpus_per_node=2",
    "train.global_batch_size=16",
    "train.sequence_length=2048",
    "train.micro_batch_size=1,2",
    "parallel.virtual_pipeline=1,2",
    "zero.hpz=1",
    "parallel.context=1",
    "parallel.ulysses=1",
)
GIB = 2**30


@cache
def answered(*words: str) -> Plan:
    return plan(ask((*WORDS, *words)))


def best(*words: str) -> Layout:
    found = answered(*words).layouts
    assert found
    return found[0]


def seconds(layout: Layout) -> float:
    assert layout.speed is not None
    return layout.speed.step_seconds


@settings(max_examples=4, deadline=None)
@given(st.floats(1e9, 100e9), st.floats(1.0, 20.0), st.sampled_from(["cluster.network_bandwidth"]))
def test_a_faster_network_never_slows_the_best(bandwidth: float, factor: float, key: str) -> None:
    slow, fast = (best(f"{key}={round(rate)}") for rate in (bandwidth, factor * bandwidth))
    assert seconds(fast) <= seconds(slow) * (1 + 1e-9)


@settings(max_examples=4, deadline=None)
@given(st.integers(10 * GIB, 40 * GIB), st.floats(1.0, 3.0))
def test_more_memory_never_slows_the_best(memory: int, factor: float) -> None:
    small, large = (best(f"hardware.memory_bytes={round(size)}") for size in (memory, factor * memory))
    assert small.verdict.name == large.verdict.name == "fits"
    assert seconds(large) <= seconds(small)


@settings(max_examples=2, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_answer_does_not_depend_on_the_order_of_the_words(shuffler: random.Random) -> None:
    words = [*WORDS, "hardware.memory_bytes=12000000000"]
    shuffler.shuffle(words)
    assert plan(ask(words)).layouts == answered("hardware.memory_bytes=12000000000").layouts


@pytest.mark.parametrize("path", SEARCHED)
def test_a_key_that_is_fixed_to_the_value_chosen_gives_the_same_answer(path: str) -> None:
    words: tuple[str, ...] = ("hardware.memory_bytes=12000000000", "backend=megatron", "parallel.pipeline=2")
    free = best(*words)
    if any(word.startswith(f"{path}=") for word in (*WORDS, *words)):
        words = tuple(word for word in words if not word.startswith(f"{path}="))
        kept = tuple(word for word in WORDS if not word.startswith(f"{path}="))
        fixed = plan(ask((*kept, *words, override(path, value_at(free.spec, path))))).layouts[0]
    else:
        fixed = best(*words, override(path, value_at(free.spec, path)))
    assert fixed.spec == free.spec
    assert seconds(fixed) == seconds(free)


def test_degree_one_everywhere_equals_check() -> None:
    ones = [f"parallel.{axis}=1" for axis in ("tensor", "pipeline", "context", "ulysses", "expert", "replicate")]
    words = [
        *(word for word in WORDS if word.partition("=")[0] not in {one.partition("=")[0] for one in ones}),
        *ones,
        *("parallel=fsdp", "train.micro_batch_size=1", "checkpointing=full", "train.loss=full"),
        *("train.allocator=default", "zero.offload_optimizer=none", "zero.offload_parameters=none"),
        *(
            "zero.stage=3",
            "backend.reshard_after_forward=null",
            "parallel.sequence=false",
            "parallel.virtual_pipeline=1",
        ),
    ]
    words = [word for word in words if "," not in word]
    found, checked = plan(ask(words)), check(words, native=False)
    assert len(found.layouts) == 1
    assert found.layouts[0].overrides == ()
    assert checked.spec is not None
    assert found.layouts[0].spec.hash == checked.spec.hash
    assert checked.speed is not None
    assert seconds(found.layouts[0]) == checked.speed.step_seconds
    assert found.layouts[0].verdict.used_bytes == checked.assessment.verdict.used_bytes  # type: ignore[union-attr]


def test_every_layout_is_the_run_that_its_words_compose_and_check_agrees() -> None:
    found = answered("hardware.memory_bytes=12000000000")
    assert len(found.layouts) > 4
    typed = [word for word in WORDS if "," not in word]
    for each in (*found.layouts, *found.others):
        checked = check((*typed, "hardware.memory_bytes=12000000000", *each.overrides), native=False)
        assert checked.spec is not None
        assert checked.spec.hash == each.spec.hash
        assert checked.verdict == each.verdict.name
        assert checked.speed is not None
        assert checked.speed.step_seconds == seconds(each)
