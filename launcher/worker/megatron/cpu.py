"""Stand-ins for the functions of ``torch.cuda`` that megatron-core 0.19 calls, for a machine without a GPU.

Megatron's arithmetic is unchanged: the stand-ins report the CPU as the only device, make waiting a no-op, and treat
``cuda`` in a device argument as the CPU. Each function below says what calls the functions that it replaces.
"""

import contextlib
import functools
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._device import _device_constructors

from launcher.base import machine
from launcher.worker import TrainingError

_cuda: Any = torch.cuda
_FACTORIES = ("zeros", "ones", "empty", "full", "tensor", "arange", "rand", "randn", "as_tensor", "zeros_like")
_COUNTERS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
_NO_WORK = ("synchronize", "empty_cache", "set_device", "reset_peak_memory_stats")


@functools.cache
def install() -> None:
    """Install the stand-ins, once and for the rest of the process; TrainingError if there is a GPU."""
    if torch.cuda.is_available():
        raise TrainingError(
            "hardware.device=cpu would hide torch.cuda from Megatron, but this node has a GPU: set hardware=auto"
        )
    _device()
    _memory()
    _streams()
    _random_states()
    _tensor_types()
    _device_arguments()
    _megatron()
    _compiler()


def _compiler() -> None:
    """Compile small functions (``jit_fuser``) only if there is a C++ compiler; else torch fails at the first one."""
    if machine.cxx() is None:
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # Read when torch._dynamo is imported, which may not have happened.
        if "torch._dynamo" in sys.modules:
            sys.modules["torch._dynamo"].config.disable = True


def _device() -> None:
    """Replace device queries: modules put tensors on ``current_device``, the arguments' validator reads the capability.

    Random states are set up only if ``device_count`` is not 0, from which torch may conclude that there is a GPU
    (``PYTORCH_NVML_BASED_CUDA_CHECK``, which ``transformers`` sets), so ``is_available`` is replaced, too.
    """
    _cuda.is_available = lambda: False
    _cuda.current_device = lambda: torch.device("cpu")
    _cuda.device_count = lambda: 1
    _cuda.get_device_capability = lambda *_: (9, 0)
    _cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0, name="CPU", total_memory=0)
    for name in _NO_WORK:
        setattr(_cuda, name, lambda *_, **__: None)


def _memory() -> None:
    """Replace the allocator's counters, which ``training_log`` and ``save_checkpoint_and_time`` print."""
    for name in _COUNTERS:
        setattr(_cuda, name, lambda *_, **__: 0)
    _cuda.memory_stats = lambda *_, **__: defaultdict(int)


def _streams() -> None:
    """Replace streams and events, by which the distributed optimizer, checkpoint writer and schedules order work."""
    _cuda.Stream = _cuda.Event = _Nothing
    _cuda.current_stream = _cuda.default_stream = _Nothing
    _cuda.stream = lambda *_: contextlib.nullcontext()


class _Nothing:
    """A stream or event of a device that runs everything in order; any attribute or call gives another one."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, name: str) -> "type[_Nothing]":
        return _Nothing


def _random_states() -> None:
    """Replace CUDA RNG states, from which tensor parallel ranks draw dropout (``core/tensor_parallel/random.py``)."""
    from megatron.core.tensor_parallel import random

    module: Any = random
    _cuda.manual_seed = torch.manual_seed
    get_state = lambda *_, **__: torch.get_rng_state()  # noqa: E731
    _cuda.get_rng_state = _cuda.random.get_rng_state = module._get_cuda_rng_state = get_state
    set_state = lambda state, *_, **__: torch.set_rng_state(state)  # noqa: E731
    _cuda.set_rng_state = _cuda.random.set_rng_state = module._set_cuda_rng_state = set_state


def _tensor_types() -> None:
    """Replace ``Tensor.type``, which clipping and the optimizers compare with ``torch.cuda.FloatTensor`` and so on."""
    original = torch.Tensor.type

    def named(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        answer = original(self, *arguments, **options)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    torch.Tensor.type = named  # type: ignore[assignment, method-assign]


def _device_arguments() -> None:
    """Accept ``device="cuda"``, which the training loop, clipping and the data loaders hard-code.

    ``torch.device("meta")`` has a list of the original functions, which must be made before they are replaced.
    """
    _device_constructors()
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    for name in _FACTORIES:
        setattr(torch, name, _on_the_cpu(getattr(torch, name)))


def _on_the_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(make)
    def made(*arguments: Any, **options: Any) -> torch.Tensor:
        if str(options.get("device")).startswith("cuda"):
            options["device"] = "cpu"
        return make(*arguments, **options)

    return made


def _megatron() -> None:
    """Replace Megatron's own checks that would stop it, and the warm-up of kernels that only a GPU has."""
    from megatron.core.transformer import torch_norm
    from megatron.core.transformer.moe import token_dispatcher
    from megatron.training import training

    token_dispatcher.maybe_move_tensor_to_cpu = lambda tensor, as_numpy=False, record_stream=False: (
        tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
    )
    training.initialize_megatron = functools.partial(training.initialize_megatron, allow_no_cuda=True)
    training.set_jit_fusion_options = lambda **_: None
    torch_norm.WrappedTorchNorm.__new__ = staticmethod(_norm)


def _norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: object) -> torch.nn.Module:
    """A torch norm whose weight takes part in the gradient sum of sequence parallel ranks.

    ``WrappedTorchNorm`` refuses sequence parallelism, although it lacks only this attribute (``finalize_model_grads``
    in ``core/distributed``).
    """
    made = (torch.nn.LayerNorm if config.normalization == "LayerNorm" else torch.nn.RMSNorm)(hidden_size, eps=eps)
    for parameter in made.parameters():
        parameter.sequence_parallel = bool(config.sequence_parallel)  # type: ignore[attr-defined]
    return made
