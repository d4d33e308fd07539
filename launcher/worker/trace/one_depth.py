"""Record two training steps of one rank at one depth: the worker's own engine in torch's fake process group.

A run on GPUs is traced on the fake CPU, with the streams and kernels that a GPU would use and sizes rounded as by its
allocator.
"""

import contextlib
import functools
import gc
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from launcher.backends.deepspeed import ds_config
from launcher.backends.fsdp.float8 import MXFP8, NVFP4, recipe
from launcher.estimate.memory.moments import Phase
from launcher.spec import RunSpec
from launcher.spec.hardware import HOPPER
from launcher.worker import replaced
from launcher.worker.engine import Context, Engine
from launcher.worker.memory import MemoryTracker
from launcher.worker.memory.live_piles import LivePiles
from launcher.worker.memory.recording import Recording
from launcher.worker.trace import loops, shims

_DEVICE = torch.ops.prim.device.default
_ITEM = torch.ops.aten._local_scalar_dense.default
_WAIT = torch.ops._c10d_functional.wait_tensor.default
_PRODUCT_OF_4_BITS = "bitsandbytes.gemm_4bit.default"  # By name, since other runs do not import bitsandbytes.
_SOFTMAX = torch.ops.aten._safe_softmax.default
STEPS = 2  # The second step, the first that starts with optimizer states, is reported.
_CUDA_GRANULARITY = 512  # torch ``c10/core/AllocatorConfig.h``, ``kMinBlockSize``.


class Phases(MemoryTracker):
    """A memory tracker that passes the engine's phases to the recorder."""

    def __init__(self, recorder: "Recorder") -> None:
        super().__init__()
        self._recorder = recorder
        self.step = 0
        self.engine: Engine | None = None

    def enter(self, phase: Phase) -> None:
        """Begin a phase; gradients are labelled when the optimizer phase begins."""
        if phase == "optimizer" and self.engine is not None:
            label(self._recorder, self.engine)
        self._recorder.begin(self.step, phase)


