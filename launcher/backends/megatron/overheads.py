"""Buffers and temporaries of Megatron-core with Transformer Engine: what one step adds.

What stays from one step to the next is in ``permanent``, and what Megatron-FSDP's shards bring in ``sharded``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil

from launcher.backends.megatron import permanent, sharded
from launcher.backends.megatron.implementation import Implementation, implementation, reads_gradients_as_they_are
from launcher.estimate.memory import states
from launcher.estimate.memory.moments import BEFORE_BLOCKS_BACKWARD, BETWEEN_PASSES, FORWARD, LOAD, Moments
from launcher.estimate.memory.states import STATES_MADE
from launcher.estimate.memory.terms import MemoryTerm, term
from launcher.estimate.rank.model import RankModel

_BLOCK: Moments = frozenset(("forward", "block_backward", "next_block_backward", "second_layer_backward"))
"""A block runs, forward or backward, and its input is whole."""

UNTIL_NEXT_BLOCK: Moments = BEFORE_BLOCKS_BACKWARD | {"block_backward", "next_block_backward"}
"""From forward to the backward pass of the first blocks."""


def overheads(rank: RankModel) -> Iterable[MemoryTerm]:
    """Everything that Megatron adds."""
    how = implementation(rank.spec)
    yield from permanent.workspaces(rank, how)
    yield from permanent.global_buffer(rank, how)
    yield from permanent.unused_gradients(rank, how)
    yield from permanent.last_inputs(rank)
    yield from gathered_sequence(rank, how)
    yield from attention_mask(rank, how)
    yield from embedding_dropout(rank)
    yield from deferred_gradients(rank, how)
    yield from cast_gradients(rank)
    yield from restoring(rank)
    yield from sharded.overheads(rank)


def gathered_sequence(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """Sequence parallelism gathers the whole sequence before a linear, and again for its weight's gradient: ``size h``.

    arXiv:2205.05198, section 4.2.2: the gathered input is not saved. Megatron-core's own linears gather into the
    permanent buffer.
    """
    if rank.spec.parallel.sequence and rank.spec.parallel.tensor > 1 and how.transformer_engine:
        source = "arXiv:2205.05198, section 4.2.2"
        z, h, tok = rank.engine.size, rank.spec.model.hidden_size, rank.tokens
        yield term("gather_buffers", _BLOCK, "gathered input of a linear", "z * h * tok", source, z=z, h=h, tok=tok)


def attention_mask(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """The mask of a micro-batch, a byte for each pair of positions, ``b s^2``, and the part of a context-parallel rank.

    ``create_attention_mask_in_dataloader`` of Megatron-core's GPT data set; only the first and the last stage get it.
    """
    if (rank.view.embedding or rank.view.head) and how.attention_mask:
        b, s, c = rank.spec.micro_batch_size, rank.spec.sequence_length, rank.spec.parallel.context
        what, source = "attention mask of positions", "Megatron-core datasets/gpt_dataset.py"
        if c > 1:
            yield term("temporary", FORWARD, what, "b * s * s + b * s * s // c", source, b=b, s=s, c=c)
        else:
            yield term("temporary", FORWARD, what, "b * s * s", source, b=b, s=s)


def embedding_dropout(rank: RankModel) -> Iterator[MemoryTerm]:
    """The mask of the dropout after the embedding, a byte an element, of every micro-batch in flight."""
    if rank.view.embedding and rank.spec.model.dropout:
        what, source = "mask of the embedding's dropout", "arXiv:2205.05198, section 4.3"
        h = rank.spec.model.hidden_size * rank.view.residual
        yield term(
            "activations", UNTIL_NEXT_BLOCK, what, "f * h * tok", source, f=rank.view.in_flight, h=h, tok=rank.tokens
        )


def deferred_gradients(rank: RankModel, how: Implementation) -> Iterator[MemoryTerm]:
    """Input and output gradient of the output projection, of micro-batches whose weight gradient is computed later."""
    if rank.view.head and how.deferred:
        what, source = "gradients of logits, inputs of the projection", "Megatron-core tensor_parallel/layers.py"
        entries, h = ceil(rank.vocabulary * rank.view.tensor), rank.spec.model.hidden_size * rank.view.residual
        z, n, tok = rank.engine.size, how.deferred, rank.tokens
        yield term("logits", UNTIL_NEXT_BLOCK, what, "n * z * (V + h) * tok", source, n=n, z=z, V=entries, h=h, tok=tok)


def cast_gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Gradients narrower than fp32 are cast for the step: ``4 B x P / d``, kept until the next step begins.

    Megatron-core ``optimizer/optimizer.py`` and ``distrib_optimizer.py``, ``_copy_model_grads_to_main_grads``. The
    precision-aware optimizer reads them as they are.
    """
    if reads_gradients_as_they_are(rank.spec):
        return
    if rank.dtypes.size("accumulate") < 4 and rank.dtypes.master is not None:
        what, source, shard = (
            "fp32 gradients of this rank",
            "Megatron-core distrib_optimizer.py",
            rank.elements.optimizer,
        )
        yield term("temporary", BETWEEN_PASSES, what, "4 * shard", source, shard=shard)


def restoring(rank: RankModel) -> Iterator[MemoryTerm]:
    """While a checkpoint is loaded: optimizer states, made first (``is_loading`` of ``sharded_state_dict``).

    The distributed optimizer reads its fp32 weights and states on the host and copies them, so on the CPU these stand
    beside what stays, and so do the parameters read. Of two runs on the CPU this is 10% and 12% short: what joins parts
    of a tensor that the file has apart is left out.
    """
    if rank.spec.save.load is None or rank.spec.zero.offload_optimizer != "none":
        return
    for each in states.optimizer_states(rank):
        yield each._replace(moments=LOAD).at(STATES_MADE)
        if rank.spec.zero.stage == 1 and not rank.cuda:
            yield each._replace(pile="temporary", moments=LOAD, what="states of the file").at(STATES_MADE)
    if rank.spec.zero.stage == 1 and not rank.cuda:
        what, source, z_par = (
            "weights of the file",
            "Megatron-core distrib_optimizer.py",
            rank.dtypes.size("parameters"),
        )
        expression, w = "(4 + z_par) * trained", rank.elements.trained
        yield term("temporary", LOAD, what, expression, source, z_par=z_par, trained=w).at(STATES_MADE)
