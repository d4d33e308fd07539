"""Other estimators: the numbers that their published form gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.estimators import load, names
from launcher.spec import RunSpec
from tests.support.helpers import make_spec, needs

NODE = ("hardware=h100_80g", "cluster.gpus_per_node=8")


def _spec(*words: str) -> RunSpec:
    return make_spec(*NODE, *words)


def test_every_estimator_says_what_it_is() -> None:
    assert names() == ("accelerate", "deepspeed", "eleutherai", "llm_analysis", "megatron")
    for name in names():
        assert load(name).SOURCE.startswith(("imported from the installed", "re-implemented from the published"))


@pytest.mark.parametrize("name", names())
def test_no_estimator_answers_for_an_adapter(name: str) -> None:
    runs = [("parallel=ddp",), ("parallel=zero2",), ("parallel=zero3",), ("parallel=tp",)]
    answers = {load(name).predict(_spec("model=7b", *words)) for words in runs}
    assert answers - {None}
    assert {load(name).predict(_spec("model=7b", *words, "adapter=lora")) for words in runs} == {None}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # 2 P + 18 P / 8, and 2 P with the optimizer on the CPU, for P = 6,738,415,616.
        (("parallel=zero2",), 2 * 6_738_415_616 + 18 * 6_738_415_616 // 8),
        (("parallel=zero2", "zero.offload_optimizer=cpu"), 2 * 6_738_415_616),
        # 4 x the output projection of 32,000 x 4,096 more in place of 2 P.
        (("parallel=zero3",), 4 * 32_000 * 4096 + 18 * 6_738_415_616 // 8),
        (("parallel=zero3", "zero.offload_optimizer=cpu"), 4 * 32_000 * 4096 + 2 * 6_738_415_616 // 8),
        (("parallel=zero3", "zero.offload_optimizer=cpu", "zero.offload_parameters=cpu"), 4 * 32_000 * 4096),
        (("parallel=zero1",), None),
        (("parallel=fsdp",), None),
    ],
)
def test_deepspeeds_helpers(words: tuple[str, ...], expected: int | None) -> None:
    needs("deepspeed")
    assert load("deepspeed").predict(_spec("model=7b", *words)) == expected


def test_deepspeeds_import_leaves_stdout_alone() -> None:
    program = (
        "from tests.support.helpers import make_spec\nfrom benchmarks.estimators import load\n"
        "load('deepspeed').predict(make_spec('model=7b', 'parallel=zero3'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "bytes_a_parameter"),
    [
        (("parallel=ddp", "precision=bf16"), 8),
        (("parallel=ddp", "precision=fp32"), 16),
        (("parallel=fsdp",), None),
        (("parallel=tp",), None),
    ],
)
def test_accelerate_gives_8_bytes_a_parameter_in_16_bits(words: tuple[str, ...], bytes_a_parameter: int | None) -> None:
    needs("accelerate")
    expected = None if bytes_a_parameter is None else bytes_a_parameter * 6_738_415_616
    assert load("accelerate").predict(_spec("model=7b", *words)) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # What llm_analysis 0.2.2 itself answers for these sizes, degrees and stages.
        (("model=llama3_8b", "parallel=fsdp"), 38_147_007_488),
        (("model=7b", "parallel=ddp", "train.micro_batch_size=2"), 163_077_234_688),
        (("model=7b", "parallel=zero2", "checkpointing=full"), 27_893_186_560),
        (("model=70b", "parallel=3d", "cluster.nodes=4", "train.global_batch_size=16"), 55_543_541_760),
        (
            ("model=70b", "parallel=tp_pp", "cluster.nodes=4", "train.global_batch_size=16", "checkpointing=selective",
             "parallel.sequence=false"),
            171_804_850_176,
        ),
        (("model=gpt2", "parallel=zero1", "model.attention=eager"), 2_091_933_952),
        (("model=mixtral_8x7b", "parallel=fsdp"), None),
        (("model=7b", "parallel=fsdp", "checkpointing=selective"), None),
    ],
)  # fmt: skip
def test_llm_analysis(words: tuple[str, ...], expected: int | None) -> None:
    assert load("llm_analysis").predict(_spec(*words)) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # What report_theoretical_memory of megatron-core 0.19.2 itself answers for these arguments.
        (("model=llama3_8b", "parallel=tp", "parallel.tensor=8", "checkpointing=selective"), 20_508_651_520),
        (("model=gpt3_175b", "parallel=3d", "cluster.nodes=16", "train.global_batch_size=64"), 115_175_059_046),
        (
            ("model=gpt3_175b", "parallel=3d", "cluster.nodes=16", "train.global_batch_size=64",
             "checkpointing=selective", "parallel.virtual_pipeline=3"),
            94_131_157_675,
        ),
        (("model=mixtral_8x7b", "parallel=tp_pp", "parallel.expert=4", "cluster.nodes=2"), 60_568_450_253),
        (
            ("model=deepseek_v3", "parallel=tp_pp", "parallel.tensor=8", "parallel.pipeline=4", "parallel.expert=8",
             "parallel.expert_tensor=1", "cluster.nodes=32", "checkpointing=selective"),
            159_474_175_968,
        ),
        (("model=gpt2", "parallel=tp", "parallel.tensor=1"), 1_374_616_013),
        (("model=7b", "parallel=zero3"), None),
        (("model=7b", "parallel=fsdp"), None),
    ],
)  # fmt: skip
def test_megatrons_theoretical_memory(words: tuple[str, ...], expected: int | None) -> None:
    assert load("megatron").predict(_spec(*words)) == expected


def test_eleutherais_calculator_for_gpt2_under_zero_1() -> None:
    total = 2 * 50_257 * 768 + 768 * 1024 + (8 * 12 + 2) * 768 + 4 * 12 * 768**2 + 2 * 12 * 768 * 3072
    assert total == 162_991_104
    states = 2 * total + 4 * total + 12 * total // 8
    scores = 5 * 12 * 1024 // 768
    activations = 1024 * 768 * 12 * (34 + scores)
    spec = _spec("model=gpt2", "parallel=zero1", "zero.allgather_bucket_size=500000000")
    assert load("eleutherai").predict(spec) == states + 2 * 500_000_000 + activations == 3_298_272_256


def test_eleutherais_calculator_keeps_34_sbh_a_layer_when_checkpointing() -> None:
    tokens, layers, hidden = 4096, 32, 4096
    full, none = (
        load("eleutherai").predict(_spec("model=7b", "parallel=tp", f"checkpointing={mode}"))
        for mode in ("full", "none")
    )
    assert none - full == tokens * hidden * layers * 5 * 32 * 4096 // hidden
    assert load("eleutherai").activations(_spec("model=7b", "checkpointing=full")) == 34 * tokens * layers * hidden


def test_eleutherais_calculator_divides_stage_3_by_all_gpus() -> None:
    spec = _spec("model=7b", "parallel=zero3")
    total = load("eleutherai").parameters(spec)
    assert load("eleutherai").states(spec) == 18 * total / 8
    assert load("eleutherai").predict(_spec("model=mixtral_8x7b", "parallel=zero3")) is None
