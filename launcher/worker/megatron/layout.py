"""Mapping between a Megatron model and a Hugging Face model, to initialize, load and export weights.

Megatron-core keeps query, key and value of a group in one matrix, gate and up projection in another, pads the
vocabulary, and shards matrices over tensor parallel ranks. Initial values depend on a tensor's name and the element's
position in it, so that all engines and layouts start alike. On export each whole tensor has one owner, to which the
ranks send their pieces in an order that all ranks know.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import nn

from launcher.backends._models import computed
from launcher.base.frozen import dataclass
from launcher.estimate import families
from launcher.spec import ModelSpec
from launcher.worker.engine import Context
from launcher.worker.model import export, initial, network, weights

type Region = tuple[slice, ...]
type Key = tuple[str, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Piece:
    """A region of a tensor in the Hugging Face model, and this rank's elements that hold it."""

    name: str  # The tensor's name in ``transformers``.
    region: Region  # One slice for each dimension.
    view: torch.Tensor  # Elements of a Megatron parameter in the region's order, possibly of another shape.

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the region."""
        return tuple(part.stop - part.start for part in self.region)

    @property
    def key(self) -> Key:
        """The tensor's name, and start and stop of each slice: the same on every rank that holds the region."""
        return self.name, tuple((part.start, part.stop) for part in self.region)

    def write(self, values: torch.Tensor) -> None:
        """Copy the region's values into the parameter."""
        self.view.copy_(values.reshape(self.view.shape))

    def read(self) -> torch.Tensor:
        """Return the region's values from the parameter."""
        return self.view.detach().reshape(self.shape)


_FURTHER = "mtp."
"""Layers of multi-token prediction, which no transformers class has: they keep Megatron-core's initial values."""

_FUSED_NORMS = {"self_attention.linear_qkv": "input_layernorm", "mlp.linear_fc1": "pre_mlp_layernorm"}


@dataclass(frozen=True, slots=True)
class _TensorSplit:
    """This rank's part of a dimension that is split into ``parts`` equal parts."""

    part: int
    parts: int

    def of(self, size: int) -> slice:
        share = size // self.parts
        return slice(self.part * share, (self.part + 1) * share)


def pieces(chunks: list[nn.Module], model: ModelSpec) -> Iterator[Piece]:
    """This rank's pieces of the Hugging Face model, over all its pipeline chunks."""
    layout = _Layout(model)
    for chunk in chunks:
        decoder: Any = chunk.decoder
        for name, parameter in chunk.named_parameters():
            if name.startswith(_FURTHER):
                continue
            match = re.match(r"decoder\.layers\.(\d+)\.(.*)", name)
            if match is None:
                yield from layout.of_chunk(name, parameter)
            else:  # By the index in the whole model, not in the stage.
                yield from layout.of_block(decoder.layers[int(match[1])].layer_number - 1, match[2], parameter)


