"""The bytes that autograd has saved for a backward pass, by its hooks, without following any operation."""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from launcher.estimate.memory.terms import Pile
from launcher.worker.memory.piles import Kept, has_logits, plain, storages


class SavedBytes:
    """Bytes of saved storages, each counted once, by pile: ``now``, and at their ``peak`` since :meth:`forget_peak`."""

    def __init__(self, vocabulary: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._kept: frozenset[int] = frozenset()
        self._sizes: dict[int, tuple[str, int]] = {}
        self.now: Counter[str] = Counter()
        self.peak: dict[str, int] = {}

    @contextlib.contextmanager
    def following(self, kept: Iterable[Kept]) -> Iterator[None]:
        """Count tensors that autograd saves from here on, but for those that the engine keeps."""
        self._kept = frozenset(storage._cdata for _, tensors in kept for storage in storages(tensors))
        with seeing_saved(self._packed):
            yield

    def forget_peak(self) -> None:
        """Look for the highest sum anew."""
        self.peak = _held(self.now)

    def _packed(self, tensor: torch.Tensor) -> torch.Tensor:
        # FSDP2 gathers into storages that were not there before, and only resizes them afterwards.
        if not isinstance(_base(tensor), nn.Parameter):
            for held in plain(tensor):
                self._count(held, self._pile(tensor, held))
        # An output that its own node held would never be freed; a parameter's values may be elsewhere by the time.
        return tensor if tensor.is_leaf else tensor.detach()

    def _pile(self, tensor: torch.Tensor, held: torch.Tensor) -> Pile:
        if _is_copy_of_weights(tensor):
            return "gather_buffers"
        return "logits" if has_logits(held, self._vocabulary) or _is_of_the_loss(tensor) else "activations"

    def _count(self, held: torch.Tensor, pile: Pile) -> None:
        storage = held.untyped_storage()
        key = storage._cdata
        if key in self._kept or key in self._sizes or held.device.type == "meta":
            return
        self._sizes[key] = (pile, storage.nbytes())
        self.now[pile] += storage.nbytes()
        weakref.finalize(storage, self._freed, key).atexit = False
        if self.now.total() > sum(self.peak.values()):
            self.peak = _held(self.now)

    def _freed(self, key: int) -> None:
        pile, size = self._sizes.pop(key)
        self.now[pile] -= size


@contextlib.contextmanager
def seeing_saved(pack: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Hand each tensor that autograd saves to a function; those that selective checkpointing keeps do not pass."""
    with warnings.catch_warnings(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        warnings.filterwarnings("ignore", "A saved_tensors_hooks context", FutureWarning)  # It says just that.
        yield


def _held(now: Counter[str]) -> dict[str, int]:
    return {pile: size for pile, size in now.items() if size}


def _base(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _is_copy_of_weights(tensor: torch.Tensor) -> bool:
    """True for autocast's copy of a trained parameter, and views of it: autograd's node of the copy leads to a leaf."""
    node = _base(tensor).grad_fn
    if node is None or node.name() != "ToCopyBackward0":
        return False
    leaf = getattr(node.next_functions[0][0], "variable", None)
    return isinstance(leaf, nn.Parameter)


def _is_of_the_loss(tensor: torch.Tensor) -> bool:
    node = tensor.grad_fn
    return node is not None and node.name().startswith("LogSoftmax")


class Layers:
    """Numbers of blocks, counted from 0 as in the names of parameters."""

    def __init__(self) -> None:
        self.now: int | None = None  # The block that runs; None outside of blocks.
        self.on = False  # True while it matters where backward passes end, and ``passed`` is called.
        self.passed: Callable[[], None] = lambda: None  # Called wherever a block begins or ends.
        self._kept: list[RemovableHandle] = []

    def follow(self, blocks: Mapping[int, nn.Module]) -> None:
        """Follow these blocks from now on."""
        for number, block in blocks.items():
            block.register_forward_pre_hook(functools.partial(self._begin, number), with_kwargs=True)
            block.register_forward_hook(functools.partial(self._end, number), with_kwargs=True)

    def forget(self) -> None:
        """Take the hooks off tensors that outlive a pass, as a pipeline stage receives them."""
        for handle in self._kept:
            handle.remove()
        self._kept.clear()

    def _begin(self, number: int, block: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self.now = number
        if self.on:
            self.passed()
            self._hook((*inputs, *named.values()), lambda _: self._left(number))

    def _end(self, number: int, block: nn.Module, inputs: Any, named: Any, output: Any) -> None:
        self.now = None
        if self.on:
            self.passed()
        self._hook(output if isinstance(output, tuple) else (output,), lambda _: self._entered(number))

    def _hook(self, values: tuple[Any, ...], call: Any) -> None:
        """Call back when the gradient of the first of these tensors that has one is known."""
        for value in values:
            if isinstance(value, torch.Tensor) and value.requires_grad:
                handle = value.register_hook(call)  # type: ignore[no-untyped-call]
                if value.is_leaf:
                    self._kept.append(handle)
                return

    def _entered(self, number: int) -> None:
        if self.on:
            self.passed()
        self.now = number

    def _left(self, number: int) -> None:
        """A block's input is the output of the one before, whose hook comes first and stays."""
        if self.now == number:
            self.passed()
            self.now = None
