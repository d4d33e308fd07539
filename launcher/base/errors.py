"""Everything that can go wrong for a reason the user can act on, as one small tree of exceptions.

A fault of ours stays an ordinary exception: it ends as exit status 1 and a report, never as one of these.
"""

from collections.abc import Iterable
from functools import cached_property

INTERRUPTED = 130  # The exit status of a command that Ctrl-C ended, as a shell counts it.


def unreadable(error: OSError | ValueError) -> str:
    """Why a file cannot be read, without the number of the system's error and the path, which the user has typed."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class LauncherError(Exception):
    """The root: a message for the user and the exit status of docs/contract/commands.md that goes with it."""

    exit_status = 1

    def __str__(self) -> str:
        """The message, which never repeats what may be a secret."""
        from launcher.base import secret  # Late, as below: a completion at the Tab key takes less than its import.

        return secret.hidden(super().__str__())


class ConfigError(LauncherError):
    """One error of a configuration: the setting, the value found, the rule, and the ways out."""

    exit_status = 2

    def __init__(self, path: str, found: object, rule: str, way_out: Iterable[str] = ()) -> None:
        """Record what is ``found`` at a ``path`` as it is typed (``parallel.tensor``), and the rule in one sentence.

        A way out is overrides that satisfy the rule; an iterator of them is read once, when they are asked for.
        """
        self._path, self._found, self._rule, self._way_out = path, found, rule, way_out
        super().__init__()

    def __str__(self) -> str:
        """The error in one line, without its ways out."""
        return f"{self.path}={self.found!r}: {self.rule}"

    def __repr__(self) -> str:
        """The call that makes it, so that a printed tuple of errors shows all of each."""
        parts = (f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def path(self) -> str:
        """The setting; this and what follows are without anything that may be a secret (``launcher.base.secret``)."""
        from launcher.base import secret

        return secret.hidden(self._path)

    @cached_property
    def found(self) -> object:
        """The offending value."""
        from launcher.base import secret

        return secret.shown(self._found, self._path)

    @property
    def rule(self) -> str:
        """The rule that it breaks."""
        from launcher.base import secret

        return secret.without(self._rule, self._found, self._path)

    @cached_property
    def way_out(self) -> tuple[str, ...]:
        """The overrides; the search for them is most of the work where only the error itself is of interest."""
        from launcher.base import secret

        return tuple(secret.without(way, self._found, self._path) for way in self._way_out)

    @property
    def where(self) -> str:
        """The key with the found value, as typed: ``parallel.sequence=true``."""
        return self.path + ("" if self.found is None else f"={typed(self.found)}")

    def as_dict(self) -> dict[str, object]:
        """The form in which ``check --json`` lists it."""
        return {"path": self.path, "found": self.found, "rule": self.rule, "way_out": list(self.way_out)}


def typed(value: object) -> str:
    """A value as it is typed behind the key of an override."""
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


class ComposeError(ConfigErrors):
    """The command line does not compose: an unknown group, option or key, or a value that cannot be read."""


class DoesNotFit(LauncherError):
    """The run was refused because it does not fit the memory or the disk it would have."""

    exit_status = 3


class SubmitError(LauncherError):
    """The submission, the cluster or the run folder failed; the plan on disk is intact."""

    exit_status = 4


class Unwritable(LauncherError):
    """The answer cannot be written: stdout is closed, or goes to a full disk."""

    exit_status = 4


class Refused(SubmitError):
    """The cluster would refuse the job as it is, before anything was submitted: it has to be changed first."""


class JobFailed(LauncherError):
    """The job itself failed; the message is the worker's own last error."""

    exit_status = 5


class DataError(LauncherError):
    """The data are missing, empty, unreadable or not made for this model."""

    exit_status = 2
