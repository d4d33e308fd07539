"""Values of a Megatron model: fresh ones, a Hugging Face folder's, and the way back to one.

Every value goes through the pieces of ``launcher.worker.megatron.layout``: fresh ones are drawn by the tensor's name
and the element's place in it, so that all engines and layouts start alike. On export each whole tensor has one owner,
to which the ranks send the pieces in one order known to all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from launcher.backends._models import computed
from launcher.worker.engine import Context
from launcher.worker.megatron.layout import Key, pieces
from launcher.worker.model import export, initial, network, weights


@torch.no_grad()
def fill(chunks: list[nn.Module], context: Context) -> None:
    """Give every parameter the value with which the other engines start; without one Megatron's own stays."""
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
    """The whole tensors that this rank owns, on the CPU; all ranks go through all pieces in one order."""
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
