"""The figures of a look at data."""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.data.unusable import BadRows, Unusable


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
