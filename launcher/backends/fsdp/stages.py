"""What pipeline stages of ``torch.distributed.pipelining`` hold beside the activations of their layers."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.memory.moments import ALWAYS, Moment
from launcher.memory.terms import MemoryTerm, Pile
from launcher.rank.model import Held
from launcher.rank.tensors import Saved
from launcher.rank.view import rounded_up

IN_PASSES: frozenset[Moment] = ALWAYS - {"load", "clip", "step", "idle", "checkpoint_save"}

_TRACE = "trace of the live tensors of torch.distributed.pipelining, torch 2.15"


def overheads(held: Held, *, ddp: bool) -> Iterator[MemoryTerm]:
    """All of them; ``ddp``: whether DistributedDataParallel wraps the stage."""
    if held.view.stages > 1:
        yield from waiting_losses(held)
        yield from copies(held)
        if ddp:
            yield from outputs(held)


def waiting_losses(held: Held) -> Iterator[MemoryTerm]:
    """GPipe's last stage: the losses of all other micro-batches wait, each with what its backward pass needs.

    ``(m - 1) (around + 4 V s b)``: the input of the output projection and, of the full loss, log-softmax in fp32.
    """
    if not held.view.head or held.spec.parallel.schedule != "gpipe":
        return
    others, loss = held.spec.gradient_accumulation - 1, held.bytes_of(held.around)
    if held.spec.train.loss == "full":
        loss += 4 * held.vocabulary * held.tokens
    yield _term("logits", others * loss, f"losses of {others} micro-batches that wait")


def copies(held: Held) -> Iterator[MemoryTerm]:
    """Autocast's copies of weights that the other micro-batches in flight have saved: ``size P (f - 1)``.

    A micro-batch casts on its own, since autocast must not reach backward, and checkpointed blocks save no copies.
    """
    if not held.engine.autocast or held.spec.checkpointing.mode != "none":
        return
    blocks = held.all_blocks.dense - held.all_blocks.quantised
    others = max(rounded_up(blocks, held.view.in_flight) - blocks, 0)
    yield _term("gather_buffers", held.engine.size * others, "autocast's copies of other micro-batches in flight")


def outputs(held: Held) -> Iterator[MemoryTerm]:
    """What a stage in DDP has sent to the next: kept until backward, whose hooks start from it (``stage.py``)."""
    if held.view.head:
        return
    width = held.engine.residual_size * held.spec.model.hidden_size
    row = Saved(name="output", bytes=width, share="residual", part="input")
    size = rounded_up(held.bytes_of([row]), held.view.in_flight)
    yield _term("activations", size, "outputs of micro-batches in flight")


def _term(pile: Pile, size: int, formula: str) -> MemoryTerm:
    return MemoryTerm(pile=pile, moments=IN_PASSES, bytes=size, formula=formula, source=_TRACE)
