"""DeepSpeed's ds_config.json as a run here, through the command line, over ``files/deepspeed``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.backends.deepspeed import extra
from launcher.base.errors import ConfigErrors
from launcher.cli import main
from launcher.config.recipes import Recipe
from launcher.importers.deepspeed import read
from launcher.preflight import findings
from launcher.spec import RunSpec
from tests.support.foreign_files import ZERO3_OFFLOAD
from tests.support.helpers import make_spec
from tests.support.rule_cases import NODE

FILES = Path(__file__).parent / "files" / "deepspeed"
BATCH = ("train.global_batch_size", "train.micro_batch_size", "train.gradient_accumulation")

type Asked = Callable[..., dict[str, Any]]


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Asked:
    """The document of a command about a file of ``files/deepspeed``."""

    def ask(verb: str, name: str, *words: str, status: int = 0) -> dict[str, Any]:
        file = str(FILES / name)
        front = ["import", "deepspeed", file] if verb == "import" else ["check", "--deepspeed", file, "--no-native"]
        answered = main([*front, "--json", *words])
        said = capsys.readouterr()
        assert answered == status, said
        found: dict[str, Any] = json.loads(said.out)
        return found

    return ask


def _said(document: dict[str, Any]) -> dict[str, list[str]]:
    return {said["key"]: said["overrides"] for said in document["import"]["said"]}


def _left(document: dict[str, Any]) -> dict[str, str]:
    return {left["key"]: left["effect"] for left in document["import"]["left_out"]}


def _spec(name: str, *words: str) -> RunSpec:
    return make_spec("model=1b", *NODE, *read((FILES / name).read_text(), name).overrides, *words)


@pytest.mark.parametrize(
    ("name", "batch", "made"),
    [
        ("batch_alone.json", ("128", "null", "1"), (128, 16, 1)),
        ("batch_and_accumulation.json", ("96", "null", "3"), (96, 4, 3)),
        ("batch_and_micro.json", ("48", "3", None), (48, 3, 2)),
        ("micro_and_accumulation.json", (None, "3", "5"), (120, 3, 5)),
        ("three_batches.json", ("48", "3", "2"), (48, 3, 2)),
        ("infinity.json", (None, "1", None), (8, 1, 1)),
    ],
)
def test_any_two_of_three_give_the_batch_as_deepspeed_derives_it(
    name: str, batch: tuple[str | None, ...], made: tuple[int, int, int], asked: Asked
) -> None:
    """On 8 ranks, as ``_set_batch_related_parameters`` of ``deepspeed/runtime/config.py`` derives them."""
    words = asked("import", name)["import"]["overrides"]
    expected = {f"{path}={value}" for path, value in zip(BATCH, batch, strict=True) if value is not None}
    assert {word for word in words if word.startswith(BATCH)} == expected
    spec = _spec(name)
    assert (spec.global_batch_size, spec.micro_batch_size, spec.gradient_accumulation) == made


def test_a_batch_without_a_micro_batch_is_judged_at_deepspeeds_own(asked: Asked) -> None:
    """The micro-batch was 1 with an accumulation that DeepSpeed does not make, and the run seemed to fit."""
    document = asked("check", "batch_alone.json", "model=llama3_1b", *NODE, "train.global_batch_size=256", status=3)
    assert (document["verdict"], document["world"]["gradient_accumulation"]) == ("does_not_fit", 1)
    assert document["peak"]["needed_bytes"] > 300 * 2**30


def test_three_numbers_that_the_ranks_do_not_make_are_an_error_as_in_deepspeed(asked: Asked) -> None:
    on_four = ("model=125m", NODE[0], "cluster.gpus_per_node=4", "train.sequence_length=512")
    [error] = asked("check", "three_batches.json", *on_four, status=2)["errors"]
    assert error["path"] == "train.gradient_accumulation"
    assert error["way_out"] == [
        "train.micro_batch_size=null",
        "train.gradient_accumulation=null",
        "train.global_batch_size=null",
    ]
    for way in error["way_out"]:
        assert asked("check", "three_batches.json", *on_four, way)["errors"] == []


def test_the_default_warm_up_is_logarithmic_and_starts_where_the_file_says(asked: Asked) -> None:
    said = _said(asked("import", "warmup_log.json"))
    assert said["scheduler.type"] == ["optimizer.schedule=constant", "optimizer.warmup=log"]
    assert said["scheduler.params.warmup_min_lr"] == ["optimizer.warmup_lr=1e-06"]
    assert said["scheduler.params.warmup_max_lr"] == ["optimizer.lr=0.0002"]
    assert said["optimizer.params.torch_adam"] == ["optimizer.foreach=true"]


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"])
def test_the_curve_of_a_warm_up_is_deepspeeds_where_the_file_leaves_its_steps_open(kind: str) -> None:
    def settings(**params: object) -> dict[str, object]:
        found = read(json.dumps({"scheduler": {"type": kind, "params": params}}), "ds_config.json").recipe["set"]
        return {key: value for key, value in found.items() if key.startswith("optimizer.warmup")}

    assert settings(warmup_num_steps="auto")["optimizer.warmup"] == "log"
    assert "optimizer.warmup_steps" not in settings(warmup_num_steps="auto")
    assert settings(warmup_num_steps="auto", warmup_type="linear")["optimizer.warmup"] == "linear"
    assert settings(warmup_num_steps=0).get("optimizer.warmup") is None
    assert "optimizer.warmup" not in settings(warmup_num_steps="auto", warmup_type="auto")


def test_the_schedulers_rate_wins_over_the_optimizers_as_in_deepspeed(asked: Asked) -> None:
    document = asked("import", "decay.json")
    assert _left(document)["optimizer.params.lr"] == "no effect: the scheduler sets the rate to 0.001, in DeepSpeed too"
    optimizer = _spec("decay.json").optimizer
    assert (optimizer.lr, optimizer.schedule, optimizer.warmup, optimizer.warmup_steps) == (
        0.001,
        "linear",
        "linear",
        90,
    )


def test_a_schedules_length_is_that_of_the_run_and_stays_where_the_run_is_made_shorter() -> None:
    spec = _spec("decay.json", "train.steps=20")
    assert (_spec("decay.json").train.steps, spec.train.steps, spec.optimizer.decay_steps) == (900, 20, 900)


def test_a_cosine_ends_at_its_share_of_the_learning_rate() -> None:
    optimizer = _spec("cosine.json").optimizer
    assert (optimizer.schedule, optimizer.lr, optimizer.min_lr) == ("cosine", 2e-4, 4e-5)
    assert (optimizer.warmup_lr, optimizer.warmup_steps, optimizer.warmup) == (2e-6, 70, "log")


def test_what_an_optimizers_block_does_not_say_is_its_classs_default() -> None:
    optimizer = _spec("plain_adam.json").optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.schedule) == (0.9, 0.999, 1e-8, "constant")
    assert (_spec("warmup_log.json").optimizer.weight_decay, _spec("sgd.json").optimizer.weight_decay) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("one_cycle.json", {"scheduler.type"}),
        ("range_test.json", {"scheduler.type"}),
        ("one_bit.json", {"optimizer.type", "optimizer.params.bias_correction"}),
        ("lamb.json", {"optimizer.type", "sparse_attention.mode"}),
        ("sgd.json", {"optimizer.params.nesterov"}),
        ("plain_adam.json", {"optimizer.params.adam_w_mode", "optimizer.params.max_grad_norm"}),
        ("curriculum.json", {"curriculum_learning.enabled"}),
        ("compression.json", {"compression_training.weight_quantization.shared_parameters.enabled"}),
        ("data_efficiency.json", {"data_efficiency.data_routing.enabled"}),
        ("chat_rlhf.json", {"hybrid_engine.enabled"}),
        ("elastic.json", {"elasticity.enabled"}),
        ("activations.json", {"activation_checkpointing.cpu_checkpointing"}),
        (
            "removed.json",
            {"amp.enabled", "zero_optimization.mics_shard_size", "zero_optimization.offload_optimizer.ratio"},
        ),
        ("unknown_keys.json", {"zero_optimization.bucket"}),
    ],
)
def test_what_changes_the_training_and_is_left_out_is_an_error_unless_partial(
    name: str, keys: set[str], asked: Asked
) -> None:
    refused = asked("import", name, status=2)
    assert keys <= {error["path"].partition(": ")[2] for error in refused["errors"]}
    assert refused["import"]["overrides"]
    document = asked("import", name, "--partial")
    assert all(not _left(document)[key].startswith("no effect") for key in keys)


@pytest.mark.parametrize(
    ("name", "key", "effect"),
    [
        (
            "nvme_at_stage_2.json",
            "zero_optimization.offload_optimizer.device",
            "no effect: DeepSpeed offloads to the CPU at stage 2, and so does this (zero.offload_optimizer=cpu)",
        ),
        (
            "nvme_at_stage_2.json",
            "zero_optimization.offload_param.device",
            "no effect: DeepSpeed offloads parameters at stage 3 alone, not at 2",
        ),
        (
            "nvme_at_stage_2.json",
            "zero_optimization.stage3_max_live_parameters",
            "no effect: DeepSpeed reads it at stage 3 alone, and this is stage 2",
        ),
        (
            "all_auto.json",
            "optimizer.params.lr",
            "no effect: the file leaves it to the program that reads it; optimizer.lr decides here",
        ),
        (
            "curriculum.json",
            "curriculum_learning.min_difficulty",
            "no effect: it belongs to curriculum_learning, which the run is without",
        ),
        (
            "one_cycle.json",
            "scheduler.params.cycle_max_lr",
            "no effect: it belongs to OneCycle, which the run is without",
        ),
        ("lamb.json", "optimizer.params.max_coeff", "no effect: it belongs to Lamb, which the run is without"),
        ("bfloat16.json", "bfloat16.loss_scale", "no effect: bf16 has no loss scale"),
        ("trackers.json", "tensorboard.enabled", "no effect: of the tracker: the run directory holds its files"),
        (
            "autotuning.json",
            "autotuning.fast",
            "no effect: of `deepspeed --autotuning` alone; launch -m compares settings",
        ),
    ],
)
def test_what_deepspeed_ignores_or_repairs_is_left_out_with_the_reason(
    name: str, key: str, effect: str, asked: Asked
) -> None:
    assert _left(asked("import", name, "--partial"))[key] == effect


def test_features_that_are_switched_off_are_the_default_here_too(asked: Asked) -> None:
    document = asked("import", "curriculum_off.json")["import"]
    assert document["left_out"] == []
    assert {"curriculum_learning.min_difficulty", "amp.opt_level", "elasticity.enabled"} <= {*document["default"]}


def test_trackers_profiler_and_prints_have_settings_or_reach_deepspeed(asked: Asked) -> None:
    document = asked("import", "trackers.json")
    said = _said(document)
    assert (said["wandb.enabled"], said["wandb.project"]) == (["tracking=wandb"], ["tracking.project=words"])
    assert said["steps_per_print"] == ["train.log_every=50"]
    assert {"flops_profiler.profile_step", "wall_clock_breakdown"} <= {*document["import"]["kept"]}


def test_old_spellings_are_understood() -> None:
    switch, offload = _spec("old_switch.json").zero, _spec("old_offload.json").zero
    assert (switch.stage, switch.allgather_bucket_size) == (1, 200_000_000)
    assert (offload.stage, offload.offload_optimizer) == (2, "cpu")
    assert _spec("bfloat16.json").precision.compute == "bf16"


def test_sub_groups_of_0_are_legal_and_count_with_one_parameter(asked: Asked) -> None:
    words = ("model=1b", *NODE, "zero.offload_optimizer=none", "zero.offload_parameters=none", "zero.nvme_path=null")
    document = asked("check", "infinity.json", *words)
    assert document["errors"] == []
    larger = asked("check", "infinity.json", *words, "zero.sub_group_size=1000000000")
    assert document["phases"]["optimizer"] < larger["phases"]["optimizer"]


def test_hjson_is_read_with_its_comments_bare_keys_and_trailing_commas(asked: Asked) -> None:
    assert {"train.global_batch_size=64", "zero.reduce_bucket_size=50000000", "precision=bf16"} <= {
        *asked("import", "comments.json")["import"]["overrides"]
    }


def test_offload_without_a_stage_is_no_key_of_no_effect() -> None:
    found = read('{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}', "ds.json")
    assert [(left.matters, left.effect) for left in found.left_out] == [
        (True, "optimizer states stay on the GPU here without ZeRO: set zero.stage")
    ]


def test_blocks_with_nothing_in_them_are_the_default_here_too() -> None:
    found = read(
        '\ufeff{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {}}, "fp16": {}, "aio": {}}', "d"
    )
    assert found.default == ("optimizer.params", "fp16", "aio")
    assert (found.left_out, found.kept) == ((), ())


def test_two_number_formats_at_once_are_an_error_as_in_deepspeed(asked: Asked) -> None:
    [error] = asked("import", "both_formats.json", status=2)["errors"]
    assert error["path"].endswith("both_formats.json: bf16.enabled")
    assert error["rule"] == "bfloat16 and fp16 modes cannot be enabled at once (DeepSpeed's own check)"


def test_a_key_that_is_there_twice_is_an_error_as_in_deepspeed() -> None:
    for text in ('{"train_batch_size": 1, "train_batch_size": 2}', "{train_batch_size: 1\ntrain_batch_size: 2}"):
        [error] = _message(text)
        assert error["rule"] == "DeepSpeed refuses a key that is there twice: train_batch_size"


def test_words_of_a_template_are_errors_that_name_them(asked: Asked) -> None:
    document = asked("import", "words_of_a_template.json", status=2)
    assert [error["found"] for error in document["errors"]] == ["CONFIG_STAGE", "CONFIG_BATCH_SIZE,"]
    assert len(document["import"]["left_out"]) == 2


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir()))
def test_what_is_handed_on_passes_our_own_check(name: str) -> None:
    found = read((FILES / name).read_text(), name)
    spec = make_spec("model=1b", *NODE, *found.overrides)
    assert list(extra.check(spec)) == []
    # No Lion without a kernel; no fp16 without ZeRO; gradients in 4 bits go between nodes, from fp16.
    unfinished = {"optimizer.name", "precision.compute", "zero.quantized_gradients", "precision.reduce"}
    unfinished.add("zero.max_reuse_distance")  # Of weights on NVMe, where DeepSpeed would stop in the second step.
    assert found.errors or {error.path for error in findings.errors(spec)} <= unfinished


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
    assert spec.backend.extra == {
        "aio": {"block_size": 1048576},
        "zero_optimization": {"offload_param": {"buffer_count": 6}},
    }


@pytest.mark.parametrize("kind", ["Muon", "Lion", "Adafactor"])
def test_an_optimizer_that_the_backend_does_not_run_is_left_out(kind: str) -> None:
    found = read(json.dumps({"optimizer": {"type": kind, "params": {"lr": 0.1, "muon_lr": 0.2}}}), "ds.json")
    effect = f"optimizer=adamw trains here, and {kind} takes other steps"
    assert [(left.key, left.effect) for left in found.left_out if left.matters] == [("optimizer.type", effect)]
    assert "optimizer=adamw" in found.overrides


def test_fp16_without_zero_names_the_way_out_of_the_check() -> None:
    content: dict[str, Any] = {"fp16": {"enabled": True}}
    [sentence] = read(json.dumps(content), "ds.json").not_understood
    assert sentence.endswith("add zero=1 or precision=bf16")
    assert read(json.dumps({**content, "zero_optimization": {"stage": 1}}), "ds.json").not_understood == ()


def test_keys_of_cut_tensors_act_where_the_file_cuts_some() -> None:
    block = {"autotp_size": 2, "tp_overlap_comm": True, "partition_config": {"use_default_specs": False}}
    found = read(json.dumps({"tensor_parallel": block}), "ds.json")
    assert found.kept == ("tensor_parallel.tp_overlap_comm",)
    assert [(left.key, left.effect) for left in found.left_out] == [
        (
            "tensor_parallel.partition_config.use_default_specs",
            "tensors are split by the model's plan in transformers",
        )
    ]
    left = read(json.dumps({"tensor_parallel": {**block, "autotp_size": 1}}), "ds.json").left_out
    assert {each.effect for each in left} == {
        "no effect: DeepSpeed reads it where tensors are cut, and this file cuts none"
    }


def test_a_format_that_deepspeed_refuses_is_mended_in_the_file() -> None:
    [error] = read('{"communication_data_type": "bfp16"}', "ds.json").errors
    assert error.way_out[0] == '"communication_data_type": "bf16"'


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
    [error] = [found.as_dict() for found in read('{"num_layers": 2}', "ds.json").errors]
    assert error["rule"] == "DeepSpeed reads no key of this file, the first is num_layers"


def test_blocks_and_counts_of_the_wrong_kind_come_at_once() -> None:
    found = read('{"optimizer": true, "train_batch_size": "many", "zero_optimization": {"stage": 4}}', "ds.json")
    assert [(error.path, error.rule) for error in found.errors] == [
        ("ds.json: zero_optimization.stage", "is 0, 1, 2 or 3"),
        ("ds.json: train_batch_size", "is a number in ds_config.json"),
        ("ds.json: optimizer", "is a block of keys in ds_config.json"),
    ]
    assert found.errors[0].way_out == ("zero=1", "zero=2", "zero=3")