def record(spec: RunSpec, rank: int) -> Recording:
    """Load and train one rank of a run at the traced depth (``trace.adapt_run``) for two steps."""
    streams, cuda = Streams(), spec.hardware.device == "cuda"
    recorder = Recorder(
        granularity=_CUDA_GRANULARITY if cuda else 1,
        vocabulary=frozenset((spec.model.vocab_size, spec.model.vocab_size // spec.parallel.tensor)),
        stream=streams.current,
    )
    phases = Phases(recorder)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=spec.gpus)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stack.callback(dist.destroy_process_group)
        propagate = recorder.pausing(ShardingPropagator._propagate_tensor_meta_non_cached)
        stack.enter_context(replaced(ShardingPropagator, "_propagate_tensor_meta_non_cached", propagate))
        # DTensor lists a shard's rows: as fake tensors they would take most of a trace with a large vocabulary.
        listed = _disable_current_modes()(_StridedShard.local_shard_size_and_offset)
        stack.enter_context(replaced(_StridedShard, "local_shard_size_and_offset", listed))
        if cuda:
            stack.enter_context(streams.installed())
            stack.enter_context(gpu_kernels(cudnn=spec.hardware.effective_capability >= HOPPER))
            casts = {MXFP8: shims.mxfp8, NVFP4: shims.nvfp4}.get(str(recipe(spec)), contextlib.nullcontext)
            stack.enter_context(casts())
        context = Context(
            spec=spec, directory=Path(folder), rank=rank, world=spec.gpus, device=torch.device("cpu"), memory=phases
        )
        _train(context, recorder, phases)
        return recorder.recording.snapshot()  # Later releases belong to the end of the trace, not to a step.


def _train(context: Context, recorder: "Recorder", phases: Phases) -> None:
    number = context.spec.model.num_experts
    evenly = loops.evenly(most=number, experts=number) if number else contextlib.nullcontext()
    with prepared(context) as build, FakeTensorMode(allow_non_fake_inputs=True), evenly, recorder:
        recorder.begin(0, "load")
        engine = build()
        phases.engine = engine
        label(recorder, engine)
        for step in range(1, STEPS + 1):
            phases.step = step
            recorder.begin(step, "forward")
            _step(context, engine, recorder, step)
            gc.collect()


def _step(context: Context, engine: Engine, recorder: "Recorder", step: int) -> None:
    spec = context.spec
    shape = (spec.micro_batch_size, spec.sequence_length + 1)
    tokens = [torch.zeros(shape, dtype=torch.int64, device=context.device) for _ in range(spec.gradient_accumulation)]
    with recorder.saving():
        engine.train_step(step, tokens)
    label(recorder, engine)


@contextlib.contextmanager
def prepared(context: Context) -> Iterator[Callable[[], Engine]]:
    """Do what is impossible under fake tensors, then yield a function that makes the engine under them."""
    if context.spec.backend.name == "deepspeed":
        with shims.deepspeed(context):
            from launcher.worker.deepspeed.engine import build

            (context.directory / "ds_config.json").write_text(json.dumps(ds_config.build(context.spec)))
            yield lambda: build(context)
    else:
        with shims.ddp(), shims.even_routing(context.spec):
            from launcher.worker.fsdp.engine import filled, rank_parts

            model = rank_parts(context)
            yield lambda: filled(context, model)


def label(recorder: "Recorder", engine: Engine) -> None:
    """Label the engine's tensors; buffers of collectives are already known by their operations."""
    for pile, tensors in engine.piles():
        if pile not in ("gather_buffers", "reduce_buffers"):
            recorder.label(pile, tensors)


@contextlib.contextmanager
def gpu_kernels(*, cudnn: bool = False) -> Iterator[None]:
    """Use CUDA's flash attention kernel, and CUDA's dropout, whose mask has one byte per element.

    The memory-efficient and the cuDNN kernel save the same tensors (query, key, value, output, log-sum-exp). Heads of
    two sizes need one of these: ``cudnn``, which Hopper and later prefer, has the queries' layout in its output.
    """
    attention = functools.partial(_attention, functional.scaled_dot_product_attention, cudnn)
    dropout = functools.partial(_dropout, functional.dropout)
    enabled = torch.is_autocast_enabled  # Without a device CUDA's, which is the CPU's here.
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(functional, "scaled_dot_product_attention", attention))
        stack.enter_context(replaced(functional, "dropout", dropout))
        stack.enter_context(replaced(torch, "is_autocast_enabled", lambda device_type="cpu": enabled(device_type)))
        stack.enter_context(replaced(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu")))
        yield


def _dropout(
    otherwise: Callable[..., torch.Tensor],
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """Dropout as on CUDA (torch ``aten/src/ATen/native/Dropout.cpp``, ``is_fused_kernel_acceptable``)."""
    if not training or not 0 < p < 1 or inplace:
        return otherwise(input, p, training, inplace)
    return torch.native_dropout(input, p, training)[0]


def _attention(
    otherwise: Callable[..., torch.Tensor],
    cudnn: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **settings: Any,
) -> torch.Tensor:
    if attn_mask is not None and query.shape[-1] == value.shape[-1]:
        return otherwise(query, key, value, attn_mask, dropout_p, is_causal, **settings)
    if torch.is_autocast_enabled("cpu"):
        wanted = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(wanted), key.to(wanted), value.to(wanted)
    if attn_mask is None and query.dtype == torch.float32 and key.shape[1] < query.shape[1]:
        # No fused kernel supports grouped-query attention in fp32 (``backends._shared.unfused_attention``).
        how = {"scale": settings.get("scale"), "enable_gqa": True}
        by_maths = torch.ops.aten._scaled_dot_product_attention_math
        computed: torch.Tensor = by_maths(query, key, value, None, dropout_p, is_causal, None, **how)[0]
        return computed
    if query.shape[-1] != value.shape[-1] and attn_mask is None and cudnn:
        by_cudnn, scale = torch.ops.aten._scaled_dot_product_cudnn_attention, settings.get("scale")
        first: torch.Tensor = by_cudnn(query, key, value, None, True, dropout_p, is_causal, False, scale=scale)[0]
        return first
    if query.shape[-1] != value.shape[-1]:
        return _efficient(query, key, value, attn_mask, dropout_p, is_causal, settings.get("scale"))
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    out: torch.Tensor = flash(query, key, value, dropout_p, is_causal, False, scale=settings.get("scale"))[0]
    return out


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Attention with two head sizes, which flash refuses (``aten`` ``sdp_utils.cpp``); the output has tokens first."""
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
        mask = mask.to(query.dtype).expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    out: torch.Tensor = efficient(query, key, value, mask, True, dropout_p, is_causal, scale=scale)[0]
    return out


class Stream:
    """A stand-in for ``torch.cuda.Stream`` with a number; waiting is a no-op."""

    device_index = 0
    device_type = 0

    def __init__(self, number: int) -> None:
        self.stream_id = number

    def synchronize(self, *_: object) -> None:
        """Do nothing, since nothing is computed."""

    wait_stream = wait_event = synchronize

    def record_event(self, event: Any = None) -> Any:
        """Return an event that has happened."""
        return torch.cpu.Event() if event is None else event


class Streams:
    """The streams of one traced rank; 0 is the default stream."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._current = [self._made()]

    def current(self) -> int:
        """The number of the current stream, from whose pool memory is allocated."""
        return self._current[-1].stream_id

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Make ``torch.cpu`` return these streams."""
        with (
            replaced(torch.cpu, "Stream", self._made),
            replaced(torch.cpu, "stream", self._entered),
            replaced(torch.cpu, "current_stream", self._now),
        ):
            yield

    def _made(self, *_: object, **__: object) -> Stream:
        return Stream(next(self._numbers))

    def _now(self, *_: object) -> Stream:
        return self._current[-1]

    @contextlib.contextmanager
    def _entered(self, stream: Stream) -> Iterator[None]:
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()


class Recorder(LivePiles):  # type: ignore[no-untyped-call]  # torch types the base class only in part.
    """Records fake CPU tensors as a rank's own, with sizes rounded up as by its allocator."""

    def __init__(self, *, granularity: int, vocabulary: frozenset[int], stream: Callable[[], int]) -> None:
        """Start with nothing recorded; every allocation is a multiple of ``granularity`` bytes."""
        super().__init__(vocabulary=vocabulary)
        self._granularity, self._current_stream = granularity, stream
        self._paused = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record an operation; one that asks for a value gets a harmless one."""
        if func is _DEVICE and isinstance(args[0], FakeTensor):  # More than half of all calls, and none allocates.
            return args[0].fake_device
        return self._operate(func, types, args, kwargs or {})

    def _operate(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is _ITEM and isinstance(args[0], FakeTensor):
            return _harmless(args[0])
        if str(func) == _PRODUCT_OF_4_BITS:
            return self._unpacked(args, kwargs)
        if func is _WAIT:  # The fake implementation returns a new tensor, but the real one returns its argument.
            return args[0]
        result = super()._operate(func, types, args, kwargs)
        if func is _SOFTMAX:  # The kernel makes a temporary tensor of flags for masked scores (``SoftMax.cpp``).
            self.follow((torch.isneginf(args[0]),))
        return result

    def _unpacked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a product with 4-bit weights that unpacks them: always on CPUs, on GPUs with over 1,536 tokens.

        With fewer tokens some cards have a kernel that does not unpack (bitsandbytes ``backends/cuda/ops.py``).
        """
        from bitsandbytes.backends.default.ops import _gemm_4bit_default_impl

        TorchDispatchMode.__enter__(self)  # type: ignore[no-untyped-call]
        try:
            return _gemm_4bit_default_impl(*args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)  # type: ignore[no-untyped-call]

    def _counts(self, tensor: torch.Tensor) -> bool:
        return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cpu" and not self._paused

    def _stream(self) -> int:
        return self._current_stream()

    def pausing(self, propagate: Callable[..., Any]) -> Callable[..., Any]:
        """Do not count DTensor's shape propagation: its whole-size fake tensors stand for no memory."""

        def propagated(propagator: ShardingPropagator, *args: Any, **kwargs: Any) -> Any:
            with replaced(self, "_paused", True):
                return propagate(propagator, *args, **kwargs)

        return propagated


def _harmless(tensor: torch.Tensor) -> float | int | bool:
    """1.0, which as a norm clips nothing and never divides by zero; 0 for integers (an index); False for bools."""
    if tensor.dtype.is_floating_point:
        return 1.0
    return False if tensor.dtype == torch.bool else 0
