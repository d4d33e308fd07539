"""The smallest cluster, for memory and for time."""

from __future__ import annotations

import pytest

from launcher.base.errors import ConfigErrors
from launcher.planner import feasibility, length
from launcher.planner.judge import Preflight
from launcher.planner.question import ask
from launcher.planner.smallest import least_gpu_seconds, sized, sizes, smallest
from tests.support.helpers import CPU_HOST
from tests.support.questions import asked, card

JUDGE = Preflight()
SMALL = ("parallel.tensor=1", "parallel.pipeline=1")


@pytest.mark.parametrize("quarters", [14, 16, 22])
def test_it_is_the_first_size_on_which_something_fits(quarters: int) -> None:
    question = asked(card(quarters), *SMALL)
    found = smallest(question, JUDGE)
    assert found.size is not None
    below = [size for size in sizes(question) if size.gpus < found.size.gpus]
    assert below
    assert all(feasibility.fastest(sized(question, size), JUDGE) is None for size in below)
    assert feasibility.fastest(sized(question, found.size), JUDGE) is not None


def test_the_sizes_beside_it_say_why_not_and_what_they_bring() -> None:
    found = smallest(asked(card(16), *SMALL), JUDGE)
    assert (found.size and found.size.gpus, found.smaller and found.smaller.size.gpus) == (4, 2)
    assert found.smaller is not None
    assert found.smaller.layout is None
    assert "too small on a GPU" in found.smaller.lacks
    assert found.larger is not None
    assert found.larger.layout is not None
    assert (found.larger.size.gpus, found.larger.lacks) == (8, "")


def test_the_words_limit_it() -> None:
    limited = smallest(asked(card(14), *SMALL, "cluster.nodes=1", "cluster.gpus_per_node=4"), JUDGE)
    assert limited.size is None
    assert limited.smaller is not None
    assert limited.smaller.size.gpus == 4
    beyond = smallest(asked(card(14), *SMALL, "cluster.nodes=1", "cluster.gpus_per_node=4"), JUDGE, beyond=True)
    assert beyond.size is not None
    assert beyond.size == (2, 4)


def test_in_time_it_is_the_first_size_whose_fastest_layout_is() -> None:
    question = asked("train.tokens=10000000000", *SMALL)
    costs = {}
    for size in sizes(asked("cluster.nodes=1", *SMALL)):
        layout = feasibility.fastest(sized(question, size), JUDGE)
        cost = None if layout is None else length.cost_of(layout)
        assert cost is not None
        costs[size] = cost.days
    for limit in (days * 1.01 for days in costs.values()):
        assert smallest(question, JUDGE, days=limit).size == next(s for s, days in costs.items() if days <= limit)


@pytest.mark.parametrize("engine", ["parallel=fsdp", "backend=megatron", "parallel=zero3"])
def test_no_layout_takes_less_gpu_seconds_than_the_bound(engine: str) -> None:
    for words in ((), ("model=mixtral_8x7b", "cluster.nodes=8", "train.global_batch_size=512", "parallel.tensor=1")):
        question = asked(*words, "train.steps=1", engine=engine)
        layout = feasibility.fastest(question, JUDGE)
        assert layout is not None
        assert layout.speed is not None
        least = least_gpu_seconds(question, JUDGE)
        taken = layout.speed.step_seconds * layout.spec.gpus
        assert least < taken
        assert taken / 5 < least or engine == "parallel=zero3"  # Small modules of stage 3 wait for the host's hooks.


def test_where_model_states_lie_in_host_memory_the_size_without_is_told() -> None:
    words = ("model=350m", "hardware=h100_80g", card(16), "train.global_batch_size=8", "train.sequence_length=2048")
    found = smallest(ask((*words, "parallel=fsdp", *SMALL), facts=CPU_HOST), JUDGE)
    assert found.size is not None
    assert found.on_devices is not None
    assert found.on_devices.gpus > found.size.gpus


def test_a_limit_on_time_is_refused_where_no_speed_is_known() -> None:
    question = ask(("model=tiny", "train.tokens=1000000", "train.global_batch_size=8"), facts=CPU_HOST)
    with pytest.raises(ConfigErrors, match="the speed of a CPU is not modelled"):
        smallest(question, JUDGE, days=3)