class _Layout:
    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self._tensor = _TensorSplit(
            parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()
        )
        self._expert_tensor = _TensorSplit(
            parallel_state.get_expert_tensor_parallel_rank(), parallel_state.get_expert_tensor_parallel_world_size()
        )
        self._first_expert = 0
        if model.num_experts:
            ranks = parallel_state.get_expert_model_parallel_world_size()
            self._first_expert = parallel_state.get_expert_model_parallel_rank() * (model.num_experts // ranks)
        traits = families.of(model).traits
        assert traits.names is not None, f"check has let the family {model.family} through, which names no tensors"
        self._names, self._transposed = traits.names, traits.transposed

    def of_block(self, number: int, inner: str, parameter: torch.Tensor) -> Iterator[Piece]:
        """The pieces of a parameter of a block, counted from 0."""
        block = self._names.block.format(number)
        expert = re.search(r"mlp\.experts\.(?:local_experts\.(\d+)\.)?(linear_fc[12])\.weight(\d*)$", inner)
        if expert is not None:
            yield from self._expert(block, expert[2], self._first_expert + int(expert[1] or expert[3]), parameter)
        elif "linear_qkv." in inner and "layer_norm" not in inner:
            yield from self._attention_input(block, inner.rpartition(".")[2], parameter)
        elif "linear_fc1." in inner and "layer_norm" not in inner:
            yield from self._mlp_input(block, inner.rpartition(".")[2], parameter)
        else:
            yield from self._plain(block, inner, parameter)

    def of_chunk(self, name: str, parameter: torch.Tensor) -> Iterator[Piece]:
        """The pieces of embeddings and output head, by rows of the vocabulary, or of the last norm."""
        names = self._names
        if "final_layernorm" in name or "final_norm" in name:
            yield _whole(f"{names.norm}.{name.rpartition('.')[2]}", parameter)
        elif "position_embeddings" in name:
            yield _whole(names.positions, parameter)
        else:
            tied = self._model.tie_word_embeddings
            source = names.embedding if tied or name.startswith("embedding") else names.head
            yield self._vocabulary(source, parameter)

    def _vocabulary(self, name: str, parameter: torch.Tensor) -> Piece:
        """The rows of real tokens; rows that only pad the vocabulary have no counterpart and become zero."""
        first = self._tensor.part * parameter.shape[0]
        real = min(max(self._model.vocab_size - first, 0), parameter.shape[0])
        if real < parameter.shape[0]:
            parameter.data[real:].zero_()
        return Piece(name, (slice(first, first + real), slice(0, parameter.shape[1])), parameter.data[:real])

    def _attention_input(self, block: str, kind: str, parameter: torch.Tensor) -> Iterator[Piece]:
        """Pieces of query, key and value; Megatron stores them by group, each with its query heads first."""
        model, inputs = self._model, self._names.attention_inputs
        if model.key_value_heads % self._tensor.parts:
            yield from self._part_of_a_group(block, kind, parameter)
            return
        groups = self._tensor.of(model.key_value_heads)
        heads, size = model.num_attention_heads // model.key_value_heads, model.head_size
        view = parameter.data.view(groups.stop - groups.start, heads + 2, size, *parameter.shape[1:])
        offset, first = 0, 0
        for number, count in enumerate((heads, 1, 1)):
            rows = slice(offset + groups.start * count * size, offset + groups.stop * count * size)
            name = f"{block}.{inputs[number % len(inputs)]}"
            yield self._projection(name, rows, view[:, first : first + count], kind)
            first += count
            if len(inputs) == 1:  # One matrix holds all three.
                offset += model.key_value_heads * count * size

    def _part_of_a_group(self, block: str, kind: str, parameter: torch.Tensor) -> Iterator[Piece]:
        """Pieces if ranks outnumber groups: rows of a group are split evenly, across heads; attention gathers them."""
        size, count = self._model.head_size, parameter.shape[0]
        heads = self._model.num_attention_heads // self._model.key_value_heads
        group, first = divmod(self._tensor.part * count, (heads + 2) * size)
        places = ((0, heads * size), (heads * size, size), ((heads + 1) * size, size))
        for name, (start, length) in zip(self._names.attention_inputs, places, strict=True):
            low, high = max(start, first), min(start + length, first + count)
            if low < high:
                begin = group * length + low - start
                view = parameter.data[low - first : high - first]
                yield self._projection(f"{block}.{name}", slice(begin, begin + high - low), view, kind)

    def _projection(self, name: str, rows: slice, view: torch.Tensor, kind: str) -> Piece:
        """A piece with output features of a matrix or bias: rows, or in GPT-2 (``Conv1D``) columns."""
        if kind == "bias":
            return Piece(f"{name}.bias", (rows,), view)
        inputs = slice(0, view.shape[-1])
        if self._transposed:
            return Piece(f"{name}.weight", (inputs, rows), view.movedim(-1, 0))
        return Piece(f"{name}.weight", (rows, inputs), view)

    def _mlp_input(self, block: str, kind: str, parameter: torch.Tensor) -> Iterator[Piece]:
        """Pieces of the MLP's first matrix: on each rank gate rows above up rows; GPT-2 has no gate."""
        data, names = parameter.data, self._names.mlp_inputs
        share = data.shape[0] // len(names)
        rows = self._tensor.of(share * self._tensor.parts)
        for name, view in zip(names, torch.split(data, share), strict=True):
            yield self._projection(f"{block}.{name}", rows, view, kind)

    def _expert(self, block: str, matrix: str, number: int, parameter: torch.Tensor) -> Iterator[Piece]:
        """Pieces of one expert; ``transformers`` stacks all experts, gate above up."""
        data, cut, one = parameter.data, self._expert_tensor, slice(number, number + 1)
        if matrix == "linear_fc2":
            columns = cut.of(data.shape[1] * cut.parts)
            yield Piece(f"{block}.mlp.experts.down_proj", (one, slice(0, data.shape[0]), columns), data)
            return
        half = data.shape[0] // 2
        rows = cut.of(half * cut.parts)
        for view, offset in zip(torch.split(data, half), (0, half * cut.parts), strict=True):
            region = (one, slice(rows.start + offset, rows.stop + offset), slice(0, data.shape[1]))
            yield Piece(f"{block}.mlp.experts.gate_up_proj", region, view)

    def _plain(self, block: str, inner: str, parameter: torch.Tensor) -> Iterator[Piece]:
        owner, _, kind = inner.rpartition(".")
        if kind.startswith("layer_norm_"):  # Transformer Engine stores a norm with the matrix after it.
            owner, kind = _FUSED_NORMS[owner], kind.removeprefix("layer_norm_")
        name = f"{block}.{self._names.modules[owner]}.{kind}"
        if owner not in ("self_attention.linear_proj", "mlp.linear_fc2") or kind != "weight":
            yield _whole(name, parameter)
            return
        data, columns = parameter.data, self._tensor.of(parameter.shape[1] * self._tensor.parts)
        if self._transposed:
            yield Piece(name, (columns, slice(0, data.shape[0])), data.t())
        else:
            yield Piece(name, (slice(0, data.shape[0]), columns), data)


def _whole(name: str, parameter: torch.Tensor) -> Piece:
    return Piece(name, tuple(slice(0, size) for size in parameter.shape), parameter.data)


@torch.no_grad()
def fill(chunks: list[nn.Module], context: Context) -> None:
    """Give every parameter the initial value of the other engines; Megatron's own stays if they have none."""
    spec = context.spec
    if spec.model.weights is None and not computed(spec):
        return
    made = network.network(spec.model, torch.float32)
    folder = weights.Folder(Path(spec.model.weights), made) if spec.model.weights is not None else None
    drawn = {name: (tuple(parameter.shape), draw) for name, parameter, draw in initial.draws(made)}
    for piece in pieces(chunks, spec.model):
        shape, draw = drawn[piece.name]
        if folder is not None:
            piece.write(folder.read(piece.name, shape, piece.region))
            continue
        values = torch.empty(piece.shape, device=piece.view.device)
        offset = tuple(part.start for part in piece.region)
        initial.draw_into(initial.Local(values, shape, offset), piece.name, spec.train.seed, draw)
        piece.write(values)


@torch.no_grad()
def write(chunks: list[nn.Module], context: Context, directory: Path) -> None:
    """Write safetensors that ``transformers`` loads; called by all ranks together."""
    made = network.network(context.spec.model, next(chunks[0].parameters()).dtype)
    wanted = dict(made.named_parameters())
    count = min(context.world, len(wanted))
    owners = export.shares({name: value.numel() for name, value in wanted.items()}, count)
    total = sum(value.numel() * value.element_size() for value in wanted.values())
    export.finish(made, _joined(chunks, context, wanted, owners), owners, total, context.rank, directory)


def _joined(
    chunks: list[nn.Module], context: Context, wanted: dict[str, torch.Tensor], owners: dict[str, int]
) -> dict[str, torch.Tensor]:
    """The whole tensors that this rank owns, on the CPU; all ranks go through all pieces in the same order."""
    rank, mine = context.rank, {piece.key: piece for piece in pieces(chunks, context.spec.model)}
    held: list[list[Key]] = [[] for _ in range(context.world)]
    dist.all_gather_object(held, list(mine))
    senders = {key: sender for sender in reversed(range(context.world)) for key in held[sender]}
    group: Any = dist.new_group(backend="gloo")
    joined = {name: torch.empty_like(wanted[name], device="cpu") for name in wanted if owners[name] == rank}
    for key, sender in sorted(senders.items()):
        name, bounds = key
        owner = owners[name]
        if owner == rank:
            target = joined[name][tuple(slice(*pair) for pair in bounds)]
            target.copy_(mine[key].read() if sender == rank else _received(target, sender, group))
        elif sender == rank:
            dist.send(mine[key].read().to("cpu").contiguous(), owner, group=group)
    return joined


def _received(like: torch.Tensor, sender: int, group: Any) -> torch.Tensor:
    values = torch.empty(like.shape, dtype=like.dtype)
    dist.recv(values, sender, group=group)
    return values
