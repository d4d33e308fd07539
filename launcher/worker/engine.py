"""The protocol between the training loop, which owns data, steps, checkpoints, metrics and signals, and an engine."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Protocol

import torch

from launcher.base.frozen import dataclass
from launcher.spec import RunSpec
from launcher.worker.beat import Beat, Clock
from launcher.worker.memory import MemoryTracker
from launcher.worker.memory.piles import Kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One rank of one run."""

    spec: RunSpec  # The run.
    directory: Path  # The run directory.
    rank: int  # This process among the ``world`` of the job.
    world: int
    device: torch.device  # Where this rank's tensors live.
    memory: MemoryTracker  # To be told of phases: ``context.memory.enter("backward")``.
    beat: Beat = field(default_factory=Beat)  # Tells the node what this rank does.
    clock: Clock = field(default_factory=Clock)  # Takes the time of the blocks that an engine gives it to follow.

    @property
    def data_rank(self) -> int:
        """Ranks with the same number see the same samples: model parallel ranks are neighbours, stages far apart."""
        stages = self.spec.parallel.pipeline
        return self.rank % (self.world // stages) // (self.spec.model_parallel // stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """The loss scale of fp16 after a step; tensors of one element, the same on all ranks."""

    scale: torch.Tensor  # Of the next step.
    skipped: torch.Tensor  # Steps of this process that changed nothing, since their gradients were infinite.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One optimizer step; tensors of one element, so that nobody waits for a device without need."""

    loss: torch.Tensor  # The mean over the whole global batch, the same on all ranks.
    grad_norm: torch.Tensor  # The norm of all gradients before clipping, the same on all ranks.
    learning_rate: float  # The rate of this step.
    loss_scale: LossScale | None = None  # In fp16.


class PendingSave(Protocol):
    """A checkpoint that is still being written in the background."""

    def done(self) -> bool:
        """True once this rank's part is on disk, or has failed."""

    def result(self) -> object:
        """Wait for this rank's part; raises the writer's exception."""


class Stored(Protocol):
    """A model as checkpoints ask for it. Every method is called by all ranks together."""

    def save(self, directory: Path) -> PendingSave | None:
        """Write this rank's model and optimizer into a directory; returns the background write of ``save.async``."""

    def load(self, directory: Path) -> None:
        """Read what :meth:`save` wrote, possibly with another number of ranks."""


class Engine(Stored, Protocol):
    """A model in training."""

    def train_step(self, step: int, micro_batches: Sequence[torch.Tensor]) -> StepResult:
        """Do one optimizer step; ``step`` counts from 1 and decides the learning rate.

        Each of this rank's micro-batches is of shape ``(micro_batch_size, sequence_length + 1)``, int64 token ids on
        the rank's device. Inputs are all but the last column, labels all but the first.
        """

    def evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        """The mean loss over all ranks' batches, each shaped as a micro-batch; nothing is trained."""

    def export(self, directory: Path) -> None:
        """Write safetensors that ``transformers`` (or, for an adapter, ``peft``) loads, into an existing directory."""

    def piles(self) -> Iterable[Kept]:
        """Tensors that the engine keeps, by pile: parameters, gradients, master weights, optimizer states, buffers."""

    def tensors(self) -> Iterable[torch.Tensor]:
        """Tensors alive between two steps: parameters, buffers, gradients, optimizer states; for measuring memory."""


type EngineBuilder = Callable[[Context], Engine]
