from __future__ import annotations

import json

import pytest

from launcher.backends.deepspeed import extra
from launcher.config.recipes import Recipe
from launcher.errors import ConfigErrors
from launcher.importers.deepspeed import read
from launcher.preflight import assess
from tests.support.foreign_files import ZERO3_OFFLOAD
from tests.support.helpers import make_spec
from tests.support.rule_cases import NODE


def test_a_zero_3_offload_config_gives_its_settings() -> None:
    found = read(json.dumps(ZERO3_OFFLOAD), "ds_config.json")
    spec = make_spec(*found.overrides)
    assert (spec.backend.name, spec.zero.stage, spec.precision.compute) == ("deepspeed", 3, "bf16")
    assert (spec.zero.offload_optimizer, spec.zero.offload_parameters) == ("cpu", "nvme")
    assert (spec.zero.nvme_path, spec.zero.max_live_parameters) == ("/scratch", 2_000_000_000)
    assert spec.save.export == "safetensors"
    assert (spec.train.micro_batch_size, spec.train.global_batch_size) == (2, 64)
    assert (spec.optimizer.name, spec.optimizer.lr, spec.optimizer.beta2) == ("adamw", 2e-5, 0.999)
    assert (spec.optimizer.schedule, spec.optimizer.warmup_steps, spec.optimizer.clip) == ("constant", 100, 1.0)


def test_what_only_deepspeed_reads_is_handed_on_and_named_where_it_may_change_memory() -> None:
    found = read(json.dumps(ZERO3_OFFLOAD), "ds_config.json")
    spec = make_spec(*found.overrides)
    assert found.not_understood == ("zero_optimization.offload_param.buffer_count=6",)
    assert spec.backend.extra == {
        "aio": {"block_size": 1048576},
        "zero_optimization": {"offload_param": {"buffer_count": 6}},
    }
    assert list(extra.check(spec)) == []


def test_the_blocks_of_the_other_half_precision_are_left_out() -> None:
    config = {"fp16": {"enabled": True, "loss_scale": 128}, "bf16": {"enabled": False, "check_grad_overflow": True}}
    found = read(json.dumps(config), "ds_config.json")
    assert found.overrides == (
        "parallel=zero0",
        "precision=fp16",
        "backend.extra.fp16.loss_scale=128",
        "optimizer.clip=0.0",
    )


def test_values_that_another_program_fills_in_are_named() -> None:
    config = {
        "bf16": {"enabled": "auto"},
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    }
    found = read(json.dumps(config), "ds_config.json")
    assert found.overrides == ("parallel=zero2",)
    assert found.not_understood == (
        "auto, which the program that reads the file decides; defaults stand for: "
        "bf16.enabled, train_batch_size, gradient_clipping, zero_optimization.reduce_bucket_size",
    )


def test_the_zero_3_file_of_the_hugging_face_documentation_is_a_valid_run() -> None:
    numbers = {"optimizer", "scheduler", "gradient_accumulation_steps", "train_batch_size", "gradient_clipping"}
    config = {key: value for key, value in ZERO3_OFFLOAD.items() if key not in numbers}
    config["zero_optimization"] = ZERO3_OFFLOAD["zero_optimization"] | {
        "offload_param": {"device": "cpu", "pin_memory": True},
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
    }
    found = read(json.dumps(config), "ds_config.json")
    assert assess.errors(make_spec("model=7b", *NODE, *found.overrides)) == ()


def test_accumulation_without_a_global_batch_says_what_to_set() -> None:
    found = read(json.dumps({"gradient_accumulation_steps": 4}), "ds_config.json")
    assert found.not_understood == (
        "gradient_accumulation_steps=4: set train.global_batch_size to micro-batch x 4 x data ranks",
    )


def test_formats_of_gradients_and_optimizer_are_read() -> None:
    config = {
        "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "bfloat16",
        "zero_optimization": {"stage": 1},
    }
    precision = make_spec(*read(json.dumps(config), "ds_config.json").overrides).precision
    assert (precision.accumulate, precision.reduce) == ("fp32", "bf16")
    assert (precision.master, precision.optimizer_states) == ("bf16", "bf16")


def test_the_spelling_of_old_versions_is_understood() -> None:
    config = {"zero_optimization": {"stage": 2, "cpu_offload": True}}
    assert "zero.offload_optimizer=cpu" in read(json.dumps(config), "ds_config.json").overrides


def test_a_cosine_schedule_ends_at_its_share_of_the_learning_rate() -> None:
    config = {
        "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
        "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 500, "cos_min_ratio": 0.5}},
    }
    spec = make_spec(*read(json.dumps(config), "ds_config.json").overrides)
    assert (spec.optimizer.schedule, spec.optimizer.min_lr, spec.train.steps) == ("cosine", 0.005, 500)


def test_an_optimizer_a_schedule_and_a_feature_that_are_not_ours_are_named() -> None:
    config = {
        "optimizer": {"type": "OneBitAdam"},
        "scheduler": {"type": "OneCycle"},
        "communication_data_type": "int8",
        "activation_checkpointing": {"partition_activations": True, "profile": False},
        "hybrid_engine": {"enabled": True},
    }
    assert read(json.dumps(config), "ds_config.json").not_understood == (
        "communication_data_type=int8",
        "optimizer.type=OneBitAdam",
        "scheduler.type=OneCycle",
        "activation_checkpointing.partition_activations=true",
        "hybrid_engine.enabled=true",
    )


def test_the_recipe_says_what_the_overrides_say() -> None:
    found = read(json.dumps(ZERO3_OFFLOAD), "ds_config.json")
    recipe = {key: value for key, value in found.recipe.items() if key != "schema"}
    assert tuple(Recipe(name="imported", sweep={}, **recipe).overrides()) == found.overrides
    assert found.recipe["summary"] == "DeepSpeed ZeRO-3"


def _message(content: object) -> list[dict[str, object]]:
    with pytest.raises(ConfigErrors) as caught:
        read(content if isinstance(content, str) else json.dumps(content), "ds.json")
    return [error.as_dict() for error in caught.value.errors]


def test_a_file_that_is_no_ds_config_is_an_error_with_its_path() -> None:
    [error] = _message("stage: 3")
    assert (error["path"], error["found"]) == ("ds.json", "stage: 3")
    assert str(error["rule"]).startswith("a ds_config.json is JSON, and this is not: ")


def test_blocks_and_counts_of_the_wrong_kind_come_at_once() -> None:
    errors = _message({"zero_optimization": True, "train_batch_size": "many"})
    assert errors == [
        {
            "path": "ds.json: zero_optimization",
            "found": True,
            "rule": "is a block of keys in ds_config.json",
            "way_out": ['"zero_optimization": {}'],
        },
        {"path": "ds.json: train_batch_size", "found": "many", "rule": "is a number in ds_config.json", "way_out": []},
    ]


def test_a_stage_that_does_not_exist_is_an_error() -> None:
    [error] = _message({"zero_optimization": {"stage": 4}})
    assert (error["path"], error["rule"]) == ("ds.json: zero_optimization.stage", "is 0, 1, 2 or 3")
    assert error["way_out"] == ["zero=1", "zero=2", "zero=3"]
