"""Piles of memory without following operations: what the engine keeps, what autograd saves, and the block at work.

Hooks of saved tensors tell of each; weak references to their storages tell when they are gone. Hooks of a block, of its
output and of its input tell when its forward and backward passes begin and end.
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
"""Pile of storages resized from nothing: FSDP2's gathered parameters, whose storages it keeps."""

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
    """The pile of all that a collective, its packing or the loss reads and writes; None for any other operation."""
    if operation.startswith("aten._log_softmax"):  # The loss alone takes a logarithm.
        return "logits"
    if not operation.startswith(("c10d.", "_c10d_functional.", "fsdp.")):
        return None
    return next((pile for name, pile in _COLLECTIVES.items() if name in operation), None)


def pile_of_tensor(tensor: torch.Tensor, operation: str, vocabulary: frozenset[int]) -> Pile:
    """The pile of a new tensor, of a collective or of logits; temporary where it is not known yet."""
    known = pile_of_operation(operation)
    if known is not None:
        return known
    return "logits" if has_logits(tensor, vocabulary) else "temporary"


def has_logits(tensor: torch.Tensor, vocabulary: frozenset[int]) -> bool:
    """True if the last dimension is one that only logits have."""
    return tensor.dim() >= 2 and tensor.shape[-1] in vocabulary and tensor.is_floating_point()


def with_recomputation(piles: Mapping[str, int], usual: int) -> dict[str, int]:
    """Piles of a backward pass that computes blocks again: temporary bytes beyond the ``usual`` are activations."""
    again = max(0, piles.get("temporary", 0) - usual)
    moved = {"activations": piles.get("activations", 0) + again, "temporary": piles.get("temporary", 0) - again}
    return {pile: size for pile, size in {**piles, **moved}.items() if size}


type Kept = tuple[Pile, list[torch.Tensor]]
"""Tensors that an engine keeps, and the pile that they belong to; a later pile counts where a tensor is in two."""


def model_piles(modules: Iterable[nn.Module]) -> Iterator[Kept]:
    """Parameters with buffers, and gradients; of parameters cut by ZeRO 3 the rank's part and the gathered values."""
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
    """The tensors in lists, tuples and the values of dictionaries."""
    return (leaf for leaf in tree_iter(value) if isinstance(leaf, torch.Tensor))


def storages(tensors: Iterable[object]) -> Iterator[torch.UntypedStorage]:
    """The memory of tensors; one that several share comes several times."""
    for tensor in tensors:
        for held in plain(tensor):
            yield held.untyped_storage()


def plain(tensor: object) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own that a tensor consists of; none for anything else."""
    if isinstance(tensor, DTensor):
        yield from plain(tensor._local_tensor)
    elif isinstance(tensor, torch.Tensor) and hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from plain(getattr(tensor, name))
    elif isinstance(tensor, torch.Tensor):
        yield tensor


def divided(allocated: int, known: dict[str, int]) -> dict[str, int]:
    """Known piles of an allocated sum, at most as much as it, and the rest as temporary."""
    found, left = {}, allocated
    for pile in sorted(known, key=lambda pile: pile in ("logits", "activations")):
        found[pile] = min(known[pile], left)
        left -= found[pile]
    return {pile: size for pile, size in {**found, "temporary": left}.items() if size}


def kept_bytes(kept: Iterable[tuple[Pile, Iterable[torch.UntypedStorage]]], device: torch.device) -> dict[str, int]:
    """Bytes on a device by pile; a storage that several tensors share counts once, for the last."""
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
        """Count tensors that autograd saves from here on, but for those that the engine keeps."""
        self._kept = frozenset(storage._cdata for _, tensors in kept for storage in storages(tensors))
        with seeing_saved(self._packed):
            yield

    def forget_peak(self) -> None:
        """Look for the highest sum anew."""
        self.peak = dict(+self.now)

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
    """Hand each tensor that autograd saves to a function; those that selective checkpointing keeps do not pass."""
    with warnings.catch_warnings(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        warnings.filterwarnings("ignore", "A saved_tensors_hooks context", FutureWarning)  # It says just that.
        yield


def _base(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def _is_copy_of_weights(tensor: torch.Tensor) -> bool:
    """True for autocast's copy of a trained parameter, and views of it: autograd's node of the copy leads to a leaf."""
    node = _base(tensor).grad_fn
    if node is None or node.name() != "ToCopyBackward0":
        return False
    return isinstance(getattr(node.next_functions[0][0], "variable", None), nn.Parameter)


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
