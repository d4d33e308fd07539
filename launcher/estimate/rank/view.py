"""Shares of one rank of a pipeline stage: of the model, of the batch and of the sequence.

A strategy narrows a view; each multiplies its own share or the product of degrees, so their order does not matter. The
fold starts with a rank that holds and sees everything (:func:`whole`). Shares are exact fractions: the shares of all
ranks add up to the batch and the sequence, and sizes are rounded where elements are counted.
"""

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, Protocol

from launcher.base.frozen import dataclass
from launcher.spec import RunSpec
from launcher.spec.values import Hashed

ONE = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShares(Hashed):
    """A rank's shares of the model states at its model-parallel position (ZeRO, FSDP)."""

    parameters: Fraction = ONE
    gradients: Fraction = ONE
    optimizer: Fraction = ONE


_UNSHARDED = StateShares()


class RankView(NamedTuple):
    """The shares of one rank of a pipeline stage; a tuple, since each step of the fold replaces parts of it."""

    stage: int  # Its pipeline stage, from 0.
    stages: int  # Number of pipeline stages.
    layers: tuple[int, ...]  # Indices of the model's blocks that it runs.
    embedding: bool  # True if it holds the token embedding.
    head: bool  # True if it holds the last norm and the output projection, and computes the loss.
    # Micro-batches whose activations of all its layers are held at once; a fraction with interleaving.
    in_flight: Fraction
    batch: Fraction  # Its share of the global batch.
    tokens: Fraction  # Its share of the tokens of one sequence.
    # The further share of the tokens in norms and in the residual stream (Megatron's sequence parallelism).
    residual: Fraction
    tensor: Fraction  # Its share of every split weight, of the heads and of the MLP's width.
    experts: Fraction  # Its share of the routed experts of a layer.
    expert_tensor: Fraction  # Its share of each of those experts.
    states: StateShares  # Its shares of its dense parameters, their gradients and optimizer states.
    expert_states: StateShares  # The same for its routed experts, which have fewer data-parallel copies.
    predicted: int = 0  # Multi-token prediction layers that it runs.
    predicted_in_flight: Fraction = ONE  # Micro-batches whose activations of these layers it holds at once.


@lru_cache(maxsize=1024)
def part_of(share: Fraction, ranks: int) -> Fraction:
    """One of ``ranks`` equal parts of a share; the same object each time, since caches compare views."""
    return share / ranks


def rounded_up(size: int, share: Fraction) -> int:
    """A share of a size, rounded up; in integer arithmetic, since this takes most of an estimate's time."""
    return -(-size * share.numerator // share.denominator)


class Strategy(Protocol):
    """A module of ``launcher.estimate.strategies`` as the memory model sees it.

    A strategy whose share differs between pipeline stages sets ``BY_STAGE = True``.
    """

    def apply(self, view: RankView, spec: RunSpec) -> RankView:
        """Return the view narrowed to this strategy's share."""


def whole(spec: RunSpec) -> RankView:
    """A rank that holds all of the model and sees all of the batch, one micro-batch at a time."""
    return RankView(
        stage=0,
        stages=spec.parallel.pipeline,
        layers=_all_layers(spec.model.num_hidden_layers),
        embedding=True,
        head=True,
        in_flight=ONE,
        batch=ONE,
        tokens=ONE,
        residual=ONE,
        tensor=ONE,
        experts=ONE,
        expert_tensor=ONE,
        states=_UNSHARDED,
        expert_states=_UNSHARDED,
        predicted=spec.model.mtp_layers,
    )


@lru_cache(maxsize=256)
def _all_layers(count: int) -> tuple[int, ...]:
    return tuple(range(count))


def view_of(spec: RunSpec, strategies: Iterable[Strategy], stage: int) -> RankView:
    """The shares of a rank of one pipeline stage after all strategies."""
    (view,) = views(spec, strategies, (stage,))
    return view


def views(spec: RunSpec, strategies: Iterable[Strategy], stages: Iterable[int] | None = None) -> tuple[RankView, ...]:
    """One rank of each of these pipeline stages, by default of all; shares equal on all stages are folded once."""
    shared, by_stage = _parted(tuple(strategies))
    common = _folded(whole(spec), spec, shared)
    numbers = range(spec.parallel.pipeline) if stages is None else stages
    return tuple(_folded(common._replace(stage=stage) if stage else common, spec, by_stage) for stage in numbers)


@lru_cache(maxsize=64)
def _parted(strategies: tuple[Strategy, ...]) -> tuple[tuple[Strategy, ...], tuple[Strategy, ...]]:
    by_stage = tuple(one for one in strategies if getattr(one, "BY_STAGE", False))
    return tuple(one for one in strategies if one not in by_stage), by_stage


def _folded(view: RankView, spec: RunSpec, strategies: Iterable[Strategy]) -> RankView:
    for strategy in strategies:
        view = strategy.apply(view, spec)
    return view
