"""Backends: one package each, found by its folder's name, or offered by an installed package (docs/architecture.md).

:class:`Backend` is all that the rest of the launcher knows of one: nothing outside of this folder and of ``worker``
names a backend. A shipped one is a package ``launcher/backends/<name>`` whose ``__init__`` has every member; one of an
installed package may as well be an object of a class that inherits from :class:`Backend`, and so the answers of an
engine of which there is nothing to say.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Protocol

from launcher.base import registry
from launcher.base.errors import ConfigError
from launcher.base.frozen import dataclass
from launcher.estimate.memory import estimate
from launcher.estimate.rank.engine import Execution
from launcher.job import Job
from launcher.job.versions import Borrowed, Need
from launcher.spec import RunSpec
from launcher.spec.change import Change, EngineChange

__all__ = ["PROTOCOL", "Backend", "Execution", "Judgement", "Profile", "of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The answer of an engine's own validator to a run: its errors, or a warning of why it was not asked."""

    errors: tuple[ConfigError, ...] = ()
    warnings: tuple[ConfigError, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Facts of a backend that hold for every run."""

    packages: tuple[str, ...] = ()  # The modules that its worker imports in every run.
    framework: str | None = None  # The package that a checkout at ``backend.path`` stands in for.
    needs: tuple[Need, ...] = ()  # Settings that only newer versions of these honour.
    borrowed: tuple[Borrowed, ...] = ()  # Settings whose work other packages do.
    install: str = ""  # The command that installs what it needs.
    # The keys that it reads and not every engine does, and the words that choose the engine with which each is read.
    settings: Mapping[str, str] = field(default_factory=dict)
    shards_instead: tuple[str, ...] = ()  # Overrides that shard the model states, where every rank holds whole ones.
    told_by_preset: bool = False  # True if the preset of ``parallel=`` names its way to run better than its own name.
    unpickles: bool = False  # True if its own code reads checkpoints as pickles, which run what code they hold.
    counts_epochs: bool = True  # True if its ranks count the steps of an epoch once they have opened the data.
    rehearsed: bool = True  # False if no rank of it can be tried alone, as the library's own trainer trains.
    tasks: tuple[str, ...] = ("pretrain",)  # The tasks that it trains, of the group ``task``.
    # The words for each of its ways to share out a model, where the planner begins; none is ``backend=`` and its name.
    openings: tuple[str, ...] = ()
    # Its arguments with which the embedding and the loss count for a layer of their stages.
    counted_ends: Mapping[str, bool] = field(default_factory=dict)
    validator: str | None = None  # The program whose own validator ``native`` starts; None where it starts nothing.
    called: Callable[[RunSpec], str] | None = None  # The engine as its users call it, if not by its mode.


class Backend(estimate.Backend, Protocol):
    """One backend: its answers to the models of memory and speed (the base), its rules, its job, and its facts."""

    profile: Profile = Profile()

    def __hash__(self) -> int:
        return object.__hash__(self)

    def check(self, spec: RunSpec) -> Iterator[ConfigError]:
        """Its limits that the run breaks, each with the way out."""
        yield from ()

    def warnings(self, spec: RunSpec) -> Iterator[ConfigError]:
        """Pitfalls of a run that is valid."""
        yield from ()

    def obstacles(self, spec: RunSpec) -> Iterator[ConfigError]:
        """Lacks of this machine for a valid job, beyond the packages of its profile."""
        yield from ()

    def native(self, spec: RunSpec) -> Judgement:
        """Answer of the engine's own validator to a run that ``check`` accepts."""
        return Judgement()

    def unreadable(self, before: RunSpec, after: RunSpec) -> Iterator[ConfigError]:
        """Reasons why the second run cannot go on from what the first has saved, though the model is the same."""
        yield from ()

    def changes(self, spec: RunSpec, kind: EngineChange) -> Iterator[Change]:
        """The variants of one kind of change that take less memory, the weakest first."""
        yield from ()

    def fullest_rank(self, spec: RunSpec) -> int:
        """The rank that needs the most memory of those that train alike."""
        return 0

    @abstractmethod
    def translate(self, spec: RunSpec, python: str) -> Job:
        """The job of a run that ``check`` accepts, for this interpreter."""
        raise NotImplementedError


PROTOCOL = Backend  # The members that ``launcher.base.registry`` demands of a backend that an installed package offers.


def of(spec: RunSpec) -> Backend:
    """The backend of a run."""
    found: Backend = registry.load("backends", spec.backend.name)
    return found
