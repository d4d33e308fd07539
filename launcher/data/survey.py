"""The figures of a look at data."""

from __future__ import annotations

from dataclasses import field

from launcher.base.frozen import dataclass
from launcher.data.unusable import BadRows, Unusable


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Figures of some data, from a sample."""

    format: str  # ``text``, ``JSON lines`` and so on, or ``token ids``.
    files: int  # Their number.
    bytes: int  # Their size on disk.
    columns: tuple[str, ...] = ()  # Of rows; none for text and token ids.
    rows: int | None = None  # Rows, or documents of text; None for token ids.
    rows_exact: bool = True  # False where that is an estimate.
    tokens: int | None = None  # Their number; None where no tokenizer could be asked.
    # Half of the range in which the number of tokens lies, with 95% probability; 0 where it is exact.
    tokens_error: int = 0
    vocabulary: int | None = None  # One more than the tokenizer's largest id; None for token ids.
    largest: int = -1  # The largest id that was seen; -1 where none was.
    seen: int = 0  # Rows or documents that were read.
    empty: int = 0  # Those of them without text.
    duplicates: int = 0  # Those of them that are like an earlier one.
    whole: bool = False  # True if all of the data were read.
    missing: Unusable | None = None  # What could not be looked at for want of a package; None where nothing was.
    # Of conversations that were tokenised, each a sample: tokens, and the place of the first that is trained as a label
    # (None: none is); ``empty`` are rows that are no sample, since nothing can be learnt from them.
    samples: tuple[tuple[int, int | None], ...] | None = None
    # Splits of the folder that ``data.split`` leaves out, each with the number of its files.
    other_splits: tuple[tuple[str, int], ...] = ()
    bad: BadRows = field(default_factory=BadRows)  # The rows that cannot be used, of those that were read.
