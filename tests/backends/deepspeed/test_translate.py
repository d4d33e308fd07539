from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.backends.deepspeed import ds_config, translate
from launcher.job import Job
from tests.support.helpers import GOLDEN, assert_golden, make_spec, needs

EIGHT = ("model=7b", "hardware=h100_80g", "cluster.gpus_per_node=8", "train.global_batch_size=32")
NVME = (
    *("zero.offload_optimizer=nvme", "zero.offload_parameters=nvme", "zero.nvme_path=/local_nvme"),
    "zero.max_reuse_distance=0",
)

PRESETS: dict[str, tuple[str, ...]] = {
    "zero0": (*EIGHT, "parallel=zero0"),
    "zero1": (*EIGHT, "parallel=zero1"),
    "zero2": (*EIGHT, "parallel=zero2"),
    "zero3": (*EIGHT, "parallel=zero3"),
    "zero1_fp32_accumulation": (*EIGHT, "parallel=zero1", "precision.accumulate=fp32"),
    "zero2_offload": (*EIGHT, "parallel=zero2", "zero.offload_optimizer=cpu"),
    "zero3_offload": (*EIGHT, "parallel=zero3", "zero.offload_optimizer=cpu", "zero.offload_parameters=cpu"),
    "zero3_nvme": (*EIGHT, "parallel=zero3", *NVME),
    "zero3_hpz": (*EIGHT, "parallel=zero3", "zero.hpz=4", "cluster.nodes=2"),
    "zero3_quantized": (
        *(*EIGHT, "parallel=zero3", "zero.quantized_weights=true", "zero.quantized_gradients=true", "zero.hpz=8"),
        *("cluster.nodes=2", "precision.reduce=fp16"),
    ),
    "zero2_fp16": (*EIGHT, "parallel=zero2", "precision=fp16"),
    "zero1_fp32": (*EIGHT, "parallel=zero1", "precision=fp32"),
    "zero3_bf16_states": (*EIGHT, "parallel=zero3", "precision.master=bf16", "precision.optimizer_states=bf16"),
    "zero3_cpu": ("model=tiny", "precision=bf16", "parallel=zero3", "optimizer.clip=0.5"),
    "zero2_sgd": (*EIGHT, "parallel=zero2", "optimizer=sgd"),
    "zero1_tensor": (*EIGHT, "parallel=zero1", "parallel.tensor=4", "model.qk_norm=true"),
    "zero1_pipeline": (*EIGHT, "parallel=zero1", "parallel.pipeline=4"),
    "zero3_ulysses": (*EIGHT, "parallel=ulysses"),
    "zero3_extra": (*EIGHT, "parallel=zero3", "+backend.extra.zero_optimization.enable_sanity_checks=true"),
}


def job(*overrides: str) -> Job:
    return translate(make_spec(*overrides), "python")


@pytest.mark.parametrize("name", PRESETS)
def test_the_generated_configuration_is_the_recorded_one(name: str) -> None:
    assert_golden(f"deepspeed_{name}.json", job(*PRESETS[name]).files["ds_config.json"])


def test_the_loss_scale_is_deepspeeds_where_it_is_set() -> None:
    scale = ("precision.initial_loss_scale=4096", "precision.loss_scale_window=50")
    [fp16] = (json.loads(job(*PRESETS["zero2_fp16"], *scale).files["ds_config.json"])["fp16"],)
    assert (fp16["loss_scale"], fp16["initial_scale_power"], fp16["loss_scale_window"]) == (0, 12, 50)


def test_every_recorded_configuration_is_accepted_by_deepspeed_s_own_config_class(tmp_path: Path) -> None:
    """Without a process group DeepSpeedConfig assumes one rank, so the batch is brought down to one rank's."""
    needs("deepspeed")
    files = sorted(GOLDEN.glob("deepspeed_*.json"))
    assert [path.stem for path in files] == sorted(f"deepspeed_{name}" for name in PRESETS)
    program = """
import json, sys
from deepspeed.runtime.config import DeepSpeedConfig
for path in sys.argv[1:]:
    content = json.load(open(path))
    one = content["train_micro_batch_size_per_gpu"] * content["gradient_accumulation_steps"]
    config = DeepSpeedConfig({**content, "train_batch_size": one})
    specs = config.tensor_parallel_config.get_partition_config_object()
    assert (specs is None) == ("tensor_parallel" not in content), path
    assert int(config.zero_optimization_stage) == content["zero_optimization"]["stage"], path
    assert config.gradient_accumulation_steps == content["gradient_accumulation_steps"], path
    known = set(type(config.zero_config).model_fields) | {
        field.alias for field in type(config.zero_config).model_fields.values() if field.alias
    }
    assert set(content["zero_optimization"]) <= known, set(content["zero_optimization"]) - known
    print("accepted", path)
"""
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, files)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("accepted") == len(files)


