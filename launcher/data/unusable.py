"""Data that cannot be used: one finding, told by ``launch check`` as an error of a setting and by a job as its end.

Single rows are errors, or left out, counted and named, as ``data.on_bad_row`` says. A reader says where it is before it
hands a row on (:meth:`BadRows.at`), so that what is found in the row by whoever uses it is named by file and line. A
file that cannot be read on behind a fault is an error in either case: one that is compressed and cut off, a damaged
Parquet, a list of JSON with a broken element.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from launcher.base.errors import ConfigError, ConfigErrors, DataError
from launcher.base.files import JsonObject
from launcher.spec.training import DataSpec


class Unusable(DataError):
    """The data cannot be used as the settings ask; ``finding`` says which setting, why, and what to type instead."""

    def __init__(self, path: str, found: object, rule: str, way_out: Iterable[str] = ()) -> None:
        self.finding = ConfigError(path, found, rule, tuple(way_out))
        ways = self.finding.way_out
        super().__init__(f"{self.finding.where}: {rule}" + (f"; try {' or '.join(ways)}" if ways else ""))

    def __reduce__(self) -> "tuple[type[Unusable], tuple[object, ...]]":
        """Pickle the parts of the finding: a rank sends its error to the others."""
        return type(self), (self.finding.path, self.finding.found, self.finding.rule, self.finding.way_out)


class PackageMissing(Unusable):
    """The data may be fine: what reads their format is not installed for this Python."""


class NotHere(Unusable):
    """This machine does not have what a setting names; another one may."""


def as_errors(error: DataError) -> ConfigErrors:
    """The same as an error of the configuration, which every verb and function answers in one way."""
    return ConfigErrors([error.finding if isinstance(error, Unusable) else ConfigError("data", None, str(error))])


SKIP = "skip"
SKIPPING = f"data.on_bad_row={SKIP}"  # The way out of a row's own fault.
NAMED = 10  # Rows that are named, which a person reads; so many may be bad of any data, however few rows they have.
SHARE = 0.05
"""The share of bad rows beyond which data are not trained on: a line that was cut off, or a stray byte, happens once in
many thousand rows. One row in twenty is no accident: the column, the shape or the encoding is another one, and what is
left would be other data than were meant."""

_EARLIEST = 10_000
"""Rows from which on the share is judged while they are read: before, a few bad ones at the start could look like many.
Terabytes of wrong rows end there."""

_NUMBER = re.compile(r"^(a row|row \d+)\b")


@dataclass(slots=True)
class BadRows:
    """The rows of one look at, or one way through, a run's data."""

    skips: bool = False  # True where bad rows are left out.
    rows: int = 0  # Rows that were read.
    count: int = 0  # Those of them that were left out.
    named: list[str] = field(default_factory=list)  # The first of them, with file, line and reason.
    _place: tuple[object, str, object] = ("", "row", 0)

    @classmethod
    def of(cls, data: DataSpec) -> "BadRows":
        """As the settings ask."""
        return cls(skips=data.on_bad_row == SKIP)

    @classmethod
    def read(cls, content: object) -> "BadRows":
        """Read the form of :meth:`as_dict`; no bad rows where it is no such thing."""
        match content:
            case {"rows": int(count), "of": int(rows), "named": list(named)}:
                return cls(True, rows, count, [str(each) for each in named[:NAMED]])
        return cls()

    def at(self, file: object, unit: str, number: object) -> None:
        """Note where the row is that comes next: ``a.jsonl``, ``line``, 3."""
        self.rows += 1
        self._place = (file, unit, number)

    @property
    def place(self) -> str:
        """The place of the newest row."""
        file, unit, number = self._place
        return f"{file}, {unit} {number}" if number is not None else f"{file}, a {unit}"

    def refuse(self, error: Unusable, place: str | None = None, rows: int = 1) -> None:
        """Leave out the row at ``place`` (None: the newest) and the ``rows`` that are lost with it.

        The error is raised where bad rows are errors or it is no fault of the row's, and one of too many bad rows.
        """
        if not self.skips or isinstance(error, PackageMissing):
            raise error from None
        self.count += rows
        self.rows += rows - 1
        if len(self.named) < NAMED:
            self.named.append(f"{place or self.place}: {_NUMBER.sub('it', error.finding.rule)}")
        self.require_few(max(self.rows, _EARLIEST))

    def require_few(self, rows: int | None = None) -> None:
        """See that not too many were left out of so many rows, or of those that were read."""
        most = max(NAMED, SHARE * (self.rows if rows is None else rows))
        if self.count > most:
            rule = f"{self.text}, which is more than {SHARE:.0%} and no accident; the first: {self.named[0]}"
            raise Unusable("data.on_bad_row", SKIP, rule, ["data.on_bad_row=error"])

    @property
    def text(self) -> str:
        """Their number in words."""
        return f"{self.count:,} of {self.rows:,} rows cannot be used"

    @property
    def sentences(self) -> str:
        """Their number, and the first of them."""
        more = f" (and {self.count - len(self.named):,} more)" if self.count > len(self.named) else ""
        return f"{self.text} and are left out: {'; '.join(self.named)}{more}"

    def as_dict(self) -> JsonObject:
        """The form in which ``--json`` and ``meta.json`` hold them."""
        return {"rows": self.count, "of": self.rows, "named": list(self.named)}


def is_text(text: str) -> bool:
    """False where a text holds half of a surrogate pair: an escape of JSON that UTF-8 has none for, or a stray byte."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
