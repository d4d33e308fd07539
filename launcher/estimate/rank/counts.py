"""Elements of one rank: of its blocks by kind, and of the parameters outside the blocks.

Blocks of one kind are equal, so one of each is counted and multiplied. Counts depend only on the model, the adapter and
the rank's :class:`ShardRule`, which many runs of a sweep and all neighbours in a search for ways out share: they are
cached by these arguments, and that is why models, families and rules are hashable.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from launcher.base.frozen import dataclass
from launcher.estimate.rank import adapters
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.family import Family
from launcher.estimate.rank.shards import ShardRule, WeightCounts, counts_of, total
from launcher.estimate.rank.tensors import SavedTensor, Weight
from launcher.spec import AdapterSpec, ModelSpec, RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualBlocks:
    """Equal blocks of a rank."""

    name: str  # The family's name for the kind.
    layer: int  # One of their layers.
    count: int  # Their number.
    elements: WeightCounts  # Elements of one.


@dataclass(frozen=True, kw_only=True)
class RankCounts:
    """Elements of one rank, by the place of the weights in the model."""

    blocks: tuple[EqualBlocks, ...]
    embedding: WeightCounts
    head: WeightCounts
    shared: WeightCounts  # The part of ``head`` that several blocks use.

    @cached_property
    def root(self) -> WeightCounts:
        """Elements of the parameters outside the blocks: embedding and head."""
        return self.embedding + self.head

    @cached_property
    def all_blocks(self) -> WeightCounts:
        """Elements of all blocks of the rank."""
        return total(alike.elements.times(alike.count) for alike in self.blocks)

    @cached_property
    def everything(self) -> WeightCounts:
        """Elements of all parameters of the rank."""
        return self.all_blocks + self.root

    @cached_property
    def largest_block(self) -> WeightCounts:
        """Elements of the block with the most."""
        return max(
            (alike.elements for alike in self.blocks), key=lambda elements: elements.whole, default=WeightCounts()
        )

    @cached_property
    def layers(self) -> int:
        """Number of blocks on this rank."""
        return sum(alike.count for alike in self.blocks)


@lru_cache(maxsize=4096)
def count_rank(
    family: Family,
    model: ModelSpec,
    adapter: AdapterSpec,
    vocabulary: int,
    kinds: tuple[tuple[str, int, int], ...],
    ends: tuple[bool, bool],
    rule: ShardRule,
    predicted: int = 0,
    *,
    apart: bool = False,
) -> RankCounts:
    """Count one rank's elements.

    ``kinds`` are the rank's blocks as :func:`kinds_of` gives them; ``ends`` says whether it has the embedding and the
    head, and ``apart`` whether it has both in chunks that share no tensor; ``predicted`` is its number of multi-token
    prediction layers, which read the token embedding.
    """
    table, head = family.embedding(model, vocabulary), list(family.head(model, vocabulary))
    of_table = replace(rule, tensor=rule.embedding)
    if (apart or not ends[0]) and model.tie_word_embeddings:
        # A tied model in stages keeps a second copy of the token embedding on the loss's stage (Megatron-core, torch).
        head.append(table[0])
    blocks = [
        EqualBlocks(name=name, layer=layer, count=count, elements=_block_elements(family, model, adapter, layer, rule))
        for name, layer, count in kinds
    ]
    if predicted:
        elements, like = counts_of(_predicted_weights(family, model), rule), family.traits.predicted_layer(model)
        own = 1 if family.traits.shares_predicted(model) else predicted
        blocks.append(EqualBlocks(name=FURTHER, layer=like, count=own, elements=elements))
        if predicted > own:
            blocks.append(EqualBlocks(name=FURTHER, layer=like, count=predicted - own, elements=WeightCounts()))
    has_table = ends[0] or predicted > 0
    return RankCounts(
        blocks=tuple(blocks),
        embedding=counts_of(adapters.frozen(table, adapter), of_table) if has_table else WeightCounts(),
        head=counts_of(adapters.frozen(head, adapter), rule) if ends[1] else WeightCounts(),
        shared=counts_of(adapters.frozen([row for row in head if row.outside], adapter), rule),
    )


@lru_cache(maxsize=4096)
def kinds_of(
    family: Family, model: ModelSpec, layers: tuple[int, ...], *, first_apart: bool
) -> tuple[tuple[str, int, int], ...]:
    """Each kind of block: its name, one of its layers (the same on every rank), and the number of its blocks.

    With an adapter the model's first block is a separate kind (``first_apart``).
    """
    last, names = _last_of_kind(family, model)
    found = Counter((names[layer], first_apart and layer == 0) for layer in layers)
    return tuple((name, 0 if apart else last[name], count) for (name, apart), count in found.items())


@lru_cache(maxsize=1024)
def names_of(family: Family, model: ModelSpec, layers: tuple[int, ...]) -> tuple[str, ...]:
    """The name of each layer's kind."""
    _, names = _last_of_kind(family, model)
    return tuple(names[layer] for layer in layers)


@lru_cache(maxsize=256)
def _last_of_kind(family: Family, model: ModelSpec) -> tuple[dict[str, int], tuple[str, ...]]:
    names = tuple(family.kind(model, layer) for layer in range(model.num_hidden_layers))
    return {name: layer for layer, name in enumerate(names)}, names


