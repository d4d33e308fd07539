"""What Megatron-FSDP (``zero.stage`` 2 and 3) holds beside its shards: gathered parameters, gradients not yet reduced.

The files named are those of ``core/distributed/fsdp/src/megatron_fsdp`` of megatron-core 0.19.2. Of the bf16 run of
Megatron-LM's functional tests that uses it, static bytes come out 0.8% above and the peak 1.4% below what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.backends.megatron.implementation import fsdp
from launcher.backends.megatron.term import term
from launcher.memory.moments import ALWAYS, Moment
from launcher.memory.terms import MemoryTerm
from launcher.rank.model import RankModel
from launcher.units import count

UNIT = 10**9
"""Elements that are communicated at a time, at least (``megatron_fsdp.py``, ``suggested_communication_unit_size``)."""

_LATE: frozenset[Moment] = frozenset(("second_layer_backward", "first_layer_backward", "root_backward"))


def overheads(rank: RankModel) -> Iterator[MemoryTerm]:
    """All of it, where several ranks hold shards."""
    if not fsdp(rank.spec) or rank.spec.shard_degree == 1:
        return
    yield from waiting_gradients(rank)
    if rank.spec.zero.stage == 3:
        yield from whole_model(rank)
        yield from gathered_root(rank)
        yield from gathered_blocks(rank)


def waiting_gradients(rank: RankModel) -> Iterator[MemoryTerm]:
    """Whole gradients in the buffer's format until reductions are waited for: ``size min(P, max(1e9, 2 b) + 2 b)``.

    A block is waited for once more than ``max(1e9, 2 b)`` elements are queued, while the next is queued and the one
    after it filled; at stage 2, where buckets take the place of blocks, beyond 1e9. All are at the end of a backward
    pass (``param_and_grad_buffer.py``, ``GradReducePipeline``). The parameters' own gradient, one weight's at a time,
    is left out.
    """
    size, block = rank.dtypes.size("accumulate"), rank.largest_block.trained
    queued = max(UNIT, 2 * block) if rank.spec.zero.stage == 3 else UNIT
    most = min(rank.elements.trained, queued + 2 * block)
    output = rank.root.trained if rank.spec.model.tie_word_embeddings else rank.head.trained

    def waiting(moments: frozenset[Moment], elements: int) -> MemoryTerm:
        elements = min(elements, most)
        text = f"{size} B x {count(elements)} gradients that wait for their reduction"
        return term("reduce_buffers", moments, size * elements, text, "Megatron-FSDP param_and_grad_buffer.py")

    yield waiting(frozenset(("block_backward",)), output + block)
    yield waiting(frozenset(("next_block_backward",)), output + 2 * block)
    yield waiting(_LATE, most)


def whole_model(rank: RankModel) -> Iterator[MemoryTerm]:
    """Every rank builds the whole model before shards are cut from it: ``size P``, less what is made after it.

    ``--init-model-with-meta-device`` builds it block by block (``_init_each_parameter_group_buffers``).
    """
    if rank.spec.backend.argument("init-model-with-meta-device"):
        return
    elements, size = rank.elements, rank.dtypes.size
    later = size("parameters") * elements.parameters + size("master") * elements.optimizer
    later += size("accumulate") * elements.gradients
    text = f"{size('parameters')} B x {count(elements.whole)} before they are cut, less what is made after"
    moment: frozenset[Moment] = frozenset(("load",))
    whole = size("parameters") * elements.whole - later
    yield term("temporary", moment, whole, text, "Megatron-FSDP param_and_grad_buffer.py")


def gathered_root(rank: RankModel) -> Iterator[MemoryTerm]:
    """What stands around the blocks stays gathered once it has been: ``size (V h + V h + h)``.

    ``AllGatherPipeline.reset`` keeps buckets outside of FSDP units, which are the layers alone
    (``mcore_fsdp_adapter.py``).
    """
    elements = rank.root.whole
    text = f"{rank.engine.size} B x {count(elements)} outside the blocks, gathered"
    yield term("gather_buffers", ALWAYS - {"load"}, rank.engine.size * elements, text, "Megatron-FSDP megatron_fsdp.py")


def gathered_blocks(rank: RankModel) -> Iterator[MemoryTerm]:
    """The current block and those gathered ahead, as many as ``max(1e9, 2 b) / 2`` elements take: ``size (1 + k) b``.

    Forward frees a block at its end, and gathers none after the last; backward goes the other way
    (``AllGatherPipeline.all_gather_params``).
    """
    block, layers = rank.largest_block.whole, rank.layers
    if not layers:
        return
    ahead = -(-max(UNIT // 2, block) // block)

    def gathered(moments: frozenset[Moment], blocks: int) -> MemoryTerm:
        text = f"{rank.engine.size} B x {blocks} gathered blocks of {count(block)}"
        size = rank.engine.size * blocks * block
        return term("gather_buffers", moments, size, text, "Megatron-FSDP param_and_grad_buffer.py")

    yield gathered(frozenset(("forward", "first_layer_backward")), 1)
    yield gathered(frozenset(("block_backward",)), min(1 + ahead, layers))
    yield gathered(frozenset(("next_block_backward",)), min(1 + ahead, max(layers - 1, 1)))
    yield gathered(frozenset(("second_layer_backward",)), min(2, layers))
