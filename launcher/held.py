"""What a rank holds, counted: elements of its weights and of their shards, tokens, bytes that a block saves.

``memory`` and the backends' overheads read it; neither looks at a family or a strategy again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, lcm, prod

from launcher import adapted, selective
from launcher.blocks import Engine, Family, Saved, Share, Weight
from launcher.dtypes import Dtypes
from launcher.elements import Cut, Elements, cut_of, elements_of
from launcher.rank import RankView, rounded_up
from launcher.spec import AdapterSpec, ModelSpec, RunSpec

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
        made: What the forward pass of one keeps for one micro-batch where all of it is trained, as rows of the family.
        saved: What it keeps in this run.
        working: What its backward pass adds at its fullest.
        closing: What is left at its end.
    """

    name: str
    count: int
    elements: Elements
    made: tuple[Saved, ...]
    saved: tuple[Saved, ...]
    working: tuple[Saved, ...]
    closing: tuple[Saved, ...]


@dataclass(frozen=True, kw_only=True)
class Held:
    """One rank of one pipeline stage, counted.

    Attributes:
        spec: The run.
        view: The rank's shares.
        dtypes: What the precision means for the backend.
        engine: The implementation that runs.
        blocks: The kinds of blocks that it holds.
        around: What is kept after the last block, where the rank has the head.
        embedding: Elements before the blocks.
        head: Elements after the blocks, a tied output projection's copy on another stage included.
        tokens: Tokens of one micro-batch on this rank.
        vocabulary: The padded vocabulary, whole.
    """

    spec: RunSpec
    view: RankView
    dtypes: Dtypes
    engine: Engine
    blocks: tuple[BlockKind, ...]
    around: tuple[Saved, ...]
    embedding: Elements
    head: Elements
    tokens: int
    vocabulary: int

    @cached_property
    def root(self) -> Elements:
        """What stands around the blocks."""
        return self.embedding + self.head

    @cached_property
    def all_blocks(self) -> Elements:
        """All blocks of the rank."""
        return sum((kind.elements.times(kind.count) for kind in self.blocks), Elements())

    @cached_property
    def elements(self) -> Elements:
        """Everything that the rank holds."""
        return self.all_blocks + self.root

    @cached_property
    def largest_block(self) -> Elements:
        """The block with the most elements."""
        return max((kind.elements for kind in self.blocks), key=lambda elements: elements.whole, default=Elements())

    @cached_property
    def layers(self) -> int:
        """Blocks on this rank."""
        return sum(kind.count for kind in self.blocks)

    @cached_property
    def cuda(self) -> bool:
        """Whether the rank is a GPU."""
        return self.spec.hardware.device == "cuda"

    def parameter_bytes(self, elements: int, quantised: int, size: int) -> int:
        """Bytes of so many parameters of ``size`` bytes, some of which are held in 4 bits."""
        if not quantised:
            return size * elements
        bits = NF4_BITS[self.spec.adapter.double_quant]
        return size * (elements - quantised) + ceil(bits * quantised / 8)

    def gathered_bytes(self, elements: Elements) -> int:
        """Bytes of a group of weights before sharding, in the compute format."""
        return self.parameter_bytes(elements.whole, elements.quantised, self.engine.size)

    def bytes_of(self, rows: Iterable[Saved], tokens: int | None = None) -> int:
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


def held(spec: RunSpec, view: RankView, family: Family, dtypes: Dtypes, engine: Engine) -> Held:
    """Count what a rank holds."""
    model, ends = spec.model, (view.embedding, view.head)
    vocabulary = padded(model.vocab_size, engine.vocabulary_multiple)
    counted = _counted(family, model, spec.adapter, vocabulary, view.layers, ends, cut_of(view, engine))
    return Held(
        spec=spec,
        view=view,
        dtypes=dtypes,
        engine=engine,
        blocks=tuple(_kind(spec, family, engine, alike) for alike in counted.blocks),
        around=adapted.around(family.around(model, engine), spec) if view.head else (),
        embedding=counted.embedding,
        head=counted.head,
        tokens=spec.train.micro_batch_size * rounded_up(spec.sequence_length, view.tokens),
        vocabulary=vocabulary,
    )


