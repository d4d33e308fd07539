from __future__ import annotations

from pathlib import Path

import pytest

from launcher.backends.deepspeed import check, obstacles, warnings
from launcher.backends.deepspeed.extra import SETTINGS
from tests.helpers import make_spec

GPU = ("model=7b", "hardware=h100_80g", "cluster.gpus_per_node=8")


def found(*overrides: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {error.path: (error.rule, error.way_out) for error in check(make_spec(*GPU, *overrides))}


@pytest.mark.parametrize(
    "words", [("parallel=zero1",), ("parallel=zero0", "precision=fp32"), ("parallel=zero1", "precision=fp32")]
)
def test_pipeline_stages_go_with_zero_1_and_in_fp32_without_zero(words: tuple[str, ...]) -> None:
    assert found(*words, "parallel.pipeline=4", "train.global_batch_size=32") == {}


@pytest.mark.parametrize("stage", range(4))
def test_every_zero_stage_takes_tensor_parallel_ranks(stage: int) -> None:
    assert found(f"parallel=zero{stage}", "parallel.tensor=4") == {}


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("ulysses", [1, 4])
def test_every_zero_stage_is_accepted(stage: int, precision: str, ulysses: int) -> None:
    assert found(f"parallel=zero{stage}", f"precision={precision}", f"parallel.ulysses={ulysses}") == {}


@pytest.mark.parametrize(
    ("overrides", "path", "rule", "way_out"),
    [
        (
            ("parallel=zero1", "model=mixtral_8x7b", "parallel.tensor=2"),
            "parallel.tensor",
            "AutoTP cuts linear layers, and of the family moe it would have to cut the experts, whose weights are held "
            "together in one tensor of three dimensions",
            ("parallel.tensor=1", "parallel=tp"),
        ),
        (
            ("parallel=zero1", "model=gpt2", "parallel.tensor=2"),
            "parallel.tensor",
            "AutoTP cuts linear layers, and of the family gpt it would have to cut GPT-2's transposed weights "
            "(Conv1D), which hold queries, keys and values in one",
            ("parallel.tensor=1", "parallel=tp"),
        ),
        (
            ("parallel=zero1", "model=llama3_8b", "model.num_key_value_heads=4", "parallel.tensor=8"),
            "parallel.tensor",
            "must divide the 4 key and value heads: AutoTP gives further ranks no attention",
            ("parallel.tensor=4", "parallel.tensor=2"),
        ),
        (
            ("parallel=zero1", "parallel.tensor=2", "parallel.sequence=true"),
            "parallel.sequence",
            "AutoTP keeps norms and residuals whole on every tensor parallel rank",
            ("parallel.sequence=false", "parallel=tp"),
        ),
        (
            ("parallel=zero1", "parallel.tensor=2", "adapter=lora"),
            "adapter.name",
            "an adapter's matrices lie inside the linear layers that AutoTP replaces",
            ("adapter=none", "parallel.tensor=1"),
        ),
        (
            ("parallel=zero3", "parallel.tensor=2", "zero.hpz=2"),
            "zero.hpz",
            "DeepSpeed makes the groups of the second partition of neighbours, and these share tensors",
            ("zero.hpz=1", "parallel.tensor=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "parallel.tensor=2"),
            "parallel.tensor",
            "DeepSpeed's PipelineModule does not do it: its grid of ranks has no axis for AutoTP's",
            ("parallel.tensor=1", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "parallel.virtual_pipeline=2"),
            "parallel.virtual_pipeline",
            "DeepSpeed's PipelineModule does not do it: a stage is one run of layers",
            ("parallel.virtual_pipeline=1", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "parallel.schedule=gpipe"),
            "parallel.schedule",
            "DeepSpeed's PipelineModule does not do it: it has one schedule, 1F1B (runtime/pipe/schedule.py)",
            ("parallel.schedule=1f1b", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "zero.overlap_comm=true"),
            "zero.overlap_comm",
            "DeepSpeed's PipelineModule does not do it: it reduces gradients once, after the last backward pass",
            ("zero.overlap_comm=null", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "zero.offload_optimizer=cpu"),
            "zero.offload_optimizer",
            "DeepSpeed's PipelineModule does not do it: offloaded optimizer states beside stages are not tested in this"
            " version",
            ("zero.offload_optimizer=none", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "adapter=lora"),
            "adapter.name",
            "DeepSpeed's PipelineModule does not do it: an adapter's frozen layers beside stages are not tested in this"
            " version",
            ("adapter.name=none", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero0", "parallel.pipeline=2"),
            "zero.stage",
            "without ZeRO, PipelineModule steps in bf16 by BF16_Optimizer, whose memory and maths are not tested here",
            ("zero=1", "precision=fp32"),
        ),
        (
            ("parallel=ulysses", "model.attention=flash"),
            "model.attention",
            "between the exchanges of Ulysses runs torch's attention; another would see the tokens of one rank alone",
            ("model.attention=sdpa", "parallel.ulysses=1"),
        ),
        (
            ("parallel=ulysses", "zero.hpz=2"),
            "zero.hpz",
            "DeepSpeed's groups for it know nothing of ranks that share a sequence",
            ("zero.hpz=1", "parallel.ulysses=1"),
        ),
        (
            ("parallel=ulysses", "parallel.tensor=2"),
            "parallel.tensor",
            "DeepSpeed's groups for it know nothing of ranks that share a sequence",
            ("parallel.tensor=1", "parallel.ulysses=1"),
        ),
        (
            ("parallel=zero1", "parallel.replicate=2"),
            "parallel.replicate",
            "backend=deepspeed has data, tensor, pipeline and Ulysses parallelism and ZeRO in this version",
            ("parallel.replicate=1", "parallel=hsdp"),
        ),
        (
            ("parallel=zero0", "zero.overlap_comm=true"),
            "zero.overlap_comm",
            "without ZeRO there is no reduction that could overlap",
            ("zero=1", "zero.overlap_comm=null"),
        ),
        (
            ("parallel=zero3", "zero.gather_16bit_weights_on_save=true"),
            "zero.gather_16bit_weights_on_save",
            "checkpoints keep each rank's shard and the export gathers one parameter at a time, so nothing reads it",
            ("zero.gather_16bit_weights_on_save=false", "save.export=safetensors"),
        ),
        (
            ("parallel=zero2", "zero.hpz=4"),
            "zero.hpz",
            "a secondary partition of the parameters needs ZeRO 3, which partitions them",
            ("zero.hpz=1", "zero=3"),
        ),
        (("parallel=zero3", "zero.hpz=3"), "zero.hpz", "must divide the 8 ranks", ("zero.hpz=2", "zero.hpz=4")),
        (
            ("parallel=zero0", "zero.offload_optimizer=cpu"),
            "zero.offload_optimizer",
            "offload of optimizer to cpu needs ZeRO 1 or more",
            ("zero=1", "zero.offload_optimizer=none"),
        ),
        (
            ("parallel=zero2", "zero.offload_optimizer=nvme", "zero.nvme_path=/local_nvme"),
            "zero.offload_optimizer",
            "offload of optimizer to nvme needs ZeRO 3",
            ("zero=3", "zero.offload_optimizer=cpu", "zero.offload_optimizer=none"),
        ),
        (
            ("parallel=zero2", "zero.offload_parameters=cpu"),
            "zero.offload_parameters",
            "offload of parameters to cpu needs ZeRO 3",
            ("zero=3", "zero.offload_parameters=none"),
        ),
        (
            ("parallel=zero3", "zero.offload_optimizer=nvme"),
            "zero.nvme_path",
            "zero.offload_optimizer=nvme needs a folder on the NVMe disk of each node",
            ("zero.nvme_path=/local_nvme",),
        ),
        (
            ("parallel=zero2", "optimizer=adafactor"),
            "optimizer.name",
            "backend=deepspeed runs adamw or sgd in this version",
            ("optimizer=adamw", "optimizer=sgd"),
        ),
        (
            ("parallel=zero2", "optimizer=sgd", "zero.offload_optimizer=cpu"),
            "zero.offload_optimizer",
            "sgd would step on the CPU without a kernel of DeepSpeed's for it",
            ("optimizer=adamw", "zero.offload_optimizer=none"),
        ),
        (
            ("parallel=zero3", "zero.offload_optimizer=nvme", "zero.nvme_path=/x", "optimizer.fused=true"),
            "optimizer.fused",
            "NVMe offload swaps the state of DeepSpeedCPUAdam, which has no such choice",
            ("optimizer.fused=null", "zero.offload_optimizer=cpu"),
        ),
        (
            ("parallel=zero2", "train.compile=true"),
            "train.compile",
            "blocks are compiled by backend=fsdp alone: ZeRO's hooks inside them would break the graph",
            ("train.compile=false", "parallel=fsdp"),
        ),
        (
            ("parallel=zero2", "save.async=true"),
            "save.async",
            "backend=deepspeed writes checkpoints in the foreground",
            ("save.async=false", "parallel=fsdp"),
        ),
        (
            ("parallel=zero2", "adapter=qlora"),
            "adapter.name",
            "ZeRO flattens and casts parameters, which 4-bit weights do not survive",
            ("adapter=lora",),
        ),
    ],
)
def test_what_this_backend_cannot_do_is_refused_with_the_way_out(
    overrides: tuple[str, ...], path: str, rule: str, way_out: tuple[str, ...]
) -> None:
    assert found(*overrides) == {path: (rule, way_out)}


@pytest.mark.parametrize(
    ("overrides", "path", "rule", "way_out"),
    [
        (
            ("parallel=zero2", "precision=fp8"),
            "precision.compute",
            "this version of backend=deepspeed computes in bf16, fp16 or fp32",
            ("precision=bf16", "backend=megatron"),
        ),
        (
            ("parallel=zero2", "precision.parameters=fp32"),
            "precision.parameters",
            "DeepSpeed casts the whole module: parameters have the format of the computation, bf16",
            ("precision.parameters=null", "precision=fp32"),
        ),
        (
            ("parallel=zero2", "precision.gradients=fp32"),
            "precision.gradients",
            "DeepSpeed casts the whole module: gradients have the format of the computation, bf16",
            ("precision.gradients=null", "precision=fp32"),
        ),
        (
            ("parallel=zero2", "precision.reduce=fp8"),
            "precision.reduce",
            "communication_data_type is fp16, bf16 or fp32",
            ("precision.reduce=null",),
        ),
        (
            ("parallel=zero0", "precision=fp32", "precision.reduce=bf16"),
            "precision.reduce",
            "without ZeRO, fp32 gradients are reduced as they are",
            ("precision.reduce=null", "zero=1"),
        ),
        (
            ("parallel=zero0", "precision.accumulate=fp32"),
            "precision.accumulate",
            "without ZeRO, bf16 gradients are accumulated in bf16 (unsupported mix, runtime/engine.py)",
            ("precision.accumulate=null", "zero=1"),
        ),
        (
            ("parallel=zero2", "precision.accumulate=fp16"),
            "precision.accumulate",
            "gradients in bf16 are accumulated in bf16 or fp32",
            ("precision.accumulate=null", "precision.accumulate=fp32"),
        ),
        (
            ("parallel=zero2", "precision.optimizer_states=bf16"),
            "precision.optimizer_states",
            "master weights and optimizer states are both fp32, or both bf16 beside bf16 parameters",
            ("precision.master=null", "precision.optimizer_states=null"),
        ),
        (
            ("parallel=zero2", "precision.master=none"),
            "precision.master",
            "master weights and optimizer states are both fp32, or both bf16 beside bf16 parameters",
            ("precision.master=null", "precision.optimizer_states=null"),
        ),
        (
            ("parallel=zero0", "precision.master=bf16", "precision.optimizer_states=bf16"),
            "precision.master",
            "bf16 master weights need ZeRO",
            ("zero=1", "precision.master=null"),
        ),
        (
            (
                "parallel=zero2",
                "precision.master=bf16",
                "precision.optimizer_states=bf16",
                "zero.offload_optimizer=cpu",
            ),
            "precision.master",
            "offloaded bf16 optimizer states are not translated in this version",
            ("precision.master=null", "zero.offload_optimizer=none"),
        ),
        (
            ("parallel=zero2", "precision=fp32", "precision.optimizer_states=bf16"),
            "precision.optimizer_states",
            "in fp32 the parameters themselves are the master weights, and the states are fp32",
            ("precision.optimizer_states=null", "precision=bf16"),
        ),
        (
            ("parallel=zero0", "precision=fp16"),
            "precision.compute",
            "without ZeRO, DeepSpeed 0.19.8 divides fp16 gradients by a loss scale that it never multiplied in",
            ("zero=1", "precision=bf16"),
        ),
    ],
)
def test_a_mix_of_number_formats_that_deepspeed_lacks_is_refused(
    overrides: tuple[str, ...], path: str, rule: str, way_out: tuple[str, ...]
) -> None:
    assert found(*overrides) == {path: (rule, way_out)}


@pytest.mark.parametrize(
    ("override", "path", "rule", "way_out"),
    [
        (
            "+backend.extra.zero_optimisation=1",
            "backend.extra.zero_optimisation",
            "DeepSpeed 0.19.8 reads no such key and would ignore it",
            ("+backend.extra.zero_optimization=1",),
        ),
        (
            "+backend.extra.zero_optimization.stage=2",
            "backend.extra.zero_optimization.stage",
            "it has a setting of its own, zero.stage, which the memory estimate reads too",
            ("zero.stage=2",),
        ),
        (
            "+backend.extra.gradient_accumulation_steps=4",
            "backend.extra.gradient_accumulation_steps",
            "it has a setting of its own, train.global_batch_size, which the memory estimate reads too",
            ("train.global_batch_size=32",),
        ),
        (
            "+backend.extra.fp16.enabled=true",
            "backend.extra.fp16.enabled",
            "it has a setting of its own, precision.compute, which the memory estimate reads too",
            ("precision=fp16",),
        ),
        (
            "+backend.extra.bf16.bf16_optimizer_states=true",
            "backend.extra.bf16.bf16_optimizer_states",
            "it has a setting of its own, precision.optimizer_states, which the memory estimate reads too",
            ("precision.optimizer_states=bf16",),
        ),
        (
            "+backend.extra.optimizer.params.eps=1e-6",
            "backend.extra.optimizer.params.eps",
            "it has a setting of its own, optimizer.name, which the memory estimate reads too",
            ("optimizer.epsilon=1e-06",),
        ),
        (
            "+backend.extra.optimizer.type=Lamb",
            "backend.extra.optimizer.type",
            "it has a setting of its own, optimizer.name, which the memory estimate reads too",
            ("optimizer=adamw", "optimizer=sgd"),
        ),
        (
            "+backend.extra.scheduler.type=WarmupLR",
            "backend.extra.scheduler.type",
            "it has a setting of its own, optimizer.schedule, which the memory estimate reads too",
            ("optimizer.schedule=constant", "optimizer.schedule=linear", "optimizer.schedule=cosine"),
        ),
        (
            "+backend.extra.hybrid_engine.enabled=true",
            "backend.extra.hybrid_engine",
            "the training program must play along with it, and the launcher's own worker does not",
            ("script=path/to/train.py",),
        ),
        (
            "+backend.extra.tensor_parallel.tp_overlap_comm=true",
            "backend.extra.tensor_parallel.tp_overlap_comm",
            "DeepSpeed reads it only where tensors are cut, and this run cuts none",
            ("parallel.tensor=2", "parallel.tensor=4"),
        ),
        (
            "+backend.extra.tensor_parallel.autotp_size=2",
            "backend.extra.tensor_parallel.autotp_size",
            "it has a setting of its own, parallel.tensor, which the memory estimate reads too",
            ("parallel.tensor=2",),
        ),
    ],
)
def test_an_extra_key_that_is_unknown_or_has_a_setting_is_refused(
    override: str, path: str, rule: str, way_out: tuple[str, ...]
) -> None:
    assert found("parallel=zero3", override) == {path: (rule, way_out)}


def test_fp16_on_cpu_ranks_is_refused_since_few_processors_compute_in_it() -> None:
    errors = list(check(make_spec("model=tiny", "parallel=zero2", "precision=fp16")))
    assert [(error.path, error.rule, error.way_out) for error in errors] == [
        (
            "precision.compute",
            "DeepSpeed's CPU accelerator takes fp16 only on processors that compute in it (AVX512-FP16)",
            ("precision=bf16", "precision=fp32"),
        )
    ]


def test_a_script_of_the_user_s_own_may_play_along_with_any_block() -> None:
    assert found("parallel=zero3", "+backend.extra.hybrid_engine.enabled=true", "script=train.py") == {}


def test_a_key_of_tensor_parallelism_goes_through_where_tensors_are_cut() -> None:
    assert found("parallel=zero1", "parallel.tensor=2", "+backend.extra.tensor_parallel.tp_overlap_comm=true") == {}


def test_every_setting_that_an_extra_key_points_to_exists() -> None:
    spec = make_spec(*GPU, "parallel=zero2")
    assert SETTINGS
    for setting in SETTINGS.values():
        group, _, key = setting.partition(".")
        assert hasattr(getattr(spec, group), key), setting


def cautions(*overrides: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {error.path: (error.rule, error.way_out) for error in warnings(make_spec(*GPU, *overrides))}


def test_a_stage_3_key_is_idle_at_other_stages_and_that_is_said() -> None:
    rule = "DeepSpeed reads it at stage 3 alone, and this is stage 2"
    assert cautions("parallel=zero2", "zero.sub_group_size=1000", "optimizer.fused=true") == {
        "zero.sub_group_size": (rule, ("zero=3", "zero.sub_group_size=1000000000"))
    }
    assert cautions("parallel=zero3", "zero.sub_group_size=1000", "optimizer.fused=true") == {}


def test_kernels_that_are_compiled_on_the_node_are_announced() -> None:
    rule = "DeepSpeed compiles its FusedAdam on each node at first use, which takes a compiler and minutes"
    assert cautions("parallel=zero2") == {"optimizer.fused": (rule, ("optimizer.fused=true",))}


def test_a_run_that_cannot_be_resumed_is_announced() -> None:
    rule = "DeepSpeed 0.19.8 restores neither weights nor optimizer states from NVMe: the run cannot be resumed"
    found = cautions("parallel=zero3", "zero.offload_parameters=nvme", "zero.nvme_path=/x", "optimizer.fused=true")
    assert found == {"zero.offload_parameters": (rule, ("zero.offload_parameters=cpu", "save.export=safetensors"))}


def lacking(*overrides: str) -> list[tuple[str, str, tuple[str, ...]]]:
    spec = make_spec("model=tiny", "parallel=zero3", "zero.nvme_path=/x", *overrides)
    return [(error.path, error.rule, error.way_out) for error in obstacles(spec)]


NVME = ("zero.offload_optimizer=nvme", "zero.offload_parameters=nvme")
TO_CPU = ("zero.offload_optimizer=cpu", "zero.offload_parameters=cpu")


def test_a_machine_without_a_compiler_cannot_offload_to_nvme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libaio.h").touch()
    monkeypatch.setenv("CPATH", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    rule = "DeepSpeed compiles its async_io for NVMe, and this machine has no C++ compiler (no-such-compiler)"
    assert lacking(*NVME) == [("zero.offload_optimizer", rule, TO_CPU)]


def test_a_machine_without_libaio_s_headers_cannot_offload_to_nvme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "true")
    monkeypatch.setattr("launcher.backends.deepspeed.operators._has_header", lambda: False)
    rule = (
        "DeepSpeed compiles its async_io for NVMe with libaio's headers, which this machine lacks:"
        " install libaio-dev (Debian, Ubuntu) or libaio-devel (Red Hat)"
    )
    assert lacking(*NVME) == [("zero.offload_optimizer", rule, TO_CPU)]


def test_a_gpu_machine_without_a_compiler_takes_torch_s_adam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    rule = "DeepSpeed compiles its own Adam, and this machine has no C++ compiler (no-such-compiler)"
    assert lacking("hardware=h100_80g") == [("optimizer.fused", rule, ("optimizer.fused=true",))]
    assert lacking("hardware=h100_80g", "optimizer.fused=true") == []


def test_cpu_ranks_need_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert lacking() == []


def test_a_second_partition_beyond_the_node_is_pointed_out() -> None:
    rule = "the second partition is meant to stay inside a node of 8"
    found = cautions("parallel=zero3", "cluster.nodes=2", "zero.hpz=16", "optimizer.fused=true")
    assert found == {"zero.hpz": (rule, ("zero.hpz=8",))}


def test_what_is_handed_through_is_listed() -> None:
    extra = "+backend.extra.zero_optimization.round_robin_gradients=true"
    rule = "handed to DeepSpeed as it is and not part of the memory estimate: zero_optimization.round_robin_gradients"
    assert cautions("parallel=zero2", extra, "optimizer.fused=true") == {"backend.extra": (rule, ())}
