"""Elements of a group of weights on one rank: its whole model-parallel part, and the shards that it keeps.

Each weight is split twice: by tensor and expert parallelism along one dimension, and then by ZeRO or FSDP into rows of
each tensor (FSDP2) or parts of one flat buffer. Both are rounded up, for the rank with the most. A
:class:`WeightCounts` holds every count that some formula needs, since a group of weights is counted once and read
often; groups are combined by sums, maxima and, where order matters, concatenation.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from math import prod
from operator import attrgetter
from typing import Any

from launcher.base.frozen import dataclass
from launcher.estimate.rank.engine import EngineTraits
from launcher.estimate.rank.tensors import Weight
from launcher.estimate.rank.view import ONE, RankView, StateShares, rounded_up
from launcher.spec.values import Hashed

DRAWN_ELEMENTS = 2**20  # Elements, roughly, of the blocks of rows in which the worker initialises a parameter.


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCounts:
    """Counts of elements of a group of weights on one rank."""

    dense: int = 0  # Without routed experts, before sharding.
    expert: int = 0  # Of routed experts, before sharding.
    stacked: int = 0  # Of routed experts stacked in one matrix and computed in a loop, before sharding.
    trained: int = 0  # Of all weights that receive gradients, before sharding; the rest is frozen.
    quantised: int = 0  # Of all quantised weights, before sharding.
    parameters: int = 0  # Of the shards of parameters.
    quantised_rows: int = 0  # Rows of the quantised weights.
    quantised_parameters: int = 0  # Of the shards of quantised weights.
    gradients: int = 0  # Of the shards of gradients.
    optimizer: int = 0  # Of the shards that the optimizer steps.
    factors: int = 0  # Row and column means of what the optimizer steps; of whole weights if shards are rows.
    largest: int = 0  # Of the largest weight, before sharding.
    largest_trained: int = 0  # Of the largest weight that receives gradients.
    last_trained: int = 0  # Of the last matrix that receives gradients, whose gradient exists first.
    drawn: int = 0  # Of the largest block of rows that the worker initialises at once.
    largest_quantised: int = 0  # Of the largest quantised weight.
    drawn_quantised: int = 0  # Of the largest block of rows that is initialised at once in a quantised weight.
    quantised_experts: int = 0  # Of quantised routed experts, before sharding.
    largest_shard: int = 0  # Of the largest shard that the optimizer steps.
    kept: int = 0  # Of weights so small that each rank keeps them whole beside its shard.
    kept_quantised: int = 0  # Of those of them that are quantised.
    # Of each matrix that receives gradients, in model order, before sharding.
    matrices: tuple[int, ...] = ()
    stepped: tuple[int, ...] = ()  # Of the shard of each matrix that the optimizer steps.
    frozen: tuple[int, ...] = ()  # Of the shard of each matrix that is frozen and not quantised.
    packed: tuple[int, ...] = ()  # Bytes of the codes of each quantised weight's shard.

    @property
    def unpacked(self) -> int:
        """Elements before sharding that autocast casts: neither grouped experts nor quantised weights."""
        return self.dense + self.stacked - self.quantised + self.quantised_experts

    @property
    def whole(self) -> int:
        """Elements before sharding."""
        return self.dense + self.expert

    def __add__(self, other: "WeightCounts") -> "WeightCounts":
        return total((self, other))

    def times(self, count: int) -> "WeightCounts":
        """Return the counts of ``count`` equal groups together."""
        if not count:
            return WeightCounts()
        sizes = zip(_OF_SEVERAL.items(), _read(self), strict=True)
        return WeightCounts(**{name: size * count if of in (sum, _joined) else size for (name, of), size in sizes})


def total(parts: Iterable[WeightCounts]) -> WeightCounts:
    """The counts of several groups together."""
    columns = zip(*map(_read, parts), strict=True)
    return WeightCounts(**{name: of(column) for (name, of), column in zip(_OF_SEVERAL.items(), columns, strict=False)})


def _joined(tuples: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(tuples))


_LARGEST = ("largest", "largest_trained", "drawn", "largest_quantised", "drawn_quantised", "largest_shard")
_OF_SEVERAL: dict[str, Callable[[Iterable[Any]], Any]] = {
    **{field.name: sum for field in fields(WeightCounts)},
    **dict.fromkeys(_LARGEST, max),
    "last_trained": lambda numbers: next(filter(None, reversed(tuple(numbers))), 0),
    "matrices": _joined,
    "stepped": _joined,
    "frozen": _joined,
    "packed": _joined,
}
"""The function that combines each count of several groups."""

_read = attrgetter(*_OF_SEVERAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRule(Hashed):
    """The rule that gives a rank's shard of a weight from its shape."""

    tensor: Fraction  # Its share of every split weight.
    embedding: Fraction  # Its share of the token embedding.
    experts: Fraction  # Its share of the routed experts of a layer.
    expert_tensor: Fraction  # Its share of each of those experts.
    states: StateShares  # Its shares of its dense parameters, their gradients and optimizer states.
    expert_states: StateShares  # The same for its routed experts.
    joined: bool  # True if one tensor holds all experts of a layer.
    rows: bool  # True if shards are rows of each tensor, False if parts of one flat buffer.
    inside: bool  # True if experts are split themselves where ranks cannot have whole ones.
    kept: int  # Elements, or bytes if quantised, of the largest weight that stays whole beside its shard.


