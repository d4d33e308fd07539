"""The scoreboard of speed as a document: ``benchmarks/results/speed.md``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.reporting import RESULTS
from benchmarks.speed import baselines, simumax
from benchmarks.speed.entries import Entry
from benchmarks.speed.others import Other
from launcher.rundir.provenance import versions

DOCUMENT = RESULTS / "speed.md"

_COMMAND = "python -m benchmarks.speed --data DIR --publish"

_WORDS = """\
Errors are |predicted / measured - 1| of tokens per second per GPU. The first median and 90th percentile use one
constant per framework and GPU (`launcher/estimate/speed/calibration.json`), the second none. A problem is a model,
GPUs, sequence, batch and precision with at least three measured layouts. *pick* is the measured speed of the layout
that is predicted fastest over the best measured, as geometric mean and worst; *Spearman* is the median rank
correlation. `all` is the mean over the sources with at least ten dense, certain pre-training runs whose layout is
stated in full; its pick is their geometric mean. Runs of mixtures of experts, uncertain runs and fine-tuning are on
separate lines. Models with experts have a second set of constants, from runs of such models; `moe, dense constants`
applies the first set to the same rows. `scaling` is the speed on more GPUs relative to the fewest of a series, the mean
over sources; `fp8 ratio` is the speed of fp8 over bf16 with the same layout."""

_CHECKED = """\
The same rows with other constants, and the share of them in the error band of each: `check` is what `launch check`
predicts with the nearest of our engines, and the constant of that engine and its relatives; `unseen` is what it would
predict if nobody had measured the framework of the row. These bands are scored on the runs they were fitted to. The
bands and constants of the last three columns are refitted: *held out* without the runs of a row's model, `check` and
`unseen` without those of its whole source."""

_FITTED = """\
Some numbers in `benchmarks/speed/frameworks.yaml` are neither formulas nor from a source: the host's time to launch a
kernel and to send a message (`launch_seconds`, `message_seconds`) of Megatron-DeepSpeed were fitted to the rows of
vTrain, and `launch_seconds`, `staged_seconds` and `bucket_bytes` of nanotron to its own rows. `fitted` marks them. They
also affect the raw columns above. Below are the same rows with the defaults of every framework instead
(`python -m benchmarks.speed --data DIR --no-host-constants`); no backend that `launch` runs has such numbers."""

_OTHERS = """\
The same rows; each predictor is corrected by one constant per framework and GPU, fitted to these same rows. Rows are
those that it covers."""


def publish(entries: Sequence[Entry], plain: Sequence[Entry], beside: Sequence[str]) -> None:
    """Write the document.

    Args:
        entries: The scores.
        plain: Those of the sources whose frameworks have fitted features, without these.
        beside: The table of SimuMax's own predictions.
    """
    DOCUMENT.write_text("\n".join(document(entries, plain, beside)) + "\n")


def document(entries: Sequence[Entry], plain: Sequence[Entry] = (), beside: Sequence[str] = ()) -> Iterator[str]:
    """Its lines."""
    git = versions()["git"]
    commit = git["commit"][:12] if git else "unknown"
    yield "# Scoreboard: predicted against measured speed"
    yield ""
    yield f"Written by `{_COMMAND}` on {time.strftime('%Y-%m-%d')} at commit {commit}."
    yield ""
    yield _WORDS
    yield ""
    yield from _head("runs of, rows, median, 90 % within, raw median, raw 90 %, problems, pick, worst pick, Spearman")
    yield from (_line(entry) for entry in entries if entry.rows)
    yield ""
    yield "## As `launch check` predicts it, and for an unmeasured framework"
    yield ""
    yield _CHECKED
    yield ""
    yield from _head("runs of, rows, in band, check, 90 %, in band, unseen, 90 %, in band, held out, check, unseen")
    yield from (_checked_line(entry) for entry in entries if entry.within is not None)
    yield ""
    yield "## Without fitted host constants"
    yield ""
    yield _FITTED
    yield ""
    yield from _head("runs of, rows, raw median, raw 90 %, problems, pick, Spearman")
    yield from (_plain_line(entry) for entry in plain if entry.rows)
    yield ""
    if beside:
        yield from ("## SimuMax on its own runs", "", simumax.WORDS, "", *beside, "")
    yield "## Other predictors"
    yield ""
    yield _OTHERS
    yield ""
    yield from _head("runs of, predictor, rows, median, pick, Spearman")
    for entry in entries:
        if entry.family in ("all", "nanotron sound"):
            yield from _others(entry.family, entry.baselines)
    yield ""
    yield from (f"- {name}: {baselines.load(name).SOURCE}" for name in baselines.names())
    yield ""
    yield "## Rows left out"
    yield ""
    yield from _head("runs of, rows, reason")
    for entry in entries:
        yield from (f"| {entry.family} | {number} | {reason} |" for reason, number in sorted(entry.left_out.items()))


def _head(names: str) -> Iterator[str]:
    yield f"| {names.replace(', ', ' | ')} |"
    yield f"|{'---|' * (names.count(',') + 1)}"


def _line(entry: Entry) -> str:
    errors = (entry.median, entry.p90, entry.median_uncalibrated, entry.p90_uncalibrated)
    choices = (entry.pick, entry.pick_worst, entry.spearman)
    cells = [entry.family, str(entry.rows), *map(percent, errors), str(entry.problems or "-"), *map(share, choices)]
    return f"| {' | '.join(cells)} |"


def _checked_line(entry: Entry) -> str:
    stated = (number for one in (entry.checked, entry.unseen) for number in (one.median, one.p90, one.within))
    held_out = entry.held_out
    cells = [entry.family, str(entry.rows), percent(entry.within), *map(percent, stated)]
    cells += map(percent, (held_out.within, held_out.checked, held_out.unseen))
    return f"| {' | '.join(cells)} |"


def _plain_line(entry: Entry) -> str:
    errors, choices = (entry.median_uncalibrated, entry.p90_uncalibrated), (entry.pick, entry.spearman)
    cells = [entry.family, str(entry.rows), *map(percent, errors), str(entry.problems or "-"), *map(share, choices)]
    return f"| {' | '.join(cells)} |"


def _others(family: str, found: Mapping[str, Other]) -> Iterator[str]:
    for name, other in found.items():
        cells = [family, name, str(other.rows), percent(other.median), share(other.pick), share(other.spearman)]
        yield f"| {' | '.join(cells)} |"


def percent(error: float | None) -> str:
    """An error as people read it."""
    return "-" if error is None else f"{100 * error:.1f}%"


def share(value: float | None) -> str:
    """A share of the best, or a correlation."""
    return "-" if value is None else f"{value:.3f}"
