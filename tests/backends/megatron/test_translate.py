from __future__ import annotations

import pytest

from launcher.backends.megatron import check, translate, warnings
from launcher.backends.megatron.translate import argument_list, arguments
from launcher.importers import megatron
from launcher.job import Job
from launcher.preflight import findings, plan
from tests.support.helpers import assert_golden, make_spec

H100 = ("hardware=h100_80g", "cluster.gpus_per_node=8")
SEVEN = (*H100, "model=7b", "train.global_batch_size=32")
MIXTRAL = (*H100, "model=mixtral_8x7b", "train.global_batch_size=32")
UNEVEN = ("parallel=pp", "parallel.first_stage_layers=14", "parallel.last_stage_layers=18")

RUNS: dict[str, tuple[str, ...]] = {
    "tp": (*SEVEN, "parallel=tp"),
    "tp_pp": (*SEVEN, "parallel=tp_pp"),
    "3d": (*SEVEN, "cluster.nodes=2", "parallel=3d", "model=llama3_70b"),
    "interleaved": (*SEVEN, "parallel=pp", "parallel.virtual_pipeline=2", "parallel.schedule=interleaved"),
    "uneven": (*SEVEN, *UNEVEN),
    "cp": (*SEVEN, "parallel=cp", "parallel.tensor=2"),
    "zero0": (*SEVEN, "parallel=tp", "zero=0"),
    "instances": (*SEVEN, "parallel=tp", "parallel.replicate=2"),
    "fsdp2": (*SEVEN, "parallel=tp", "zero=2"),
    "fsdp3": (*SEVEN, "backend=megatron", "parallel.name=custom", "parallel=tp", "zero=3"),
    "offload": (*SEVEN, "parallel=tp", "zero.offload_optimizer=cpu"),
    "narrow": (*SEVEN, "parallel=tp", "precision.master=fp16", "precision.optimizer_states=bf16"),
    "bf16_gradients": (
        *SEVEN,
        "parallel=tp",
        "precision.gradients=bf16",
        "precision.accumulate=bf16",
        "precision.reduce=bf16",
    ),
    "fp16": (*SEVEN, "parallel=tp", "precision=fp16", "precision.initial_loss_scale=65536"),
    "fp32": (*SEVEN, "parallel=tp", "precision=fp32"),
    "fp8": (*SEVEN, "parallel=tp", "precision=fp8", "precision.recipe=blockwise"),
    "nvfp4": (*SEVEN, "hardware=b200", "parallel=tp", "precision=nvfp4", "+backend.extra.fp4-param-gather=true"),
    "selective": (*SEVEN, "parallel=tp", "checkpointing=selective", "checkpointing.modules=[layernorm,mlp]"),
    "core_attention": (*SEVEN, "parallel=tp", "checkpointing=selective"),
    "uniform": (*SEVEN, "parallel=tp", "checkpointing=full", "checkpointing.layers=4"),
    "block": (*SEVEN, "parallel=pp", "checkpointing=full", "checkpointing.method=block"),
    "gpt": (*H100, "model=gpt3_175b", "cluster.nodes=2", "parallel=3d", "train.global_batch_size=32"),
    "qwen3": (*H100, "model=qwen3_32b", "parallel=tp"),
    "moe": (*MIXTRAL, "parallel=ep"),
    "moe_tensor": (*MIXTRAL, "parallel=ep", "parallel.tensor=2", "parallel.sequence=true", "parallel.expert_tensor=1"),
    "mla": (*H100, "cluster.nodes=8", "model=deepseek_v3", "parallel=ep", "train.sequence_length=4096"),
    "data": (*SEVEN, "parallel=tp", "data=tokens", "data.path=words.bin", "train.eval_every=10", "data.workers=2"),
    "checkpoints": (*SEVEN, "parallel=tp", "save.every=10", "save.load=runs/first", "save.async=true"),
    "sgd": (*SEVEN, "parallel=tp", "zero=0", "optimizer=sgd", "optimizer.schedule=linear", "optimizer.warmup_steps=10"),
    "tracked": (*SEVEN, "parallel=tp", "tracking=wandb", "tracking.project=words", "train.loss=fused"),
    "extra": (*SEVEN, "parallel=tp", "+backend.extra.moe_per_layer_logging=true", "+backend.extra.num-layers-x=[1,2]"),
    "cpu": ("model=tiny", "parallel=tp_pp", "cluster.gpus_per_node=4", "precision=fp32", "data=synthetic"),
    "slurm": (*SEVEN, "parallel=tp", "cluster=slurm", "cluster.nodes=2"),
    "checkout": (*SEVEN, "parallel=tp", "backend.path=/opt/Megatron-LM", "data=tokens", "data.path=/data/words"),
}


def job(*overrides: str) -> Job:
    return translate(make_spec(*overrides), "python")


def words(*overrides: str) -> list[str]:
    return list(argument_list(make_spec(*overrides)))


