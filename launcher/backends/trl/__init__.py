"""TRL: post-training with ``trl``'s trainers on the engines that accelerate runs (FSDP2, DDP, DeepSpeed).

The members are those that ``launcher.backends`` requires of a backend.
"""

import json
from collections.abc import Iterator
from importlib.util import find_spec

from launcher.backends import Profile, _shared, deepspeed
from launcher.backends._changes import is_preset
from launcher.backends._shared import BORROWED, NEEDS
from launcher.backends._shared import no_validator as native
from launcher.backends.deepspeed import ds_config
from launcher.backends.trl import config
from launcher.backends.trl.check import check, warnings
from launcher.backends.trl.overheads import overheads
from launcher.backends.trl.traits import as_engine, backend_of, dtypes, engine, engine_of, execution
from launcher.base import package
from launcher.base.errors import ConfigError
from launcher.job import RUN, Job
from launcher.job.versions import Borrowed
from launcher.spec import RunSpec, edit
from launcher.spec.change import Change, EngineChange, set_to

__all__ = [
    "changes", "check", "dtypes", "engine", "execution", "framework", "fullest_rank", "mode", "native", "obstacles",
    "overheads", "profile", "runs_on", "translate", "unreadable", "warnings",
]  # fmt: skip

_FILE = "trl.yaml"
_ENGINES = {"fsdp": "FSDP2", "ddp": "DDP", "deepspeed": "DeepSpeed"}

profile = Profile(
    counts_epochs=False,
    rehearsed=False,
    packages=("torch", "transformers", "trl", "accelerate"),
    needs=NEEDS,
    borrowed=(
        *BORROWED,
        Borrowed(
            path="parallel.name",
            asked=lambda spec: engine_of(spec) == "deepspeed",
            packages=("deepspeed",),
            extra="deepspeed",
            way_out="parallel=fsdp",
        ),
    ),
    install=package.install("trl"),
    settings={
        "parallel.shard": "backend=trl",
        "backend.micro_step_sync": "backend=trl",
        "precision.qat": "backend=trl",
        **dict.fromkeys(deepspeed.profile.settings, "backend=trl"),
    },
    shards_instead=("parallel=fsdp",),
    told_by_preset=True,
    unpickles=True,
    openings=("parallel=ddp", "parallel=fsdp", "parallel=zero3"),
    tasks=("sft", "dpo", "kto", "reward", "grpo"),
)

framework = "trl"


def mode(spec: RunSpec) -> str:
    """The name, with the underlying engine."""
    return f"TRL on {_ENGINES[engine_of(spec)]}"


def runs_on(spec: RunSpec) -> str | None:
    """FSDP2 if it shards, like torchtitan; else None."""
    return "FSDP2" if engine_of(spec) == "fsdp" else None


def obstacles(spec: RunSpec) -> Iterator[ConfigError]:
    """Error if vLLM is requested but missing; no extra installs it, because it brings its own torch."""
    if find_spec("vllm") is None:
        yield from edit.refused(spec, "task.vllm", "vLLM is not installed for this Python")


def fullest_rank(spec: RunSpec) -> int:
    """The fullest rank of its engine."""
    return backend_of(spec).fullest_rank(as_engine(spec))


def changes(spec: RunSpec, kind: EngineChange) -> Iterator[Change]:
    """The engine's buffers and sharding, and ZeRO 3 instead of FSDP2, whose ranks all load the whole model."""
    if kind in ("buffers", "sharding"):
        yield from backend_of(spec).changes(spec, kind)
    if kind == "sharding" and is_preset(spec, "fsdp", shard=True, stage=3):
        cost = "nothing: DeepSpeed, whose first rank alone reads the weights, instead of FSDP2"
        yield set_to(spec, cost, {"parallel.name": "zero3", "parallel.shard": False}, ("parallel=zero3",))


def unreadable(before: RunSpec, after: RunSpec) -> Iterator[ConfigError]:
    """Errors for checkpoints of another engine, which cannot be read."""
    if (was := engine_of(before)) != engine_of(after):
        rule = f"the checkpoint was written by TRL on {_ENGINES[was]}, and other engines do not read its files"
        yield ConfigError("parallel.name", after.parallel.name, rule, [f"parallel={before.parallel.name}"])
    elif was == "deepspeed" and before.gpus != after.gpus:
        rule = f"the checkpoint was written by {before.gpus} ranks, and transformers' Trainer converts no states"
        yield edit.changed_back(before, after, ("cluster.nodes", "cluster.gpus_per_node"), rule)
    else:
        yield from backend_of(after).unreadable(as_engine(before), as_engine(after))


def translate(spec: RunSpec, python: str) -> Job:
    """The job of a valid run: torchrun and the worker, which reads ``trl.yaml`` as ``trl``'s own scripts do."""
    files = {_FILE: config.text(spec)}
    if engine_of(spec) == "deepspeed":
        files[config.DS_CONFIG] = json.dumps(ds_config.build(as_engine(spec)), indent=2, sort_keys=True) + "\n"
    arguments = ("--config", f"{RUN}/{_FILE}")
    return _shared.job(spec, python, "launcher.worker.trl", _environment(spec), files, arguments)


def _environment(spec: RunSpec) -> dict[str, str]:
    """Accelerate's variables, as ``accelerate launch`` would set them, and telemetry turned off."""
    found = {"HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
    if engine_of(spec) == "fsdp":
        found |= {
            "ACCELERATE_USE_FSDP": "true",
            "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
            "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
            "FSDP_OFFLOAD_PARAMS": str(spec.zero.offload_parameters == "cpu").lower(),
            "FSDP_RESHARD_AFTER_FORWARD": str(spec.zero.stage != 2).lower(),
            "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
            "FSDP_VERSION": "2",
        }
    if spec.hardware.device == "cpu" and engine_of(spec) == "deepspeed":
        found["DS_ACCELERATOR"] = "cpu"
    return found
