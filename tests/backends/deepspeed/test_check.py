"""What DeepSpeed cannot do is refused with the way out, and what bites is said."""

from __future__ import annotations

import pytest

from launcher.backends.deepspeed import warnings
from tests.support.deepspeed_specs import GPU, found
from tests.support.helpers import make_spec


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
            "AutoTP splits linear layers, and in the family moe it would have to split the experts, whose weights are "
            "one three-dimensional tensor",
            ("parallel.tensor=1", "parallel=tp"),
        ),
        (
            ("parallel=zero1", "model=gpt2", "parallel.tensor=2"),
            "parallel.tensor",
            "AutoTP splits linear layers, and in the family gpt it would have to split GPT-2's transposed weights "
            "(Conv1D), which fuse queries, keys and values",
            ("parallel.tensor=1", "parallel=tp"),
        ),
        (
            ("parallel=zero1", "model=llama3_8b", "model.num_key_value_heads=4", "parallel.tensor=8"),
            "parallel.tensor",
            "must divide the 4 key and value heads: AutoTP gives other ranks no attention",
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
            "an adapter's matrices are inside the linear layers that AutoTP replaces",
            ("adapter=none", "parallel.tensor=1"),
        ),
        (
            ("parallel=zero3", "parallel.tensor=2", "zero.hpz=2"),
            "zero.hpz",
            "DeepSpeed forms the secondary partition from neighbouring ranks, which here split tensors",
            ("zero.hpz=1", "parallel.tensor=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "parallel.tensor=2"),
            "parallel.tensor",
            "DeepSpeed's PipelineModule does not support it: its grid of ranks has no axis for AutoTP",
            ("parallel.tensor=1", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "parallel.virtual_pipeline=2"),
            "parallel.virtual_pipeline",
            "DeepSpeed's PipelineModule does not support it: a stage is one contiguous group of layers",
            ("parallel.virtual_pipeline=1", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "parallel.schedule=gpipe"),
            "parallel.schedule",
            "DeepSpeed's PipelineModule does not support it: it has one schedule, 1F1B (runtime/pipe/schedule.py)",
            ("parallel.schedule=1f1b", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "zero.overlap_comm=true"),
            "zero.overlap_comm",
            "DeepSpeed's PipelineModule does not support it: it reduces gradients once, after the last backward pass",
            ("zero.overlap_comm=null", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "zero.offload_optimizer=cpu"),
            "zero.offload_optimizer",
            (
                "DeepSpeed's PipelineModule does not support it: this version has not tested "
                "offloaded optimizer states with pipeline stages"
            ),
            ("zero.offload_optimizer=none", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "adapter=lora"),
            "adapter.name",
            (
                "DeepSpeed's PipelineModule does not support it: this version has not tested an "
                "adapter's frozen layers with pipeline stages"
            ),
            ("adapter.name=none", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero0", "parallel.pipeline=2"),
            "zero.stage",
            "without ZeRO, PipelineModule uses BF16_Optimizer in bf16, whose memory and maths are not tested here",
            ("zero=1", "precision=fp32"),
        ),
        (
            ("parallel=ulysses", "model.attention=flash"),
            "model.attention",
            "Ulysses runs torch's attention between its exchanges; any other would see only one rank's tokens",
            ("model.attention=sdpa", "parallel.ulysses=1"),
        ),
        (
            ("parallel=ulysses", "model=deepseek_v3", "script=train.py"),
            "parallel.ulysses",
            "the estimate does not know what multi-head latent attention (model.kv_lora_rank) saves when ranks share"
            " a sequence",
            ("parallel.ulysses=1", "parallel=cp"),
        ),
        (
            ("parallel=ulysses", "zero.hpz=2"),
            "zero.hpz",
            "DeepSpeed's process groups for it do not account for ranks that share a sequence",
            ("zero.hpz=1", "parallel.ulysses=1"),
        ),
        (
            ("parallel=ulysses", "parallel.tensor=2"),
            "parallel.tensor",
            "DeepSpeed's process groups for it do not account for ranks that share a sequence",
            ("parallel.tensor=1", "parallel.ulysses=1"),
        ),
        (
            ("parallel=zero1", "parallel.replicate=2"),
            "parallel.replicate",
            "in this version backend=deepspeed supports data, tensor, pipeline and Ulysses parallelism and ZeRO",
            ("parallel.replicate=1", "parallel=hsdp"),
        ),
        (
            ("parallel=zero0", "zero.overlap_comm=true"),
            "zero.overlap_comm",
            "without ZeRO there is no gradient reduction to overlap",
            ("zero=1", "zero.overlap_comm=null"),
        ),
        (
            ("parallel=zero3", "zero.gather_16bit_weights_on_save=true"),
            "zero.gather_16bit_weights_on_save",
            "checkpoints save each rank's shard and the export gathers one parameter at a time, so nothing reads it",
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
            "ZeRO's optimizers step flat partitions, and Adafactor needs means over a matrix's rows and columns",
            ("parallel=fsdp", "optimizer=adamw", "optimizer=lion"),
        ),
        (
            ("parallel=zero2", "optimizer=muon"),
            "optimizer.name",
            "DeepSpeed 0.19.8 clips the updates of its Muon, not gradients: optimizer.clip would decide the "
            "size of each step (runtime/zero/stage3.py, stage_1_and_2.py)",
            ("parallel=fsdp", "optimizer=adamw", "optimizer=lion"),
        ),
        (
            ("parallel=zero0", "optimizer=lion"),
            "optimizer.name",
            "it is tested only with ZeRO 1 to 3",
            ("zero=1", "parallel=ddp", "optimizer=adamw"),
        ),
        (
            ("parallel=zero1", "parallel.pipeline=2", "optimizer=adamw_8bit"),
            "optimizer.name",
            "stages would have different parameter groups, and DeepSpeed sums norms over the stages group by group",
            ("optimizer=lion", "optimizer=adamw", "parallel.pipeline=1"),
        ),
        (
            ("parallel=zero2", "precision.master=bf16", "precision.optimizer_states=bf16", "optimizer=lion"),
            "precision.optimizer_states",
            "bitsandbytes keeps moments in fp32 or 8 bits",
            ("precision.optimizer_states=null",),
        ),
        (
            ("parallel=zero2", "script=train.py", "optimizer=lion"),
            "optimizer.name",
            "the launcher's worker creates it, and ds_config.json has no entry that would give it to a script",
            ("optimizer=adamw", "script=null"),
        ),
        (
            ("parallel=zero2", "optimizer=sgd", "zero.offload_optimizer=cpu"),
            "zero.offload_optimizer",
            "sgd would step on the CPU, where DeepSpeed has no kernel for it",
            ("optimizer=adamw", "zero.offload_optimizer=none"),
        ),
        (
            ("parallel=zero3", "zero.offload_optimizer=nvme", "zero.nvme_path=/x", "optimizer.fused=true"),
            "optimizer.fused",
            "NVMe offload swaps the state of DeepSpeedCPUAdam, which has no such option",
            ("optimizer.fused=null", "zero.offload_optimizer=cpu"),
        ),
        (
            ("parallel=zero3", "train.compile=true"),
            "train.compile",
            (
                "blocks are compiled only with ZeRO 0 to 2 and pure data parallelism: ZeRO 3's hooks and "
                "other ranks' exchanges would break the graph"
            ),
            ("train.compile=false", "parallel=zero2"),
        ),
        (
            ("parallel=zero2", "save.async=true"),
            "save.async",
            "backend=deepspeed writes checkpoints in the foreground",
            ("save.async=false", "parallel=fsdp"),
        ),
    ],
)
def test_what_this_backend_cannot_do_is_refused_with_the_way_out(
    overrides: tuple[str, ...], path: str, rule: str, way_out: tuple[str, ...]
) -> None:
    assert found(*overrides) == {path: (rule, way_out)}


