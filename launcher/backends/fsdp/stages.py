"""Memory of pipeline stages of ``torch.distributed.pipelining`` beside the activations of their layers."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.base.formula import Value
from launcher.estimate.memory.moments import PASSES
from launcher.estimate.memory.terms import MemoryTerm, Pile, term
from launcher.estimate.rank.model import RankModel

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

    ``(m - 1) (k + 4 V) tok``: the input of the output projection and, of the full loss, log-softmax in fp32.
    """
    if not rank.view.head or rank.spec.parallel.schedule != "gpipe":
        return
    k, m = rank.token_bytes(rank.after_blocks), rank.spec.gradient_accumulation
    what, entries = "losses of micro-batches that wait", rank.vocabulary if rank.spec.train.loss == "full" else 0
    yield _in_passes("logits", what, "(m - 1) * (k + 4 * V) * tok", m=m, k=k, V=entries, tok=rank.tokens)


def copies(rank: RankModel) -> Iterator[MemoryTerm]:
    """Autocast's copies of weights that the other micro-batches in flight have saved: ``z blocks (f - 1)``.

    A micro-batch casts on its own, since autocast must not reach backward, and checkpointed blocks save no copies.
    """
    if not rank.engine.autocast or rank.spec.checkpointing.mode != "none":
        return
    blocks = rank.all_blocks.dense - rank.all_blocks.quantised
    what, z, f = "autocast's copies of other micro-batches in flight", rank.engine.size, rank.view.in_flight
    yield _in_passes("gather_buffers", what, "z * ceil((f - 1) * blocks)", z=z, f=f, blocks=blocks)


def outputs(rank: RankModel) -> Iterator[MemoryTerm]:
    """Outputs that a stage in DDP has sent on, kept until backward, whose hooks start from them (``stage.py``)."""
    if rank.view.head:
        return
    h = rank.spec.model.hidden_size * rank.view.residual
    z_res, f = rank.engine.residual_size, rank.view.in_flight
    what, tok = "outputs of micro-batches in flight", rank.tokens
    yield _in_passes("activations", what, "f * z_res * h * tok", z_res=z_res, f=f, h=h, tok=tok)


def _in_passes(pile: Pile, what: str, expression: str, **values: Value) -> MemoryTerm:
    return term(pile, PASSES, what, expression, _TRACE, **values)
