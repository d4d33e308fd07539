"""Two training steps of one rank at one depth, recorded.

The process group is torch's fake one of the run's own size, in which a rank has no peers and collectives end at once.
Under fake tensors every operation runs for its shapes alone, and the recorder notes what each would allocate. A run on
GPUs is traced on the fake CPU, with streams and kernels chosen as a GPU would choose them and sizes rounded as its
allocator rounds. The engine is the worker's own; its tensors are labelled by purpose where that is known: parameters
after loading, gradients as the optimizer begins, states after the step.
"""

from __future__ import annotations

import contextlib
import gc
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore

from launcher.backends.deepspeed import ds_config
from launcher.estimate.memory.moments import Phase
from launcher.spec import RunSpec
from launcher.worker.engine import Context, Engine
from launcher.worker.memory import MemoryTracker
from launcher.worker.memory.recording import Recording
from launcher.worker.trace import shims
from launcher.worker.trace.recorder import Recorder
from launcher.worker.trace.shims import replaced

STEPS = 2
"""The second step is the first that has optimizer states from its start; it is the one that is reported."""

_CUDA_GRANULARITY = 512
"""torch ``c10/core/AllocatorConfig.h``, ``kMinBlockSize``."""


class Phases(MemoryTracker):
    """Tells the recorder which phase the engine enters."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder
        self.step = 0
        self.engine: Engine | None = None

    def enter(self, phase: Phase) -> None:
        """Begin a phase, to which all that follows belongs; gradients are labelled as the optimizer begins."""
        if phase == "optimizer" and self.engine is not None:
            label(self._recorder, self.engine)
        self._recorder.begin(self.step, phase)


def record(spec: RunSpec, rank: int) -> Recording:
    """Load and train one rank for two steps.

    Args:
        spec: The run at the depth that is traced (see ``trace.adapted``).
        rank: Of ``spec.gpus``.
    """
    streams, cuda = Streams(), spec.hardware.device == "cuda"
    recorder = Recorder(
        granularity=_CUDA_GRANULARITY if cuda else 1,
        vocabulary=frozenset((spec.model.vocab_size, spec.model.vocab_size // spec.parallel.tensor)),
        stream=streams.current,
    )
    phases = Phases(recorder)
    with _world(spec, rank), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if cuda:
            stack.enter_context(streams.installed())
            stack.enter_context(of_a_gpu())
        context = Context(
            spec=spec,
            directory=Path(folder),
            rank=rank,
            world=spec.gpus,
            device=torch.device("cpu"),
            memory=phases,
        )
        _train(context, recorder, phases)
        return recorder.recording.ended()  # What is freed from here on is the end of the trace, not of a step.


@contextlib.contextmanager
def _world(spec: RunSpec, rank: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=spec.gpus)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _train(context: Context, recorder: Recorder, phases: Phases) -> None:
    with prepared(context) as build, FakeTensorMode(allow_non_fake_inputs=True), recorder:
        recorder.begin(0, "load")
        engine = build()
        phases.engine = engine
        label(recorder, engine)
        for step in range(1, STEPS + 1):
            phases.step = step
            recorder.begin(step, "forward")
            _step(context, engine, recorder, step)
            gc.collect()


def _step(context: Context, engine: Engine, recorder: Recorder, step: int) -> None:
    spec = context.spec
    shape = (spec.micro_batch_size, spec.sequence_length + 1)
    tokens = [torch.zeros(shape, dtype=torch.int64, device=context.device) for _ in range(spec.gradient_accumulation)]
    with recorder.saving():
        engine.train_step(step, tokens)
    label(recorder, engine)


@contextlib.contextmanager
def prepared(context: Context) -> Iterator[Callable[[], Engine]]:
    """Run the preparations that fake tensors do not allow; the function that is yielded makes the engine under them."""
    if context.spec.backend.name == "deepspeed":
        with shims.deepspeed(context):
            from launcher.worker.deepspeed.engine import build

            (context.directory / "ds_config.json").write_text(json.dumps(ds_config.build(context.spec)))
            yield lambda: build(context)
    else:
        with shims.ddp():
            from launcher.worker.fsdp.engine import filled, rank_parts

            model = rank_parts(context)
            yield lambda: filled(context, model)


def label(recorder: Recorder, engine: Engine) -> None:
    """Label what the engine keeps; buffers of collectives are known by their operations."""
    for pile, tensors in engine.piles():
        if pile not in ("gather_buffers", "reduce_buffers"):
            recorder.label(pile, tensors)


@contextlib.contextmanager
def of_a_gpu() -> Iterator[None]:
    """Attention by the flash kernel of CUDA, also with dropout, where the CPU would fall back to whole scores.

    The memory-efficient and the cuDNN kernel save the same tensors (query, key, value, output, log-sum-exp). Dropout
    keeps a mask of one byte for each element; the CPU would keep it in the format of the activations.
    """
    with (
        replaced(functional, "scaled_dot_product_attention", _attention(functional.scaled_dot_product_attention)),
        replaced(functional, "dropout", _dropout(functional.dropout)),
    ):
        yield


def _dropout(otherwise: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Torch ``aten/src/ATen/native/Dropout.cpp``, ``is_fused_kernel_acceptable``."""

    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or not 0 < p < 1 or inplace:
            return otherwise(input, p, training, inplace)
        return torch.native_dropout(input, p, training)[0]

    return dropout


def _attention(otherwise: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **settings: Any,
    ) -> torch.Tensor:
        if attn_mask is not None:
            return otherwise(query, key, value, attn_mask, dropout_p, is_causal, **settings)
        if torch.is_autocast_enabled("cpu"):
            wanted = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(wanted), key.to(wanted), value.to(wanted)
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out: torch.Tensor = flash(query, key, value, dropout_p, is_causal, False, scale=settings.get("scale"))[0]
        return out

    return attention


class Stream:
    """Stands for ``torch.cuda.Stream``: it has a number, and nobody waits."""

    device_index = 0
    device_type = 0

    def __init__(self, number: int) -> None:
        self.stream_id = number

    def wait_stream(self, stream: Any) -> None:
        """Nothing is computed, so nothing is waited for."""

    def wait_event(self, event: Any) -> None:
        """Nothing is computed, so nothing is waited for."""

    def synchronize(self) -> None:
        """Nothing is computed, so nothing is waited for."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return torch.cpu.Event() if event is None else event


class Streams:
    """The streams of one traced rank; 0 is the default stream."""

    def __init__(self) -> None:
        self._all = [Stream(0)]
        self._current = [self._all[0]]

    def current(self) -> int:
        """The number of the stream that allocates now."""
        return self._current[-1].stream_id

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Let ``torch.cpu`` hand out these streams."""
        names = ("Stream", "stream", "current_stream")
        before = {name: getattr(torch.cpu, name) for name in names}
        for name, ours in zip(names, (self._made, self._entered, self._now), strict=True):
            setattr(torch.cpu, name, ours)
        try:
            yield
        finally:
            for name, theirs in before.items():
                setattr(torch.cpu, name, theirs)

    def _made(self, *_: object, **__: object) -> Stream:
        self._all.append(Stream(len(self._all)))
        return self._all[-1]

    def _now(self, *_: object) -> Stream:
        return self._current[-1]

    @contextlib.contextmanager
    def _entered(self, stream: Stream) -> Iterator[None]:
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()
