"""A look at a run's data before it starts, which takes no time where the same files were looked at before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from launcher.base import cache
from launcher.base.package import __version__
from launcher.data.files import files_of, other_splits, stamps
from launcher.data.unusable import BadRows, Unusable
from launcher.spec import DataSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Figures of some data, from a sample.

    Attributes:
        format: ``text``, ``JSON lines`` and so on, or ``token ids``.
        files: Their number.
        bytes: Their size on disk.
        columns: Of rows; none for text and token ids.
        rows: Rows, or documents of text; None for token ids.
        rows_exact: False where that is an estimate.
        tokens: Their number; None where no tokenizer could be asked.
        tokens_error: Half of the range in which the number of tokens lies, with 95% probability; 0 where it is exact.
        vocabulary: One more than the tokenizer's largest id; None for token ids.
        largest: The largest id that was seen; -1 where none was.
        seen: Rows or documents that were read.
        empty: Those of them without text.
        duplicates: Those of them that are like an earlier one.
        whole: True if all of the data were read.
        missing: What could not be looked at for want of a package; None where nothing was.
        samples: Of conversations that were tokenised, each a sample: tokens, and the place of the first that is trained
            as a label (None: none is); ``empty`` are rows that are no sample, since nothing can be learnt from them.
        other_splits: Splits of the folder that ``data.split`` leaves out, each with the number of its files.
        bad: The rows that cannot be used, of those that were read.
    """

    format: str
    files: int
    bytes: int
    columns: tuple[str, ...] = ()
    rows: int | None = None
    rows_exact: bool = True
    tokens: int | None = None
    tokens_error: int = 0
    vocabulary: int | None = None
    largest: int = -1
    seen: int = 0
    empty: int = 0
    duplicates: int = 0
    whole: bool = False
    missing: Unusable | None = None
    samples: tuple[tuple[int, int | None], ...] | None = None
    other_splits: tuple[tuple[str, int], ...] = ()
    bad: BadRows = field(default_factory=BadRows)


_KEPT = tuple(
    name
    for name in Survey.__slots__
    if name not in ("missing", "samples", "other_splits", "bad")  # Empty in a survey that is kept.
)


def look(data: DataSpec) -> Survey | None:
    """Look at data; None where nothing is on this machine: for synthetic data, or a name of the Hub."""
    if data.source == "synthetic" or data.path is None:
        return None
    files = files_of(data)
    return replace(_survey(files, data), other_splits=tuple(other_splits(data).items())) if files else None


def _survey(files: Sequence[Path], data: DataSpec) -> Survey:
    """The survey of files, kept by their paths, sizes and times where it depends on nothing else."""

    def found() -> Survey:
        from launcher.data.survey import survey  # Late, because files that were looked at before need no reader.

        return survey(files, data)

    if data.marked or data.tokenizer != "bytes" or data.on_bad_row != "error":
        return found()
    question = [__version__, data.source, data.column, data.token_dtype, stamps(files)]
    kept = cache.answer("surveys", question, lambda: _kept(found()))
    return Survey(**kept | {"columns": tuple(kept["columns"])})


def _kept(survey: Survey) -> dict[str, object]:
    return {name: getattr(survey, name) for name in _KEPT}


class Remembered:
    """Looks at each data once: for many runs that are judged in one go."""

    def __init__(self) -> None:
        self._known: dict[DataSpec, Survey | Unusable | None] = {}

    def __call__(self, data: DataSpec) -> Survey | None:
        """As :func:`look`."""
        if data not in self._known:
            try:
                self._known[data] = look(data)
            except Unusable as error:
                self._known[data] = error
        found = self._known[data]
        if isinstance(found, Unusable):
            raise found
        return found

    def forget(self) -> None:
        """Look at everything anew."""
        self._known.clear()