def cautions(*overrides: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {error.path: (error.rule, error.way_out) for error in warnings(make_spec(*GPU, *overrides))}


def test_a_stage_3_key_is_idle_at_other_stages_and_that_is_said() -> None:
    rule = "DeepSpeed reads it only at stage 3, and this is stage 2"
    assert cautions("parallel=zero2", "zero.sub_group_size=1000", "optimizer.fused=true") == {
        "zero.sub_group_size": (rule, ("zero=3", "zero.sub_group_size=1000000000"))
    }
    assert cautions("parallel=zero3", "zero.sub_group_size=1000", "optimizer.fused=true") == {}


def test_kernels_that_are_compiled_on_the_node_are_announced() -> None:
    rule = (
        "DeepSpeed compiles its FusedAdam on each node at first use, which needs a "
        "compiler and takes minutes; torch's AdamW"
        " needs neither"
    )
    assert cautions("parallel=zero2") == {"optimizer.fused": (rule, ("optimizer.fused=true",))}


def test_offload_to_nvme_has_no_other_kernel_to_offer() -> None:
    [(rule, ways)] = cautions("parallel=zero3", "zero.offload_optimizer=nvme", "zero.nvme_path=/x").values()
    assert (rule.endswith("offload to NVMe needs it"), ways) == (True, ())


def test_weights_on_nvme_are_not_kept_for_reuse_unless_there_are_buffers_for_them() -> None:
    """Two CPU ranks stopped in the second step with "Not enough buffers", and lost what ZeRO 3 does with none kept."""
    words = ("parallel=zero3", "zero.offload_parameters=nvme", "zero.nvme_path=/x")
    rule = "each weight kept for reuse occupies an NVMe buffer, and DeepSpeed stops when they run out"
    assert found(*words) == {
        "zero.max_reuse_distance": (rule, ("zero.max_reuse_distance=0", "zero.offload_parameters=cpu"))
    }
    assert found(*words, "zero.max_reuse_distance=0") == {}
    assert found(*words, "+backend.extra.zero_optimization.offload_param.buffer_count=300") == {}


TWO_NODES = ("parallel=zero3", "cluster.nodes=2", "precision.reduce=fp16")


@pytest.mark.parametrize(
    ("overrides", "path", "rule", "way_out"),
    [
        (
            ("parallel=zero2", "zero.quantized_weights=true"),
            "zero.quantized_weights",
            (
                "parameters are gathered in fewer bits only with ZeRO 3, which partitions "
                "the parameters (runtime/zero/stage3.py)"
            ),
            ("zero.quantized_weights=false", "zero=3"),
        ),
        (
            ("parallel=zero3", "zero.quantized_weights=true", "hardware=cpu"),
            "zero.quantized_weights",
            "DeepSpeed's quantizer is a CUDA kernel (op_builder/quantizer.py), and these ranks are CPUs",
            ("zero.quantized_weights=false", "hardware=h100_80g"),
        ),
        (
            ("parallel=zero3", "zero.quantized_weights=true", "cluster.nodes=128"),
            "zero.quantized_weights",
            (
                "each of the 1024 ranks quantizes its share of a norm, 8 elements at once, "
                "and the 4096 elements do not split so"
            ),
            ("zero.quantized_weights=false",),
        ),
        (
            ("parallel=zero3", "precision.reduce=fp16", "zero.quantized_gradients=true"),
            "zero.quantized_gradients",
            "DeepSpeed quantizes gradients only across several nodes and reduces them unquantized on one "
            "(runtime/zero/stage3.py)",
            ("zero.quantized_gradients=false", "cluster.nodes=2"),
        ),
        (
            ("parallel=zero3", "cluster.nodes=2", "zero.quantized_gradients=true"),
            "precision.reduce",
            "the kernel reads gradients as fp16 and would misread any other format (swizzled_quantize.cu)",
            ("precision.reduce=fp16", "zero.quantized_gradients=false"),
        ),
        (
            (*TWO_NODES, "zero.quantized_gradients=true", "parallel.ulysses=2"),
            "parallel.ulysses",
            "the all-to-alls of quantized gradients span all ranks (runtime/comm/coalesced_collectives.py)",
            ("parallel.ulysses=1", "zero.quantized_gradients=false"),
        ),
    ],
)
def test_quantized_traffic_is_refused_where_it_would_not_run_do_nothing_or_read_other_numbers(
    overrides: tuple[str, ...], path: str, rule: str, way_out: tuple[str, ...]
) -> None:
    assert found(*overrides) == {path: (rule, way_out)}


def test_quantized_traffic_goes_through_on_nodes_of_gpus() -> None:
    assert found(*TWO_NODES, "zero.quantized_weights=true", "zero.quantized_gradients=true", "zero.hpz=8") == {}


def test_a_second_partition_beyond_the_node_is_pointed_out() -> None:
    rule = "the second partition is meant to stay inside a node of 8"
    found = cautions("parallel=zero3", "cluster.nodes=2", "zero.hpz=16", "optimizer.fused=true")
    assert found == {"zero.hpz": (rule, ("zero.hpz=8",))}


@pytest.mark.parametrize(
    "words",
    [
        ("parallel=zero1", "parallel.tensor=2", "zero.offload_optimizer=nvme"),
        ("parallel=zero3", "zero.quantized_weights=true"),
    ],
)
def test_more_replicas_than_ranks_are_an_error_of_their_own(words: tuple[str, ...]) -> None:
    assert "parallel.replicate" in found(*words, "cluster.gpus_per_node=4", "parallel.replicate=8")
