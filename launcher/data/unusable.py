"""Data that cannot be used: one finding, which ``launch check`` reports as a setting's error and which ends a job.

A bad row is an error, or is skipped, counted and named, as ``data.on_bad_row`` says. A reader reports its position
before it passes a row on (:meth:`BadRows.at`), so that faults found later in the row are named by file and line. A
file that cannot be read past a fault is always an error: a truncated compressed file, a damaged Parquet file, a JSON
list with a broken element.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from launcher.base import package
from launcher.base.errors import ConfigError, ConfigErrors, DataError
from launcher.base.files import JsonObject
from launcher.spec.training import DataSpec


class Unusable(DataError):
    """The data cannot be used as configured; ``finding`` says which setting, why, and what to type instead."""

    def __init__(self, path: str, found: object, rule: str, way_out: Iterable[str] = ()) -> None:
        self.finding = ConfigError(path, found, rule, tuple(way_out))
        ways = self.finding.way_out
        super().__init__(f"{self.finding.where}: {rule}" + (f"; try {' or '.join(ways)}" if ways else ""))

    def __reduce__(self) -> "tuple[type[Unusable], tuple[object, ...]]":
        """Pickle the parts of the finding, since a rank sends its error to the others."""
        return type(self), (self.finding.path, self.finding.found, self.finding.rule, self.finding.way_out)


class PackageMissing(Unusable):
    """The package that reads this format is not installed for this Python; the data may be fine."""


@contextlib.contextmanager
def importing(path: str, found: object, needs: str) -> Iterator[None]:
    """Raise PackageMissing for a setting if the block's imports fail; ``needs`` says what needs which package."""
    try:
        yield
    except ImportError:
        rule = f"{needs}, not installed for this Python"
        raise PackageMissing(path, found, rule, [package.install(package.TRAINING)]) from None


class NotHere(Unusable):
    """This machine lacks what a setting names; another machine may have it."""


def as_errors(error: DataError) -> ConfigErrors:
    """The same finding as a configuration error, which every command and API function handles."""
    return ConfigErrors([error.finding if isinstance(error, Unusable) else ConfigError("data", None, str(error))])


SKIP = "skip"
SKIPPING = f"data.on_bad_row={SKIP}"  # The way out for a bad row.
NAMED = 10  # Bad rows that are named for a person to read; also the number always allowed, however small the data.
SHARE = 0.05
"""The share of bad rows beyond which data is refused: a truncated line or a stray byte happens once in many thousand
rows. One row in twenty means that the column, the shape or the encoding is wrong, and the rest would not be the data
that was meant."""

_EARLIEST = 10_000
"""Rows after which the share is checked while reading: earlier, a few bad rows at the start could look like many. So
terabytes of wrong rows stop early."""

_NUMBER = re.compile(r"^(a row|row \d+)\b")


@dataclass(slots=True)
class BadRows:
    """Bad rows counted in one sample of, or one pass over, a run's data."""

    skips: bool = False  # True if bad rows are skipped.
    rows: int = 0  # Rows read.
    count: int = 0  # Rows skipped.
    named: list[str] = field(default_factory=list)  # The first skipped rows, with file, line and reason.
    _place: tuple[object, str, object] = ("", "row", 0)

    @classmethod
    def of(cls, data: DataSpec) -> "BadRows":
        """An empty count that skips as ``data.on_bad_row`` says."""
        return cls(skips=data.on_bad_row == SKIP)

    @classmethod
    def read(cls, content: object) -> "BadRows":
        """Read the form of :meth:`as_dict`; no bad rows if the content is anything else."""
        match content:
            case {"rows": int(count), "of": int(rows), "named": list(named)}:
                return cls(True, rows, count, [str(each) for each in named[:NAMED]])
        return cls()

    def at(self, file: object, unit: str, number: object) -> None:
        """Record the position of the next row: ``a.jsonl``, ``line``, 3."""
        self.rows += 1
        self._place = (file, unit, number)

    @property
    def place(self) -> str:
        """The position of the latest row."""
        file, unit, number = self._place
        return f"{file}, {unit} {number}" if number is not None else f"{file}, a {unit}"

    def refuse(self, error: Unusable, place: str | None = None, rows: int = 1) -> None:
        """Skip the row at ``place`` (None: the latest) and the ``rows`` that are lost with it.

        Raises the error if bad rows are errors or a package is missing, and an error if too many rows are bad.
        """
        if not self.skips or isinstance(error, PackageMissing):
            raise error from None
        self.count += rows
        self.rows += rows - 1
        if len(self.named) < NAMED:
            self.named.append(f"{place or self.place}: {_NUMBER.sub('it', error.finding.rule)}")
        self.require_few(max(self.rows, _EARLIEST))

    def require_few(self, rows: int | None = None) -> None:
        """Raise Unusable if too many of ``rows`` (None: of the rows read) were skipped."""
        most = max(NAMED, SHARE * (self.rows if rows is None else rows))
        if self.count > most:
            rule = f"{self.text}, which is more than {SHARE:.0%}, too many to skip; the first: {self.named[0]}"
            raise Unusable("data.on_bad_row", SKIP, rule, ["data.on_bad_row=error"])

    @property
    def text(self) -> str:
        """The number of bad rows, in words."""
        return f"{self.count:,} of {self.rows:,} rows cannot be used"

    @property
    def sentences(self) -> str:
        """The number of bad rows, and the first of them."""
        more = f" (and {self.count - len(self.named):,} more)" if self.count > len(self.named) else ""
        return f"{self.text} and are skipped: {'; '.join(self.named)}{more}"

    def as_dict(self) -> JsonObject:
        """The form in which ``--json`` and ``meta.json`` hold them."""
        return {"rows": self.count, "of": self.rows, "named": list(self.named)}


def is_text(text: str) -> bool:
    """False if a text contains half of a surrogate pair: a JSON escape that UTF-8 cannot encode, or a stray byte."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
