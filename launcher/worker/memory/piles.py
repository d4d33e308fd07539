"""Piles of memory without tracking operations: what the engine keeps, what autograd saves, and the current block.

Saved-tensor hooks report each saved tensor; weak references report when its storage is freed. Hooks on a block, its
output and its input report when its forward and backward passes begin and end.
"""

import contextlib
import functools
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_iter
from torch.utils.hooks import RemovableHandle

from launcher.estimate.memory.terms import Pile

GATHERED: Pile = "gather_buffers"
"""Pile of storages resized from zero: FSDP2's gathered parameters, whose storages it keeps."""

_COLLECTIVES: dict[str, Pile] = {
    "all_gather": "gather_buffers",
    "allgather": "gather_buffers",
    "broadcast": "gather_buffers",
    "reduce_scatter": "reduce_buffers",
    "chunk_cat": "reduce_buffers",
    "all_reduce": "reduce_buffers",
    "allreduce": "reduce_buffers",
}


@functools.cache
def pile_of_operation(operation: str) -> Pile | None:
    """The pile of tensors that a collective, its packing or the loss reads and writes; None for other operations."""
    if operation.startswith("aten._log_softmax"):  # Only the loss uses it.
        return "logits"
    if not operation.startswith(("c10d.", "_c10d_functional.", "fsdp.")):
        return None
    return next((pile for name, pile in _COLLECTIVES.items() if name in operation), None)


def pile_of_tensor(tensor: torch.Tensor, operation: str, vocabulary: frozenset[int]) -> Pile:
    """The pile of a new tensor: a collective's, logits, or temporary while it is not known."""
    known = pile_of_operation(operation)
    if known is not None:
        return known
    return "logits" if has_logits(tensor, vocabulary) else "temporary"


def has_logits(tensor: torch.Tensor, vocabulary: frozenset[int]) -> bool:
    """True if the size of the last dimension occurs only in logits."""
    return tensor.dim() >= 2 and tensor.shape[-1] in vocabulary and tensor.is_floating_point()


def with_recomputation(piles: Mapping[str, int], usual: int) -> dict[str, int]:
    """Piles of a backward pass that recomputes blocks: temporary bytes beyond the ``usual`` become activations."""
    again = max(0, piles.get("temporary", 0) - usual)
    moved = {"activations": piles.get("activations", 0) + again, "temporary": piles.get("temporary", 0) - again}
    return {pile: size for pile, size in {**piles, **moved}.items() if size}


type Kept = tuple[Pile, list[torch.Tensor]]
"""A pile and the tensors that an engine keeps in it; a tensor in two piles counts in the later one."""


def model_piles(modules: Iterable[nn.Module]) -> Iterator[Kept]:
    """Parameters with buffers, and gradients; for parameters sharded by ZeRO 3 the rank's shard and gathered values."""
    made = list(modules)
    parameters = [parameter for module in made for parameter in module.parameters()]
    cut = [parameter for parameter in parameters if hasattr(parameter, "ds_tensor")]
    whole = [parameter for parameter in parameters if not hasattr(parameter, "ds_tensor")]
    yield "gather_buffers", [parameter.data for parameter in cut]
    every = (part for module in made for part in module.modules())  # Megatron's DDP has a list in place of buffers().
    buffers = [buffer for part in every for buffer in part._buffers.values() if buffer is not None]
    yield "parameters", buffers + whole + [parameter.ds_tensor for parameter in cut]
    yield "gradients", [parameter.grad for parameter in parameters if parameter.grad is not None]


