"""One run: its groups, and the numbers derived from them.

Each derived number (the data degree, the accumulation, the global batch) is one property, so that no rule, formula or
translation computes it differently. They work for any specification, even if its degrees do not divide, because the
rules that report this read them; to avoid division by zero they are at least 1.
``hash`` identifies a run: its name, its directory and its sweep do not count.
"""

import hashlib
import json
import math
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal

from launcher.base.frozen import dataclass
from launcher.spec.hardware import UNHASHED_WHEN_UNSET, ClusterSpec, HardwareSpec
from launcher.spec.model import SCRIPTS_OWN, AdapterSpec, BackendSpec, ModelSpec, ParallelSpec, ZeroSpec
from launcher.spec.training import (
    DEFAULT_STEPS,
    PRETRAIN,
    CheckpointingSpec,
    DataSpec,
    OptimizerSpec,
    PrecisionSpec,
    SaveSpec,
    TaskSpec,
    TrainSpec,
)
from launcher.spec.values import Count, Natural, by_identity

ROUND = "microbatch-group-size-per-virtual-pipeline-stage"
"""Megatron-LM's argument for the number of micro-batches that a model chunk takes in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSpec:
    """Tasks of lm-evaluation-harness for the exported model, by name or as YAML files."""

    tasks: tuple[str, ...] = ()
    limit: Count | None = None  # Questions of each task.
    num_fewshot: Natural | None = None  # Examples before each question; None is the task's default.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingSpec:
    """An experiment tracker besides ``metrics.jsonl``; its credentials come from its own environment variables."""

    kind: Literal["none", "tensorboard", "wandb", "mlflow"]
    project: str | None
    uri: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """The run's name and directory, whether its lock includes the git diff, and whether model files may lack keys.

    Without a name and a directory it is ``runs/<time>-<model>-<preset>-<hash>``.
    """

    name: str | None
    directory: str | None
    record_diff: bool = False  # Records without this key and the next are read, too.
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """Settings of ``launch -m``; not part of one run's identity."""

    sampler: Literal["grid", "random", "tpe"]
    budget: Count | None
    parallelism: Count | None


