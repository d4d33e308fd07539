"""What a rank holds, counted: elements of its weights and of their shards, tokens, bytes that a block saves.

``memory`` and the backends' overheads read it; neither looks at a family or a strategy again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod

from launcher import adapted
from launcher.blocks import Engine, Family, Saved, Weight
from launcher.dtypes import Dtypes
from launcher.elements import Elements, elements_of
from launcher.rank import RankView
from launcher.spec import RunSpec

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


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def root(self) -> Elements:
        """What stands around the blocks."""
        return self.embedding + self.head

    @property
    def all_blocks(self) -> Elements:
        """All blocks of the rank."""
        return sum((kind.elements.times(kind.count) for kind in self.blocks), Elements())

    @property
    def elements(self) -> Elements:
        """Everything that the rank holds."""
        return self.all_blocks + self.root

    @property
    def largest_block(self) -> Elements:
        """The block with the most elements."""
        return max((kind.elements for kind in self.blocks), key=lambda elements: elements.whole, default=Elements())

    @property
    def layers(self) -> int:
        """Blocks on this rank."""
        return sum(kind.count for kind in self.blocks)

    @property
    def cuda(self) -> bool:
        """Whether the rank is a GPU."""
        return self.spec.hardware.device == "cuda"

    def parameter_bytes(self, elements: int, quantised: int, size: int) -> int:
        """Bytes of so many parameters of ``size`` bytes, some of which are held in 4 bits."""
        bits = NF4_BITS[self.spec.adapter.double_quant]
        return size * (elements - quantised) + ceil(bits * quantised / 8)

    def gathered_bytes(self, elements: Elements) -> int:
        """Bytes of a group of weights before sharding, in the compute format."""
        return self.parameter_bytes(elements.whole, elements.quantised, self.engine.size)

    def bytes_of(self, rows: Iterable[Saved], tokens: int | None = None) -> int:
        """Bytes of saved rows for one micro-batch, or for so many tokens."""
        count = self.tokens if tokens is None else tokens
        return ceil(sum(row.bytes * count * self._share(row) for row in rows))

    def _share(self, row: Saved) -> Fraction:
        """A row's share on this rank; a token goes to ``num_experts_per_tok`` experts, spread evenly."""
        view, choices = self.view, self.spec.model.num_experts_per_tok
        shares = {
            "token": Fraction(1),
            "residual": view.residual,
            "tensor": view.tensor,
            "routed": choices * view.tensor / view.expert_tensor,
            "routed_tensor": choices * view.tensor,
        }
        return shares[row.share]


def held(spec: RunSpec, view: RankView, family: Family, dtypes: Dtypes, engine: Engine) -> Held:
    """Count what a rank holds."""
    model = spec.model
    vocabulary = padded(model.vocab_size, engine.vocabulary_multiple)
    head = list(family.head(model, vocabulary)) if view.head else []
    if view.head and not view.embedding and model.tie_word_embeddings:
        # A tied model in stages keeps a second copy of the token table where the loss is (Megatron-core, torch).
        head.append(family.embedding(model, vocabulary)[0])
    before = family.embedding(model, vocabulary) if view.embedding else ()
    return Held(
        spec=spec,
        view=view,
        dtypes=dtypes,
        engine=engine,
        blocks=tuple(_kinds(spec, view, family, engine)),
        around=adapted.around(family.around(model, engine), spec) if view.head else (),
        embedding=elements_of(adapted.frozen(before, spec), view, engine),
        head=elements_of(adapted.frozen(head, spec), view, engine),
        tokens=spec.train.micro_batch_size * ceil(spec.sequence_length * view.tokens),
        vocabulary=vocabulary,
    )


def _kinds(spec: RunSpec, view: RankView, family: Family, engine: Engine) -> Iterator[BlockKind]:
    """Equal blocks together; beside an adapter the model's first block saves less than its like."""
    model, kinds = spec.model, dict[tuple[str, bool], list[int]]()
    for layer in view.layers:
        first = spec.adapter.name != "none" and layer == 0
        kinds.setdefault((family.kind(model, layer), first), []).append(layer)
    for (name, first), layers in kinds.items():
        block, made = family.block(model, layers[0]), tuple(family.saved(model, layers[0], engine))
        yield BlockKind(
            name=name,
            count=len(layers),
            elements=elements_of(adapted.weights(block, spec), view, engine),
            made=made,
            saved=adapted.saved(made, block, spec, engine, first=first),
            working=adapted.working(family.working(model, layers[0], engine), made, block, spec),
            closing=tuple(family.closing(model, engine)),
        )


def padded(vocabulary: int, multiple: int) -> int:
    """The vocabulary, rounded up to a multiple."""
    return -(-vocabulary // multiple) * multiple


def parameter_counts(spec: RunSpec, family: Family) -> tuple[int, int]:
    """Parameters of the model, and those that one token meets: all but the routed experts that it is not sent to.

    An adapter's parameters count among the model's.
    """
    model = spec.model
    around = [*family.embedding(model, model.vocab_size), *family.head(model, model.vocab_size)]
    total = active = sum(weight.elements for weight in around)
    kinds: dict[str, tuple[int, int]] = {}
    for layer in range(model.num_hidden_layers):
        name = family.kind(model, layer)
        if name not in kinds:
            weights = adapted.weights(family.block(model, layer), spec)
            idle = sum(_idle(weight, model.num_experts_per_tok) for weight in weights)
            size = sum(weight.elements for weight in weights)
            kinds[name] = (size, size - idle)
        total += kinds[name][0]
        active += kinds[name][1]
    return total, active


def _idle(weight: Weight, choices: int) -> int:
    if weight.split != "expert":
        return 0
    return (weight.copies - min(choices, weight.copies)) * prod(weight.shape)
