"""The figures of a look at data."""

from dataclasses import field, replace
from typing import Any

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
    parts: "tuple[Survey, ...]" = ()  # The data sets of a mix, of which these are the figures together.
    bad: BadRows = field(default_factory=BadRows)  # The rows that cannot be used, of those that were read.


def together(parts: tuple[Survey, ...]) -> Survey:
    """The figures of all data sets of a mix; numbers that one of them lacks are unknown."""
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


_COUNTS = ("files", "bytes", "rows", "tokens", "tokens_error", "seen", "empty", "duplicates")
