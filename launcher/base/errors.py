"""Exceptions for everything that can go wrong for a reason the user can act on.

A bug of launch stays an ordinary exception, with exit status 1 and a traceback, never one of these.
"""

from collections.abc import Collection, Iterable
from functools import cached_property

INTERRUPTED = 130  # The exit status of a command ended by Ctrl-C, as in shells: 128 + SIGINT.


def unreadable(error: OSError | ValueError) -> str:
    """Return why a file cannot be read, without the errno and the path, which the user typed."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class LauncherError(Exception):
    """The base class: a message for the user and its exit status (docs/contract/commands.md)."""

    exit_status = 1

    def __str__(self) -> str:
        """The message, without possible secrets."""
        from launcher.base import secret  # Imported late, as below: shell completion takes less time than this import.

        return secret.redacted(super().__str__())


class ConfigError(LauncherError):
    """One error of a configuration: the setting, the value found, the rule, and the ways out."""

    exit_status = 2

    def __init__(self, path: str, found: object, rule: str, way_out: Iterable[str] = ()) -> None:
        """Record what is ``found`` at a ``path`` as typed (``parallel.tensor``), and the rule in one sentence.

        Each way out is a text of overrides that satisfy the rule; an iterator is consumed only when they are needed.
        """
        self._path, self._found, self._rule, self._way_out = path, found, rule, way_out
        super().__init__()

    def __str__(self) -> str:
        """The error in one line, without its ways out."""
        return f"{self.path}={self.found!r}: {self.rule}"

    def __repr__(self) -> str:
        """The constructor call, so that a printed tuple of errors shows all fields of each."""
        parts = (f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def path(self) -> str:
        """The setting. This and the following properties omit possible secrets (``launcher.base.secret``)."""
        from launcher.base import secret

        return secret.redacted(self._path)

    @cached_property
    def found(self) -> object:
        """The offending value."""
        from launcher.base import secret

        return secret.shown(self._found, self._path)

    @property
    def rule(self) -> str:
        """The rule that the value breaks."""
        from launcher.base import secret

        return secret.without(self._rule, self._found, self._path)

    @cached_property
    def way_out(self) -> tuple[str, ...]:
        """The overrides; computed late, since the search for them is expensive and often not needed."""
        from launcher.base import secret

        return tuple(secret.without(way, self._found, self._path) for way in self._way_out)

    @property
    def where(self) -> str:
        """The key with the found value, as typed: ``parallel.sequence=true``."""
        return self.path + ("" if self.found is None else f"={typed(self.found)}")

    def as_dict(self) -> dict[str, object]:
        """Return its entry in ``check --json``."""
        return {"path": self.path, "found": self.found, "rule": self.rule, "way_out": list(self.way_out)}


def typed(value: object) -> str:
    """Return a value as typed after the key of an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(typed(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{typed(item)}" for key, item in value.items()) + "}"
    return str(value)


class ConfigErrors(LauncherError):
    """All errors of a configuration at once."""

    exit_status = 2

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors = tuple(errors)
        if not self.errors:
            raise AssertionError("ConfigErrors without an error")
        super().__init__("; ".join(str(error) for error in self.errors))


def raise_any(errors: Collection[ConfigError]) -> None:
    """Raise ConfigErrors if there is an error."""
    if errors:
        raise ConfigErrors(errors)


class ComposeError(ConfigErrors):
    """The command line does not compose: an unknown group, option or key, or a value that cannot be parsed."""


class DoesNotFit(LauncherError):
    """The run was refused because it does not fit the available memory or disk."""

    exit_status = 3


class SubmitError(LauncherError):
    """The submission, the cluster or the run folder failed; the plan on disk is intact."""

    exit_status = 4


class Unwritable(LauncherError):
    """The output cannot be written: stdout is closed, or goes to a full disk."""

    exit_status = 4


class Refused(SubmitError):
    """The cluster would refuse the job; nothing was submitted, and the job must be changed first."""


class JobFailed(LauncherError):
    """The job itself failed; the message is the worker's own last error."""

    exit_status = 5


class DataError(LauncherError):
    """The data is missing, empty, unreadable or not made for this model."""

    exit_status = 2
