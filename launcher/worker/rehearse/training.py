"""The steps of a rehearsed rank whose engine is driven by our own loop."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from launcher.job.rehearsal import Rehearsed
from launcher.worker.engine import Context, Engine, EngineBuilder
from launcher.worker.rehearse.rehearsal import MEASURED_STEPS, Rehearsal, document, entered, ran_out
from launcher.worker.watch.memory_log import tokens_of


def rehearse(rehearsal: Rehearsal, build: EngineBuilder) -> Rehearsed:
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
