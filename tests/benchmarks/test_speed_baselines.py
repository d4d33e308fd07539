"""Other people's predictors of speed: the numbers that their published form gives."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.speed.baselines import load, names
from benchmarks.speed.baselines._calculon_block import Shape
from benchmarks.speed.baselines._calculon_system import A100, System, system_with
from benchmarks.speed.baselines.calculon import Execution, step
from benchmarks.speed.row import Row
from tests.support.helpers import make_spec

H100 = ("hardware=h100_80g", "cluster.gpus_per_node=8")
A100_NODE = ("hardware=a100_80g", "cluster.gpus_per_node=8")


def _row(*words: str) -> Row:
    return Row(name="a run", family="ours", spec=make_spec(*words))


def _predict(name: str, *words: str) -> float | None:
    answer = load(name).predict(_row(*words))
    assert answer is None or isinstance(answer, float)
    return answer


def _speed(name: str, *words: str) -> float:
    answer = _predict(name, *words)
    assert answer is not None
    return answer


def _selene() -> System:
    """NVIDIA's Selene, of A100 80 GB."""
    return system_with(A100, peak=312e12, memory_bandwidth=2039e9, link=300e9, link_gpus=8, network=25e9)


def test_every_predictor_says_what_it_is() -> None:
    assert names() == ("calculon", "constant_mfu", "llm_analysis", "roofline")
    assert all(load(name).SOURCE for name in names())


@pytest.mark.parametrize("name", names())
def test_a_predictor_answers_for_a_whole_model_and_not_for_an_adapter_or_a_cpu(name: str) -> None:
    words = ("model=7b", "parallel=tp_pp")
    assert _speed(name, *A100_NODE, *words) > 0
    assert _predict(name, *A100_NODE, *words, "adapter=lora") is None
    assert _predict(name, "hardware=cpu", "cluster.gpus_per_node=8", *words) is None
    assert load(name).predict(Row(name="a run", family="ours")) is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # Tokens of a step over latency_per_iter and GPUs, of what llm_analysis 0.2.2 itself answers at efficiency 0.5.
        ((*H100, "model=llama3_8b", "parallel=fsdp"), 11_389.459),
        (
            (*A100_NODE, "model=llama3_8b", "parallel=tp_pp", "parallel.tensor=2", "parallel.pipeline=2",
             "checkpointing=full", "train.micro_batch_size=2", "train.global_batch_size=16",
             "train.sequence_length=8192"),
            2_346.580,
        ),
        (
            (*A100_NODE, "model=gpt3_175b", "parallel=tp_pp", "parallel.tensor=8", "parallel.pipeline=8",
             "cluster.nodes=8", "checkpointing=selective", "train.micro_batch_size=1", "train.global_batch_size=64",
             "train.sequence_length=2048"),
            143.6415,
        ),
        ((*H100, "model=mixtral_8x7b", "parallel=fsdp"), None),
        ((*H100, "model=llama3_8b", "parallel=fsdp", "precision=fp8"), None),
    ],
)  # fmt: skip
def test_llm_analysis(words: tuple[str, ...], expected: float | None) -> None:
    # Its file of the H100 has 989 TFLOP/s, ours 989.4.
    assert _predict("llm_analysis", *words) == (None if expected is None else pytest.approx(expected, rel=1e-3))


# Seconds of a step with full and with selective recomputation (arXiv:2205.05198, table 5); layouts of its table 3.
KORTHIKANTI = {
    "22B": ((6144, 64, 48), (8, 1, 1), (4, 1), (1.42, 1.10)),
    "175B": ((12288, 96, 96), (8, 8, 3), (1, 64), (18.13, 13.75)),
    "530B": ((20480, 128, 105), (8, 35, 3), (1, 280), (49.05, 37.83)),
    "1T": ((25600, 160, 128), (8, 64, 1), (1, 512), (94.42, 71.49)),
}


