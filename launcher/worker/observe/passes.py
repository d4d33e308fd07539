"""The bytes that one layer saves for its backward pass and allocates in it, under fake tensors.

A first pass records the arguments of each layer; then a layer of each kind runs alone at three sequence lengths.
"""

import contextlib
import copy
from collections import UserDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_iter, tree_map

from launcher.base.files import JsonObject
from launcher.base.frozen import dataclass
from launcher.worker import replaced
from launcher.worker.memory.live_bytes import LiveBytes
from launcher.worker.memory.piles import seeing_saved
from launcher.worker.model.network import base
from launcher.worker.observe.structure import Structure, linears, structure
from launcher.worker.trace.loops import evenly
from launcher.worker.trace.one_depth import gpu_kernels

_CHUNK = 64  # Chunk size, in tokens, of scans without their own ``chunk_size``, or a multiple of it.
_CHUNKS = (3, 5, 7)
"""Sequence lengths in chunks: more than one, and odd, so that no activation is as large as a matrix of a layer."""

FORMATS: Mapping[str, tuple[torch.dtype, bool]] = {
    "fp32": (torch.float32, False),
    "bf16": (torch.bfloat16, False),
    "mixed": (torch.float32, True),
}
"""Dtype of parameters and residual stream, and whether autocast casts inputs of matrix products to bf16."""

_LEAST_BEND = 0.5
"""Growth of a token's bytes per token of the sequence above which it is due to attention scores, not rounding."""

_EXPERTS = 16
"""Most experts that a loop runs, with all tokens: hundreds would take minutes and save the same bytes."""

type Call = tuple[tuple[Any, ...], dict[str, Any]]


class _Reached(Exception):
    """Raised when the last layer of interest has been called."""


class _WithoutValues(LiveBytes):  # type: ignore[no-untyped-call]  # torch types the base class only in part.
    """Counts the bytes that tensors without values would hold."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._weights = {each.numel() for each in parameters if each.dim() > 1}

    def _counts(self, tensor: torch.Tensor) -> bool:
        return (isinstance(tensor, FakeTensor) or tensor.device.type == "meta") and tensor.numel() not in self._weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """Bytes of one layer at one sequence length."""

    saved: int  # Storages saved by its forward pass, each once, without parameters and tensors that layers share.
    adapted: int  # The same if only weights that an adapter may wrap are trained.
    frozen: int  # The same if none of its parameters is trained.
    keeps_input: bool  # True if its input is one of the saved tensors.
    extra: int  # Peak of what its backward pass allocates beyond those, without gradients of matrices.


def passes(found: Structure, attention: str, *, whole: bool = False) -> JsonObject:
    """Bytes per token by kind and format as ``[constant, per length]``; the first pass may run ``whole``."""
    rows: JsonObject = {name: {} for name in found.kinds}
    config = found.model.config
    chunk = max(_CHUNK, *(getattr(config, key, None) or 0 for key in ("chunk_size", "mamba_chunk_size")))
    lengths = tuple(chunks * chunk for chunks in _CHUNKS)
    for form, (dtype, autocast) in FORMATS.items():
        try:
            seen = _seen(found, attention, dtype, lengths, autocast=autocast, whole=whole)
        except Exception as error:
            error.args = (f"in {form}, {error}",)
            raise
        for name in found.kinds:
            sizes = {
                each: [getattr(one[name], each) for one in seen] for each in ("saved", "adapted", "frozen", "extra")
            }
            lines = {each: _for_a_token(at, lengths) for each, at in sizes.items()}
            rows[name][form] = {**lines, "keeps_input": seen[0][name].keeps_input}
    return rows


def _seen(
    found: Structure, attention: str, dtype: torch.dtype, lengths: Sequence[int], *, autocast: bool, whole: bool
) -> list[dict[str, LayerBytes]]:
    """The bytes at each length, measured on the meta device if possible, which is faster than fake tensors."""
    made = structure(_unscaled(found.model.config), dtype, attention).model.train()
    if not autocast:
        with contextlib.suppress(Exception), torch.device("meta"), gpu_kernels():  # Some classes ask for a value.
            return [_at(found, made, length, whole) for length in lengths]
    fake, cast = FakeTensorMode(allow_non_fake_inputs=True), torch.autocast("cpu", torch.bfloat16, enabled=autocast)
    with fake, cast, gpu_kernels():
        made = made.to_empty(device="cpu")
        with contextlib.suppress(IndexError), evenly(most=_EXPERTS):
            return [_at(found, made, length, whole) for length in lengths]
        with evenly(unused=1, most=_EXPERTS):  # A class may have one more slot than experts, for choosing none.
            return [_at(found, made, length, whole) for length in lengths]


def _unscaled(config: Any) -> Any:
    """A copy without scaling of rotary angles, which needs the largest position's value; the bytes are the same."""
    made = copy.deepcopy(config)
    if isinstance(rotary := getattr(made, "rope_parameters", None), dict) and "rope_type" in rotary:
        rotary["rope_type"] = "default"
    return made


