"""What a rank holds, counted: elements of its weights and of their shards, tokens, bytes that a block saves.

``memory`` and the backends' overheads read it; neither looks at a family or a strategy again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod

from launcher.blocks import Engine, Family, Saved, Weight
from launcher.dtypes import Dtypes
from launcher.rank import RankView, StateShares
from launcher.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Elements of a group of weights on one rank: all of its model-parallel part, and the shards that it keeps."""

    dense: int = 0
    expert: int = 0
    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    largest: int = 0
    largest_shard: int = 0

    @property
    def whole(self) -> int:
        """Elements before sharding."""
        return self.dense + self.expert

    def __add__(self, other: Elements) -> Elements:
        return Elements(
            dense=self.dense + other.dense,
            expert=self.expert + other.expert,
            parameters=self.parameters + other.parameters,
            gradients=self.gradients + other.gradients,
            optimizer=self.optimizer + other.optimizer,
            largest=max(self.largest, other.largest),
            largest_shard=max(self.largest_shard, other.largest_shard),
        )

    def times(self, count: int) -> Elements:
        """So many equal groups."""
        return Elements(
            dense=self.dense * count,
            expert=self.expert * count,
            parameters=self.parameters * count,
            gradients=self.gradients * count,
            optimizer=self.optimizer * count,
            largest=self.largest if count else 0,
            largest_shard=self.largest_shard if count else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """Equal blocks of one rank.

    Attributes:
        name: The family's word for them.
        count: How many of them the rank holds.
        elements: Elements of one.
        saved: What the forward pass of one keeps for one micro-batch, as rows of the family.
        working: What its backward pass adds at its fullest.
        closing: What is left at its end.
    """

    name: str
    count: int
    elements: Elements
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
    kinds: dict[str, list[int]] = {}
    for layer in view.layers:
        kinds.setdefault(family.kind(model, layer), []).append(layer)
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
        blocks=tuple(
            BlockKind(
                name=name,
                count=len(layers),
                elements=elements_of(family.block(model, layers[0]), view, engine),
                saved=tuple(family.saved(model, layers[0], engine)),
                working=tuple(family.working(model, layers[0], engine)),
                closing=tuple(family.closing(model, engine)),
            )
            for name, layers in kinds.items()
        ),
        around=tuple(family.around(model, engine)) if view.head else (),
        embedding=elements_of(before, view, engine),
        head=elements_of(head, view, engine),
        tokens=spec.train.micro_batch_size * ceil(spec.sequence_length * view.tokens),
        vocabulary=vocabulary,
    )


def padded(vocabulary: int, multiple: int) -> int:
    """The vocabulary, rounded up to a multiple."""
    return -(-vocabulary // multiple) * multiple


def elements_of(weights: Sequence[Weight], view: RankView, engine: Engine) -> Elements:
    """The elements of some weights on one rank."""
    return sum((_elements(weight, view, engine) for weight in weights), Elements())


def _elements(weight: Weight, view: RankView, engine: Engine) -> Elements:
    expert = weight.split == "expert"
    local = _local_shape(weight, view)
    copies = ceil(weight.copies * view.experts) if expert else 1
    if expert and engine.library == "transformers":
        local, copies = (copies, *local), 1  # One tensor holds all experts of a layer.
    states: StateShares = view.expert_states if expert else view.states

    def shard(share: Fraction) -> int:
        if engine.shard_rows:
            # FSDP2 cuts rows in chunks of equal size, the last ones smaller: the first rank's is rounded up.
            return copies * ceil(local[0] * share) * prod(local[1:])
        return ceil(copies * prod(local) * share)

    whole = copies * prod(local)
    return Elements(
        dense=0 if expert else whole,
        expert=whole if expert else 0,
        parameters=shard(states.parameters),
        gradients=shard(states.gradients),
        optimizer=shard(states.optimizer),
        largest=prod(local),
        largest_shard=shard(states.optimizer) // copies,
    )


def _local_shape(weight: Weight, view: RankView) -> tuple[int, ...]:
    """The shape after tensor parallelism."""
    share = {"replicated": Fraction(1), "tensor": view.tensor, "expert": view.expert_tensor}[weight.split]
    return tuple(ceil(size * share) if index == weight.dimension else size for index, size in enumerate(weight.shape))


def parameter_counts(spec: RunSpec, family: Family) -> tuple[int, int]:
    """Parameters of the model, and those that one token meets: all but the routed experts that it is not sent to."""
    model = spec.model
    around = [*family.embedding(model, model.vocab_size), *family.head(model, model.vocab_size)]
    total = active = sum(weight.elements for weight in around)
    kinds: dict[str, tuple[int, int]] = {}
    for layer in range(model.num_hidden_layers):
        name = family.kind(model, layer)
        if name not in kinds:
            weights = family.block(model, layer)
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
