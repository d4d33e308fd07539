"""A task becomes TRL's own configuration and accelerate's variables, and what TRL cannot do is refused."""

from __future__ import annotations

from dataclasses import fields

import pytest

from launcher.backends import trl
from launcher.backends.trl import config
from launcher.base import files
from launcher.preflight import findings, plan
from launcher.spec import RunSpec
from tests.support.helpers import ROOT, ask, assert_golden, composed_once, make_spec

NODE = ("model=llama3_8b", "hardware=h100_80g", "cluster.gpus_per_node=8", "precision=bf16")
ROWS = ("data=rows", "data.path=rows/*.jsonl")

RUNS = {
    "sft_fsdp_lora": ("task=sft", "adapter=lora", "checkpointing=full", *NODE),
    "sft_ddp_wsd": ("task=sft", "parallel=ddp", "optimizer.schedule=wsd", "optimizer.warmup_ratio=0.03", *NODE),
    "dpo_zero3": ("task=dpo", "task.beta=0.05", "task.loss=ipo", "parallel=zero3", *ROWS, *NODE),
    "kto_fsdp2": ("task=kto", "zero=2", "train.micro_batch_size=2", "task.undesirable_weight=1.33", *ROWS, *NODE),
    "reward_qlora": ("task=reward", "adapter=qlora", "task.center_rewards=0.01", *ROWS, *NODE),
    "grpo_zero2": ("task=grpo", "task.rewards=[rewards.length]", "parallel=zero2", *ROWS, *NODE,
                   "data.template_values={enable_thinking:false}"),
}  # fmt: skip


def spec_of(name: str) -> RunSpec:
    return composed_once(*RUNS[name])


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_translated_to_the_files_that_trl_and_accelerate_read(name: str) -> None:
    spec = spec_of(name)
    assert not findings.errors(spec)
    job = plan.translate(spec, python="python")
    environment = "".join(f"{key}={value}\n" for key, value in sorted(job.environment.items()))
    assert_golden(f"trl_{name}.txt", f"{' '.join(job.worker_argv)}\n\n{environment}\n{job.files['trl.yaml']}")
    assert ("ds_config.json" in job.files) == ("zero" in name)


@pytest.mark.parametrize("task", ["sft", "dpo", "kto", "reward", "grpo"])
def test_another_task_than_pretraining_makes_the_backend_trl_whatever_the_preset_says(task: str) -> None:
    for preset in ("fsdp", "ddp", "zero2"):
        spec = composed_once(f"task={task}", f"parallel={preset}")
        assert (spec.backend.name, spec.parallel.name) == ("trl", preset)
    assert composed_once("parallel=zero2").backend.name == "deepspeed"


def test_a_method_that_is_experimental_in_trl_is_no_task() -> None:
    for name in ("orpo", "cpo", "gkd"):
        [error] = ask(f"task={name}").errors
        assert "it is experimental in TRL 1.16" in error.rule


REFUSED = {
    "tensor": (("task=sft", "parallel=fsdp_tp"), "parallel.tensor"),
    "zero0": (("task=sft", "parallel=zero0"), "parallel.name"),
    "fsdp": (("task=sft", "backend=fsdp"), "task.name"),
    "pretrain": (("backend=trl",), "task.name"),
    "tokens": (("task=dpo",), "data.source"),
    "rows": (("task=sft", *ROWS), "data.source"),
    "idle": (("task=sft", "task.beta=0.1"), "task.beta"),
    "loss": (("task=dpo", "task.loss=orpo", *ROWS), "task.loss"),
    "full loss": (("task=sft", "train.loss=chunked"), "train.loss"),
    "rewards": (("task=grpo", *ROWS), "task.rewards"),
    "group": (("task=grpo", "task.rewards=[a.b]", "task.generations=3", *ROWS), "task.generations"),
    "kto alone": (("task=kto", *ROWS), "train.micro_batch_size"),
    "own argument": (("task=sft", "+backend.extra.learning_rate=1"), "backend.extra.learning_rate"),
    "other name": (("task=sft", "+backend.extra.packing=true"), "backend.extra.packing"),
    "other task": (("task=sft", "+backend.extra.epsilon=0.2"), "backend.extra.epsilon"),
    "long row": (("task=sft", "data.packing=documents", "train.micro_batch_size=2"), "train.micro_batch_size"),
    "spike": (("task=sft", "train.on_spike=stop"), "train.on_spike"),
    "muon": (("task=sft", "optimizer=muon"), "optimizer.name"),
}


