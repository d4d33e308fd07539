"""Rehearse one rank of DeepSpeed: other ranks are assumed to agree with it, and send hidden states of known shape."""

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

from launcher.job.memory import Rehearsed
from launcher.spec import RunSpec
from launcher.worker import replaced
from launcher.worker.deepspeed.__main__ import build
from launcher.worker.engine import Context, Engine
from launcher.worker.model import initial
from launcher.worker.rehearse import Rehearsal, train_alone, world
from launcher.worker.trace import shims


def rehearse(rehearsal: Rehearsal) -> Rehearsed:
    """Load and train the rank, and return its measurements."""
    if rehearsal.spec.hardware.device == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    with contextlib.ExitStack() as stack:

        def made(context: Context) -> Engine:
            if importlib.util.find_spec("deepspeed") is not None:
                stack.enter_context(_without_peers(context.spec))
            return build(context)

        return train_alone(rehearsal, made)


@contextlib.contextmanager
def _without_peers(spec: RunSpec) -> Iterator[None]:
    """Skip comparisons with other ranks, and receive hidden states without asking for their shape."""
    from launcher.worker.deepspeed import model

    engine, pipe = (importlib.import_module(f"deepspeed.runtime.{name}") for name in ("engine", "pipe.engine"))
    with contextlib.ExitStack() as stack:
        stack.enter_context(shims.agreed())
        stack.enter_context(replaced(model, "opened", _drawing(model.opened)))
        stack.enter_context(replaced(pipe.PipelineEngine, "_recv_tensor_meta", _received(spec)))
        if hasattr(engine, "compare_tensors_in_structures"):  # AutoTP checks that its ranks read the same rows.
            stack.enter_context(replaced(engine, "compare_tensors_in_structures", lambda *_: True))
        yield


def _drawing(opened: initial.Access) -> initial.Access:
    """Draw a parameter that ZeRO 3's first rank would send, without what that rank allocates to make it."""

    @contextlib.contextmanager
    def drawn(parameter: torch.Tensor) -> Iterator[torch.Tensor | initial.Local | None]:
        with opened(parameter) as part:
            if part is None:
                world.draw((parameter.data,))
            yield part

    return drawn


def _received(spec: RunSpec) -> Callable[[Any, int], Any]:
    """Allocate the buffer for a micro-batch's hidden states, for which DeepSpeed would first receive the shape."""

    def buffer(engine: Any, stage: int) -> Any:
        shape = [spec.micro_batch_size, spec.sequence_length, spec.model.hidden_size]
        return engine._allocate_or_extend_buffers(0, shape, next(engine.module.parameters()).dtype)

    return buffer
