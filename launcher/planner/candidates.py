"""What a search has found: layouts that may fit, in the order in which they are proposed."""

from dataclasses import dataclass, field

from launcher.planner.keys import MODES
from launcher.planner.layouts import Counts, Kind
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec

SHOWN = 10  # Kinds of layouts that an answer has.
_LIKELY = 0.75  # Of what fits with less than three chances of four nobody wants to hear first, however fast it is.
_LAST = 1e30  # Times the time to be expected of what is less likely, so that all others stand before it.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that may fit; the least time to be expected sorts first, and of equal ones the least effort.

    The order is total: :attr:`place` says it, and ends with the hash of the run, so that no two runs are compared.
    """

    seconds: float  # Seconds of a step; 0 where they are unknown.
    effort: tuple[int, ...]  # How much it does beside training.
    order: int  # Its number among those of its search; each process of a search counts for itself.
    opening: int  # The number of its engine's opening.
    spec: RunSpec  # The run.
    verdict: Verdict  # The verdict on its memory.

    @property
    def place(self) -> tuple[float, float, tuple[int, ...], int, int, str]:
        """The sort key."""
        return (self.expected, self.seconds, self.effort, self.order, self.opening, self.spec.hash)

    @property
    def expected(self) -> float:
        """Seconds over the probability that it fits, of unknown seconds as if they were one; the unlikely are last."""
        return (self.seconds or 1.0) / self.verdict.chance * (1.0 if self.is_likely else _LAST)

    @property
    def is_likely(self) -> bool:
        """True if it is likely enough to fit to be proposed beside those that do."""
        return self.verdict.chance >= _LIKELY

    def __lt__(self, other: "Candidate") -> bool:
        return self.place < other.place


@dataclass(slots=True)
class Found:
    """The results of a search so far."""

    best: dict[Kind, Candidate] = field(default_factory=dict)  # The best layout of each kind.
    untried: dict[Kind, Candidate] = field(default_factory=dict)  # The same of those whose mode nothing measured backs.
    edge: Candidate | None = None  # The fastest that may not fit.
    early: Candidate | None = None  # A layout that fits, found at once; there may be faster ones.
    considered: int = 0  # Layouts.
    invalid: int = 0  # Those of them that are refused.
    unfit: int = 0  # Those that do not fit.

    @property
    def first(self) -> Candidate | None:
        """The fastest so far."""
        return min([*self.best.values(), *([self.early] if self.early else [])], default=None)

    def shown(self) -> list[Candidate]:
        """The best of each kind, the best first; those that are unlikely to fit only where all are.

        Those whose mode nothing measured backs stand behind, and only where their kind has no other.
        """
        return self._likely()[:SHOWN]

    def _likely(self) -> list[Candidate]:
        untried = (each for kind, each in self.untried.items() if kind not in self.best)
        found = [*sorted(self.best.values()), *sorted(untried)]
        return [each for each in found if each.is_likely] or found

    def promising(self) -> Candidate | None:
        """The best whose mode nothing measured backs, where it promises more than the first."""
        found, first = min(self.untried.values(), default=None), min(self.best.values(), default=None)
        return found if found and first and found < first else None

    def faster(self) -> Candidate | None:
        """The fastest that may not fit, where it is faster than the best."""
        first = next(iter(self.shown()), None)
        return self.edge if self.edge and first and self.edge.seconds < first.seconds else None

    def note(self, candidate: Candidate) -> None:
        """Keep a layout that may not fit, if it is the fastest of those."""
        self.edge = min(candidate, self.edge or candidate, key=lambda each: (each.seconds, each.place))

    def others(self) -> list[Candidate]:
        """The fastest of each engine that has none among the shown."""
        fastest: dict[str, Candidate] = {}
        for each in self._likely():
            fastest.setdefault(each.spec.backend.name, each)
        shown = {each.spec.backend.name for each in self.shown()}
        return [each for engine, each in fastest.items() if engine not in shown]

    def merge(self, other: "Found") -> None:
        """Take over the results of a search of other degrees."""
        for own, theirs in ((self.best, other.best), (self.untried, other.untried)):
            for kind, candidate in theirs.items():
                own[kind] = min(candidate, own.get(kind, candidate))
        if other.edge is not None:
            self.note(other.edge)
        self.considered += other.considered
        self.invalid += other.invalid
        self.unfit += other.unfit

    def counts(self) -> Counts:
        """The layouts by what became of them."""
        slower = self.considered - self.invalid - self.unfit
        return Counts(considered=self.considered, invalid=self.invalid, unfit=self.unfit, slower=slower)


def effort(spec: RunSpec) -> tuple[int, ...]:
    """The effort of a layout beside training, for sorting layouts of the same or of unknown time."""
    parallel, zero, train = spec.parallel, spec.zero, spec.train
    return (
        (zero.offload_optimizer != "none") + (zero.offload_parameters != "none"),
        MODES.index(spec.checkpointing.mode),
        spec.model_parallel * parallel.expert,
        zero.stage,
        parallel.virtual_pipeline,
        parallel.first_stage_layers is not None,
        parallel.schedule not in ("1f1b", "interleaved"),
        parallel.expert_tensor is not None,
        zero.hpz,
        train.loss == "chunked",
        train.allocator != "default",
        -spec.micro_batch_size,
    )
