"""DeepSpeed: facts that hold for every run, the changes worth trying, and the job with its ``ds_config.json``.

The members are those that ``launcher.backends`` requires of a backend.
"""

import json
from collections.abc import Iterator

from launcher.backends import Profile, _optimizers, _shared
from launcher.backends._changes import (
    SHARDED,
    higher_stages,
    is_preset,
    recomputed_modules,
    sequence_ranks,
    tensor_ranks,
)
from launcher.backends._shared import BORROWED, NEEDS
from launcher.backends._shared import no_validator as native
from launcher.backends.deepspeed import ds_config
from launcher.backends.deepspeed.check import check, warnings
from launcher.backends.deepspeed.checkpoints import unreadable
from launcher.backends.deepspeed.optimizer import obstacles
from launcher.backends.deepspeed.overheads import overheads
from launcher.backends.deepspeed.traits import dtypes, engine, execution
from launcher.base import package
from launcher.job import RUN, Job
from launcher.spec import RunSpec
from launcher.spec.change import Change, EngineChange, set_to

__all__ = [
    "changes", "check", "dtypes", "engine", "execution", "framework", "fullest_rank", "mode", "native", "obstacles",
    "overheads", "profile", "runs_on", "translate", "unreadable", "warnings",
]  # fmt: skip

_FILE = "ds_config.json"
_SMALLER_BUCKET = 50_000_000  # Elements: a tenth of DeepSpeed's default.

_SETTINGS = (
    "zero.reduce_bucket_size", "zero.allgather_bucket_size", "zero.overlap_comm", "zero.prefetch_bucket_size",
    "zero.max_live_parameters", "zero.max_reuse_distance", "zero.param_persistence_threshold", "zero.sub_group_size",
    "zero.hpz", "zero.quantized_weights", "zero.quantized_gradients", "zero.gather_16bit_weights_on_save",
)  # fmt: skip

profile = Profile(
    packages=("torch", "transformers", "deepspeed"),
    needs=NEEDS,
    borrowed=(*BORROWED, *_optimizers.BORROWED),
    install=package.install("deepspeed"),
    settings=dict.fromkeys(_SETTINGS, "parallel=zero3"),
    shards_instead=("zero.stage=1", "zero.stage=3"),
    told_by_preset=True,
    unpickles=True,
    openings=("parallel=zero3",),
)

framework = "deepspeed"


def mode(spec: RunSpec) -> str:
    """The name of the engine, the same for every ZeRO stage."""
    return "DeepSpeed"


def runs_on(spec: RunSpec) -> str | None:
    """None: it is an engine of its own."""
    return None


def fullest_rank(spec: RunSpec) -> int:
    """The last rank with ZeRO 2: it holds the model's end, whose gradients exist while most activations do."""
    return spec.gpus - 1 if spec.zero.stage == 2 else 0


def changes(spec: RunSpec, kind: EngineChange) -> Iterator[Change]:
    """Smaller buckets, higher stages of ZeRO, AutoTP and Ulysses."""
    if kind == "buffers":
        if spec.zero.reduce_bucket_size > _SMALLER_BUCKET:
            settings: dict[str, object] = {"zero.reduce_bucket_size": _SMALLER_BUCKET}
            if spec.zero.stage == 3:
                settings |= {"zero.max_reuse_distance": _SMALLER_BUCKET, "zero.max_live_parameters": _SMALLER_BUCKET}
            yield set_to(spec, "more and smaller collectives", settings, stays=True)
    elif kind == "sharding":
        yield from _stages(spec)
    elif kind == "tensor":
        yield from tensor_ranks(spec)
    elif kind == "sequence":
        yield from sequence_ranks(spec, "ulysses")
    else:
        yield from recomputed_modules(spec)


def _stages(spec: RunSpec) -> Iterator[Change]:
    stage = spec.zero.stage
    if not is_preset(spec, f"zero{stage}", shard=False, stage=stage):
        yield from higher_stages(spec)
        return
    for larger in range(stage + 1, 4):
        settings: dict[str, object] = {"parallel.name": f"zero{larger}", "zero.stage": larger}
        yield set_to(spec, SHARDED[larger], settings, (f"parallel=zero{larger}",))


def translate(spec: RunSpec, python: str) -> Job:
    """The job of a valid run: torchrun, the worker and its configuration.

    The ``deepspeed`` command line is not used: on a login node it looks for GPUs or an ssh host (DeepSpeed
    launcher/runner.py), and bare on the CPU it starts one rank for each NUMA node. A user's script finds the file
    by ``DEEPSPEED_CONFIG_FILE``.
    """
    environment = {"DEEPSPEED_CONFIG_FILE": f"{RUN}/{_FILE}"}
    if spec.hardware.device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
    files = {_FILE: json.dumps(ds_config.build(spec), indent=2, sort_keys=True) + "\n"}
    return _shared.job(spec, python, "launcher.worker.deepspeed", environment, files)
