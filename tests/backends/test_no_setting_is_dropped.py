"""No setting is dropped in silence: each one, changed, gives another job or a refusal, or the worker reads it.

The worker takes the run from ``spec.json``, so for it a job differs in what it reads there: its source shows which
keys that are. A key that is refused only beside others is changed in a run in which it means something.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Literal, TypeAliasType, get_args, get_origin, get_type_hints

import pytest

from launcher.base import registry
from launcher.preflight import findings, plan
from launcher.rules.dependencies import REFUSED, WARNED
from launcher.spec import RunSpec, edit
from launcher.spec.parse import known_keys, parse, to_dict
from launcher.spec.training import DataStage, EvalSet, MixPart, ProfileSpec
from launcher.submission.slurm_jobs import sbatch_text
from tests.support.helpers import composed_once
from tests.support.settings_read import keys_read_by

PLANNING_ONLY = frozenset({
    "cluster.measurements",
    "cluster.network_bandwidth",
    "cluster.network_latency",
    "cluster.price_per_gpu_hour",
    "cluster.shared_folder",
    "cluster.storage_bandwidth",
    "data.preview",
    "hardware.name",
    "hardware.title",
    "hardware.memory_bytes",
    "hardware.reserved_bytes",
    "hardware.host_memory_bytes",
    "hardware.disk_bytes",
    "hardware.dtypes",
    "hardware.compute_capability",
    "hardware.flops_fp32",
    "hardware.flops_fp16",
    "hardware.flops_bf16",
    "hardware.flops_fp8",
    "hardware.flops_fp4",
    "hardware.memory_bandwidth",
    "hardware.card",
    "hardware.cores",
    "hardware.link_bandwidth",
    "hardware.link_gpus",
    "hardware.network_bandwidth",
    "hardware.pcie_bandwidth",
    "hardware.nvme_bandwidth",
    "hardware.source",
    "model.name",
    "model.source",
    "parallel.name",
    "precision.name",
    "run.name",
    "run.directory",
    "run.partial",
    "run.record_diff",
    "sweep.sampler",
    "sweep.budget",
    "sweep.parallelism",
})
"""Fields that only planning reads: names, sources, capacities, speeds and prices, where runs lie, their names."""

OF_THE_NODE = frozenset({"train.on_hang", "train.hang_factor"})
"""Fields that the node reads beside the ranks of any engine, from ``spec.json``; tests/submission/test_hanging.py."""

PRESETS = {
    "fsdp": ("parallel=fsdp", "parallel=ddp"),
    "deepspeed": ("parallel=zero3", "parallel=zero2"),
    "megatron": ("parallel=tp", "parallel=pp"),
    "trl": ("task=sft parallel=fsdp", "task=sft parallel=zero2"),
}
"""Runs of each backend in which a setting may mean something; one in which it does suffices."""

CONTEXT = {
    row.path: tuple(row.needs.split()) for row in (*REFUSED, *WARNED) if not row.needs.startswith("parallel=")
} | {
    "backend.path": (),
    "data.path": (),
    "data.columns": ("data=chat", "data.path=words/*.jsonl"),
    "data.special_tokens": ("data=text", "data.path=words/*.jsonl", "data.tokenizer=path/to/tokenizer"),
    "data.template_values": ("data=chat", "data.path=words/*.jsonl"),
    "data.config": ("data=huggingface", "data.path=org/name"),
    "data.eval_config": ("data=huggingface", "data.path=org/name"),
    "data.eval_sets": ("data=text", "data.path=words/*.jsonl"),
    "data.eval_path": ("data=text", "data.path=words/*.jsonl"),
    "data.eval_split": ("data=huggingface", "data.path=org/name"),
    "data.mix": ("data=text", "data.mix=[{path: words/*.jsonl}]"),
    "data.stages": ("data=text", "data.mix=[{path: words/*.jsonl}]"),
    "data.packing": ("data=text", "data.path=words/*.jsonl"),
    "data.samples": ("train.epochs=1", "data.samples=1000"),
    "save.per_epoch": ("data.samples=1000", "save.per_epoch=2"),
    "train.epochs": ("data.samples=1000", "train.epochs=2"),
    "train.evals_per_epoch": ("data.samples=1000", "train.evals_per_epoch=2"),
    "data.max_samples": ("data=text", "data.path=words/*.jsonl"),
    "data.revision": ("data=huggingface", "data.path=org/name"),
    "data.template": ("data=chat", "data.path=words/*.jsonl"),
    "data.train_on": ("data=chat", "data.path=words/*.jsonl"),
    "data.tokenizer": (),
    "model.weights": (),
    "script_args": ("script=train.py",),
    "train.loss_chunk": ("train.loss=chunked",),
    "train.tokens": ("train.tokens=1000000",),
    "zero.nvme_path": ("zero.offload_optimizer=nvme", "zero.nvme_path=/nvme"),
    "cluster.time_limit_min": ("cluster=slurm",),
    "cluster.memory_request": ("cluster=slurm", "cluster.memory=0"),
    "cluster.container_image": ("cluster=slurm", "cluster.container=apptainer", "cluster.container_image=a.sif"),
    "cluster.container_mounts": ("cluster=slurm", "cluster.container=apptainer", "cluster.container_image=a.sif"),
}
"""What a setting needs beside it; a preset of ``parallel`` would be the run of another backend."""

OTHER: dict[str, tuple[object, ...]] = {
    "model.name": ("other",),
    "model.head_dim": (64,),
    "model.num_key_value_heads": (2,),
    "model.weights": ("path/to/model",),
    "model.attention_output_bias": (True,),
    "model.gated": (False,),
    "model.norm_topk_prob": (False,),
    "model.rope_parameters": ({"rope_type": "linear", "factor": 2.0},),
    "model.sliding_window": (16,),
    "model.num_attention_heads": (4,),
    "model.family": ("gpt",),
    "model.model_type": ("gemma2",),
    "model.extra": ({"key": 1},),
    "eval.tasks": (("hellaswag",),),
    "save.reshardable": (True, False),
    "task.beta": (0.5,),
    "task.center_rewards": (0.01,),
    "task.rewards": (("rewards.length",),),
    "backend.name": ("deepspeed", "fsdp"),
    "backend.reshard_after_forward": (True, False, 2),
    "backend.path": ("/megatron",),
    "backend.extra": ({"key": 1},),
    "parallel.first_stage_layers": (1,),
    "parallel.last_stage_layers": (1,),
    "parallel.layout": (("Ettt", "tL"),),
    "parallel.expert_tensor": (1,),
    "zero.stage": (0, 1, 2, 3),
    "zero.nvme_path": ("/other",),
    "zero.overlap_comm": (True, False),
    "checkpointing.modules": (("mlp",),),
    "checkpointing.layers": (2,),
    "checkpointing.offload_modules": (("core_attn",),),
    "optimizer.adamw_lr": (1e-3,),
    "optimizer.decay_steps": (50,),
    "optimizer.warmup_ratio": (0.1,),
    "optimizer.wsd_decay_steps": (5,),
    "precision.loss_scale": (1024.0,),
    "precision.initial_loss_scale": (1024.0,),
    "precision.loss_scale_window": (100,),
    "precision.qat": ("int4", "int8_int4"),
    "precision.qat_group_size": (64,),
    "precision.qat_after": (10,),
    "optimizer.fused": (True, False),
    "optimizer.foreach": (True, False),
    "adapter.targets": (("q_proj",),),
    "adapter.parameters": (("experts.down_proj",),),
    "adapter.lora_plus": (8.0,),
    "adapter.pissa": (4,),
    "adapter.modules_to_save": (("lm_head",),),
    "train.sequence_length": (64,),
    "train.global_batch_size": (4,),
    "train.gradient_accumulation": (2,),
    "train.eval_every": (10,),
    "train.patience": (3,),
    "save.every": (10,),
    "save.load": ("runs/other",),
    "data.path": ("words/*.txt",),
    "data.max_samples": (10,),
    "data.columns": ({"prompt": "question"},),
    "data.special_tokens": ({"eos_token": "</s>"},),
    "data.template_values": ({"enable_thinking": False},),
    "data.eval_sets": ((EvalSet(name="code", path="code.jsonl"),),),
    "data.mix": ((MixPart(path="other/*.jsonl"),),),
    "data.stages": ((DataStage(weights=(1.0,)),),),
    "data.tokenizer": ("path/to/tokenizer",),
    "hardware.dtypes": (("fp32",),),
    "cluster.cpus_per_node": (4,),
    "cluster.time_limit_min": (60,),
    "cluster.environment": ({"NAME": "value"},),
    "cluster.pass_environment": (("NAME",),),
    "cluster.setup": (("module load cuda",),),
    "cluster.modules": (("cuda",),),
    "cluster.container_mounts": (("/data:/data",),),
    "cluster.probe": (True, False),
    "cluster.requeues": (0,),  # How many is the node's business, and tested there.
    "cluster.extra": ({"mem": "0"},),
    "cluster.interface": ("eth9",),
    "cluster.shared_folder": ("/shared",),
    "train.profile": (ProfileSpec(start=2),),
    "sweep.budget": (10,),
    "sweep.parallelism": (2,),
    "script": ("train.py",),
    "script_args": (("--fast",),),
}


FIELDS = {"save.async": "save.asynchronous", "model.gated": "model.gate"}
"""Keys whose field has another name: what a worker reads and what has a type is the field."""


@cache
def _read(backend: str) -> frozenset[str]:
    argv = plan.translate(composed_once(*PRESETS[backend][0].split()), python="python").argv
    entry = argv[argv.index("--") + 1]
    return keys_read_by(f"{entry}.__main__", backend)


def _others(spec: RunSpec, path: str) -> Iterator[object]:
    """Other legal values of a key."""
    value = edit.value_at(spec, path)
    if path in OTHER:
        yield from (other for other in OTHER[path] if other != value)
    elif words := _words(path):
        yield from (word for word in words if word != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value * 2 if value else 1
    elif isinstance(value, float):
        yield value / 2 if value else 0.1
    elif isinstance(value, str) or value is None:
        yield "other"


def _words(path: str) -> tuple[object, ...]:
    group, _, field = FIELDS.get(path, path).partition(".")
    kind = get_type_hints(type(getattr(composed_once(), group)), include_extras=True).get(field)
    found: list[object] = []
    waiting = [kind]
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, TypeAliasType):
            waiting.append(kind.__value__)
        elif get_origin(kind) is Literal:
            found += get_args(kind)
        else:
            waiting += get_args(kind)
    return tuple(found)


def _is_heard(backend: str, path: str, base: RunSpec) -> bool:
    """Whether every other value is refused or changes the job, or the worker reads the key.

    A key that is not set stands for a default, which may be one of the values: there, one that differs suffices.
    """
    changes = [edit.changed(base, path, value) for value in _others(base, path)]
    assert changes, f"no other value is known for {path}: add one to OTHER"
    for changed in changes:
        assert parse(to_dict(changed)) == changed, "the other value is legal"
    enough = any if edit.value_at(base, path) is None else all
    return FIELDS.get(path, path) in _read(backend) or enough(_differs(base, changed) for changed in changes)


def _differs(base: RunSpec, changed: RunSpec) -> bool:
    if findings.errors(changed):
        return True
    return _job(base) != _job(changed)


def _job(spec: RunSpec) -> tuple[object, ...]:
    return plan.translate(spec, python="python"), sbatch_text("name", "{run}", spec.cluster)


@pytest.mark.parametrize("path", sorted(known_keys() - PLANNING_ONLY - OF_THE_NODE))
@pytest.mark.parametrize("backend", registry.names("backends"))
def test_a_setting_changes_the_job_or_is_refused(backend: str, path: str) -> None:
    heard = []
    for preset in PRESETS[backend]:
        base = composed_once(*preset.split(), *CONTEXT.get(path, ()))
        heard.append(bool(findings.errors(base)) or _is_heard(backend, path, base))
    assert all(heard), f"{path} is dropped in silence by backend={backend}"


def test_fields_that_only_planning_reads_exist() -> None:
    assert known_keys() >= PLANNING_ONLY | OF_THE_NODE


def test_every_backend_is_asked() -> None:
    assert set(PRESETS) == set(registry.names("backends")) >= {"fsdp", "deepspeed", "megatron"}