def _calculon_error(name: str, recompute: str) -> float:
    (hidden, heads, blocks), (tensor, pipeline, interleaving), (batch, micro_batches), measured = KORTHIKANTI[name]
    selective = recompute == "attn_only"
    shape = Shape(
        batch=batch,
        length=2048,
        hidden=hidden,
        heads=heads,
        head_size=hidden // heads,
        feed_forward=4 * hidden,
        tensor=tensor,
        sequence_ranks=tensor if selective else 1,
    )
    run = Execution(
        tensor=tensor,
        pipeline=pipeline,
        data=1,
        interleaving=interleaving,
        micro_batches=micro_batches,
        blocks=blocks,
        recompute=recompute,
        optimizer_sharding=False,
        data_overlap=False,
    )
    return step(shape, run, _selene()) / measured[selective] - 1


def test_calculon_is_as_near_to_its_eight_runs_on_selene_as_it_says_of_itself() -> None:
    errors = [abs(_calculon_error(name, mode)) for name in KORTHIKANTI for mode in ("full", "attn_only")]
    # Calculon itself: 3.65% on average (Isaev et al., SC23).
    assert statistics.mean(errors) == pytest.approx(0.0365, abs=0.005)
    assert max(errors) < 0.08


@pytest.mark.parametrize(
    "words",
    [
        ("model=mixtral_8x7b", "parallel=tp_pp"),
        ("model=7b", "parallel=fsdp"),
        ("model=7b", "parallel=tp_pp", "hardware=v100_32g"),
        ("model=7b", "parallel=tp_pp", "precision=fp32"),
    ],
)
def test_calculon_has_no_words_for_experts_sharded_weights_other_cards_and_other_formats(
    words: tuple[str, ...],
) -> None:
    assert _predict("calculon", *A100_NODE, *words) is None


def test_calculon_takes_a_sharded_gradient_for_a_sharded_optimizer_whose_step_is_shorter() -> None:
    whole, optimizer, gradient = (
        _speed("calculon", *A100_NODE, "model=7b", f"parallel=zero{stage}") for stage in (0, 1, 2)
    )
    assert whole < optimizer == gradient


def test_a_constant_share_of_the_peak_is_40_percent_of_it_in_model_flops() -> None:
    # 6 (N - V h) + 12 L h s of Llama 2 7B: 6 (6,738,415,616 - 131,072,000) + 12 x 32 x 4096 x 4096.
    tokens = 0.40 * 312e12 / (6 * 6_607_343_616 + 12 * 32 * 4096 * 4096)
    for parallel in ("fsdp", "tp_pp", "zero1"):
        words = (*A100_NODE, "model=7b", f"parallel={parallel}", "train.sequence_length=4096")
        assert _speed("constant_mfu", *words) == pytest.approx(tokens)


def test_the_roofline_of_one_gpu_is_its_products_at_70_percent_and_its_optimizer() -> None:
    words = ("hardware=a100_80g", "cluster.gpus_per_node=1", "model=7b", "parallel=ddp", "train.sequence_length=4096")
    flops = 4096 * (6 * 6_607_343_616 + 6 * 32 * 4096 * 4096)
    seconds = flops / (0.70 * 312e12) + 28 * 6_738_415_616 / (0.70 * 2039e9)
    assert _speed("roofline", *words, "train.micro_batch_size=1") == pytest.approx(4096 / seconds)


@pytest.mark.parametrize("name", ["roofline", "calculon"])
def test_a_bubble_costs_its_share_and_interleaving_wins_it_back(name: str) -> None:
    run = (*A100_NODE, "model=7b", "parallel=tp_pp", "parallel.tensor=1", "parallel.pipeline=8",
           "train.micro_batch_size=1")  # fmt: skip
    few, many = (_speed(name, *run, f"train.global_batch_size={batch}") for batch in (8, 512))
    interleaved = _speed(name, *run, "train.global_batch_size=8", "parallel.virtual_pipeline=2")
    # (m + p - 1) / m of 8 and of 512 micro-batches, beside the optimizer's seconds.
    assert many / few == pytest.approx((15 / 8) / (519 / 512), rel=0.15)
    assert few < interleaved < many