def _for_a_token(sizes: Sequence[int], lengths: Sequence[int]) -> list[float]:
    (first, second, third), (short, middle, long) = sizes, lengths
    rise = (second - first) / (middle - short)
    bend = ((third - second) / (long - middle) - rise) / (long - short)
    bend = bend if bend > _LEAST_BEND else 0.0
    return [round(max(0.0, rise - bend * (short + middle)), 3), round(bend, 6)]


def _at(found: Structure, made: Any, length: int, whole: bool) -> dict[str, LayerBytes]:
    calls, blocks = _calls(found, made, length, whole), made.get_submodule(found.path)
    adapted = linears(found)
    return {name: _layer(blocks[layer], calls[layer], adapted) for name, layer in found.kinds.items()}


def _calls(found: Structure, made: Any, length: int, whole: bool) -> dict[int, Call]:
    """The arguments of each kind's first layer; unless ``whole`` runs all layers, others return their input."""
    wanted, calls = set(found.kinds.values()), dict[int, Call]()
    blocks, last = made.get_submodule(found.path), max(found.kinds.values())

    def calling(number: int, forward: Any) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            if number in wanted:
                calls[number] = (args, kwargs)
            if number == last:
                raise _Reached
            if number == 0 or whole:
                outputs.append(forward(*args, **kwargs))
                return outputs[-1]
            hidden = args[0] if args else kwargs["hidden_states"]
            return (hidden, *outputs[0][1:]) if isinstance(outputs[0], tuple | list) else hidden

        return called

    outputs: list[Any] = []
    ids = torch.zeros((1, length), dtype=torch.int64)
    with contextlib.ExitStack() as stack:
        for number, block in enumerate(blocks):
            stack.enter_context(replaced(block, "forward", calling(number, block.forward)))
        stack.enter_context(torch.no_grad())
        stack.enter_context(contextlib.suppress(_Reached))
        base(made)(input_ids=ids, use_cache=False)
    return calls


def _detached(each: Any) -> Any:
    if isinstance(each, UserDict):
        return type(each)(tree_map(_detached, each.data))
    return each.detach() if isinstance(each, torch.Tensor) else each


def _layer(block: nn.Module, call: Call, linears_of_it: Collection[str]) -> LayerBytes:
    args, kwargs = tree_map(_detached, call)
    inputs = [each for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor)]
    hidden = (args[0] if args else kwargs["hidden_states"]).requires_grad_()
    kept = (*block.parameters(), *block.buffers(), *(each for each in inputs if each is not hidden))
    known = {each.untyped_storage()._cdata for each in kept}
    with _training(block, linears_of_it), _saving(known) as adapted:
        block(*args, **kwargs)
    with _training(block, ()), _saving(known) as frozen:
        block(*args, **kwargs)
    with _WithoutValues(block.parameters()) as live, _dropping_gradients(block):
        live.follow(inputs)
        with _saving(known) as saved:
            output = block(*args, **kwargs)
        output = output[0] if isinstance(output, tuple | list) else output
        gradient = torch.ones_like(output)
        before = live.peak = live.bytes
        torch.autograd.backward(output, gradient)
    return LayerBytes(
        saved=sum(saved.values()),
        adapted=sum(adapted.values()),
        frozen=sum(frozen.values()),
        keeps_input=hidden.untyped_storage()._cdata in saved,
        extra=live.peak - before,
    )


@contextlib.contextmanager
def _saving(known: set[int]) -> Iterator[dict[int, int]]:
    """Yield the bytes of each saved storage that is not ``known``, by its key."""
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            saved[storage._cdata] = storage.nbytes()
        return tensor

    with seeing_saved(pack):
        yield saved


@contextlib.contextmanager
def _training(block: nn.Module, linears: Collection[str]) -> Iterator[None]:
    """Train only the weights of these linears inside the context."""
    frozen = {
        name: each
        for name, each in block.named_parameters()
        if each.requires_grad and name.removesuffix(".weight").rpartition(".")[2] not in linears
    }
    for each in frozen.values():
        each.requires_grad_(False)
    try:
        yield
    finally:  # If this attempt fails, another one uses the same weights.
        for each in frozen.values():
            each.requires_grad_()


@contextlib.contextmanager
def _dropping_gradients(block: nn.Module) -> Iterator[None]:
    def drop(parameter: torch.Tensor) -> None:
        parameter.grad = None

    with contextlib.ExitStack() as stack:
        for each in (each for each in block.parameters() if each.requires_grad):
            hook = each.register_post_accumulate_grad_hook(drop)  # type: ignore[no-untyped-call]  # torch has no types.
            stack.callback(hook.remove)
        yield
