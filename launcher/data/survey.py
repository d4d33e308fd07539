"""The figures of a survey of data."""

from dataclasses import field, replace
from typing import Any

from launcher.base.frozen import dataclass
from launcher.data.unusable import BadRows, Unusable


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Figures of some data, from a sample."""

    format: str  # ``text``, ``JSON lines`` and so on, or ``token ids``.
    files: int  # Number of files.
    bytes: int  # Their size on disk, in bytes.
    columns: tuple[str, ...] = ()  # Columns of rows; none for text and token ids.
    rows: int | None = None  # Rows, or documents of text; None for token ids.
    rows_exact: bool = True  # False if ``rows`` is an estimate.
    tokens: int | None = None  # Number of tokens; None if no tokenizer was available.
    # Half-width of the 95% range of ``tokens``; 0 if it is exact.
    tokens_error: int = 0
    vocabulary: int | None = None  # One more than the tokenizer's largest id; None for token ids.
    largest: int = -1  # The largest id seen; -1 if none was.
    seen: int = 0  # Rows or documents read.
    empty: int = 0  # Those without text.
    duplicates: int = 0  # Those equal to an earlier one.
    equal: int = 0  # Tokenised pairs whose chosen and rejected answers are the same.
    whole: bool = False  # True if all of the data was read.
    missing: Unusable | None = None  # What could not be surveyed because a package is missing; None if nothing.
    # Tokenised conversations, each a sample: its tokens, and the index of the first trained label (None: no label);
    # ``empty`` counts rows that are not samples, since nothing can be learnt from them.
    samples: tuple[tuple[int, int | None], ...] | None = None
    # Splits of the folder that ``data.split`` does not select, each with its number of files.
    other_splits: tuple[tuple[str, int], ...] = ()
    parts: "tuple[Survey, ...]" = ()  # The data sets of a mix; the other fields are their totals.
    bad: BadRows = field(default_factory=BadRows)  # The bad rows among those read.


def together(parts: tuple[Survey, ...]) -> Survey:
    """The total figures of a mix's data sets; a number that one of them lacks is unknown."""
    first = parts[0]
    known: Any = {name: [getattr(each, name) for each in parts] for name in _COUNTS}
    counts: Any = {name: None if None in values else sum(values) for name, values in known.items()}
    samples = [each.samples for each in parts]
    return replace(
        first,
        **counts,
        parts=parts,
        columns=tuple(dict.fromkeys(name for each in parts for name in each.columns)),
        rows_exact=all(each.rows_exact for each in parts),
        whole=all(each.whole for each in parts),
        largest=max(each.largest for each in parts),
        missing=next((each.missing for each in parts if each.missing is not None), None),
        samples=None if None in samples else tuple(one for some in samples for one in some or ()),
        bad=BadRows(
            first.bad.skips,
            sum(each.bad.rows for each in parts),
            sum(each.bad.count for each in parts),
            [name for each in parts for name in each.bad.named],
        ),
    )


_COUNTS = ("files", "bytes", "rows", "tokens", "tokens_error", "seen", "empty", "duplicates", "equal")
