"""One rank's part of one micro-batch: all of it that affects time. Caches of blocks are keyed by it."""

from typing import NamedTuple

from launcher.estimate.rank.engine import EngineTraits, Execution, Rounding
from launcher.estimate.rank.formats import Dtypes
from launcher.estimate.rank.view import RankView, rounded_up
from launcher.estimate.speed.card import Card
from launcher.estimate.speed.collectives import Group, group_of
from launcher.estimate.speed.network import Network
from launcher.spec import RunSpec
from launcher.spec.values import Dtype


class Shape(NamedTuple):
    """One rank's part of one micro-batch."""

    sequences: int  # Sequences of the micro-batch.
    queries: int  # Tokens of a sequence on this rank; heads split over Ulysses ranks count as tokens.
    keys: int  # Tokens of a whole sequence.
    tensor: int  # Tensor parallel ranks.
    split_sequence: bool  # True if these split the residual stream (Megatron's sequence parallelism).
    context: int  # Context parallel ranks.
    ulysses: int  # Ulysses ranks.
    expert: int  # Expert parallel ranks.
    expert_tensor: int  # Ranks that share each routed expert.
    dtype: Dtype  # The compute format.
    size: int  # Bytes of its elements.
    residual_size: int  # Bytes of an element of the residual stream.
    megatron: bool  # True if Megatron-core's modules run.
    autocast: bool  # True if each linear casts its weight and input.
    fused_adapters: bool  # True if an adapter and its layer are one operation.
    adapter_size: int  # Bytes of an element of an adapter's parameters, and of the copy of its input.
    scores: bool  # True if attention stores its scores.
    execution: Execution  # How the engine executes a step.
    card: Card  # The GPU.
    network: Network  # Its links.
    rounding: Rounding | None = None  # What linear layers round in quantization-aware training.

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on this rank, not split over tensor parallel ranks."""
        return self.sequences * self.queries

    @property
    def residual_tokens(self) -> float:
        """Tokens of the residual stream on this rank."""
        return self.tokens / self.tensor if self.split_sequence else self.tokens

    def group(self, ranks: int, stride: int) -> Group:
        """The group of ``ranks`` ranks that lie ``stride`` GPUs apart."""
        return group_of(ranks, stride, self.network)


def shape_of(
    spec: RunSpec,
    view: RankView,
    dtypes: Dtypes,
    engine: EngineTraits,
    execution: Execution,
    card: Card,
    network: Network,
) -> Shape:
    """The shape of a rank's micro-batch."""
    parallel = spec.parallel
    return Shape(
        sequences=spec.sequences_at_once,
        queries=rounded_up(spec.sequence_length, view.tokens),
        keys=spec.sequence_length,
        tensor=parallel.tensor,
        split_sequence=parallel.sequence,
        context=parallel.context,
        ulysses=parallel.ulysses,
        expert=parallel.expert,
        expert_tensor=parallel.expert_tensor or parallel.tensor,
        dtype=dtypes.compute,
        size=engine.size,
        residual_size=engine.residual_size,
        megatron=engine.library == "megatron",
        autocast=engine.autocast,
        fused_adapters=engine.fused_adapters,
        adapter_size=4 if engine.autocast or engine.wide_adapters else engine.size,
        scores=engine.scores,
        rounding=engine.rounding,
        execution=execution,
        card=card,
        network=network,
    )
