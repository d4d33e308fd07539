"""Backends: one package each, found by its folder's name, or offered by an installed package (docs/architecture.md).

:class:`Backend` is everything the rest of the launcher knows about one: nothing outside this folder and ``worker``
names a backend. A shipped backend is a package ``launcher/backends/<name>`` whose ``__init__`` defines every member;
an installed package may instead offer an object of a subclass of :class:`Backend`, which inherits the default answers.
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
    """Verdict of an engine's own validator on a run: its errors, or a warning that says why it was not asked."""

    errors: tuple[ConfigError, ...] = ()
    warnings: tuple[ConfigError, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Facts of a backend that hold for every run."""

    packages: tuple[str, ...] = ()  # The modules that its worker imports in every run.
    framework: str | None = None  # The package that a checkout at ``backend.path`` replaces.
    needs: tuple[Need, ...] = ()  # Settings that only newer versions of these honour.
    borrowed: tuple[Borrowed, ...] = ()  # Settings that need other packages.
    install: str = ""  # The command that installs what it needs.
    # Keys that only some engines read, each with the overrides that select an engine that reads it.
    settings: Mapping[str, str] = field(default_factory=dict)
    shards_instead: tuple[str, ...] = ()  # Overrides that shard the model states when every rank holds a full copy.
    told_by_preset: bool = False  # True if users know it by its ``parallel=`` preset rather than its name.
    unpickles: bool = False  # True if its own code unpickles checkpoints, which can execute code.
    counts_epochs: bool = True  # True if its ranks count the steps of an epoch after they open the data.
    rehearsed: bool = True  # False if one rank cannot run alone, because the library's trainer owns the loop.
    tasks: tuple[str, ...] = ("pretrain",)  # The options of the group ``task`` that it trains.
    # Overrides for each layout where the planner's search starts; empty means ``backend=<name>``.
    openings: tuple[str, ...] = ()
    # Its arguments that make the embedding or the loss count as a layer of its stage.
    counted_ends: Mapping[str, bool] = field(default_factory=dict)
    validator: str | None = None  # The program whose validator ``native`` starts; None if it starts nothing.
    called: Callable[[RunSpec], str] | None = None  # The name its users know, if not its mode.


class Backend(estimate.Backend, Protocol):
    """One backend: its inputs to the memory and speed models (the base class), its rules, its job and its facts."""

    profile: Profile = Profile()

    def __hash__(self) -> int:
        return object.__hash__(self)

    def check(self, spec: RunSpec) -> Iterator[ConfigError]:
        """Errors for limits of the engine that the run breaks, each with the way out."""
        yield from ()

    def warnings(self, spec: RunSpec) -> Iterator[ConfigError]:
        """Warnings about pitfalls of a valid run."""
        yield from ()

    def obstacles(self, spec: RunSpec) -> Iterator[ConfigError]:
        """Errors for what this machine lacks to run a valid job, beyond the packages of the profile."""
        yield from ()

    def native(self, spec: RunSpec) -> Judgement:
        """Verdict of the engine's own validator on a run that ``check`` accepts."""
        return Judgement()

    def unreadable(self, before: RunSpec, after: RunSpec) -> Iterator[ConfigError]:
        """Reasons why the second run cannot resume from the first one's checkpoint, although the model is the same."""
        yield from ()

    def changes(self, spec: RunSpec, kind: EngineChange) -> Iterator[Change]:
        """Variants of one kind of change that save memory, the mildest first."""
        yield from ()

    def fullest_rank(self, spec: RunSpec) -> int:
        """The rank that needs the most memory among ranks that train the same layers."""
        return 0

    @abstractmethod
    def translate(self, spec: RunSpec, python: str) -> Job:
        """The job of a run that ``check`` accepts, started by the interpreter ``python``."""
        raise NotImplementedError


PROTOCOL = Backend  # The members that ``launcher.base.registry`` requires of an installed package's backend.


def of(spec: RunSpec) -> Backend:
    """The backend of a run."""
    found: Backend = registry.load("backends", spec.backend.name)
    return found