def test_no_value_is_left_to_deepspeed_to_guess() -> None:
    texts = [job(*overrides).files["ds_config.json"] for overrides in PRESETS.values()]
    assert texts
    assert not [text for text in texts if '"auto"' in text or "null" in text]


def test_the_batch_sizes_of_the_file_are_those_of_the_run() -> None:
    config = ds_config.build(make_spec(*EIGHT, "parallel=zero2", "train.micro_batch_size=2"))
    world = 8
    sizes = [config[key] for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")]
    assert sizes == [2, 2]
    assert config["train_batch_size"] == 2 * 2 * world


def test_tensor_parallel_ranks_leave_the_batch_of_all_ranks_to_deepspeed() -> None:
    """DeepSpeed 0.19.8 would count each of them as a data rank of its own."""
    config = ds_config.build(make_spec(*PRESETS["zero1_tensor"]))
    assert "train_batch_size" not in config
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (1, 16)


def test_a_tied_output_projection_stays_whole_on_tensor_parallel_ranks() -> None:
    tied = make_spec(*EIGHT, "parallel=zero1", "parallel.tensor=2", "model.tie_word_embeddings=true")
    specs = ds_config.build(tied)["tensor_parallel"]["partition_config"]["layer_specs"]
    assert [spec["partition_type"] for spec in specs] == ["column", "row"]


def test_the_job_is_started_by_torchrun_and_not_by_the_deepspeed_command() -> None:
    argv = job(*PRESETS["zero3"]).argv
    assert argv[:4] == ("python", "-P", "-m", "torch.distributed.run")
    assert argv[-4:] == ("--", "launcher.worker.deepspeed", "--run", "{run}")
    assert not any("deepspeed" in item.split("/") for item in argv[:3])


def test_cpu_ranks_name_deepspeed_s_cpu_accelerator_and_pin_no_memory() -> None:
    offloaded = job("model=tiny", "parallel=zero2", "zero.offload_optimizer=cpu")
    assert offloaded.environment["DS_ACCELERATOR"] == "cpu"
    block = json.loads(offloaded.files["ds_config.json"])["zero_optimization"]["offload_optimizer"]
    assert block == {"device": "cpu", "pin_memory": False}


def test_a_gpu_job_names_no_accelerator_and_its_allocator_when_asked() -> None:
    environment = job(*EIGHT, "parallel=zero2", "train.allocator=expandable").environment
    assert "DS_ACCELERATOR" not in environment
    assert environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("hardware=h100_80g",), {"adam_w_mode": True}),
        (("hardware=h100_80g", "optimizer.fused=true"), {"torch_adam": True, "fused": True}),
        (("hardware=h100_80g", "optimizer.foreach=false"), {"torch_adam": True, "foreach": False}),
        ((), {"torch_adam": True}),
    ],
)
def test_torch_s_own_adam_runs_on_the_cpu_and_where_its_words_are_used(
    overrides: tuple[str, ...], expected: dict[str, bool]
) -> None:
    params = ds_config.build(make_spec("parallel=zero2", *overrides))["optimizer"]["params"]
    assert {key: params[key] for key in params if isinstance(params[key], bool)} == expected


def test_extra_keys_are_merged_in_last_and_leave_their_neighbours() -> None:
    zero = ds_config.build(make_spec(*PRESETS["zero3_extra"]))["zero_optimization"]
    assert zero["enable_sanity_checks"] is True
    assert zero["stage"] == 3


def test_an_nvme_buffer_holds_the_largest_parameter_s_share() -> None:
    spec = make_spec(*PRESETS["zero3_nvme"])
    size = ds_config.build(spec)["zero_optimization"]["offload_param"]["buffer_size"]
    share = spec.model.vocab_size * spec.model.hidden_size // 8
    assert share <= size < share + 2**20