def _kind(spec: RunSpec, family: Family, engine: Engine, alike: _Alike) -> BlockKind:
    model, layer = spec.model, alike.layer
    made, working, closing = _rows(family, model, layer, engine)
    saved = made
    if spec.adapter.name != "none":
        block = _block(family, model, layer)
        saved = adapted.saved(made, block, spec, engine, first=layer == 0)
        working = adapted.working(working, made, block, spec)
    if spec.checkpointing.mode == "selective":
        saved = (*saved, *selective.products(_block(family, model, layer), spec, engine))
    return BlockKind(
        name=alike.name,
        count=alike.count,
        elements=alike.elements,
        made=made,
        saved=saved,
        working=working,
        closing=closing,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alike:
    """Equal blocks: the family's word, the first of their layers, how many they are and the elements of one."""

    name: str
    layer: int
    count: int
    elements: Elements


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """The elements of one rank."""

    blocks: tuple[_Alike, ...]
    embedding: Elements
    head: Elements


@lru_cache(maxsize=4096)
def _counted(
    family: Family,
    model: ModelSpec,
    adapter: AdapterSpec,
    vocabulary: int,
    layers: tuple[int, ...],
    ends: tuple[bool, bool],
    cut: Cut,
) -> _Counted:
    """Equal blocks together, beside an adapter the model's first block apart; ``ends``: embedding and head."""
    table, head = family.embedding(model, vocabulary), list(family.head(model, vocabulary))
    if not ends[0] and model.tie_word_embeddings:
        # A tied model in stages keeps a second copy of the token table where the loss is (Megatron-core, torch).
        head.append(table[0])
    return _Counted(
        blocks=tuple(
            _Alike(
                name=name,
                layer=layer,
                count=count,
                elements=_block_elements(family, model, adapter, layer, cut),
            )
            for name, layer, count in _kinds(family, model, layers, first_apart=adapter.name != "none")
        ),
        embedding=elements_of(adapted.frozen(table, adapter), cut) if ends[0] else Elements(),
        head=elements_of(adapted.frozen(head, adapter), cut) if ends[1] else Elements(),
    )


def _kinds(
    family: Family, model: ModelSpec, layers: Iterable[int], *, first_apart: bool
) -> tuple[tuple[str, int, int], ...]:
    """Of each kind of block its name, the first of its layers and how many there are."""
    kinds = dict[tuple[str, bool], list[int]]()
    for layer in layers:
        kinds.setdefault((family.kind(model, layer), first_apart and layer == 0), []).append(layer)
    return tuple((name, own[0], len(own)) for (name, _), own in kinds.items())


@lru_cache(maxsize=4096)
def _block_elements(family: Family, model: ModelSpec, adapter: AdapterSpec, layer: int, cut: Cut) -> Elements:
    return elements_of(adapted.weights(_block(family, model, layer), adapter), cut)


@lru_cache(maxsize=256)
def _block(family: Family, model: ModelSpec, layer: int) -> tuple[Weight, ...]:
    return tuple(family.block(model, layer))


@lru_cache(maxsize=256)
def _rows(
    family: Family, model: ModelSpec, layer: int, engine: Engine
) -> tuple[tuple[Saved, ...], tuple[Saved, ...], tuple[Saved, ...]]:
    """What a block makes, what its backward pass adds and what is left at its end."""
    saved, working = family.saved(model, layer, engine), family.working(model, layer, engine)
    return tuple(saved), tuple(working), tuple(family.closing(model, engine))


def padded(vocabulary: int, multiple: int) -> int:
    """The vocabulary, rounded up to a multiple."""
    return -(-vocabulary // multiple) * multiple


def parameter_counts(spec: RunSpec, family: Family) -> tuple[int, int]:
    """Parameters of the model, and those that one token meets: all but the routed experts that it is not sent to.

    An adapter's parameters count among the model's.
    """
    return _parameter_counts(family, spec.model, spec.adapter)


@lru_cache(maxsize=256)
def _parameter_counts(family: Family, model: ModelSpec, adapter: AdapterSpec) -> tuple[int, int]:
    around = [*family.embedding(model, model.vocab_size), *family.head(model, model.vocab_size)]
    total = active = sum(weight.elements for weight in around)
    for _, layer, count in _kinds(family, model, range(model.num_hidden_layers), first_apart=False):
        weights = adapted.weights(_block(family, model, layer), adapter)
        idle = sum(_idle(weight, model.num_experts_per_tok) for weight in weights)
        size = sum(weight.elements for weight in weights)
        total += count * size
        active += count * (size - idle)
    return total, active


def _idle(weight: Weight, choices: int) -> int:
    if weight.split != "expert":
        return 0
    return (weight.copies - min(choices, weight.copies)) * prod(weight.shape)
