"""Megatron-LM: facts that hold for every run, and the changes worth trying.

The members are those that ``launcher.backends`` requires of a backend. Which packages a run needs depends on the run:
``installed`` says so.
"""

from collections.abc import Iterator

from launcher.backends import Profile
from launcher.backends._changes import higher_stages, sequence_ranks, tensor_ranks
from launcher.backends._shared import TASKS
from launcher.backends.megatron.check import check, warnings
from launcher.backends.megatron.checkout import unreadable
from launcher.backends.megatron.implementation import dtypes, fsdp
from launcher.backends.megatron.installed import obstacles
from launcher.backends.megatron.overheads import overheads
from launcher.backends.megatron.traits import engine, execution
from launcher.backends.megatron.translate import translate
from launcher.backends.megatron.validator import native, natives
from launcher.base import package
from launcher.job.versions import Borrowed
from launcher.spec import RunSpec
from launcher.spec.change import Change, EngineChange

__all__ = [
    "changes", "check", "dtypes", "engine", "execution", "framework", "fullest_rank", "mode", "native", "natives",
    "obstacles", "overheads", "profile", "runs_on", "translate", "unreadable", "warnings",
]  # fmt: skip

profile = Profile(
    counts_epochs=False,
    framework="megatron-core",
    borrowed=(
        TASKS,
        Borrowed(
            path="optimizer.name",
            asked=lambda spec: spec.optimizer.name == "muon",
            packages=("emerging-optimizers",),
            extra="megatron",
            way_out="optimizer=adamw",
        ),
    ),
    install=package.install("megatron"),
    settings={
        "backend.path": "backend=megatron",
        "model.mtp_layers": "parallel=tp",
        "parallel.layout": "parallel=pp",
        "train.cuda_graphs": "parallel=tp",
        "save.reshardable": "parallel=tp",
    },
    shards_instead=("zero.stage=1",),
    unpickles=True,
    counted_ends={"account-for-embedding-in-pipeline-split": True, "account-for-loss-in-pipeline-split": True},
    validator="Megatron-LM",
)

framework = "megatron"


def mode(spec: RunSpec) -> str:
    """Megatron-FSDP, or Megatron-LM's own data parallelism."""
    return "Megatron-FSDP" if fsdp(spec) else "Megatron"


def runs_on(spec: RunSpec) -> str | None:
    """None: it is an engine of its own."""
    return None


def fullest_rank(spec: RunSpec) -> int:
    """The first rank; Megatron-LM's runs are not traced."""
    return 0


def changes(spec: RunSpec, kind: EngineChange) -> Iterator[Change]:
    """Higher stages, tensor parallelism with its sequence parallelism, context parallelism."""
    if kind == "sharding":
        yield from higher_stages(spec)
    elif kind == "tensor":
        yield from tensor_ranks(spec, sequence=True)
    elif kind == "sequence":
        yield from sequence_ranks(spec, "context")