@pytest.mark.parametrize("name", RUNS)
def test_the_argument_list_is_the_recorded_one(name: str) -> None:
    assert_golden(f"megatron_{name}.txt", job(*RUNS[name]).files["megatron_arguments.txt"])


@pytest.mark.parametrize("preset", ["tp", "tp_pp", "3d", "pp", "cp", "ep"])
def test_every_preset_of_megatron_translates(preset: str) -> None:
    model = "mixtral_8x7b" if preset == "ep" else "7b"
    spec = make_spec(*H100, "cluster.nodes=2", f"model={model}", f"parallel={preset}", "train.global_batch_size=64")
    planned = plan.translate(spec, python="python")
    assert planned.worker_argv[:2] == ("--num-layers", "32")
    assert planned.argv[-len(planned.worker_argv) :] == planned.worker_argv


def test_torchrun_starts_the_worker_with_the_run_and_the_argument_list() -> None:
    found = job(*RUNS["tp"])
    at = found.argv.index("--")
    assert found.argv[:4] == ("python", "-P", "-m", "torch.distributed.run")
    assert found.argv[at + 1 : at + 4] == ("launcher.worker.megatron", "--run", "{run}")
    assert found.argv[at + 4 :] == found.worker_argv


def test_a_checkout_s_own_program_gets_the_same_arguments() -> None:
    checkout = ("data=synthetic", "backend.path=/opt/Megatron-LM")
    found, own = job(*RUNS["tp"], *checkout), job(*RUNS["tp"], "data=synthetic")
    at = found.argv.index("--")
    assert found.argv[at + 1] == "/opt/Megatron-LM/pretrain_gpt.py"
    assert found.argv[at - 1] != "-m"
    assert found.argv[at + 2 :] == own.worker_argv


@pytest.mark.parametrize(
    ("overrides", "connections"),
    [
        (("parallel=tp",), "1"),
        (("parallel=cp",), "1"),
        (("parallel=pp",), None),
        (("parallel=tp", "zero=3"), None),
        (("parallel=tp", "hardware=b200"), None),
    ],
    ids=str,
)
def test_ranks_that_share_a_layer_have_one_hardware_queue_before_blackwell(
    overrides: tuple[str, ...], connections: str | None
) -> None:
    assert job(*SEVEN, *overrides).environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == connections


@pytest.mark.parametrize(("multiple", "rows"), [(None, 32_256), (1, None), (8, 32_016), (512, 32_768)])
def test_the_warning_of_a_padded_vocabulary_goes_by_what_it_is_made_divisible_by(
    multiple: int | None, rows: int | None
) -> None:
    extra = () if multiple is None else (f"+backend.extra.make-vocab-size-divisible-by={multiple}",)
    spec = make_spec(*SEVEN, "parallel=tp", "model.vocab_size=32004", *extra)
    found = [warning for warning in warnings(spec) if warning.path == "model.vocab_size"]
    assert [warning.way_out for warning in found] == ([] if rows is None else [(f"model.vocab_size={rows}",)])
    assert all(f"{multiple or 128} x tensor 2: {rows} rows, and as many logits" in found[0].rule for _ in found)


def test_an_extra_argument_takes_the_place_of_a_chosen_one_or_takes_it_away() -> None:
    found = words(*SEVEN, "parallel=cp", "+backend.extra.cp-comm-type=a2a", "+backend.extra.overlap_grad_reduce=false")
    assert found[found.index("--cp-comm-type") + 1] == "a2a"
    assert found.count("--cp-comm-type") == 1
    assert "--overlap-grad-reduce" not in found


def test_cpu_ranks_run_megatron_s_own_modules_over_gloo() -> None:
    found = words(*RUNS["cpu"])
    assert found[found.index("--transformer-impl") + 1] == "local"
    assert found[found.index("--distributed-backend") + 1] == "gloo"
    assert "--use-cpu-initialization" in found
    assert "--moe-grouped-gemm" not in words("model=tiny", *MOE)


MOE = (
    "parallel=ep",
    "parallel.expert=2",
    "model.family=moe",
    "model.num_experts=4",
    "model.num_experts_per_tok=2",
    "model.moe_intermediate_size=128",
)


def test_experts_are_one_grouped_product_where_the_gpu_has_it() -> None:
    assert "--moe-grouped-gemm" in words(*MIXTRAL, "parallel=ep")
    assert "--moe-grouped-gemm" not in words(*MIXTRAL, "parallel=ep", "hardware=v100_32g", "precision=fp16")


