"""The planner's answer as frozen data: layouts, the fastest first, and counts of the others."""

from typing import NamedTuple

from launcher.base.frozen import dataclass
from launcher.estimate.speed.result import SpeedEstimate
from launcher.preflight.fixes import Fix
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec
from launcher.spec.edit import override


class Kind(NamedTuple):
    """The kind of a layout: two of one kind differ in sizes such as the micro-batch, or in what the host keeps."""

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
        fully = "hybrid" if parallel.replicate > 1 else "sharded"  # With and without resharding it is one kind.
        alone = spec.gpus == parallel.tensor * parallel.pipeline  # There is nobody to share states with.
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

    overrides: tuple[str, ...]  # The planner's choices, to be typed behind the words of the question.
    spec: RunSpec  # The run that both give.
    speed: SpeedEstimate | None  # Its predicted speed; None where that is unknown.
    verdict: Verdict  # The verdict on its memory.
    loses: str = ""  # Why it is slower than the first; empty for the first.
    unmeasured: tuple[str, ...] = ()  # The parts of its mode that nothing measured backs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Layouts by what became of them."""

    considered: int = 0  # All layouts of the space.
    invalid: int = 0  # Those that a rule or the engine refuses.
    unfit: int = 0  # Those that need more memory than there is.
    slower: int = 0  # Those that cannot be faster than the ones shown, by a bound or by the estimate.


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A word that nobody typed and that an answer needs."""

    override: str
    why: str


NODES, GPUS = "cluster.nodes", "cluster.gpus_per_node"


class Size(NamedTuple):
    """Nodes, and GPUs of each."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.nodes * self.gpus_per_node

    def as_dict(self) -> dict[str, int]:
        """As the document has it."""
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
    """Somebody has said how long the training is; ``days`` is the limit on its time, None where there is none."""

    days: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The changes with which something would fit where nothing does."""

    closest: Layout | None  # The layout that lacks least; None where the words leave no layout that is valid.
    rule: str = ""  # Why there is none then.
    size: Size | None = None  # The smallest cluster on which something fits; None where none is large enough.
    layout: Layout | None = None  # The fastest layout there.
    fixes: tuple[Fix, ...] = ()  # Changes with which the closest layout fits on this cluster, the cheapest first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer."""

    words: tuple[str, ...]  # The question, as typed.
    assumptions: tuple[Assumption, ...]  # Words that were taken where nothing was said.
    # One of each kind, by the speed to be expected: the predicted one times the probability that it fits.
    layouts: tuple[Layout, ...]
    others: tuple[Layout, ...] = ()  # The best of each engine that has none among these.
    tight: Layout | None = None  # The fastest at the edge of the card, where it is faster than the first.
    untried: Layout | None = None  # The best whose mode nothing measured backs, where it promises more than the first.
    counts: Counts  # What became of all layouts.
    seconds: float  # How long the search took; of an answer to a command line, how long the whole command did.
    single: tuple[str, ...]  # The words with one value each: those that a layout's overrides are typed behind.
    finished: bool = True  # False if the search was broken off.
    length: Length | None = None  # The length of the training, where somebody has said it.
    nearest: Nearest | None = None  # Changes with which something would fit, where there is no layout.
