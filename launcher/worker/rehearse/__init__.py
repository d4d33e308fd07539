"""What is to be rehearsed, the rank's context, and the document of what it measured."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from launcher.base import machine
from launcher.estimate.memory.moments import Phase
from launcher.job import versions
from launcher.job.memory import Rehearsed, RehearsedPhase
from launcher.spec import RunSpec
from launcher.worker import memory, out_of_memory, shortage
from launcher.worker.beat import Beat
from launcher.worker.engine import Context, Engine, EngineBuilder
from launcher.worker.loop import vocabulary_sizes
from launcher.worker.rehearse import world
from launcher.worker.watch import tokens_of

MEASURED_STEPS = 2
"""Steps whose memory is followed, as in a real run (``launcher.worker.loop``); the later ones are only timed."""

_METHODS = {
    "cpu": "bytes of live CPU tensors, followed operation by operation, without workspaces inside one operation",
    "cuda": "counters of torch.cuda's caching allocator; of the device what is in use on it, by whomever",
}
_ALONE = (
    "while the model is loaded, in two steps and in an evaluation, of one rank alone: its process answers for the "
    "other ranks, so what a communication library allocates itself (NCCL's communicators) is missing"
)
_PACKAGES = ("torch", "transformers", "deepspeed", "megatron-core", "transformer-engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What is to be rehearsed.

    Attributes:
        spec: The run.
        directory: A folder like a run directory: ``spec.json`` and the job's files.
        rank: Of the run's.
        steps: To be trained.
        words: Arguments of the run's program, for an engine that has its own.
    """

    spec: RunSpec
    directory: Path
    rank: int
    steps: int
    words: Sequence[str] = ()

    @property
    def stage(self) -> int:
        """The rank's pipeline stage: stages are far apart among the ranks, in every engine."""
        return self.rank // (self.spec.gpus // self.spec.parallel.pipeline)


@contextlib.contextmanager
def entered(rehearsal: Rehearsal, backend: str | None = None) -> Iterator[Context]:
    """The rank in its world, with nothing measured yet; ``backend`` is for :func:`world.alone`."""
    with world.alone(rehearsal.spec, rehearsal.rank, backend) as place:
        pulse, words = Beat(), vocabulary_sizes(rehearsal.spec)
        cuda = place.device.type == "cuda"
        tracker = CudaPhases(place.device, pulse.enter, vocabulary=words) if cuda else None
        context = Context(
            spec=rehearsal.spec,
            directory=rehearsal.directory,
            rank=place.rank,
            world=place.world,
            device=place.device,
            memory=tracker or memory.MemoryTracker(pulse.enter, vocabulary=words),
            beat=pulse,
        )
        context.memory.recomputes = rehearsal.spec.checkpointing.mode != "none"
        (rehearsal.directory / "logs").mkdir(exist_ok=True)  # For the snapshot of a rank that runs out of memory.
        with out_of_memory.watched(context):
            yield context


class CudaPhases(memory.CudaTracker):
    """The tracker of a GPU, which also keeps what the allocator has reserved at the peak of each phase.

    Attributes:
        reserved: The peaks, by phase.
    """

    def __init__(
        self, device: torch.device, heard: Callable[[Phase], None] = lambda phase: None, *, vocabulary: frozenset[int]
    ) -> None:
        super().__init__(device, heard, vocabulary=vocabulary)
        self.reserved: dict[str, int] = {}

    def _look(self) -> None:
        if self._phase is not None:
            peak = torch.cuda.max_memory_reserved(self._device)
            self.reserved[self._phase] = max(self.reserved.get(self._phase, 0), peak)
        super()._look()

    def around(self) -> int:
        """Bytes of the device that are in use besides those reserved: the context, and whatever else runs there."""
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free - torch.cuda.memory_reserved(self._device)


