"""Attention that stores its scores, while it computes them: the fullest instant of a block where sequences are long."""

from collections.abc import Iterator
from dataclasses import replace

from launcher.estimate.memory.activations import block_input, content, running_blocks
from launcher.estimate.memory.moments import Moments
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import BlockKind, RankModel
from launcher.estimate.rank.tensors import SavedTensor

_TRACE = "traces of eager attention; aten/src/ATen/native/SoftMax.cpp"
_INSTANT = "scores"


def scores(rank: RankModel) -> Iterator[MemoryTerm]:
    """Both passes, each as an instant beside that of the MLP."""
    if not rank.blocks or rank.engine.library != "transformers" or _row(rank.last_block) is None:
        return
    yield from _forward(rank, rank.last_block)
    for moments, kind in running_blocks(rank):
        yield from _backward(rank, kind, moments)


def _forward(rank: RankModel, kind: BlockKind) -> Iterator[MemoryTerm]:
    """While the last block has computed its softmax.

    Without recomputation what it saves is counted whole, of which the scores and what follows them are yet to come.
    """
    row = _row(kind)
    assert row is not None
    before, after = _around(kind, row)
    after = [item for item in after if item.module not in kind.recomputed]
    after += [item for item in kind.kept if item.part == "input" and item.module in ("mlp", "experts")]
    made, what = replace(row, bytes=row.made), "attention's scores and their softmax"
    if not kind.repeats("attention"):
        values = {"k": rank.token_bytes([made]), "k_there": rank.token_bytes([row, *after]), "tok": rank.tokens}
        yield term("temporary", ("forward",), what, "max(k - k_there, 0) * tok", _TRACE, **values).at(_INSTANT)
    else:
        k = rank.token_bytes([made, *_passing(before), block_input(rank)])
        there = rank.token_bytes(after) if kind.kept else 0
        expression, values = ("max(k - k_there, 0) * tok", {"k_there": there}) if there else ("k * tok", {})
        yield term("temporary", ("forward",), what, expression, _TRACE, k=k, tok=rank.tokens, **values).at(_INSTANT)


def _backward(rank: RankModel, kind: BlockKind, moments: Moments) -> Iterator[MemoryTerm]:
    """While the gradient passes through the softmax: what the block saved before it, and the residual stream's."""
    row = _row(kind)
    if row is None:
        return
    before, _ = _around(kind, row)
    yield content(rank, kind, moments, saved=before).at(_INSTANT)
    again = row.made if kind.repeats("attention") else 0
    k = rank.token_bytes([replace(row, bytes=max(row.undone, again)), block_input(rank)])
    what = "attention's softmax and its gradients"
    yield term("temporary", moments, what, "k * tok", _TRACE, k=k, tok=rank.tokens).at(_INSTANT)


def _row(kind: BlockKind) -> SavedTensor | None:
    """The row of scores; None where attention stores none, or nobody has looked at how they are made."""
    return next((row for row in kind.saved_if_trained if row.made and row.part != "moe"), None)


def _around(kind: BlockKind, row: SavedTensor) -> tuple[list[SavedTensor], list[SavedTensor]]:
    """Tensors that the block saves before its scores, and after them, in the order of its forward pass."""
    rows = [item for item in kind.saved_if_trained if item.part != "cache"]
    place = rows.index(row)
    return rows[:place], rows[place + 1 :]


def _passing(before: list[SavedTensor]) -> list[SavedTensor]:
    """Tensors that a block that saves nothing still names: the norm's output, queries, keys and values."""
    return [row for row in before if row.part == "attention"]
