"""What a rank holds, counted: elements of its weights and of their shards, tokens, bytes that a block saves.

``memory`` and the backends' overheads read it; neither looks one up, nor a strategy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, lcm

from launcher.rank import adapters, selective
from launcher.rank.counts import EqualBlocks, RankCounts, block_weights, count_rank, kinds_of, padded
from launcher.rank.engine import EngineTraits
from launcher.rank.family import Family
from launcher.rank.formats import Dtypes
from launcher.rank.shards import WeightCounts, shard_rule
from launcher.rank.tensors import SavedTensor, Share
from launcher.rank.view import RankView, rounded_up
from launcher.spec import ModelSpec, RunSpec

NF4_BITS = {False: 4 + Fraction(32, 64), True: 4 + Fraction(8, 64) + Fraction(32, 64 * 256)}
"""Bits of a parameter in 4-bit NormalFloat: an fp32 constant for 64 of them, or with double quantisation 8 bits for 64
and an fp32 constant for 256 of those (QLoRA, arXiv:2305.14314, section 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """Equal blocks of one rank.

    Attributes:
        name: The family's word for them.
        count: How many of them the rank holds.
        elements: Elements of one.
        saved_if_trained: What the forward pass of one keeps for one micro-batch where all of it is trained.
        saved: What it keeps in this run.
        backward_extra: What its backward pass adds at its fullest.
        first_norm_backward: What is left at its end.
    """

    name: str
    count: int
    elements: WeightCounts
    saved_if_trained: tuple[SavedTensor, ...]
    saved: tuple[SavedTensor, ...]
    backward_extra: tuple[SavedTensor, ...]
    first_norm_backward: tuple[SavedTensor, ...]


@dataclass(frozen=True, kw_only=True)
class RankModel:
    """One rank of one pipeline stage, counted.

    Attributes:
        spec: The run.
        view: The rank's shares.
        dtypes: What the precision means for the backend.
        engine: The implementation that runs.
        family: The family of the model.
        blocks: The kinds of blocks that it holds.
        after_blocks: What is kept after the last block, where the rank has the head.
        counts: The elements of all of it.
        tokens: Tokens of one micro-batch on this rank.
        vocabulary: The padded vocabulary, whole.
    """

    spec: RunSpec
    view: RankView
    dtypes: Dtypes
    engine: EngineTraits
    family: Family
    blocks: tuple[BlockKind, ...]
    after_blocks: tuple[SavedTensor, ...]
    counts: RankCounts
    tokens: int
    vocabulary: int

    @property
    def embedding(self) -> WeightCounts:
        """What stands before the blocks."""
        return self.counts.embedding

    @property
    def head(self) -> WeightCounts:
        """What stands after the blocks, a tied output projection's copy on another stage included."""
        return self.counts.head

    @property
    def root(self) -> WeightCounts:
        """What stands around the blocks."""
        return self.counts.root

    @property
    def all_blocks(self) -> WeightCounts:
        """All blocks of the rank."""
        return self.counts.all_blocks

    @property
    def elements(self) -> WeightCounts:
        """Everything that the rank holds."""
        return self.counts.everything

    @property
    def largest_block(self) -> WeightCounts:
        """The block with the most elements."""
        return self.counts.largest_block

    @property
    def layers(self) -> int:
        """Blocks on this rank."""
        return self.counts.layers

    @property
    def cuda(self) -> bool:
        """Whether the rank is a GPU."""
        return self.spec.hardware.device == "cuda"

    def parameter_bytes(self, elements: int, quantised: int, size: int) -> int:
        """Bytes of so many parameters of ``size`` bytes, some of which are held in 4 bits."""
        if not quantised:
            return size * elements
        bits = NF4_BITS[self.spec.adapter.double_quant]
        return size * (elements - quantised) + ceil(bits * quantised / 8)

    def gathered_bytes(self, elements: WeightCounts) -> int:
        """Bytes of a group of weights before sharding, in the compute format."""
        return self.parameter_bytes(elements.whole, elements.quantised, self.engine.size)

    def bytes_of(self, rows: Iterable[SavedTensor], tokens: int | None = None) -> int:
        """Bytes of saved rows for one micro-batch, or for so many tokens."""
        view = self.view
        choices = self.spec.model.num_experts_per_tok
        weights, denominator = _shares(view.residual, view.tensor, view.expert_tensor, choices)
        count = self.tokens if tokens is None else tokens
        total = 0
        for row in rows:
            total += row.bytes * weights[row.share]
        return -(-count * total // denominator)


@lru_cache(maxsize=1024)
def _shares(
    residual: Fraction, tensor: Fraction, expert_tensor: Fraction, choices: int
) -> tuple[dict[Share, int], int]:
    """A rank's shares of rows as whole numbers over a common denominator, so that sums of bytes are exact.

    A token goes to so many ``choices`` of experts, spread evenly.
    """
    shares: dict[Share, Fraction] = {
        "token": Fraction(1),
        "residual": residual,
        "tensor": tensor,
        "routed": choices * tensor / expert_tensor,
        "routed_tensor": choices * tensor,
    }
    denominator = lcm(*(share.denominator for share in shares.values()))
    return {name: int(share * denominator) for name, share in shares.items()}, denominator


def rank_model(spec: RunSpec, view: RankView, family: Family, dtypes: Dtypes, engine: EngineTraits) -> RankModel:
    """Count what a rank holds."""
    model, ends = spec.model, (view.embedding, view.head)
    vocabulary = padded(model.vocab_size, engine.vocabulary_multiple)
    kinds = kinds_of(family, model, view.layers, first_apart=spec.adapter.name != "none")
    counts = count_rank(family, model, spec.adapter, vocabulary, kinds, ends, shard_rule(view, engine))
    return RankModel(
        spec=spec,
        view=view,
        dtypes=dtypes,
        engine=engine,
        family=family,
        blocks=tuple(_kind(spec, family, engine, alike) for alike in counts.blocks),
        after_blocks=adapters.after_blocks(family.after_blocks(model, engine), spec) if view.head else (),
        counts=counts,
        tokens=spec.train.micro_batch_size * rounded_up(spec.sequence_length, view.tokens),
        vocabulary=vocabulary,
    )


def _kind(spec: RunSpec, family: Family, engine: EngineTraits, alike: EqualBlocks) -> BlockKind:
    model, layer = spec.model, alike.layer
    saved_if_trained, backward_extra, first_norm_backward = _rows(family, model, layer, engine)
    saved = saved_if_trained
    if spec.adapter.name != "none":
        block = block_weights(family, model, layer)
        saved = adapters.saved(saved_if_trained, block, spec, engine, family.traits, first=layer == 0)
        backward_extra = adapters.backward_extra(backward_extra, saved_if_trained, block, spec)
    if spec.checkpointing.mode == "selective":
        saved = (*saved, *selective.products(block_weights(family, model, layer), spec, engine))
    return BlockKind(
        name=alike.name,
        count=alike.count,
        elements=alike.elements,
        saved_if_trained=saved_if_trained,
        saved=saved,
        backward_extra=backward_extra,
        first_norm_backward=first_norm_backward,
    )


@lru_cache(maxsize=1024)
def _rows(
    family: Family, model: ModelSpec, layer: int, engine: EngineTraits
) -> tuple[tuple[SavedTensor, ...], tuple[SavedTensor, ...], tuple[SavedTensor, ...]]:
    """What a block makes, what its backward pass adds and what is left at its end."""
    saved, backward_extra = family.saved(model, layer, engine), family.backward_extra(model, layer, engine)
    return tuple(saved), tuple(backward_extra), tuple(family.first_norm_backward(model, engine))
