"""nanotron's allocations played through torch's allocator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.memory.frameworks.nanotron.device_memory import LAUNCHES, DeviceMemory
from benchmarks.memory.frameworks.nanotron.micro_batch import FirstStage
from benchmarks.memory.frameworks.nanotron.sizes import sizes
from benchmarks.memory.frameworks.nanotron.training import reserved
from launcher.base.units import GIB, MIB
from launcher.spec import RunSpec
from tests.support.helpers import make_spec

PLENTY = 1000 * GIB


def run(*overrides: str) -> RunSpec:
    return make_spec(
        "model=llama2_7b",
        "parallel=tp_pp",
        "zero=0",
        "precision=bf16",
        "hardware=h100_80g",
        "train.sequence_length=4096",
        "train.micro_batch_size=1",
        "train.global_batch_size=4",
        "cluster.gpus_per_node=8",
        "parallel.tensor=8",
        "parallel.pipeline=1",
        "parallel.sequence=true",
        *overrides,
    )


ALONE = ("parallel.tensor=1", "parallel.sequence=false", "cluster.gpus_per_node=1", "train.global_batch_size=2")


class Ledger(DeviceMemory):
    """Remembers what is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}

    def new(self, size: int) -> int:
        name = super().new(size)
        self.alive[name] = size
        return name

    def free(self, *names: int) -> None:
        super().free(*names)
        for name in names:
            del self.alive[name]


def stage_of(spec: RunSpec, memory: DeviceMemory, *, last: bool) -> FirstStage:
    return FirstStage(memory=memory, sizes=sizes(spec), layers=2, split=spec.parallel.tensor > 1, last=last, tied=False)


def test_a_block_saves_20_h_and_8_f_bytes_a_token_and_a_log_sum_exp_a_head() -> None:
    spec, memory = run(*ALONE), Ledger()
    stage_of(spec, memory, last=False).forward()
    model = spec.model
    block = 20 * model.hidden_size + 8 * model.intermediate_size + 4 * model.num_attention_heads
    # Two blocks, and the result of the second.
    assert sum(memory.alive.values()) == 4096 * (2 * block + 2 * model.hidden_size)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("overrides", [(), ALONE, ("model.num_key_value_heads=8",)])
def test_a_micro_batch_leaves_only_the_two_buffers_of_the_whole_sequence(
    overrides: tuple[str, ...], last: bool
) -> None:
    spec, memory = run(*overrides), Ledger()
    stage = stage_of(spec, memory, last=last)
    stage.backward(stage.forward())
    assert list(memory.alive.values()) == [sizes(spec).whole] * (2 if spec.parallel.tensor > 1 else 0)


def test_a_block_that_nccl_has_read_comes_back_once_the_gpu_is_through() -> None:
    memory = DeviceMemory()
    memory.ahead = True
    memory.free_late(memory.new(30 * MIB))
    memory.new(30 * MIB)
    assert memory.peak_reserved == 60 * MIB
    memory.launch(LAUNCHES)
    memory.new(30 * MIB)
    assert memory.peak_reserved == 60 * MIB


def test_the_allocator_waits_for_the_gpu_before_it_gives_up_and_the_host_from_then_on() -> None:
    memory = DeviceMemory(50 * MIB)
    memory.ahead = True
    memory.free_late(memory.new(30 * MIB))
    again = memory.new(40 * MIB)
    memory.free_late(again)
    memory.new(40 * MIB)
    assert memory.exhausted
    assert memory.peak_reserved == 40 * MIB


def test_a_host_that_runs_ahead_reserves_more_where_ranks_reduce() -> None:
    stages = replace(run().parallel, pipeline=4, first_stage_layers=8, last_stage_layers=8)
    staged = replace(run("cluster.nodes=4", "train.global_batch_size=8"), parallel=stages)
    waiting = reserved(staged, run_ahead=False, capacity=PLENTY)
    late = 2 * 2 * sizes(staged).whole * 8
    assert waiting + late * 0.9 < reserved(staged, run_ahead=True, capacity=PLENTY) < waiting + late * 1.1


@pytest.mark.parametrize(
    ("batch", "nodes", "held"), [("1", 1, False), ("16", 1, True), ("16", 2, False)], ids=["short", "long", "two nodes"]
)
def test_after_the_repair_a_run_without_stages_holds_buffers_where_the_gpu_outlasts_the_host(
    batch: str, nodes: int, held: bool
) -> None:
    spec = run(f"train.micro_batch_size={batch}", "train.global_batch_size=32", "cluster.nodes=2")
    if nodes == 2:
        spec = run(
            f"train.micro_batch_size={batch}", "train.global_batch_size=16", "cluster.nodes=2", "parallel.tensor=16"
        )
    before, after = (reserved(spec, run_ahead=repaired, capacity=PLENTY) for repaired in (False, True))
    assert (before == after) is held


def test_512_gpus_with_32_copies_hold_no_buffers() -> None:
    spec = run("train.micro_batch_size=1", "train.global_batch_size=64", "cluster.nodes=64", "parallel.tensor=8")
    assert spec.gpus == 512
    assert reserved(spec, run_ahead=False, capacity=PLENTY) == reserved(spec, run_ahead=True, capacity=PLENTY)


def test_a_run_that_the_card_cannot_hold_has_all_of_the_card() -> None:
    assert reserved(run(), run_ahead=False, capacity=10 * GIB) == 10 * GIB


@pytest.mark.parametrize(("stage", "expected"), [("zero=0", 20 + 2), ("zero=1", 10 + 14 / 2)])
def test_few_tokens_reserve_the_states_and_the_gradients_of_a_backward_pass_or_the_copies_of_a_step(
    stage: str, expected: float
) -> None:
    spec = run("cluster.nodes=2", "train.global_batch_size=8", "train.sequence_length=64", stage)
    parameters = 6.74e9 / 8
    assert reserved(spec, run_ahead=False, capacity=PLENTY) / parameters == pytest.approx(expected, rel=0.05)