def ran_out(rehearsal: Rehearsal, error: BaseException) -> bool:
    """True if an error says that memory has ended, of which ``oom.json`` then tells all that is known."""
    if shortage.kind_of(error) is None:
        return False
    out_of_memory.write(rehearsal.directory, error)
    return True


def document(rehearsal: Rehearsal, context: Context, seconds: Sequence[float], *, ran_out: bool = False) -> Rehearsed:
    """What the rank measured.

    Args:
        rehearsal: What was asked.
        context: The rank.
        seconds: Of each step that was only timed.
        ran_out: True if memory ended first.
    """
    return Rehearsed(
        rank=context.rank,
        world=context.world,
        stage=rehearsal.stage,
        layers=rehearsal.spec.model.num_hidden_layers,
        device=context.device.type,
        device_name=_name(context.device),
        method=f"{_METHODS[context.device.type]}; {_ALONE}",
        static_bytes=context.memory.summary()["static_bytes"],
        phases=_phases(context.memory),
        step_seconds=tuple(seconds),
        ran_out=ran_out,
        versions={name: found for name in _PACKAGES if (found := versions.installed(name)) is not None},
    )


def _phases(tracker: memory.MemoryTracker) -> dict[str, RehearsedPhase]:
    found = tracker.take().phases
    if not isinstance(tracker, CudaPhases):
        return {
            phase: RehearsedPhase(allocated_bytes=peak.allocated_bytes, piles=peak.piles)
            for phase, peak in found.items()
        }
    around = tracker.around()
    return {
        phase: RehearsedPhase(
            allocated_bytes=peak.allocated_bytes,
            reserved_bytes=tracker.reserved[phase],
            device_bytes=tracker.reserved[phase] + around,
            piles=peak.piles,
        )
        for phase, peak in found.items()
    }


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return machine.processor() or "cpu"


def train_alone(rehearsal: Rehearsal, build: EngineBuilder) -> Rehearsed:
    """Load the rank's part of the model and train it, as ``launcher.worker.loop`` does.

    Args:
        rehearsal: What is asked.
        build: Makes the engine.
    """
    with entered(rehearsal) as context:
        seconds: list[float] = []
        try:
            with context.memory.measuring("load"):
                engine = build(context)
                context.memory.kept = engine.piles
            _train(context, engine, rehearsal.steps, seconds)
        except Exception as error:
            if not ran_out(rehearsal, error):
                raise
            return document(rehearsal, context, seconds, ran_out=True)
        return document(rehearsal, context, seconds)


def _train(context: Context, engine: Engine, steps: int, seconds: list[float]) -> None:
    tracker = context.memory
    for step in range(1, steps + 1):
        context.beat.step(step)
        micro_batches = list(_rows(context))
        tracker.tokens = tokens_of(micro_batches)
        if step <= MEASURED_STEPS:
            with tracker.measuring("forward"):
                engine.train_step(step, micro_batches)
                tracker.rest(engine.tensors())
        else:
            seconds.append(_timed(context, engine, step, micro_batches))
        if step == min(steps, MEASURED_STEPS) and context.spec.train.eval_every is not None:
            _evaluate(context, engine)


def _evaluate(context: Context, engine: Engine) -> None:
    """One step's share of the evaluation, since each is as the one before."""
    batches = context.beat.each(_rows(context))
    with context.memory.measuring("evaluation", engine.tensors(), summary=False):
        engine.evaluate(batches)


def _timed(context: Context, engine: Engine, step: int, micro_batches: list[torch.Tensor]) -> float:
    _wait(context.device)
    began = time.perf_counter()
    engine.train_step(step, micro_batches)
    _wait(context.device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rows(context: Context) -> Iterator[torch.Tensor]:
    """A step's micro-batches of any ids, one array as the run's own data are."""
    spec = context.spec
    shape = (spec.gradient_accumulation, spec.micro_batch_size, spec.sequence_length + 1)
    yield from torch.randint(spec.model.vocab_size, shape).to(context.device)