@pytest.mark.parametrize(
    ("act", "bias", "expected"),
    [
        ("gelu_new", "true", ()),
        ("gelu", "true", ("--no-bias-gelu-fusion",)),
        ("squared_relu", "false", ("--squared-relu", "--no-bias-gelu-fusion")),
        ("silu", "false", ("--swiglu",)),
    ],
)
def test_an_activation_is_the_kernel_that_computes_it(act: str, bias: str, expected: tuple[str, ...]) -> None:
    found = words(*SEVEN, "parallel=tp", f"model.hidden_act={act}", f"model.mlp_bias={bias}")
    about = [word for word in found if "gelu" in word or "swiglu" in word or "relu" in word]
    assert sorted(about) == sorted(expected)


ELSEWHERE = {"data", "checkpoints", "tracked", "checkout", "slurm", "cpu", "extra"}
"""Runs of which an argument list does not say all: data, folders and the way to wait for them are the launcher's."""


@pytest.mark.parametrize("name", sorted(set(RUNS) - ELSEWHERE))
def test_importing_an_argument_list_gives_a_run_with_the_same_one(name: str) -> None:
    text = job(*RUNS[name]).files["megatron_arguments.txt"]
    found = megatron.read(text, "arguments.sh")
    target = [word for word in RUNS[name] if word.startswith(("hardware=", "cluster."))]
    spec = make_spec(*found.overrides, *target)
    assert arguments(spec) == arguments(make_spec(*RUNS[name]))
    assert not list(findings.broken_rules(spec))


def test_megatron_s_own_modules_on_gpus_bring_no_kernels_of_others() -> None:
    found = words(*MIXTRAL, "parallel=ep", "+backend.extra.transformer-impl=local")
    assert found[found.index("--transformer-impl") + 1] == "local"
    assert {"--no-gradient-accumulation-fusion", "--no-persist-layer-norm", "--no-rope-fusion"} <= set(found)
    assert not {"--moe-grouped-gemm", "--use-cpu-initialization"} & set(found)


@pytest.mark.parametrize(
    ("extra", "value", "setting", "way_out"),
    [
        ("seed", 3, "train.seed", "train.seed=3"),
        ("rotary_base", 500, "model.rope_theta", "model.rope_theta=500"),
        ("bf16", True, "precision.compute", "precision=bf16"),
        ("use-megatron-fsdp", True, "zero.stage", "zero=3"),
        ("mtp-num-layers", 1, "model.mtp_layers", "model.mtp_layers=1"),
        ("cpu-offloading-num-layers", 4, "checkpointing.layers", "checkpointing.offload=true checkpointing.layers=4"),
    ],
)
def test_an_extra_argument_that_rivals_a_setting_is_refused(
    extra: str, value: object, setting: str, way_out: str
) -> None:
    found = list(check(make_spec(*SEVEN, "parallel=tp", f"+backend.extra.{extra}={value}")))
    assert [(error.path, error.found, error.way_out) for error in found] == [
        (f"backend.extra.{extra}", value, (f"{way_out} +backend.extra.{extra}=null",))
    ]
    null = make_spec(*SEVEN, "parallel=tp", f"+backend.extra.{extra}=null")
    assert not list(check(null))
    assert arguments(null) == arguments(make_spec(*SEVEN, "parallel=tp"))
    assert found[0].rule == f"the setting {setting} gives it, and the memory estimate reads that setting"


CHECKOUT = (*SEVEN, "parallel=tp", "backend.path=/opt/Megatron-LM", "data=tokens", "data.path=/data/words")


def test_what_only_the_worker_reads_is_refused_beside_a_checkout() -> None:
    found = {error.path: error.rule for error in check(make_spec(*CHECKOUT, "data.shuffle=false"))}
    assert found == {
        "data.shuffle": (
            "only the launcher's worker reads it; a checkout's pretrain_gpt.py shuffles its indexed data set"
        )
    }
    assert [error.path for error in check(make_spec(*CHECKOUT, "data=text"))] == ["data.source"]
    assert not list(check(make_spec(*CHECKOUT)))


def test_what_a_checkout_does_otherwise_is_said() -> None:
    spec = make_spec(*CHECKOUT, "save.every=10", "save.load=runs/first")
    found = {error.path: error.rule for error in warnings(spec) if error.path.startswith("save.")}
    assert found == {
        "save.keep": "a checkout's pretrain_gpt.py keeps every checkpoint",
        "save.load": "a checkout's pretrain_gpt.py loads it again when the job is requeued or resumed",
    }


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        (("parallel.tensor=1",), False),
        (("parallel.tensor=2",), False),
        (("parallel.tensor=2", "parallel.sequence=true"), True),
    ],
)
def test_traffic_of_tensor_ranks_overlaps_with_sequence_parallelism_alone(words: tuple[str, ...], fits: bool) -> None:
    spec = make_spec(*SEVEN, "backend=megatron", "+backend.extra.tp-comm-overlap=true", *words)
    found = [(error.path, error.rule) for error in check(spec)]
    rule = "tensor parallel communication overlaps only with sequence parallelism (training/arguments.py)"
    assert found == ([] if fits else [("backend.extra.tp-comm-overlap", rule)])
