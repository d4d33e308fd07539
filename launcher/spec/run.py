"""One run: its groups, and what follows from them.

A property is the only place of a number that follows from keys (the data degree, the accumulation, the global batch),
so that no rule, formula or translation computes it in another way. They hold for any specification, also for one whose
degrees do not divide, because rules read them to say so; where that would be a division by nothing they are at least 1.
``hash`` names what a run is: its name, its directory and the sweep that it belongs to do not count.
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
"""Megatron-LM's argument for the micro-batches that a model chunk takes one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSpec:
    """Tasks of lm-evaluation-harness for the exported model, by name or as YAML files."""

    tasks: tuple[str, ...] = ()
    limit: Count | None = None  # Questions of each task.
    num_fewshot: Natural | None = None  # Examples before each question; None is the task's own.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingSpec:
    """An experiment tracker beside ``metrics.jsonl``; keys travel by the tracker's own environment variables."""

    kind: Literal["none", "tensorboard", "wandb", "mlflow"]
    project: str | None
    uri: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNames:
    """The run's name and directory, and whether its lock holds tracked files and its model's file may lack keys.

    Without a name and a directory it is ``runs/<time>-<model>-<preset>-<hash>``.
    """

    name: str | None
    directory: str | None
    record_diff: bool = False  # Runs that were recorded without this and the next are read, too.
    partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """Settings of ``launch -m``; no part of one run's identity."""

    sampler: Literal["grid", "random", "tpe"]
    budget: Count | None
    parallelism: Count | None


