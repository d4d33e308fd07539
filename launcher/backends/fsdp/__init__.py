"""FSDP2 and DDP of PyTorch: facts that hold for every run, the changes worth trying, and the job.

The members are those that ``launcher.backends`` requires of a backend.
"""

from collections.abc import Iterator

from launcher.backends import Profile, _optimizers, _shared
from launcher.backends._changes import SHARDED, is_preset, recomputed_modules, sequence_ranks, tensor_ranks
from launcher.backends._optimizers import cut_unreadable as unreadable
from launcher.backends._shared import BORROWED, NEEDS
from launcher.backends._shared import no_obstacles as obstacles
from launcher.backends._shared import no_validator as native
from launcher.backends.fsdp import expert_ranks
from launcher.backends.fsdp.check import check, warnings
from launcher.backends.fsdp.float8 import MXFP8, NVFP4, recipe
from launcher.backends.fsdp.overheads import overheads
from launcher.backends.fsdp.traits import dtypes, engine, execution
from launcher.base import package
from launcher.job import Job
from launcher.job.versions import Borrowed, Need
from launcher.spec import RunSpec
from launcher.spec.change import Change, EngineChange, set_to

__all__ = [
    "changes", "check", "dtypes", "engine", "execution", "framework", "fullest_rank", "mode", "native", "obstacles",
    "overheads", "profile", "runs_on", "translate", "unreadable", "warnings",
]  # fmt: skip


def mode(spec: RunSpec) -> str:
    """The name of the engine: FSDP, with replicas or without, or DDP."""
    return "FSDP" if spec.parallel.shard else "DDP"


profile = Profile(
    packages=("torch", "transformers"),
    needs=(
        *NEEDS,
        *expert_ranks.NEEDS,
        Need(
            package="torch",
            since="2.12",
            path="adapter.name",
            asked=lambda spec: spec.adapter.bits > 0 and spec.parallel.shard,
            because="cannot shard the integers of packed weights (FSDPParam requires gradients)",
            way_out="parallel=ddp",
        ),
        Need(
            package="torchao",
            since="0.18",
            path="precision.recipe",
            asked=lambda spec: recipe(spec) in (MXFP8, NVFP4),
            because="has no trainable mxfp8 and nvfp4 linear layers (MXFP8Linear, nvfp4_linear)",
            way_out="precision=fp8",
        ),
        Need(
            package="torch",
            since="2.14",
            path="parallel.pipeline",
            asked=lambda spec: spec.parallel.pipeline > 1,
            because="takes a step's whole batch and splits it itself (a schedule's step has no kwarg_mbs)",
            way_out="parallel.pipeline=1",
        ),
    ),
    borrowed=(
        *BORROWED,
        *_optimizers.BORROWED,
        Borrowed(
            path="precision.compute",
            asked=lambda spec: recipe(spec) is not None,
            packages=("torchao",),
            extra=package.TRAINING,
            way_out="precision=bf16",
        ),
        Borrowed(
            path="parallel.ulysses",
            asked=lambda spec: spec.parallel.ulysses > 1,
            packages=("deepspeed",),
            extra="deepspeed",
            way_out="parallel.ulysses=1",
        ),
    ),
    install=package.install("fsdp"),
    settings={
        "parallel.shard": "parallel=fsdp",
        "parallel.async_tensor": "parallel=fsdp_tp train.compile=true",
        "backend.reshard_after_forward": "parallel=fsdp",
        "backend.micro_step_sync": "parallel=fsdp",
        "zero.quantized_weights": "parallel=fsdp precision=fp8",
        "precision.qat": "parallel=fsdp",
        "backend.bucket_view": "parallel=ddp",
        "backend.bucket_cap_mb": "parallel=ddp",
    },
    shards_instead=("parallel=fsdp",),
    told_by_preset=True,
    openings=("parallel=ddp", "parallel=fsdp"),
    called=lambda spec: "DDP" if not spec.parallel.shard else "HSDP" if spec.parallel.replicate > 1 else "FSDP",
)

framework = "fsdp"


def runs_on(spec: RunSpec) -> str | None:
    """FSDP2 if it shards, like torchtitan; else None."""
    return "FSDP2" if spec.parallel.shard else None


def fullest_rank(spec: RunSpec) -> int:
    """The first rank: all ranks are alike."""
    return 0


def changes(spec: RunSpec, kind: EngineChange) -> Iterator[Change]:
    """FSDP2 instead of DDP, tensor and context parallelism."""
    if kind == "sharding":
        yield from _sharded(spec)
    elif kind == "tensor":
        yield from tensor_ranks(spec)
    elif kind == "sequence":
        yield from sequence_ranks(spec, "context" if spec.parallel.ulysses == 1 else "ulysses")
    elif kind == "recomputation":
        yield from recomputed_modules(spec)


def _sharded(spec: RunSpec) -> Iterator[Change]:
    if spec.parallel.shard:
        if spec.zero.stage < 3 and spec.backend.reshard_after_forward is None:
            yield set_to(spec, "a second gather of the parameters, for backward", {"zero.stage": 3})
        return
    settings: dict[str, object] = {"parallel.shard": True, "zero.stage": 3}
    if is_preset(spec, "ddp", shard=False, stage=0):
        yield set_to(spec, SHARDED[3], {"parallel.name": "fsdp", **settings}, ("parallel=fsdp",))
    else:
        yield set_to(spec, SHARDED[3], settings)


def translate(spec: RunSpec, python: str) -> Job:
    """The job of a valid run: torchrun and the worker."""
    exchanges = spec.parallel.ulysses > 1 and spec.hardware.device == "cpu"
    return _shared.job(spec, python, "launcher.worker.fsdp", {"DS_ACCELERATOR": "cpu"} if exchanges else {})