@lru_cache(maxsize=4096)
def _block_elements(
    family: Family, model: ModelSpec, adapter: AdapterSpec, layer: int, rule: ShardRule
) -> WeightCounts:
    return counts_of(adapters.weights(_own_weights(family, model, layer), adapter), rule)


def _own_weights(family: Family, model: ModelSpec, layer: int) -> list[Weight]:
    return [weight for weight in block_weights(family, model, layer) if not weight.outside]


@lru_cache(maxsize=256)
def block_weights(family: Family, model: ModelSpec, layer: int) -> tuple[Weight, ...]:
    """The weights of one block."""
    return tuple(family.block(model, layer))


def _predicted_weights(family: Family, model: ModelSpec) -> tuple[Weight, ...]:
    return further_block(model, block_weights(family, model, family.traits.predicted_layer(model)))


def padded(vocabulary: int, multiple: int) -> int:
    """The vocabulary, rounded up to a multiple."""
    return -(-vocabulary // multiple) * multiple


def parameter_counts(spec: RunSpec, family: Family) -> tuple[int, int]:
    """Parameters of the model, and those active for one token: all but the routed experts that it is not sent to.

    An adapter's parameters are included.
    """
    found = whole_model(family, spec.model, spec.adapter)
    return found.total, found.active


class Parameters(NamedTuple):
    """Parameters of a whole model."""

    total: int  # All of them, an adapter's included.
    active: int  # Those that one token uses.
    trained: int  # All of them, or the adapter and the modules saved with it.
    outside: int  # Those outside the blocks.


@lru_cache(maxsize=256)
def whole_model(family: Family, model: ModelSpec, adapter: AdapterSpec) -> Parameters:
    """Count the parameters of a whole model."""
    outside = [*family.embedding(model, model.vocab_size), *family.head(model, model.vocab_size)]
    total = active = ends = sum(weight.elements for weight in outside)
    trained = sum(weight.elements for weight in adapters.frozen(outside, adapter) if not weight.frozen)
    for _, layer, count in kinds_of(family, model, tuple(range(model.num_hidden_layers)), first_apart=False):
        weights = adapters.weights(_own_weights(family, model, layer), adapter)
        idle = sum(_idle(weight, model.num_experts_per_tok) for weight in weights)
        size = sum(weight.elements for weight in weights)
        total += count * size
        active += count * (size - idle)
        trained += count * sum(weight.elements for weight in weights if not weight.frozen)
    if model.mtp_layers:
        further_weights = _predicted_weights(family, model)
        own = sum(weight.elements for weight in further_weights)
        size = model.mtp_layers * own
        total += own if family.traits.shares_predicted(model) else size
        active += size - model.mtp_layers * sum(_idle(one, model.num_experts_per_tok) for one in further_weights)
    return Parameters(total, active, trained, ends)


def _idle(weight: Weight, choices: int) -> int:
    return 0 if weight.split != "expert" else (weight.copies - min(choices, weight.copies)) * prod(weight.shape)


# Multi-token prediction: layers after the last, each of which predicts one more token (arXiv:2412.19437, section 2.2),
# as Megatron-core builds them (``core/transformer/multi_token_prediction.py``): a projection of two normed inputs, the
# hidden states and the embeddings of the next tokens, then a block like the model's last, then a norm. The token
# embedding is shared; a stage without it has a copy.
FURTHER = "multi-token prediction"  # The name of this kind of block.


def further_block(model: ModelSpec, block: Sequence[Weight]) -> tuple[Weight, ...]:
    """The weights of a multi-token prediction layer: its block's, three norms, and the projection ``2 h`` to ``h``."""
    hidden = model.hidden_size
    parts = ("weight", "bias") if model.normalization == "layernorm" else ("weight",)
    norms = [Weight(name=f"{norm}.{part}", shape=(hidden,)) for norm in ("enorm", "hnorm", "norm") for part in parts]
    return (*norms, Weight(name="eh_proj.weight", shape=(hidden, 2 * hidden), split="tensor"), *block)


def further_outside(model: ModelSpec, engine: EngineTraits) -> tuple[SavedTensor, ...]:
    """Tensors that such a layer saves outside its block, which is all that is recomputed: inputs of its three norms."""
    size = engine.size * model.hidden_size
    names = ("embeddings of the next tokens", "hidden states", "input of its last norm")
    return tuple(SavedTensor(name, size, "residual", "input") for name in names)


def further_saved(model: ModelSpec, engine: EngineTraits, block: Sequence[SavedTensor]) -> tuple[SavedTensor, ...]:
    """Tensors that such a layer saves, given those of its block.

    The projection's output is gathered over the tensor parallel ranks, and the block's input is a view of it
    (``_split_along_first_dim`` of ``core/tensor_parallel/mappings.py``), so that the whole output is kept.
    """
    size = engine.size * model.hidden_size
    rows = list(block)
    rows.remove(next(row for row in rows if row.part == "input"))
    joined = SavedTensor("joined inputs of the projection", 2 * size, "residual", "input")
    made = SavedTensor("output of the projection", size, "token", "input")
    return (*further_outside(model, engine), joined, made, *rows)


def joined_outputs(model: ModelSpec, engine: EngineTraits) -> tuple[SavedTensor, ...]:
    """The hidden states of all prediction depths in one tensor, which the output projection reads part by part."""
    size = model.mtp_layers * engine.size * model.hidden_size
    return (SavedTensor("hidden states of further tokens", size, "residual", "input"),)