NO_TASKS = EvalSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """The whole specification of a run. Built by ``parse`` alone."""

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
        """True for a script of the user's own without a named model: nobody knows which model it builds."""
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
        """The parallel degrees above one in words: ``data 8``, ``tensor 2``."""
        degrees = [("data", self.data_degree)]
        degrees += [
            (name, getattr(self.parallel, name)) for name in ("tensor", "pipeline", "context", "ulysses", "expert")
        ]
        return [f"{name} {degree}" for name, degree in degrees if degree > 1]

    @property
    def data_degree(self) -> int:
        """Ranks that see different samples; at least 1, also where the degrees do not divide the world."""
        return max(1, self.gpus // self.model_parallel)

    @property
    def shard_degree(self) -> int:
        """Ranks over which FSDP or ZeRO shards: data, context and Ulysses ranks of one HSDP replica.

        One where more replicas are asked for than there are ranks, which is an error of a rule.
        """
        return max(1, self.data_degree * self.parallel.context * self.parallel.ulysses // self.parallel.replicate)

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of a rank: every engine lays its stages out outermost, each one's ranks in a row."""
        return rank * self.parallel.pipeline // self.gpus

    @property
    def sequence_length(self) -> int:
        """Tokens of one sequence: as set, or the longest that the model takes, at most 4096."""
        return self.train.sequence_length or min(4096, self.model.max_position_embeddings)

    @property
    def global_batch_size(self) -> int:
        """Sequences of one optimizer step: as set, or the micro-batches of one step on every data rank."""
        train = self.train
        return train.global_batch_size or self.micro_batch_size * (train.gradient_accumulation or 1) * self.data_degree

    @property
    def micro_batch_size(self) -> int:
        """Sequences on a rank at once: as set, or a rank's share of the global batch over the accumulation."""
        train = self.train
        if train.micro_batch_size is not None:
            return train.micro_batch_size
        return max(1, (train.global_batch_size or 1) // ((train.gradient_accumulation or 1) * self.data_degree))

    @property
    def gradient_accumulation(self) -> int:
        """Micro-batches of one optimizer step on one rank; with pipelining, those that flow through it."""
        if not self.train.global_batch_size:
            return self.train.gradient_accumulation or 1
        return max(1, self.global_batch_size // (self.micro_batch_size * self.data_degree))

    @property
    def pipeline_round(self) -> int:
        """Micro-batches that a chunk of several takes in turn: the pipeline's length, or what ``ROUND`` says.

        Zero bubble makes rounds of equal size, as few as have that length at least
        (``torch/distributed/pipelining/schedules.py``, ``ScheduleInterleavedZeroBubble``).
        """
        if self.parallel.schedule == "zero_bubble":
            return self.gradient_accumulation // max(1, self.gradient_accumulation // self.parallel.pipeline)
        return self.backend.count(ROUND) or self.parallel.pipeline

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step, over all ranks."""
        return self.global_batch_size * self.sequence_length * self.task.sequences

    @property
    def sequences_at_once(self) -> int:
        """Sequences that a rank's forward pass takes: of pairs, two for each of the micro-batch."""
        return self.micro_batch_size * self.task.sequences

    @property
    def steps(self) -> int:
        """Optimizer steps of the run: as set, or as many as its tokens or epochs fill, the last one begun."""
        train, epoch = self.train, self.epoch_steps
        if train.steps is not None:
            return train.steps
        if train.epochs is not None and epoch is not None:
            return max(1, math.ceil(train.epochs * epoch - 1e-6))  # Products of floats such as 0.1 x 30.
        return DEFAULT_STEPS if train.tokens is None else -(-train.tokens // self.tokens_per_step)

    @property
    def epoch_steps(self) -> float | None:
        """Optimizer steps of one pass over the data; None where nobody knows how many samples they have."""
        return None if self.data.samples is None else self.data.samples / self.global_batch_size

    @property
    def evaluates(self) -> bool:
        """True if the run evaluates on the way."""
        return self.train.eval_every is not None or self.train.evals_per_epoch is not None

    @property
    def eval_every(self) -> int | None:
        """Steps between two evaluations; None where there are none."""
        return self._every(self.train.eval_every, self.train.evals_per_epoch)

    @property
    def evaluation_batches(self) -> int:
        """Global batches that all evaluations of the run take together, each of its named sets by itself."""
        times = 0 if self.eval_every is None else self.steps // self.eval_every
        return times * self.train.eval_steps * max(1, len(self.data.eval_sets))

    @property
    def save_every(self) -> int | None:
        """Steps between two checkpoints on the way; None where there are none."""
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
        """Memory that one rank may use: of the card what torch can have, or of the host its share; None is unknown.

        On the CPU ``hardware.memory_bytes`` is there only where it was set, and then it is the rank's share.
        """
        hardware = self.hardware
        if hardware.device == "cuda" or hardware.memory_bytes is not None:
            return hardware.usable_bytes
        return None if hardware.host_memory_bytes is None else hardware.host_memory_bytes // self.cluster.gpus_per_node

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits that identify the run.

        Its name, directory and sweep do not count, nor what its machine has left of disk and host memory just now, nor
        the file of measured runs, nor how fast storage is said to be.
        """
        content = {name: group for name, group in _shallow(self).items() if name not in ("run", "sweep")}
        for group, left in (("task", PRETRAIN), ("eval", NO_TASKS)):
            if content[group] == left:
                del content[group]  # Runs of before the group keep their hash.
        texts = (f'"{name}":{_text(group)}' for name, group in sorted(content.items()))
        return hashlib.sha256(f"{{{','.join(texts)}}}".encode()).hexdigest()[:12]


_COMPACT = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=lambda value: _shallow(value))


@by_identity(most=1024)
def _text(group: Any) -> str:
    """A group as JSON, with nothing of what its machine has left just now, and of what only planning reads from it."""
    if not is_dataclass(group):
        return _COMPACT.encode(group)
    content = _shallow(group)
    if isinstance(group, HardwareSpec):
        content |= {"disk_bytes": None, "host_memory_bytes": None}
    if isinstance(group, DataSpec):  # Runs of before these keys keep their hash.
        content = {key: value for key, value in content.items() if key not in _LATER or value != _LATER[key]}
    if isinstance(group, ClusterSpec):
        unset = [key for key in UNHASHED_WHEN_UNSET if content[key] is None]
        unhashed = {*unset, "measurements", "storage_bandwidth"}
        content = {key: value for key, value in content.items() if key not in unhashed}
    return _COMPACT.encode(content)


_LATER = {field.name: field.default for field in fields(DataSpec) if field.default is not MISSING}
"""Keys of ``data`` that came later than the first records, each with what those runs did."""


def _shallow(group: Any) -> dict[str, object]:
    """A group's values by their names; ``asdict`` would copy each."""
    kind: Any = type(group)
    names = _names(kind)
    return dict(zip(names, attrgetter(*names)(group), strict=True))


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cls))