def flat(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples and dictionary values."""
    return (leaf for leaf in tree_iter(value) if isinstance(leaf, torch.Tensor))


def storages(tensors: Iterable[object]) -> Iterator[torch.UntypedStorage]:
    """The storages of tensors; one that several tensors share is yielded several times."""
    for tensor in tensors:
        for held in plain(tensor):
            yield held.untyped_storage()


def plain(tensor: object) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor (DTensor, wrapper subclass) consists of; none for anything else."""
    if isinstance(tensor, DTensor):
        yield from plain(tensor._local_tensor)
    elif isinstance(tensor, torch.Tensor) and hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from plain(getattr(tensor, name))
    elif isinstance(tensor, torch.Tensor):
        yield tensor


def divided(allocated: int, known: dict[str, int]) -> dict[str, int]:
    """Allocated bytes by pile: the known piles, capped so that they sum to at most ``allocated``; rest temporary."""
    found, left = {}, allocated
    for pile in sorted(known, key=lambda pile: pile in ("logits", "activations")):
        found[pile] = min(known[pile], left)
        left -= found[pile]
    return {pile: size for pile, size in {**found, "temporary": left}.items() if size}


def kept_bytes(kept: Iterable[tuple[Pile, Iterable[torch.UntypedStorage]]], device: torch.device) -> dict[str, int]:
    """Bytes on a device by pile; a storage that several tensors share counts once, in the last pile."""
    piles: dict[int, tuple[str, int]] = {}
    for pile, held in kept:
        for storage in held:
            if storage.device.type == device.type:
                piles[storage._cdata] = (pile, storage.nbytes())
    found: dict[str, int] = {}
    for name, size in piles.values():
        found[name] = found.get(name, 0) + size
    return found


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
        """Count tensors that autograd saves in the code inside, except those that the engine keeps."""
        self._kept = frozenset(storage._cdata for _, tensors in kept for storage in storages(tensors))
        with seeing_saved(self._packed):
            yield

    def forget_peak(self) -> None:
        """Reset the peak to the current sum."""
        self.peak = dict(+self.now)

    def _packed(self, tensor: torch.Tensor) -> torch.Tensor:
        # FSDP2 gathers parameters into storages that are not in ``_kept`` yet, and only resizes them afterwards.
        if not isinstance(_base(tensor), nn.Parameter):
            for held in plain(tensor):
                self._count(held, self._pile(tensor, held))
        # A node that holds its own output would never free it; a parameter may have moved to other memory by then.
        return tensor if tensor.is_leaf else tensor.detach()

    def _pile(self, tensor: torch.Tensor, held: torch.Tensor) -> Pile:
        if _is_copy_of_weights(tensor):
            return "gather_buffers"
        of_the_loss = tensor.grad_fn is not None and tensor.grad_fn.name().startswith("LogSoftmax")
        return "logits" if of_the_loss or has_logits(held, self._vocabulary) else "activations"

    def _count(self, held: torch.Tensor, pile: Pile) -> None:
        storage = held.untyped_storage()
        key = storage._cdata
        if key in self._kept or key in self._sizes or held.device.type == "meta":
            return
        self._sizes[key] = (pile, storage.nbytes())
        self.now[pile] += storage.nbytes()
        weakref.finalize(storage, self._freed, key).atexit = False
        if self.now.total() > sum(self.peak.values()):
            self.peak = dict(+self.now)

    def _freed(self, key: int) -> None:
        pile, size = self._sizes.pop(key)
        self.now[pile] -= size


@contextlib.contextmanager
def seeing_saved(pack: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Pass each tensor that autograd saves to ``pack``, except those kept by selective checkpointing."""
    with warnings.catch_warnings(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        warnings.filterwarnings("ignore", "A saved_tensors_hooks context", FutureWarning)  # It says that.
        yield


def _base(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _is_copy_of_weights(tensor: torch.Tensor) -> bool:
    """True for autocast's copy of a trained parameter, and views of it: the copy's autograd node leads to a leaf."""
    node = _base(tensor).grad_fn
    if node is None or node.name() != "ToCopyBackward0":
        return False
    return isinstance(getattr(node.next_functions[0][0], "variable", None), nn.Parameter)


class Layers:
    """Tracks which block runs; blocks are numbered from 0 as in parameter names."""

    def __init__(self) -> None:
        self.now: int | None = None  # The block that runs; None outside of blocks.
        self.on = False  # True while the ends of backward passes are needed and ``passed`` is called.
        self.passed: Callable[[], None] = lambda: None  # Called wherever a block begins or ends.
        self._kept: list[RemovableHandle] = []

    def follow(self, blocks: Mapping[int, nn.Module]) -> None:
        """Register the hooks on these blocks."""
        for number, block in blocks.items():
            block.register_forward_pre_hook(functools.partial(self._begin, number), with_kwargs=True)
            block.register_forward_hook(functools.partial(self._end, number), with_kwargs=True)

    def forget(self) -> None:
        """Remove the hooks from tensors that outlive a pass, such as a pipeline stage's inputs."""
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
        """End a block's backward pass, unless the block before, whose output hook runs first, has begun its own."""
        if self.now == number:
            self.passed()
            self.now = None