NO_TASKS = EvalSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """The whole specification of a run, built only by ``parse``."""

    model: ModelSpec
    backend: BackendSpec
    parallel: ParallelSpec
    zero: ZeroSpec
    precision: PrecisionSpec
    checkpointing: CheckpointingSpec
    optimizer: OptimizerSpec
    adapter: AdapterSpec
    train: TrainSpec
    save: SaveSpec
    data: DataSpec
    hardware: HardwareSpec
    cluster: ClusterSpec
    tracking: TrackingSpec
    run: RunNames
    sweep: SweepSpec
    script: str | None
    script_args: tuple[str, ...]
    task: TaskSpec = PRETRAIN
    eval: EvalSpec = NO_TASKS

    @property
    def judges_no_model(self) -> bool:
        """True for a user's script without a named model: it is unknown which model the script builds."""
        return self.script is not None and self.model.source == SCRIPTS_OWN

    @property
    def gpus(self) -> int:
        """Ranks of the job; on the CPU a rank is a process."""
        return self.cluster.nodes * self.cluster.gpus_per_node

    @property
    def model_parallel(self) -> int:
        """Ranks that work on the same samples."""
        return self.parallel.tensor * self.parallel.pipeline * self.parallel.context * self.parallel.ulysses

    @property
    def named_degrees(self) -> list[str]:
        """The parallel degrees above one, in words: ``data 8``, ``tensor 2``."""
        degrees = [("data", self.data_degree)]
        degrees += [
            (name, getattr(self.parallel, name)) for name in ("tensor", "pipeline", "context", "ulysses", "expert")
        ]
        return [f"{name} {degree}" for name, degree in degrees if degree > 1]

    @property
    def data_degree(self) -> int:
        """Ranks that see different samples; at least 1, even if the degrees do not divide the world size."""
        return max(1, self.gpus // self.model_parallel)

    @property
    def shard_degree(self) -> int:
        """Ranks over which FSDP or ZeRO shards: data, context and Ulysses ranks of one HSDP replica.

        One if there are more replicas than ranks, which a rule reports as an error.
        """
        return max(1, self.data_degree * self.parallel.context * self.parallel.ulysses // self.parallel.replicate)

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage of a rank: in every engine a stage's ranks are consecutive."""
        return rank * self.parallel.pipeline // self.gpus

    @property
    def sequence_length(self) -> int:
        """Tokens of one sequence: as set, or the model's maximum, at most 4096."""
        return self.train.sequence_length or min(4096, self.model.max_position_embeddings)

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step: as set, or the micro-batches of one step on all data ranks."""
        train = self.train
        return train.global_batch_size or self.micro_batch_size * (train.gradient_accumulation or 1) * self.data_degree

    @property
    def micro_batch_size(self) -> int:
        """Sequences per micro-batch of a rank: as set, or its share of the global batch divided by the accumulation."""
        train = self.train
        if train.micro_batch_size is not None:
            return train.micro_batch_size
        return max(1, (train.global_batch_size or 1) // ((train.gradient_accumulation or 1) * self.data_degree))

    @property
    def gradient_accumulation(self) -> int:
        """Micro-batches per optimizer step of one data rank; in a pipeline all of them flow through it."""
        if not self.train.global_batch_size:
            return self.train.gradient_accumulation or 1
        return max(1, self.global_batch_size // (self.micro_batch_size * self.data_degree))

    @property
    def pipeline_round(self) -> int:
        """Micro-batches that one of several model chunks takes in a row: the pipeline's length, or as ``ROUND`` sets.

        The zero-bubble schedule makes rounds of equal size, of at least the pipeline's length
        (``torch/distributed/pipelining/schedules.py``, ``ScheduleInterleavedZeroBubble``).
        """
        if self.parallel.schedule == "zero_bubble":
            return self.gradient_accumulation // max(1, self.gradient_accumulation // self.parallel.pipeline)
        return self.backend.count(ROUND) or self.parallel.pipeline

    @property
    def counts_epochs(self) -> bool:
        """True if a number of the run depends on the samples of an epoch."""
        return any(each is not None for each in (self.train.epochs, self.train.evals_per_epoch, self.save.per_epoch))

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step, over all ranks."""
        return self.global_batch_size * self.sequence_length * self.task.sequences

    @property
    def sequences_at_once(self) -> int:
        """Sequences in a rank's forward pass: the micro-batch, doubled for tasks on pairs."""
        return self.micro_batch_size * self.task.sequences

    @property
    def steps(self) -> int:
        """Optimizer steps of the run: as set, or derived from its tokens or epochs and rounded up."""
        train, epoch = self.train, self.epoch_steps
        if train.steps is not None:
            return train.steps
        if train.epochs is not None and epoch is not None:
            return max(1, math.ceil(train.epochs * epoch - 1e-6))  # Against rounding up float errors, as in 0.1 x 30.
        return DEFAULT_STEPS if train.tokens is None else -(-train.tokens // self.tokens_per_step)

    @property
    def epoch_steps(self) -> float | None:
        """Optimizer steps of one pass over the data; None if the number of samples is unknown."""
        return None if self.data.samples is None else self.data.samples / self.global_batch_size

    @property
    def evaluates(self) -> bool:
        """True if the run evaluates during training."""
        return self.train.eval_every is not None or self.train.evals_per_epoch is not None

    @property
    def eval_every(self) -> int | None:
        """Steps between two evaluations; None if there are none."""
        return self._every(self.train.eval_every, self.train.evals_per_epoch)

    @property
    def evaluation_batches(self) -> int:
        """Global batches that all evaluations of the run take in total, over all evaluation sets."""
        times = 0 if self.eval_every is None else self.steps // self.eval_every
        return times * self.train.eval_steps * max(1, len(self.data.eval_sets))

    @property
    def save_every(self) -> int | None:
        """Steps between two checkpoints during training; None if there are none."""
        return self._every(self.save.every, self.save.per_epoch)

    @property
    def saves(self) -> bool:
        """True if the run writes a checkpoint without being asked to stop."""
        return self.save.last or self.save_every is not None

    def _every(self, steps: int | None, times: int | None) -> int | None:
        if steps is not None or times is None:
            return steps
        return max(1, round((self.epoch_steps or self.steps) / times))

    @property
    def warmup_steps(self) -> int:
        """Steps over which the learning rate rises."""
        return self.optimizer.warm_up(self.steps)

    @property
    def rank_memory_bytes(self) -> int | None:
        """Bytes that one rank may use: what torch can use of the GPU, or a share of the host; None is unknown.

        On the CPU ``hardware.memory_bytes`` is known only if it was set, and is then the rank's share.
        """
        hardware = self.hardware
        if hardware.device == "cuda" or hardware.memory_bytes is not None:
            return hardware.usable_bytes
        return None if hardware.host_memory_bytes is None else hardware.host_memory_bytes // self.cluster.gpus_per_node

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that identify the run.

        Its name, directory and sweep do not count, nor the free disk and host memory of the machine, nor the file of
        measured runs, nor the bandwidth of storage.
        """
        content = {name: group for name, group in _shallow(self).items() if name not in ("run", "sweep")}
        for group, left in (("task", PRETRAIN), ("eval", NO_TASKS)):
            if content[group] == left:
                del content[group]  # Runs recorded before the group existed keep their hash.
        texts = (f'"{name}":{_text(group)}' for name, group in sorted(content.items()))
        return hashlib.sha256(f"{{{','.join(texts)}}}".encode()).hexdigest()[:12]


_COMPACT = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=lambda value: _shallow(value))


@by_identity(most=1024)
def _text(group: Any) -> str:
    """A group as JSON, without the machine's free memory and disk, and without keys that only planning uses."""
    if not is_dataclass(group):
        return _COMPACT.encode(group)
    content = _shallow(group)
    if isinstance(group, HardwareSpec):
        content |= {"disk_bytes": None, "host_memory_bytes": None}
    if isinstance(group, DataSpec):  # Runs recorded before these keys existed keep their hash.
        content = {key: value for key, value in content.items() if key not in _LATER or value != _LATER[key]}
    if isinstance(group, ClusterSpec):
        unset = [key for key in UNHASHED_WHEN_UNSET if content[key] is None]
        unhashed = {*unset, "measurements", "storage_bandwidth"}
        content = {key: value for key, value in content.items() if key not in unhashed}
    return _COMPACT.encode(content)


_LATER = {field.name: field.default for field in fields(DataSpec) if field.default is not MISSING}
"""Keys of ``data`` that were added after the first records, each with the value that those runs imply."""


def _shallow(group: Any) -> dict[str, object]:
    """A group's values by name; ``asdict`` would copy each."""
    kind: Any = type(group)
    names = _names(kind)
    return dict(zip(names, attrgetter(*names)(group), strict=True))


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))
