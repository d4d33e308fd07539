"""Data that cannot be used: one finding, told by ``launch check`` as an error of a setting and by a job as its end."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.base.errors import ConfigError, ConfigErrors, DataError


class Unusable(DataError):
    """The data cannot be used as the settings ask; ``finding`` says which setting, why, and what to type instead."""

    def __init__(self, path: str, found: object, rule: str, way_out: Iterable[str] = ()) -> None:
        """Record the finding; the arguments are those of :class:`ConfigError`."""
        self.finding = ConfigError(path, found, rule, tuple(way_out))
        ways = self.finding.way_out
        super().__init__(f"{self.finding.where}: {rule}" + (f"; try {' or '.join(ways)}" if ways else ""))

    def __reduce__(self) -> tuple[type[Unusable], tuple[object, ...]]:
        """The parts of the finding, since a rank sends its error to the others."""
        return type(self), (self.finding.path, self.finding.found, self.finding.rule, self.finding.way_out)


class PackageMissing(Unusable):
    """The data may be fine: what reads their format is not installed for this Python."""


class NotHere(Unusable):
    """This machine does not have what a setting names; another one may."""


def as_errors(error: DataError) -> ConfigErrors:
    """The same as an error of the configuration, which every verb and function answers in one way."""
    return ConfigErrors([error.finding if isinstance(error, Unusable) else ConfigError("data", None, str(error))])
