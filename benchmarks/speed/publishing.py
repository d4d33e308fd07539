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
Errors are |predicted / measured - 1| of tokens a second and GPU. The first median and 90th percentile are with one
constant for a framework and GPU (`launcher/estimate/speed/calibration.json`), the second without any. A problem is a
model, GPUs, sequence, batch and precision of which three layouts or more were measured; *pick* is the measured speed of
the layout that is predicted fastest over the best measured, its geometric mean and its worst, *Spearman* the median
correlation of ranks. `all` is the mean over the sources with ten dense, certain pre-training runs or more whose
layout is stated in full, its pick their geometric mean. Runs of mixtures of experts, uncertain ones and fine-tuning
are on lines of their own; models with experts have a second set of constants, of runs of such models, and `moe, dense
constants` is what the first set makes of the same rows. `scaling` is the speed on more GPUs relative to the fewest of
a series, the mean over sources; `fp8 ratio` that of fp8 over bf16 with the same layout."""

_CHECKED = """\
The same rows with other constants, and the share of them in the error band that is stated with each: `check` is what
`launch check` says, whose engine is the nearest of ours and takes the constant of that engine and its relatives;
`unseen` what it would say if nobody had measured the framework of the row. These bands rest on the very runs that they
are scored with. Those of the last three columns do not, whose bands and constants are fitted anew: *held out* without
the runs of a row's model, `check` and `unseen` without those of its whole source."""

_FITTED = """\
Some numbers of `benchmarks/speed/frameworks.yaml` are no formulas and are read in no source: the host's time to start a
kernel and to send a message (`launch_seconds`, `message_seconds`) of Megatron-DeepSpeed were chosen on the rows of
vTrain, and `launch_seconds`, `staged_seconds` and `bucket_bytes` of nanotron on its own rows. `fitted` marks them. They
act in the raw columns above, too. These are the same rows with the defaults of every framework in their place
(`python -m benchmarks.speed --data DIR --no-host-constants`); no backend that `launch` runs has such numbers."""

_OTHERS = """\
The same rows, each predictor after one constant for a framework and GPU that is fitted on these very rows; rows are
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
    yield "## As a check says it, and of a stack that nobody has measured"
    yield ""
    yield _CHECKED
    yield ""
    yield from _head("runs of, rows, in band, check, 90 %, in band, unseen, 90 %, in band, held out, check, unseen")
    yield from (_checked_line(entry) for entry in entries if entry.within is not None)
    yield ""
    yield "## Without constants of the host"
    yield ""
    yield _FITTED
    yield ""
    yield from _head("runs of, rows, raw median, raw 90 %, problems, pick, Spearman")
    yield from (_plain_line(entry) for entry in plain if entry.rows)
    yield ""
    if beside:
        yield from ("## Beside SimuMax, on its own runs", "", simumax.WORDS, "", *beside, "")
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