def shard_rule(view: RankView, engine: EngineTraits) -> ShardRule:
    """The shard rule of one rank; one object for equal rules, since counts are cached by it."""
    return _shard_rule(view.tensor, view.experts, view.expert_tensor, view.states, view.expert_states, engine)


@lru_cache(maxsize=1024)
def _shard_rule(
    tensor: Fraction,
    experts: Fraction,
    expert_tensor: Fraction,
    states: StateShares,
    expert_states: StateShares,
    engine: EngineTraits,
) -> ShardRule:
    return ShardRule(
        tensor=tensor,
        embedding=ONE if engine.whole_embedding else tensor,
        experts=experts,
        expert_tensor=expert_tensor,
        states=states,
        expert_states=expert_states,
        joined=engine.library == "transformers" and engine.grouped_experts,
        rows=engine.shard_rows,
        inside=engine.shared_experts,
        kept=engine.kept_whole,
    )


def counts_of(weights: Sequence[Weight], rule: ShardRule) -> WeightCounts:
    """The elements of some weights on one rank."""
    return total(_elements(weight, rule) for weight in weights)


def _elements(weight: Weight, rule: ShardRule) -> WeightCounts:
    expert = weight.split == "expert"
    local = _local_shape(weight, rule)
    copies = rounded_up(weight.copies, rule.experts) if expert else 1
    if expert and rule.joined:
        local, copies = (copies * local[0], *local[1:]) if weight.stacked else (copies, *local), 1
    states = rule.expert_states if expert else rule.states

    def shard(share: Fraction) -> int:
        if expert and rule.inside and local[0] % share.denominator:
            return local[0] * rounded_up(local[1], share) * (one // max(local[0] * local[1], 1))
        if rule.rows:
            # FSDP2 cuts rows into equal chunks, smaller at the end: the first rank's chunk is rounded up.
            return copies * rounded_up(local[0], share) * (one // max(local[0], 1))
        return rounded_up(whole, share)

    drawn = _drawn(local if weight.stacked else (weight.copies, *weight.shape) if expert else weight.shape)
    one, trains = prod(local), not weight.frozen
    whole, matrix = copies * one, trains and len(local) > 1
    parameters, stepped = shard(states.parameters), shard(states.optimizer) if trains else 0
    kept = whole if -(-one * (weight.quantised or 8) // 8) <= rule.kept else 0
    return WeightCounts(
        dense=0 if expert else whole,
        expert=whole if expert else 0,
        stacked=whole if weight.stacked else 0,
        trained=whole if trains else 0,
        quantised=whole if weight.quantised else 0,
        parameters=parameters,
        quantised_rows=whole // local[-1] if weight.quantised else 0,
        quantised_parameters=parameters if weight.quantised else 0,
        gradients=shard(states.gradients) if trains else 0,
        optimizer=stepped,
        factors=_factors(copies, _gathered_shape(weight, rule)) if trains else 0,
        largest=one,
        largest_trained=one if trains else 0,
        last_trained=one // (weight.copies if weight.stacked else 1) if matrix else 0,
        drawn=drawn,
        largest_quantised=one if weight.quantised else 0,
        drawn_quantised=drawn if weight.quantised else 0,
        quantised_experts=whole if weight.quantised and expert else 0,
        largest_shard=stepped // copies,
        kept=kept,
        kept_quantised=kept if weight.quantised else 0,
        matrices=(one,) * copies if matrix else (),
        stepped=(stepped // copies,) * copies if matrix else (),
        frozen=(parameters // copies,) * copies if weight.frozen and not weight.quantised and len(local) > 1 else (),
        packed=(-(-(parameters // copies * weight.quantised) // 8),) * copies if weight.quantised else (),
    )


def _gathered_shape(weight: Weight, rule: ShardRule) -> tuple[int, ...]:
    """The shape of a weight in Adafactor's step: the whole weight's where shards are rows."""
    if not rule.rows:
        return _local_shape(weight, rule)
    return (weight.copies, *weight.shape) if weight.split == "expert" and rule.joined else weight.shape


def _factors(copies: int, shape: tuple[int, ...]) -> int:
    """Means over the last and over the second-to-last dimension; a vector keeps one value per element.

    Adafactor, arXiv:1804.04235, algorithm 4. FSDP2's ranks gather each tensor for it.
    """
    size = prod(shape)
    if len(shape) == 1:
        return copies * size
    return copies * (size // max(shape[-1], 1) + size // max(shape[-2], 1))


def _drawn(shape: tuple[int, ...]) -> int:
    """Elements of the rows in a block of ``DRAWN_ELEMENTS``, at least a row (``launcher/worker/model/initial.py``)."""
    width = prod(shape[1:])
    return min(shape[0], max(1, DRAWN_ELEMENTS // max(1, width))) * width


def _local_shape(weight: Weight, rule: ShardRule) -> tuple[int, ...]:
    if weight.split == "replicated":
        return weight.shape
    share = rule.tensor if weight.split == "tensor" else rule.expert_tensor
    return tuple(
        rounded_up(size, share) if index == weight.dimension else size for index, size in enumerate(weight.shape)
    )
