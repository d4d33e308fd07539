"""Run one rank alone, with real tensors and real kernels: ``python -m launcher.worker.rehearse``.

An engine that needs more setup has a module named after its backend here, with a function ``rehearse(rehearsal)``.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from launcher.base import machine
from launcher.base.frozen import dataclass
from launcher.job import versions
from launcher.job.memory import Rehearsed, RehearsedPhase
from launcher.spec import RunSpec
from launcher.worker import memory, out_of_memory
from launcher.worker.beat import HeartbeatWriter
from launcher.worker.engine import Context, EngineBuilder
from launcher.worker.loop import MEASURED_STEPS, StepMonitor, context_of
from launcher.worker.rehearse import world
from launcher.worker.watch import tokens_of

_METHODS = {
    "cpu": "bytes of live CPU tensors, tracked operation by operation, without workspaces inside one operation",
    "cuda": "counters of torch.cuda's caching allocator; device bytes are those in use by all processes",
}
_ALONE = (
    "measured while one rank alone loads the model, does two steps and evaluates: its process answers for the other "
    "ranks, so memory that a communication library allocates itself (NCCL's communicators) is missing"
)
_PACKAGES = ("torch", "transformers", "deepspeed", "megatron-core", "transformer-engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A request for ``steps`` steps of one rank of the run in ``directory``; ``words`` are its program's arguments."""

    spec: RunSpec
    directory: Path
    rank: int
    steps: int
    words: Sequence[str] = ()


@contextlib.contextmanager
def entered(rehearsal: Rehearsal, backend: str | None = None) -> Iterator[Context]:
    """Enter the rank's world; yield its context, with nothing measured yet. ``backend`` is for ``world.only_rank``."""
    with world.only_rank(rehearsal.spec, rehearsal.rank, backend) as place:
        context = context_of(rehearsal.spec, rehearsal.directory, place, HeartbeatWriter())
        (rehearsal.directory / "logs").mkdir(exist_ok=True)  # For the snapshot of a rank that runs out of memory.
        with out_of_memory.watched(context):
            yield context


def measure(rehearsal: Rehearsal, context: Context, train: Callable[[list[float]], None]) -> Rehearsed:
    """Train to the last step or until memory runs out, and return the measurements; ``train`` appends step seconds."""
    seconds: list[float] = []
    try:
        train(seconds)
    except Exception as error:
        if out_of_memory.kind_of(error) is None:
            raise
        out_of_memory.write(rehearsal.directory, error)
        return _document(rehearsal, context, seconds, ran_out=True)
    return _document(rehearsal, context, seconds, ran_out=False)


def _document(rehearsal: Rehearsal, context: Context, seconds: Sequence[float], *, ran_out: bool) -> Rehearsed:
    cuda = context.device.type == "cuda"
    name = torch.cuda.get_device_name(context.device) if cuda else machine.processor()
    return Rehearsed(
        rank=context.rank,
        world=context.world,
        stage=rehearsal.spec.stage_of(rehearsal.rank),
        layers=rehearsal.spec.model.num_hidden_layers,
        device=context.device.type,
        device_name=name or "cpu",
        method=f"{_METHODS[context.device.type]}; {_ALONE}",
        static_bytes=context.memory.summary()["static_bytes"],
        phases=_phases(context),
        step_seconds=tuple(seconds),
        ran_out=ran_out,
        versions={name: found for name in _PACKAGES if (found := versions.installed(name)) is not None},
    )


def _phases(context: Context) -> dict[str, RehearsedPhase]:
    tracker, peaks = context.memory, context.memory.take().phases.items()
    found = {name: RehearsedPhase(allocated_bytes=peak.allocated_bytes, piles=peak.piles) for name, peak in peaks}
    if not isinstance(tracker, memory.CudaTracker):
        return found
    free, total = torch.cuda.mem_get_info(context.device)
    # Bytes in use besides the reserved ones: the CUDA context, and other processes.
    around, reserved = total - free - torch.cuda.memory_reserved(context.device), tracker.reserved_by_phase
    return {
        name: replace(phase, reserved_bytes=reserved[name], device_bytes=reserved[name] + around)
        for name, phase in found.items()
    }


def train_alone(rehearsal: Rehearsal, build: EngineBuilder) -> Rehearsed:
    """Load the rank's part of the model and train it, as ``launcher.worker.loop`` does."""
    with entered(rehearsal) as context:
        return measure(rehearsal, context, functools.partial(_train, context, build, rehearsal.steps))


def _train(context: Context, build: EngineBuilder, steps: int, seconds: list[float]) -> None:
    tracker = context.memory
    with tracker.measuring("load"):
        engine = build(context)
        tracker.kept = engine.piles
    followed = StepMonitor(context, engine.tensors)
    for step in range(1, steps + 1):
        context.beat.step(step)
        micro_batches = list(_rows(context))
        only_timed = step > MEASURED_STEPS
        with timed(context.device, seconds) if only_timed else followed.step(step, tokens_of(micro_batches)):
            engine.train_step(step, micro_batches)
        if step == min(steps, MEASURED_STEPS) and context.spec.evaluates:
            with followed.evaluation(step):  # As many batches as one step has: all batches are alike.
                engine.evaluate(context.beat.each(_rows(context)))


@contextlib.contextmanager
def timed(device: torch.device, seconds: list[float]) -> Iterator[None]:
    """Append the seconds that the device takes for the code inside."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds.append(time.perf_counter() - began)


def _rows(context: Context) -> Iterator[torch.Tensor]:
    spec = context.spec
    shape = (spec.gradient_accumulation, spec.micro_batch_size, spec.sequence_length + 1)
    yield from torch.randint(spec.model.vocab_size, shape).to(context.device)
