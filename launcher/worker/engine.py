"""The interface between an engine and the training loop, which owns data, steps, checkpoints, metrics and signals."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Protocol

import torch

from launcher.base.frozen import dataclass
from launcher.spec import RunSpec
from launcher.worker.beat import BlockTimer, HeartbeatWriter
from launcher.worker.memory import MemoryTracker
from launcher.worker.memory.piles import Kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One rank of a run: its place in the job, its device, and what measures it."""

    spec: RunSpec  # The run.
    directory: Path  # The run directory.
    rank: int  # This process among the ``world`` of the job.
    world: int
    device: torch.device  # Where this rank's tensors live.
    memory: MemoryTracker  # Engines report each phase to it: ``context.memory.enter("backward")``.
    beat: HeartbeatWriter = field(default_factory=HeartbeatWriter)  # Reports this rank's progress to the node.
    clock: BlockTimer = field(default_factory=BlockTimer)  # Times the blocks that an engine registers with it.

    @property
    def data_rank(self) -> int:
        """Index shared by ranks that read the same samples: model parallel ranks are neighbours, stages far apart."""
        stages = self.spec.parallel.pipeline
        return self.rank % (self.world // stages) // (self.spec.model_parallel // stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """The loss scale of fp16 after a step; tensors of one element, the same on all ranks."""

    scale: torch.Tensor  # The scale for the next step.
    skipped: torch.Tensor  # Steps that this process skipped, since their gradients were infinite.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one optimizer step; one-element tensors, so that the host does not wait for the device."""

    loss: torch.Tensor  # The mean over the whole global batch, the same on all ranks.
    grad_norm: torch.Tensor | None  # The norm of all gradients before clipping, the same on all ranks; None: unknown.
    learning_rate: float  # The learning rate of this step.
    loss_scale: LossScale | None = None  # In fp16 only.


class PendingSave(Protocol):
    """A checkpoint that is still being written in the background."""

    def done(self) -> bool:
        """True once this rank's part is on disk, or has failed."""

    def result(self) -> object:
        """Wait for this rank's part to be written; raises the writer's exception."""


class Stored(Protocol):
    """A model that checkpoints can save and load. All ranks call every method together."""

    def save(self, directory: Path) -> PendingSave | None:
        """Write this rank's model and optimizer to a directory; return the background write of ``save.async``."""

    def load(self, directory: Path) -> None:
        """Load what :meth:`save` wrote, possibly with a different number of ranks."""


class Engine(Stored, Protocol):
    """A model in training."""

    def train_step(self, step: int, micro_batches: Sequence[torch.Tensor]) -> StepResult:
        """Do one optimizer step; ``step`` counts from 1 and determines the learning rate.

        Each of this rank's micro-batches has shape ``(micro_batch_size, sequence_length + 1)``, int64 token ids on the
        rank's device. Inputs are all columns but the last, labels all but the first.
        """

    def evaluate(self, batches: Iterable[torch.Tensor]) -> torch.Tensor:
        """The mean loss over all ranks' batches, each shaped like a micro-batch; weights do not change."""

    def export(self, directory: Path) -> None:
        """Write safetensors that ``transformers`` (or ``peft``, for an adapter) can load into an existing directory."""

    def piles(self) -> Iterable[Kept]:
        """Tensors that the engine keeps, by pile: parameters, gradients, master weights, optimizer states, buffers."""

    def tensors(self) -> Iterable[torch.Tensor]:
        """Tensors live between steps: parameters, buffers, gradients, optimizer states; used to measure memory."""


type EngineBuilder = Callable[[Context], Engine]
