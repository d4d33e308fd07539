"""What pipeline stages of ``torch.distributed.pipelining`` hold beside the activations of their layers."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.memory.moments import ALWAYS, Moment
from launcher.memory.terms import MemoryTerm, Pile
from launcher.rank.model import RankModel
from launcher.rank.tensors import SavedTensor
from launcher.rank.view import rounded_up

IN_PASSES: frozenset[Moment] = ALWAYS - {"load", "clip", "step", "idle", "checkpoint_save"}

_TRACE = "trace of the live tensors of torch.distributed.pipelining, torch 2.15"


def overheads(rank: RankModel, *, ddp: bool) -> Iterator[MemoryTerm]:
    """All of them; ``ddp``: whether DistributedDataParallel wraps the stage."""
    if rank.view.stages > 1:
        yield from waiting_losses(rank)
        yield from copies(rank)
        if ddp:
            yield from outputs(rank)


def waiting_losses(rank: RankModel) -> Iterator[MemoryTerm]:
    """GPipe's last stage: the losses of all other micro-batches wait, each with what its backward pass needs.

    ``(m - 1) (around + 4 V s b)``: the input of the output projection and, of the full loss, log-softmax in fp32.
    """
    if not rank.view.head or rank.spec.parallel.schedule != "gpipe":
        return
    others, loss = rank.spec.gradient_accumulation - 1, rank.bytes_of(rank.after_blocks)
    if rank.spec.train.loss == "full":
        loss += 4 * rank.vocabulary * rank.tokens
    yield _term("logits", others * loss, f"losses of {others} micro-batches that wait")


def copies(rank: RankModel) -> Iterator[MemoryTerm]:
    """Autocast's copies of weights that the other micro-batches in flight have saved: ``size P (f - 1)``.

    A micro-batch casts on its own, since autocast must not reach backward, and checkpointed blocks save no copies.
    """
    if not rank.engine.autocast or rank.spec.checkpointing.mode != "none":
        return
    blocks = rank.all_blocks.dense - rank.all_blocks.quantised
    others = max(rounded_up(blocks, rank.view.in_flight) - blocks, 0)
    yield _term("gather_buffers", rank.engine.size * others, "autocast's copies of other micro-batches in flight")


def outputs(rank: RankModel) -> Iterator[MemoryTerm]:
    """What a stage in DDP has sent to the next: kept until backward, whose hooks start from it (``stage.py``)."""
    if rank.view.head:
        return
    width = rank.engine.residual_size * rank.spec.model.hidden_size
    row = SavedTensor(name="output", bytes=width, share="residual", part="input")
    size = rounded_up(rank.bytes_of([row]), rank.view.in_flight)
    yield _term("activations", size, "outputs of micro-batches in flight")


def _term(pile: Pile, size: int, formula: str) -> MemoryTerm:
    return MemoryTerm(pile=pile, moments=IN_PASSES, bytes=size, formula=formula, source=_TRACE)
