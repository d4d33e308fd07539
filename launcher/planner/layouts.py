"""The planner's answer as frozen data: layouts, the fastest first, and counts of the rest."""

from typing import NamedTuple

from launcher.base.frozen import dataclass
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight.fixes import Fix
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.spec.edit import override


class Kind(NamedTuple):
    """The kind of a layout; two of one kind differ only in sizes such as the micro-batch, or in offloading."""

    engine: str
    sharding: str
    tensor: int
    pipeline: int
    context: int
    ulysses: int
    expert: int
    precision: str

    @classmethod
    def of(cls, spec: RunSpec) -> "Kind":
        """The kind of a run."""
        parallel = spec.parallel
        fully = "hybrid" if parallel.replicate > 1 else "sharded"  # One kind with and without resharding.
        alone = spec.gpus == parallel.tensor * parallel.pipeline  # There are no data ranks to shard over.
        sharding = fully if parallel.shard else "whole" if alone else f"zero{spec.zero.stage}"
        return cls(
            engine=spec.backend.name,
            sharding=sharding,
            tensor=parallel.tensor,
            pipeline=parallel.pipeline,
            context=parallel.context,
            ulysses=parallel.ulysses,
            expert=parallel.expert,
            precision=spec.precision.name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One layout that fits."""

    overrides: tuple[str, ...]  # The planner's choices, to append to the words of the question.
    spec: RunSpec  # The resulting run.
    speed: SpeedEstimate | None  # Its predicted speed; None if unknown.
    verdict: Verdict  # The verdict on its memory.
    loses: str = ""  # Why it is slower than the first; empty for the first.
    unmeasured: tuple[str, ...] = ()  # The parts of its mode that no measurement backs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Numbers of layouts by outcome."""

    considered: int = 0  # All layouts of the space.
    invalid: int = 0  # Refused by a rule or by the engine.
    unfit: int = 0  # Need more memory than there is.
    slower: int = 0  # Cannot be faster than the ones shown, by a bound or by the estimate.


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A word that the answer needs but the user did not type."""

    override: str
    why: str


NODES, GPUS = "cluster.nodes", "cluster.gpus_per_node"


class Size(NamedTuple):
    """A cluster size: the number of nodes, and of GPUs per node."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """The total number of GPUs."""
        return self.nodes * self.gpus_per_node

    def as_dict(self) -> dict[str, int]:
        """The size as part of the document."""
        return {"gpus": self.gpus, "nodes": self.nodes, "gpus_per_node": self.gpus_per_node}

    @property
    def words(self) -> tuple[str, str]:
        """The words that set it."""
        return override(NODES, self.nodes), override(GPUS, self.gpus_per_node)

    def __str__(self) -> str:
        """The size in words: ``4 GPUs``, ``24 GPUs (3 nodes of 8)``."""
        gpus = "1 GPU" if self.gpus == 1 else f"{self.gpus:,} GPUs"
        return gpus if self.nodes == 1 else f"{gpus} ({self.nodes:,} nodes of {self.gpus_per_node})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Marks a question that sets the length of the training."""

    days: float | None = None  # The limit on its time; None if there is none.


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """What would have to change for a layout to fit, if none does."""

    closest: Layout | None  # The layout closest to fitting; None if the words leave no valid layout.
    rule: str = ""  # Why there is no valid layout.
    size: Size | None = None  # The smallest cluster on which a layout fits; None if none is large enough.
    layout: Layout | None = None  # The fastest layout there.
    fixes: tuple[Fix, ...] = ()  # Changes that make the closest layout fit on this cluster, the cheapest first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The planner's answer to a question."""

    words: tuple[str, ...]  # The question, as typed.
    assumptions: tuple[Assumption, ...]  # Words assumed for what the question leaves out.
    # One of each kind, by expected speed: the predicted one times the probability that it fits.
    layouts: tuple[Layout, ...]
    others: tuple[Layout, ...] = ()  # The best of each engine that has none among these.
    tight: Layout | None = None  # The fastest layout that may not fit, if it is faster than the first.
    untried: Layout | None = None  # The best whose mode no measurement backs, if expected to be faster than the first.
    counts: Counts  # Numbers of layouts by outcome.
    seconds: float  # Time of the search, or of the whole command for an answer to a command line.
    single: tuple[str, ...]  # The words with one value each, to which a layout's overrides are appended.
    finished: bool = True  # False if the search was interrupted.
    length: Length | None = None  # The length of the training; None if it is not set.
    nearest: Nearest | None = None  # What would have to change, if there is no layout.