def test_what_trl_cannot_run_is_refused_with_what_it_can() -> None:
    lines = []
    for name, (words, path) in REFUSED.items():
        found = [error for error in findings.errors(composed_once(*words)) if error.path == path]
        assert found, name
        lines += [
            f"{' '.join(words)}\n  {error.path}: {error.rule}\n  {' | '.join(error.way_out)}\n" for error in found
        ]
    assert_golden("trl_refused.txt", "\n".join(lines))


def test_every_argument_that_a_run_may_be_given_is_one_of_trls() -> None:
    trl = pytest.importorskip("trl", reason="its arguments are read from the extra 'trl'")
    table = files.load_own(ROOT / "launcher/backends/trl/arguments.yaml")
    every: set[str] = {field.name for field in fields(trl.ModelConfig)} | {
        field.name for field in fields(trl.ScriptArguments)
    }
    for task, name in {"sft": "SFT", "dpo": "DPO", "kto": "KTO", "reward": "Reward", "grpo": "GRPO"}.items():
        known = {field.name for field in fields(getattr(trl, f"{name}Config"))}
        assert {*table["given"]["all"].split(), *table["given"][task].split()} <= known, task
        every |= known
    assert {name for names in table["settings"].values() for name in names.split()} <= every


def test_a_misspelt_argument_is_refused_with_the_one_that_is_meant() -> None:
    words = ("task=grpo", "task.rewards=[a.b]", "task.generations=4", "+backend.extra.epsilom=0.2", *ROWS, *NODE)
    [error] = findings.errors(composed_once(*words))
    assert error.path == "backend.extra.epsilom"
    assert error.way_out[0] == "+backend.extra.epsilon=0.2"


def test_an_argument_without_a_value_is_left_out() -> None:
    words = ("task=sft", *NODE, "+backend.extra.nosuch=null", "+backend.extra.tf32=null")
    spec = composed_once(*words)
    assert findings.errors(spec) == ()
    assert not {"nosuch", "tf32"} & config.build(spec).keys()


def test_the_format_of_trained_weights_may_be_named_and_that_of_frozen_ones_is_the_computation_s() -> None:
    words = ("model=llama3_8b", "task=sft", *NODE)
    plain, named = (composed_once(*words, *more) for more in ((), ("precision.parameters=fp32",)))
    assert findings.errors(named) == ()
    assert trl.dtypes(named) == trl.dtypes(plain)
    [error] = findings.errors(composed_once(*words, "adapter=lora", "precision.parameters=fp32"))
    assert (error.path, error.way_out) == ("precision.parameters", ("precision.parameters=null", "precision=fp32"))
    assert error.rule == "the adapter's frozen weights are loaded in the format of precision.compute"
    [error] = findings.errors(composed_once(*words, "parallel=zero2", "precision.parameters=bf16"))
    assert error.path == "precision.parameters"


def test_a_checkpoint_of_deepspeed_stays_on_as_many_ranks_as_the_trainer_converts_no_states() -> None:
    """DeepSpeed: "Automatic adjustment of ZeRO's optimizer state partitioning ... is not currently supported"."""
    words = ("model=tiny", "task=sft", "parallel=zero2")
    two, one = (make_spec(*words, f"cluster.gpus_per_node={ranks}") for ranks in (2, 1))
    [error] = trl.unreadable(two, one)
    assert (error.path, error.way_out) == ("cluster.gpus_per_node", ("cluster.gpus_per_node=2",))
    assert error.rule == "the checkpoint was written by 2 ranks, and transformers' Trainer converts no states"
    stage = make_spec("model=tiny", "task=sft", "parallel=zero1", "cluster.gpus_per_node=2")
    assert list(trl.unreadable(two, stage)) == []
