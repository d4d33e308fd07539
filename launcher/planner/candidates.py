"""The results of a search: layouts that may fit, in the order in which they are proposed."""

from dataclasses import dataclass, field

from launcher.planner.keys import MODES
from launcher.planner.layouts import Counts, Kind
from launcher.preflight.verdict import Verdict
from launcher.spec import RunSpec

SHOWN = 10  # Kinds of layouts in an answer.
_LIKELY = 0.75  # A layout less likely to fit than this is not proposed first, however fast it is.
_UNLIKELY_FACTOR = 1e30  # Factor on the expected time of less likely layouts, so that they come after all others.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that may fit; sorts by expected time, then by effort.

    The order is total: :attr:`place` ends with the hash of the run, so that the runs themselves are never compared.
    """

    seconds: float  # Seconds per step; 0 if unknown.
    effort: tuple[int, ...]  # How much it does besides training.
    order: int  # Its number within its search; each process of a search counts separately.
    opening: int  # The number of its engine's opening.
    spec: RunSpec  # The run.
    verdict: Verdict  # The verdict on its memory.

    @property
    def place(self) -> tuple[float, float, tuple[int, ...], int, int, str]:
        """The sort key."""
        return (self.expected, self.seconds, self.effort, self.order, self.opening, self.spec.hash)

    @property
    def expected(self) -> float:
        """Seconds / probability that it fits, with 1 for unknown seconds; unlikely layouts come last."""
        return (self.seconds or 1.0) / self.verdict.chance * (1.0 if self.is_likely else _UNLIKELY_FACTOR)

    @property
    def is_likely(self) -> bool:
        """True if it is likely enough to fit to be proposed along with those that do."""
        return self.verdict.chance >= _LIKELY

    def __lt__(self, other: "Candidate") -> bool:
        return self.place < other.place


@dataclass(slots=True)
class Found:
    """The results of a search so far."""

    best: dict[Kind, Candidate] = field(default_factory=dict)  # The best layout of each kind.
    untried: dict[Kind, Candidate] = field(default_factory=dict)  # The same for modes that no measurement backs.
    edge: Candidate | None = None  # The fastest layout that may not fit.
    early: Candidate | None = None  # A layout that fits, found quickly; there may be faster ones.
    considered: int = 0  # Number of layouts.
    invalid: int = 0  # How many of them are refused.
    unfit: int = 0  # How many do not fit.

    @property
    def first(self) -> Candidate | None:
        """The fastest so far."""
        return min([*self.best.values(), *([self.early] if self.early else [])], default=None)

    def shown(self) -> list[Candidate]:
        """The best layout of each kind, the best first; layouts unlikely to fit only if all are.

        Layouts whose mode no measurement backs come last, and only if their kind has no other.
        """
        return self._likely()[:SHOWN]

    def _likely(self) -> list[Candidate]:
        untried = (each for kind, each in self.untried.items() if kind not in self.best)
        found = [*sorted(self.best.values()), *sorted(untried)]
        return [each for each in found if each.is_likely] or found

    def promising(self) -> Candidate | None:
        """The best layout whose mode no measurement backs, if it is expected to be faster than the first."""
        found, first = min(self.untried.values(), default=None), min(self.best.values(), default=None)
        return found if found and first and found < first else None

    def faster(self) -> Candidate | None:
        """The fastest layout that may not fit, if it is faster than the best."""
        first = next(iter(self.shown()), None)
        return self.edge if self.edge and first and self.edge.seconds < first.seconds else None

    def note(self, candidate: Candidate) -> None:
        """Keep a layout that may not fit if it is the fastest of these."""
        self.edge = min(candidate, self.edge or candidate, key=lambda each: (each.seconds, each.place))

    def others(self) -> list[Candidate]:
        """The fastest layout of each engine that has none among the shown."""
        fastest: dict[str, Candidate] = {}
        for each in self._likely():
            fastest.setdefault(each.spec.backend.name, each)
        shown = {each.spec.backend.name for each in self.shown()}
        return [each for engine, each in fastest.items() if engine not in shown]

    def merge(self, other: "Found") -> None:
        """Add the results of a search over other degrees."""
        for own, theirs in ((self.best, other.best), (self.untried, other.untried)):
            for kind, candidate in theirs.items():
                own[kind] = min(candidate, own.get(kind, candidate))
        if other.edge is not None:
            self.note(other.edge)
        self.considered += other.considered
        self.invalid += other.invalid
        self.unfit += other.unfit

    def counts(self) -> Counts:
        """The number of layouts by outcome."""
        slower = self.considered - self.invalid - self.unfit
        return Counts(considered=self.considered, invalid=self.invalid, unfit=self.unfit, slower=slower)


def effort(spec: RunSpec) -> tuple[int, ...]:
    """How much a layout does besides training, to sort layouts of equal or unknown time."""
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
